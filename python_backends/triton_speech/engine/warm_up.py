"""One short stream before any caller's, so that no caller pays for what is made at the first."""

from __future__ import annotations

from ..families.registry import Family
from .api import TalkerRequest
from .runner import Engine

_STREAM = "warm-up"


def warm_up(engine: Engine, family: Family, frames: int) -> None:
    """Runs a prompt and as many steps as so many frames take. A talker may make no frame of it, step after step."""
    prompt = family.make_prompt(list(family.WARM_UP_TOKENS), None, None)
    engine.add(TalkerRequest(_STREAM, prompt, family.make_sampling(0, {}), max_frames=frames))
    for _ in range(prompt.length + frames):
        if engine.is_idle:
            return
        engine.step()
    engine.cancel(_STREAM)
    while not engine.is_idle:
        engine.step()
