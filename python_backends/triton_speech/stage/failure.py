"""How a talker in an ensemble tells the codec, the next step, that a stream has failed: in its FINISH_REASON.

An error that is answered there ends the ensemble's request, and nothing reaches the codec any more, which would keep
the stream's place for as long as it may be idle. So the failure goes with the last chunk, and the codec answers it.
"""

from __future__ import annotations

from ..errors import SpeechError

_MARK = "failed: "


def finish_of(error: SpeechError) -> str:
    """The FINISH_REASON of a stream that ends with this error."""
    return _MARK + error.text


def failure_in(finish: str) -> SpeechError | None:
    """The error that a FINISH_REASON tells; None for those of a stream that has not failed."""
    return SpeechError.from_text(finish.removeprefix(_MARK)) if finish.startswith(_MARK) else None
