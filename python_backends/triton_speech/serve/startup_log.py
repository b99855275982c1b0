"""Reads from a server's log why it did not start."""

from __future__ import annotations

import re

_FAILED = re.compile(r"failed to load '(?P<model>[^']+)' version \S+: (?P<why>.*)")
_INVALID = re.compile(r"Poll failed for model directory '(?P<model>[^']+)': (?P<why>.*)")
_UNAVAILABLE = re.compile(r"^\|\s*(?P<model>\S+)\s*\|\s*\S+\s*\|\s*UNAVAILABLE: (?P<why>.*?)\s*\|$", re.MULTILINE)
_UNREADABLE = re.compile(r"failed to read text proto from \S*?(?P<file>[^/\s]+\.pbtxt)")
_SYNTAX = re.compile(r"Error parsing text-format \S+ (?P<why>\d+:\d+: .*)")
_LOADING = re.compile(r"loading: (?P<model>[^\s\":]+):\d+")
_LOADED = re.compile(r"successfully loaded '(?P<model>[^']+)'")
_ERROR = re.compile(r"^(?:E\d{4} \S+\s+\d+ \S+\] \"?(?P<logged>.*)|(?P<printed>.*\berror\b.*))$", re.MULTILINE)
# What a server on a machine without a GPU says although nothing is wrong.
_HARMLESS = ("CudaDriverHelper", "NVML", "DCGM")
# "Code - " or "Code: ", as Triton puts them before a status text.
_CODE = re.compile(r"^(?:Internal|Invalid argument|Unavailable|Not found|Unsupported|Unknown|Already exists)(?: - |: )")
_TRACEBACK = re.compile(r"\s*\n\s*(?:At:|Traceback \(most recent call last\):).*", re.DOTALL)


def failure(log: str) -> str:
    """The shortest sentence that says what went wrong: the model and its error, else the last error line."""
    found = [match for pattern in (_FAILED, _INVALID, _UNAVAILABLE) for match in pattern.finditer(log)]
    if found:
        # A pipeline whose stage failed fails too; the stage is the cause.
        match = next((match for match in found if "depends on" not in match["why"]), found[0])
        return f"model '{match['model']}' did not load: {_syntax(log, match) or _plain(match['why'])}"
    errors = [match["logged"] or match["printed"] or "" for match in _ERROR.finditer(log)]
    errors = [line for line in errors if not any(mark in line for mark in _HARMLESS)]
    lines = errors or [line for line in log.splitlines() if line.strip()]
    return _plain(lines[-1]) if lines else "its log is empty"


def still_loading(log: str) -> list[str]:
    """The models that began to load and have neither succeeded nor failed, in the log's order."""
    ended = set(_LOADED.findall(log)) | {match["model"] for match in _FAILED.finditer(log)}
    return [model for model in dict.fromkeys(_LOADING.findall(log)) if model not in ended]


def _syntax(log: str, match: re.Match[str]) -> str | None:
    """File, line and column of a configuration that cannot be read; the parser logs them one line earlier."""
    file = _UNREADABLE.search(match["why"])
    places = _SYNTAX.findall(log, 0, match.start())
    return f"{file['file']}:{places[-1]}" if file and places else None


def _plain(text: str) -> str:
    """One line without log quoting, status codes and tracebacks."""
    text = text.strip().removesuffix('"').replace("\\n", "\n").replace('\\"', '"')
    text = _TRACEBACK.sub("", text)
    return " ".join(_CODE.sub("", text).split())
