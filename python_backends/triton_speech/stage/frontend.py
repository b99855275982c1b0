"""The frontend stage: a request's fields in, tokens, validated settings and a stored voice's latents out."""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np

from ..errors import SpeechError, echoed, invalid, unknown
from ..families.registry import CastFrontend, find_checkpoint, load_family
from ..long_text import Segment
from ..probe import PROBE_ID
from ..request import RequestLimits, SpeechRequest, parse_request
from ..voices.bundled import load_bundled
from ..voices.store import VoiceStore
from ..voices.voice import Voice, VoiceFileError
from . import catalogue
from .metrics import Metrics
from .triton import (
    Array,
    checkpoints_folder,
    read_inputs,
    read_text,
    respond,
    respond_error,
    start_stage,
    text_array,
    voices_folder,
)

RECORDINGS = ("REFERENCE_AUDIO", "PROMPT_AUDIO")


class FrontendStage:
    """Binds a family's frontend to Triton. One response for each request, not decoupled.

    It alone resolves the name of a voice, and hands on all that the voice holds: what a request says and sounds like
    comes from one version of it. CONTROL "voices" answers, as JSON, which names are built in, those of the checkpoint's
    own voices among them, and which of the family's stored voices cannot be used, and why; "ping" answers nothing.
    """

    family: ClassVar[str]

    def initialize(self, args: Mapping[str, str]) -> None:
        start_stage(args)
        family = load_family(self.family)
        parameters = family.FrontendParameters.from_triton(args["model_config"])
        folder = find_checkpoint(checkpoints_folder(args), parameters.checkpoint, family.ARCHITECTURE)
        self._frontend = family.load_frontend(folder, parameters)
        self._limits = RequestLimits(
            max_text_chars=parameters.max_text_chars,
            max_instruction_chars=parameters.max_instruction_chars,
            max_seconds=parameters.max_seconds,
            max_prompt_chars=parameters.max_text_chars,
            max_voices=family.MOST_VOICES,
        )
        self._long_limits = replace(self._limits, max_text_chars=parameters.max_long_text_chars)
        self._bundled = load_bundled(folder, self._check, self._frontend.built_in_voices)
        self._voices = VoiceStore(voices_folder(args))
        # Loads what is there, so that a voice's first request is as fast as the next; the log names what is unusable.
        self._describe_voices()
        self._metrics = Metrics(catalogue.FRONTEND, args)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def finalize(self) -> None:
        self._metrics.close()

    def _answer(self, request: Any) -> Any:
        try:
            inputs = read_inputs(request)
            requested = request.requested_output_names()
            may_be_long = "LONG_TEXT" in requested
            if "CONTROL" in inputs:
                outputs = self._control(inputs)
            elif request.request_id() == PROBE_ID:
                outputs = self._prepare(inputs, may_be_long)
            else:
                outputs = self._counted(inputs, may_be_long)
            return respond(outputs, requested)
        except Exception as error:
            return respond_error(error, request.request_id())

    def _counted(self, inputs: Mapping[str, Array], may_be_long: bool) -> dict[str, Array]:
        try:
            outputs = self._prepare(inputs, may_be_long)
        except Exception as error:
            self._metrics.count(catalogue.STAGE_REQUESTS, *catalogue.how_it_failed(error))
            raise
        self._metrics.count(catalogue.STAGE_REQUESTS, *catalogue.ANSWERED)
        return outputs

    def _prepare(self, inputs: Mapping[str, Array], may_be_long: bool) -> dict[str, Array]:
        limits = self._long_limits if may_be_long else self._limits
        try:
            return self._prepare_within(limits, inputs, may_be_long)
        except SpeechError as error:
            if may_be_long or not error.text.startswith("TEXT: has "):
                raise
            most = self._long_limits.max_text_chars
            raise SpeechError(error.code, f"{error.text}; {self.family} speaks up to {most} characters") from error

    def _prepare_within(
        self, limits: RequestLimits, inputs: Mapping[str, Array], may_be_long: bool
    ) -> dict[str, Array]:
        request = parse_request(inputs, limits, self._frontend.sampling)
        voices = [self._voice(name, request, inputs) for name in request.voices]
        voice = next((one for one in voices if one is not None), None)
        if voice is not None:
            request = replace(request, prompt_text=voice.prompt_text)
        try:
            prepared, rest = self._first(
                request, may_be_long, voice is not None or not inputs.keys().isdisjoint(RECORDINGS)
            )
        except SpeechError as error:
            if voice is None or not error.text.startswith("PROMPT_TEXT: "):
                raise
            # The caller sent no such field.
            problem = error.text.removeprefix("PROMPT_TEXT: ")
            raise invalid("VOICE", f"{request.voice!r} has a prompt whose text {problem}") from error
        # The seed is settled here, so that both pipelines hand the talker the same kind of request.
        seed = secrets.randbits(64) if request.seed is None else request.seed
        schedule = () if request.chunk_schedule is None else request.chunk_schedule.frames
        outputs = {
            "STREAM_ID": text_array(uuid.uuid4().hex),
            "TOKENS": np.array(prepared.tokens, dtype=np.int32),
            "SEED": np.array([seed], dtype=np.uint64),
            "MAX_FRAMES": np.array([prepared.max_frames], dtype=np.int32),
            "CHUNK_SCHEDULE": np.array(schedule, dtype=np.int32),
            "PRIORITY": np.array([request.priority], dtype=np.int32),
            "LONG_TEXT": text_array(rest),
            **self._voice_outputs(voices),
        }
        self._metrics.count(catalogue.CHARACTERS, by=len(request.text))
        for field in self._frontend.sampling:
            dtype = np.int32 if field.integer else np.float32
            outputs[field.name] = np.array([request.sampling[field.name]], dtype=dtype)
        return outputs

    def _first(self, request: SpeechRequest, may_be_long: bool, has_voice: bool) -> tuple[Segment, str]:
        """What the talker is given first, and as JSON what it is given later."""
        if not may_be_long:
            return self._frontend.prepare(request), ""
        first, rest = self._frontend.prepare_long(request, has_voice=has_voice)
        return first, rest.to_json()

    def _voice_outputs(self, voices: Sequence[Voice | None]) -> Mapping[str, Array]:
        if self._limits.max_voices == 1:
            return self._frontend.voice_outputs(voices[0] if voices else None)
        return cast("CastFrontend", self._frontend).cast_outputs(voices)

    def _voice(self, name: str, request: SpeechRequest, inputs: Mapping[str, Array]) -> Voice | None:
        """A voice with latents that a request asks for, as it is at this moment; None for one that needs none."""
        if name in self._frontend.built_in_voices:
            return None
        voice = self._bundled.get(name) or self._stored(name)
        # A list may hold built-in names for those whose recordings come with the request.
        is_whole = not any(one in self._frontend.built_in_voices for one in request.voices)
        for field in RECORDINGS:
            if field in inputs and (is_whole or field != "REFERENCE_AUDIO"):
                raise invalid("VOICE", f"{name!r} cannot be given together with {field}: a voice has its own recording")
        if voice.prompt_text is not None and request.instruction is not None:
            raise invalid("INSTRUCTION", f"cannot be given together with the voice {name!r}, which continues a prompt")
        return voice

    def _stored(self, name: str) -> Voice:
        try:
            voice = self._voices.get(name)
            if voice is not None:
                self._check(voice)
        except VoiceFileError as error:
            raise invalid("VOICE", f"{name!r} cannot be used: it {error}") from error
        if voice is None:
            known = f"{', '.join(self._built_in)} and those that 'triton-speech voice list' shows"
            raise unknown("VOICE", name, known)
        return voice

    @property
    def _built_in(self) -> list[str]:
        return [*self._frontend.built_in_voices, *self._bundled]

    def _check(self, voice: Voice) -> None:
        if voice.family != self.family:
            raise VoiceFileError(f"is of the family {voice.family!r}, and this is {self.family}")
        self._frontend.check_voice(voice)

    def _control(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        command = read_text(inputs, "CONTROL")
        if command == "ping":
            return {"VOICES": text_array("")}
        if command != "voices":
            raise invalid("CONTROL", f"{echoed(command)} is not allowed, only 'voices' and 'ping' are")
        return {"VOICES": text_array(json.dumps(self._describe_voices()))}

    def _describe_voices(self) -> dict[str, Any]:
        problems = {}
        for name, found in self._voices.scan():
            if isinstance(found, Voice) and found.family == self.family:
                try:
                    self._check(found)
                except VoiceFileError as error:
                    problems[name] = str(error)
        return {"built_in": self._built_in, "problems": problems}
