"""Everyday sentences out of patterns: what dictionaries do not say, with names, numbers, times and questions."""

from __future__ import annotations

import random
import re

WORDS = {
    "name": "James Mary John Linda Robert Susan Michael Karen David Nancy William Lisa Richard Sarah Joseph Emma "
    "Thomas "
    "Anna Daniel Laura Matthew Maria Anthony Julia Mark Alice Paul Helen Steven Grace Andrew Rachel Kevin Diana Brian "
    "George Sophia Edward Chloe Jason Hannah Ryan Lucy Jacob Ella Eric Kate Adam Leo Oscar Peter Max Nora Ivan Carlos "
    "Elena Ahmed Fatima Wei Ming Yuki Ravi Priya Omar Lena Hugo Clara Victor Alexander Christine Margaret Frederick "
    "Penelope Theodore Vanessa Gregory Nicole Patrick Monica Leonard Cynthia Walter Irene Timothy Joan Raymond Phoebe",
    "surname": "Smith Johnson Miller Davis Wilson Moore Taylor Jackson Harris Martin Clark Lewis Walker Hall Young "
    "King "
    "Wright Green Adams Nelson Carter Mitchell Roberts Turner Phillips Campbell Parker Evans Edwards Collins Stewart",
    "city": "London|Paris|Berlin|Tokyo|New York|Chicago|Boston|Seattle|Denver|Austin|Madrid|Rome|Vienna|Sydney|Toronto|"
    "Mumbai|Dublin|Oslo|Lisbon|Cairo|Lima|Athens|Prague|Warsaw|Helsinki|Singapore|Seoul|Montreal|San Francisco|Zurich|"
    "Philadelphia|Copenhagen|Stockholm|Brussels|Vancouver|Melbourne|Buenos Aires|Nairobi|Istanbul|Hong Kong",
    "country": "France|Germany|Japan|Canada|Spain|Italy|Austria|Australia|India|Ireland|Norway|Portugal|Egypt|Peru|"
    "Greece|Poland|Finland|Brazil|Mexico|Sweden|Denmark|Turkey|Argentina|Switzerland|Scotland|Wales|Morocco|Vietnam",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "month": "January February March April May June July August September October November December",
    "thing": "the server|the model|the file|the report|the meeting|the package|the computer|the network|the printer|"
    "the website|the update|the machine|the camera|the phone|the battery|the screen|the keyboard|the program|the song|"
    "the message|the recording|the voice assistant|the speech engine|the memory|the queue|the batch|the pipeline|"
    "the container|the train|the bus|the flight|the coffee|the kitchen|the garden|the car|the bridge|the river|"
    "the book|"
    "the letter|the picture|the weather|the project|the schedule|the contract|the order|the ticket|the hotel|"
    "the museum|"
    "the library|the school|the office|the table|the kettle|my bag|your jacket|our house|the mountain|the beach|"
    "the bank",
    "state": "ready|broken|slow|fast|new|old|empty|full|open|closed|available|offline|busy|quiet|warm|cold|clean|dirty|"
    "heavy|light|expensive|cheap|simple|important|useful|stable|late|early|perfect|different|bright|dark|small|large|"
    "beautiful|interesting|finished|delayed|missing|correct|wrong|safe|free|remote|comfortable|surprising|quite good",
    "do": "restart|check|open|close|update|remove|copy|move|save|download|send|start|stop|pause|test|build|review|"
    "print|"
    "clean|fix|find|read|share|record|measure|cancel|confirm|change|watch|try|use|describe|explain|bring|sell|paint",
    "count": "people|files|books|requests|users|words|cars|samples|messages|apples|chairs|students|trees|stations|"
    "pages",
    "when": "now|later|tomorrow|tonight|again|next week|in a minute|this afternoon|on {day}|before lunch|after dinner|"
    "as soon as possible|at {time}|in {month}",
    "greet": "Hello|Hi|Hi there|Good morning|Good afternoon|Good evening|Welcome|Hey|Thank you|Thanks|Hello again|Dear",
    "who": "I|You|We|They",
    "whose": "my|your|our|his|her|their",
    "near": "This|That",
    "kin": "friend|house|idea|first day|favorite song|new computer|brother|sister|teacher|plan|best work|mother|"
    "neighbor",
    "why": "How|Where|When|Why",
    "ask": "did you|do you|can we|should I|will they|could she|would you",
    "reply": "Yes|No|Okay|Sure|Well|Of course|Maybe|Sorry|Great|Right|Oh",
    "think": "I think so|I agree|that is fine|that works|I'm not sure|it's all right|let's begin|we can do that|you're "
    "right|here it is|I don't know|they won't mind|it doesn't matter|we've been there",
    "link": "but|and|because|so|although|while|since|before|after|until",
    "adverb": "slowly|quickly|carefully|suddenly|quietly|finally|usually|often|already|probably",
}
PATTERNS = (
    """
{greet}, {name}.
{greet}, my name is {name}.
{greet}, {name}, how are you today?
{greet}, welcome to {city}!
{greet}! This is a short test of the speech engine.
{greet}, this is a message from {name} {surname}.
{Thing} is {state}.
{Thing} is {state} and {state}.
Is {thing} {state}?
{Thing} was {state} on {day}.
Please {do} {thing}.
Please {do} {thing} before {day}.
Can you {do} {thing}?
Could you please {do} {thing} and {do} {thing}?
I will {do} {thing} {when}.
We need to {do} {thing} {when}.
{name} wants to {do} {thing}.
{name} and {name} live in {city}.
{name} is going to {city} in {month}.
{name} {surname} comes from {city}, but she works in {country}.
Doctor {surname} will see {name} on {day} at {time}.
Have you met {name} {surname} from {country}?
The flight from {city} to {city} leaves at {time}.
The answer is {number}.
{number} plus {number} is {number}.
There are {number} {count} in {thing}.
{Thing} has {small} pages and {small} pictures.
It is {time}.
Today is {day}, {month} {ordinal}.
It happened in {year}.
She was born on {month} {ordinal}, {year}.
The temperature is {small} degrees in {city}.
The price is {number} dollars and {small} cents.
{small} percent of the {count} are {state}.
{small}, {small}, {small}, {small}.
Version {small} point {small} is {state}.
Chapter {small} begins on page {number}.
Room {number} is on floor {small}.
It is {number} miles from {city} to {city}.
{reply}, {think}.
{reply}! {Think}, {think}.
{why} {ask} {do} {thing}?
{why} {ask} {do} {thing} {when}?
{who} need {thing}.
{near} is {whose} {kin}.
{near} is {whose} {kin} {name}.
If {thing} is {state}, {do} {thing}.
When {thing} is {state}, we can {do} {thing}.
{Thing} and {thing} are {state}, but {thing} is {state}.
{name} said, "{Think}."
"{Think}," said {name}, "{link} {thing} is {state}."
{Thing} is {state}; {thing} isn't.
{name} {adverb} opened {thing}, {link} {thing} was {state}.
Three things are {state}: {thing}, {thing} and {thing}.
{Thing} ({whose} {kin}, {think}) was {adverb} {state}.
{name} - {whose} {kin} - wants to {do} {thing} {when}.
{name} told us that {thing} was {state}, {link} {name} had {adverb} forgotten to {do} {thing} in {city}.
{link}ever you {do} {thing} {when}, make sure that {thing} is {state}, and {adverb} {do} {thing}.
""".replace("{link}ever", "Whenever")
    .strip()
    .splitlines()
)
_FIELD = re.compile(r"{(\w+)}")
_CHOICES = {name: words.split("|") if "|" in words else words.split() for name, words in WORDS.items()}
_ORDINAL = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}


class Patterns:
    """Fills patterns; the same source of chance gives the same sentences. Half of the numbers are digits."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def sentence(self) -> str:
        return self.fill(self._source.choice(PATTERNS))

    def fill(self, pattern: str) -> str:
        text = _FIELD.sub(lambda found: self._value(found[1]), pattern)
        return text[0].upper() + text[1:]

    def _value(self, field: str) -> str:
        if field[0].isupper():
            value = self._value(field.lower())
            return value[0].upper() + value[1:]
        if field in _CHOICES:
            return self.fill_inner(self._source.choice(_CHOICES[field]))
        return self._number(field)

    def fill_inner(self, text: str) -> str:
        """A choice may have fields of its own."""
        return _FIELD.sub(lambda found: self._value(found[1]), text)

    def _number(self, field: str) -> str:
        from num2words import num2words

        source = self._source
        if field == "time":
            hour, minute = source.randint(1, 12), source.choice((0, 10, 15, 20, 30, 40, 45, 50))
            return f"{hour} o'clock" if not minute else f"{hour}:{minute}"
        if field == "ordinal":
            day = source.randint(1, 31)
            return f"{day}{_ORDINAL.get(day, 'th')}" if source.random() < 0.5 else num2words(day, to="ordinal")
        if field == "year":
            year = source.randint(1500, 2030)
            return str(year) if source.random() < 0.6 else num2words(year, to="year")
        top = 60 if field == "small" else source.choice((20, 100, 1000, 1000, 10000))
        number = source.randint(0, top)
        return str(number) if source.random() < 0.5 else num2words(number).replace(",", "")
