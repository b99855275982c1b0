"""The rows of ``bad_inputs.yaml``: what each input is as a tensor, as Triton's JSON and as the gateway's."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
import yaml

FOLDER = Path(__file__).parent
FIRST = "voxcpm2"
PIPELINES = ("voxcpm2", "voxcpm2_pipeline")
NUMBERS = {"i32": np.int32, "i64": np.int64, "u64": np.uint64, "f32": np.float32, "f64": np.float64}
GATEWAY_FIELDS = {"TEXT": "input", "INSTRUCTION": "instructions"}
RECORDINGS = ("REFERENCE_AUDIO", "PROMPT_AUDIO")
RATE = 16_000


class Row(NamedTuple):
    name: str
    field: str
    says: str
    inputs: Mapping[str, Any]
    """Values in the words of the file."""
    pipelines: tuple[str, ...] = PIPELINES
    http: Mapping[str, Any] = {}
    gateway: Mapping[str, Any] = {}

    def tensors(self) -> dict[str, Any]:
        return {name: tensor(value) for name, value in self.inputs.items()}

    def json(self) -> dict[str, Any]:
        """The body of ``generate_stream``."""
        return {name: json_value(tensor(value)) for name, value in self.inputs.items()}

    def gateway_json(self) -> dict[str, Any]:
        """The body of ``/v1/audio/speech``."""
        return {
            gateway_name(name): base64.b64encode(tensor(value).item()).decode()
            if name in RECORDINGS and tensor(value).dtype == np.object_ and tensor(value).size == 1
            else json_value(tensor(value))
            for name, value in self.inputs.items()
        }


def read_rows(path: Path) -> list[Row]:
    rows = yaml.safe_load(path.read_text(encoding="utf-8"))["rows"]
    return [Row(**{**row, "pipelines": tuple(row.get("pipelines", PIPELINES))}) for row in rows]


def family_rows(family: str) -> list[Row]:
    """Those of ``bad_inputs.yaml`` that hold for a family too, and those of its own file."""
    shared = read_rows(FOLDER / "bad_inputs.yaml")
    path = FOLDER / f"bad_inputs_{family}.yaml"
    rows = shared
    if path.is_file():
        own = yaml.safe_load(path.read_text(encoding="utf-8"))
        left_out = {*own.get("leaves_out", ()), *(row.name for row in shared if row.field in own.get("has_no", ()))}
        rows = [*(row for row in shared if row.name not in left_out), *read_rows(path)]
    return [row._replace(pipelines=tuple(name.replace(FIRST, family) for name in row.pipelines)) for row in rows]


def gateway_name(field: str) -> str:
    return GATEWAY_FIELDS.get(field, field.lower())


def tensor(value: Any) -> Any:
    """A value of the file as an array; BYTES as an object array."""
    if isinstance(value, str):
        return texts(value.encode())
    (kind, content), *rest = value.items()
    if kind in NUMBERS:
        array = np.array(content, NUMBERS[kind])
        return array.reshape(dict(rest).get("shape", array.shape))
    if kind == "texts":
        return texts(*(text.encode() for text in content))
    if kind == "audio":
        return texts(audio_file(**content))
    made = {
        "bytes_hex": lambda: bytes.fromhex(content),
        "every_byte": lambda: bytes(range(256)) * content,
        "repeat": lambda: content[0].encode() * content[1],
    }
    return texts(made[kind]())


def texts(*values: bytes) -> Any:
    return np.array(values, np.object_)


def json_value(array: Any) -> Any:
    """A single value of shape [1] as itself, and all else as lists."""
    if array.dtype == np.object_:
        array = np.array([value.decode() for value in array], np.object_)
    return array.tolist()[0] if array.shape == (1,) else array.tolist()


def audio_file(
    seconds: float,
    rate: int = RATE,
    format: str = "WAV",
    subtype: str | None = None,
    channels: int = 1,
    gain: float = 0.3,
    nan: bool = False,
    keep: float = 1.0,
) -> bytes:
    """A file with a tone (of no sound where ``gain`` is 0), of which ``keep`` is kept: a share, or bytes above 1."""
    samples = (gain * np.sin(np.arange(int(seconds * rate)) * 0.05)).astype(np.float32)
    if nan:
        samples[100] = np.nan
    file = io.BytesIO()
    soundfile.write(file, np.tile(samples[:, None], channels), rate, format=format, subtype=subtype)
    content = file.getvalue()
    return content[: int(keep if keep > 1 else keep * len(content))]
