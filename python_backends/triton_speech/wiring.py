"""Which models a front door calls: the launcher has to know it as well, to serve and to heal them."""

from __future__ import annotations

STAGES = ("frontend", "reference", "talker", "codec")
"""What every front door calls."""


def models_named(stages: str) -> tuple[str, ...]:
    """The models in a front door's parameter ``stages``."""
    return tuple(name.strip() for name in stages.split(",") if name.strip())


def usual_models(family: str) -> tuple[str, ...]:
    """The models of a front door that has no such parameter; it bears the family's name."""
    return tuple(f"{family}_{stage}" for stage in STAGES)


def models_of(family: str, stages: str) -> dict[str, str]:
    """The model for each of ``STAGES``, which is the end of its name.

    Raises:
        ValueError: ``stages`` names none, or several, for one of them.
    """
    names = models_named(stages) or usual_models(family)
    found = {stage: [name for name in names if name.endswith(f"_{stage}")] for stage in STAGES}
    for stage, models in found.items():
        if len(models) != 1:
            raise ValueError(f"parameter stages is {stages!r}: must name one model that ends with '_{stage}'")
    return {stage: models[0] for stage, models in found.items()}
