"""What the sections of both configuration files have in common: how they are read, and how errors are told."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator


class Section(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


Whole = TypeVar("Whole", bound=Section)


class AttentionSection(Section):
    """Fields of every stack of transformer layers."""

    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0, multiple_of=2)
    rope_theta: float = Field(gt=0)
    attention_bias: Literal[False] = False

    @model_validator(mode="after")
    def _heads_fit(self) -> AttentionSection:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads is {self.num_attention_heads}, "
                f"not a multiple of num_key_value_heads ({self.num_key_value_heads})"
            )
        return self


def read_section(kind: type[Whole], folder: Path, name: str) -> Whole:
    """Reads the file ``name`` of a checkpoint's folder.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it does not fit ``kind``; names each field that is wrong, its value and what is allowed.
    """
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(f"checkpoint {folder.name!r} has no {name}")
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        wrong = "; ".join(_told(one.get("loc", ()), one["msg"], one.get("input")) for one in error.errors())
        raise ValueError(f"{name} of checkpoint {folder.name!r} is not usable: {wrong}") from error


def _told(where: tuple[int | str, ...], message: str, value: object) -> str:
    shown = "" if isinstance(value, dict | list) else f" is {value!r}"
    return f"{'.'.join(map(str, where)) or 'the file'}{shown}: {message}"
