"""``triton-speech batch``: every line of a text file becomes an audio file; a second run goes on where one ended."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from triton_speech_client.aio_client import AsyncSpeechClient
from triton_speech_client.cli.audio_file import AudioFile
from triton_speech_client.cli.say import add_request_arguments, options
from triton_speech_client.errors import InvalidRequest, SpeechClientError
from triton_speech_client.request import SpeechOptions, build_tensors
from triton_speech_client.speech import FILE_FORMATS

INDEX = "index.jsonl"
"""In the output folder: one JSON object for each file that is whole, with what it was made from."""
ERRORS = "errors.txt"
RETRIES = 10
"""A server that is full is no reason to give a line up."""
READY_SECONDS = 10.0
_SHOWN = 10


class Line(NamedTuple):
    """A line that is to be spoken. ``made_from`` identifies its text and options."""

    number: int
    text: str
    file: str
    made_from: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``batch``; those of the request hold for every line."""
    parser.add_argument("input", type=Path, help="UTF-8 text; each line that is not blank becomes a file")
    parser.add_argument(
        "output", type=Path, help="folder for 00001.wav, ..., named by line; made where it is not there"
    )
    formats = [suffix.removeprefix(".") for suffix in FILE_FORMATS]
    parser.add_argument("--format", choices=formats, default="wav", help="of the files (%(default)s)")
    parser.add_argument("--concurrency", type=int, default=4, metavar="N", help="lines at once (%(default)s)")
    add_request_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """0 when every line has its file, 1 when some have not; raises where no line could have one."""
    if args.concurrency < 1:
        raise InvalidRequest("concurrency", f"{args.concurrency} is not a positive number")
    given = {name: value for name, value in options(args).items() if value is not None}
    tensors = build_tensors("", **given)  # type: ignore[arg-type]
    # The recordings once, not again with every line.
    for name, field in (("reference", "REFERENCE_AUDIO"), ("prompt_audio", "PROMPT_AUDIO")):
        if name in given:
            given[name] = tensors[field].item()
    key = _digest(args.pipeline, given)
    lines = list(read_lines(args.input, args.format, key))
    args.output.mkdir(parents=True, exist_ok=True)
    done = read_index(args.output)
    missing = [line for line in lines if done.get(line.file) != line.made_from]
    errors = asyncio.run(_speak_all(args, missing, len(lines), given))  # type: ignore[arg-type]
    there, made = len(lines) - len(missing), len(missing) - len(errors)
    print(f"{args.output}: {len(lines)} lines, {there} were there, {made} made now")
    _tell(args.output / ERRORS, errors)
    return 1 if errors else 0


def read_lines(path: Path, suffix: str, key: str) -> Iterator[Line]:
    """The lines of a file that are not blank; ``key`` stands for the options that they are spoken with."""
    try:
        texts = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as e:
        raise InvalidRequest("input", f"{str(path)!r} is not UTF-8 at byte {e.start}") from e
    for number, text in enumerate(map(str.strip, texts), 1):
        if text:
            yield Line(number, text, f"{number:05d}.{suffix}", _digest(key, text))


def read_index(folder: Path) -> dict[str, str]:
    """What each file in the folder was made from; a file that is not whole has no entry."""
    made: dict[str, str] = {}
    with contextlib.suppress(FileNotFoundError):
        for text in (folder / INDEX).read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # the last line of a run that was killed
                entry = json.loads(text)
                made[entry["file"]] = entry["made_from"]
    return {file: made_from for file, made_from in made.items() if (folder / file).is_file()}


async def _speak_all(
    args: argparse.Namespace, missing: list[Line], total: int, given: SpeechOptions
) -> dict[Line, SpeechClientError]:
    errors: dict[Line, SpeechClientError] = {}
    if not missing:
        return errors
    waiting = iter(missing)
    with (
        (args.output / INDEX).open("a", encoding="utf-8") as index,
        tqdm(total=total, initial=total - len(missing), unit="line", disable=None, file=sys.stderr) as progress,
    ):
        # What a killed run left half written ends here.
        index.write("\n" if index.tell() else "")
        async with AsyncSpeechClient(args.url, args.pipeline, args.timeout, retries=RETRIES) as client:
            await client.wait_ready(READY_SECONDS)

            async def work() -> None:
                for line in waiting:
                    try:
                        entry = await _speak(client, line, args.output, args.deadline, given)
                    except SpeechClientError as error:
                        if isinstance(error, InvalidRequest) and error.field != "TEXT":
                            raise  # no other line would fare better
                        errors[line] = error
                    else:
                        index.write(json.dumps(entry, ensure_ascii=False) + "\n")
                        index.flush()
                    progress.update()

            workers = [asyncio.ensure_future(work()) for _ in range(min(args.concurrency, len(missing)))]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
    return errors


async def _speak(
    client: AsyncSpeechClient, line: Line, folder: Path, deadline: float | None, given: SpeechOptions
) -> dict[str, Any]:
    """Writes the line's file, which appears when it is whole; returns what the index says of it."""
    seconds, reason = 0.0, ""
    with AudioFile(folder / line.file) as file:
        async with contextlib.aclosing(client.stream(line.text, pcm16=True, deadline=deadline, **given)) as chunks:
            async for chunk in chunks:
                file.write(chunk)
                seconds += chunk.duration
                reason = chunk.finish_reason
    entry = {"file": line.file, "line": line.number, "text": line.text, "seconds": round(seconds, 3)}
    return entry | {"finish_reason": reason, "made_from": line.made_from}


def _tell(path: Path, errors: Mapping[Line, SpeechClientError]) -> None:
    """Lists the lines that failed, in a file and the first of them on stderr; no file where there are none."""
    if not errors:
        path.unlink(missing_ok=True)
        return
    told = [f"line {line.number}: {error}" for line, error in sorted(errors.items())]
    path.write_text("\n".join(told) + "\n", encoding="utf-8")
    more = [f"... and {len(told) - _SHOWN} more"] if len(told) > _SHOWN else []
    head = f"{len(told)} {'line' if len(told) == 1 else 'lines'} failed, see {path}; run it again for the rest:"
    print("\n".join([head, *told[:_SHOWN], *more]), file=sys.stderr)


def _digest(key: str, value: Any) -> str:
    text = json.dumps([key, value], default=lambda b: hashlib.sha256(b).hexdigest(), sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
