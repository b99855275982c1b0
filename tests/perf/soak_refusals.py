"""What is refused: the rows of ``tests/server/bad_inputs.yaml`` as the soak sends them."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import soak_family
from soak_hearing import Ending

from triton_speech_client.errors import InvalidRequest

FOLDER = Path(__file__).resolve().parents[1] / "server"
sys.path.append(str(FOLDER))

from bad_inputs import Row, family_rows  # noqa: E402


def rows_of(pipeline: str) -> list[Row]:
    """Those that hold for a pipeline."""
    return [row for row in _rows(soak_family.chosen.name) if pipeline in row.pipelines]


@cache
def _rows(family: str) -> list[Row]:
    return family_rows(family)


def fault(row: Row, ending: Ending) -> str:
    """What is wrong with the refusal; empty when it was refused with its field's name and what is allowed."""
    error = ending.error
    if ending.fault() or ending.samples or not isinstance(error, InvalidRequest):
        return f"{ending.fault() or 'no refusal'}: {error!r}"
    if error.field != row.field or row.says not in str(error):
        return f"{error.field} is named: {error}"
    # Triton's own checks come before any model, and their errors without a flag.
    return "" if ending.finals == 1 or is_by_triton(row, ending) else f"{ending.finals} final flags"


def is_by_triton(row: Row, ending: Ending) -> bool:
    """Whether no stage has seen the request."""
    return bool(ending.errors) and f"'{row.field}'" in ending.errors[0] and not ending.finals
