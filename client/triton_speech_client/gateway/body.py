"""A request's body: JSON or a form, read within its limits, checked field by field."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal, TypeVar

import anyio
import pydantic_core
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from triton_speech_client.gateway.encoding import FORMATS, MAX_RATE, MAX_SPEED, MIN_RATE, MIN_SPEED, AudioFormat
from triton_speech_client.gateway.errors import ApiError, invalid

FormatName = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
MAX_FORM_FIELDS = 40
MAX_NAMES = 16
"""Of a list; the family of the model allows fewer."""
Fields = dict[str, Any]
Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Names = Annotated[list[str], Field(min_length=1, max_length=MAX_NAMES)]


class Body(BaseModel):
    """Base of all bodies: unknown fields are refused, and null is as good as absent."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, fields: Any) -> Any:
        return {name: value for name, value in fields.items() if value is not None}


BodyT = TypeVar("BodyT", bound=Body)


class VoiceId(BaseModel):
    """OpenAI's other way to name a voice."""

    model_config = ConfigDict(extra="forbid")
    id: str


class VoiceOptions(Body):
    """How to speak: what a request and a session of live text have in common. Absent is the server's default."""

    model: str | None = None
    voice: str | VoiceId | Names | None = None
    """In JSON, a list gives each speaker of a dialogue a voice."""
    response_format: FormatName = "mp3"
    sample_rate: int | None = Field(default=None, ge=MIN_RATE, le=MAX_RATE)
    """In Hz; the format's choice where absent."""
    speed: float = Field(default=1.0, ge=MIN_SPEED, le=MAX_SPEED)
    instructions: str | None = Field(default=None, validation_alias=AliasChoices("instructions", "instruction"))
    language: str | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    cfg_value: float | None = None
    inference_steps: Int32 | None = None
    temperature: float | None = None
    top_k: Int32 | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    codes_temperature: float | None = None
    codes_top_k: Int32 | None = None
    codes_top_p: float | None = None
    max_seconds: float | None = None
    reference_audio: str | bytes | Names | None = None
    """base64, a data URI, an https URL where that is allowed; bytes from a form. In JSON, a list for a dialogue."""
    prompt_audio: str | bytes | None = None
    prompt_text: str | None = None

    @property
    def voice_names(self) -> list[str] | None:
        """None where the request names no voice."""
        if self.voice is None or isinstance(self.voice, list):
            return self.voice
        return [self.voice.id if isinstance(self.voice, VoiceId) else self.voice]

    @property
    def audio_format(self) -> AudioFormat:
        return FORMATS[self.response_format]

    def check_rate(self) -> None:
        """Raises ``ApiError`` for a sample rate that the format does not have."""
        rates = self.audio_format.rates
        if self.sample_rate is not None and rates and self.sample_rate not in rates:
            allowed = ", ".join(str(rate) for rate in rates if rate >= MIN_RATE)
            raise invalid(
                "sample_rate", f"{self.sample_rate} is not among the rates of {self.response_format}: {allowed}"
            )


class SpeechBody(VoiceOptions):
    """``POST /v1/audio/speech``."""

    input: str
    stream_format: Literal["audio", "sse"] = "audio"
    stream: bool = True
    """False sends the file when it is whole, with its length."""


class VoiceBody(Body):
    """``POST /v1/audio/voices``: OpenAI's fields, and the recordings of the contract."""

    name: str
    type: Literal["audio_sample"] = "audio_sample"
    consent: str | None = None
    """Taken from programs written for OpenAI; to have a speaker's consent is the caller's business here."""
    reference_audio: str | bytes | None = Field(
        default=None, validation_alias=AliasChoices("reference_audio", "audio_sample")
    )
    prompt_audio: str | bytes | None = None
    prompt_text: str | None = None
    family: str | None = None


async def read_fields(request: Request, seconds: float) -> tuple[Fields, bool]:
    """The body's fields, and whether they have JSON's types (a form's are strings and bytes).

    Raises:
        ApiError: 400, 408 or 415.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        with anyio.fail_after(seconds):
            if kind == "application/json":
                return parse_json(await request.body()), True
            if kind == "multipart/form-data":
                return await _read_form(request.headers, request.stream()), False
    except TimeoutError as error:
        raise ApiError(408, f"the body did not arrive within {seconds:g} s", code="timeout") from error
    raise ApiError(
        415, f"Content-Type: {kind or 'none'!r} is not application/json or multipart/form-data", code="invalid_type"
    )


def parse_json(text: bytes | str) -> Fields:
    """The members of a JSON object; raises ``ApiError`` 400 for anything else."""
    try:
        fields = pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(fields, dict):
        raise ApiError(400, "the body is not a JSON object", code="invalid_json")
    return fields


def check_fields(model: type[BodyT], fields: Fields, has_types: bool) -> BodyT:
    """An instance of ``model``; raises ``ApiError`` 400 that names the first wrong field and what is allowed."""
    try:
        body = model.model_validate(fields, strict=has_types)
    except ValidationError as error:
        raise field_error(error) from None
    if isinstance(body, VoiceOptions):
        body.check_rate()
    return body


def field_error(error: ValidationError) -> ApiError:
    """The first problem of a body, in one sentence; it repeats no value."""
    first = error.errors(include_url=False, include_input=False)[0]
    names = [str(part) for part in first["loc"]]
    param = names[0] if names else "body"
    kinds = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}
    said = {"missing": "is missing", "extra_forbidden": "is not known"}
    problem = said.get(first["type"], first["msg"][:1].lower() + first["msg"][1:])
    return invalid(param, problem, kinds.get(first["type"], "invalid_value"))


async def _read_form(headers: Headers, stream: AsyncGenerator[bytes, None]) -> Fields:
    parser = MultiPartParser(headers, stream, max_files=4, max_fields=MAX_FORM_FIELDS, max_part_size=2**20)
    # Recordings of people stay in memory; the body's limit bounds them.
    parser.spool_max_size = 0
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise ApiError(400, f"the form cannot be read: {error}", code="invalid_form") from error
    fields: Fields = {}
    for name, value in form.multi_items():
        if name in fields:
            raise invalid(name, "is there twice")
        fields[name] = await value.read() if isinstance(value, UploadFile) else value
    await form.close()
    return fields
