"""Words that no text for training, and no sentence for evaluation, may have."""

from __future__ import annotations

import re

_STEMS = """
abort abus alcohol assault bastard beat bitch blood bomb breast bowel cancer cocain communis corps cripp damn dead death
demon devil die died dies drug drunk dying enem erotic ethnic execut excre faec fascis fece fuck gay genital gun
hate hell heroin hitler homosex idiot infect islam jail jesus jew kill lesbian lust moron murder muslim naked nazi negro
nude orgasm penis piss poison pregnan prison prostitut racis rape retard sadis satan savage seduc semen sex shit shoot
shot slave slut soldier stab strangl stupid suicid terror thief tortur troops tumor ugly urin vagin victim virgin vomit
war weapon whip whore widow wound
"""
_WHOLE = (
    "arse army ass asses battle battles crime crimes criminal fat god gods hanged hung lord mistress navy scream wife"
)
_PATTERN = re.compile(rf"\b(?:(?:{'|'.join(_STEMS.split())})\w*|(?:{'|'.join(_WHOLE.split())}))\b", re.IGNORECASE)
_HARMLESS = re.compile(
    r"\b(?:ward\w*|ware\w*|warehous\w*|warm\w*|warn\w*|warp\w*|warr\w*|wart\w*|wary|warsaw|deadline\w*|"
    r"demonstra\w*|diego|diesel|diet\w*|hatch\w*|hello|stable|stability|stabili[sz]\w*)\b",
    re.IGNORECASE,
)


def is_blocked(text: str) -> bool:
    """Whether ``text`` has a word that is not to be learnt. Rather one too many than one too few."""
    return _PATTERN.search(_HARMLESS.sub("", text)) is not None
