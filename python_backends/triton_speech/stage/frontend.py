"""The frontend stage: a request's fields in, tokens, validated settings and a stored voice's latents out."""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ..errors import SpeechError, echoed, invalid, unknown
from ..families.registry import find_checkpoint, load_family
from ..request import RequestLimits, SpeechRequest, parse_request
from ..voices.store import VoiceStore
from ..voices.voice import Voice, VoiceFileError
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


class FrontendStage:
    """Binds a family's frontend to Triton. One response for each request, not decoupled.

    It alone resolves the name of a voice, and hands on all that the voice holds: what a request says and sounds like
    comes from one version of it. CONTROL "voices" answers, as JSON, which names are built in and which of the family's
    stored voices cannot be used, and why.
    """

    family: ClassVar[str]

    def initialize(self, args: Mapping[str, str]) -> None:
        start_stage(args)
        family = load_family(self.family)
        parameters = family.FrontendParameters.from_triton(args["model_config"])
        folder = find_checkpoint(checkpoints_folder(args), parameters.checkpoint, family.ARCHITECTURE)
        self._frontend = family.load_frontend(folder, parameters)
        self._limits = RequestLimits(
            parameters.max_text_chars, parameters.max_instruction_chars, parameters.max_seconds
        )
        self._voices = VoiceStore(voices_folder(args))
        # Loads what is there, so that a voice's first request is as fast as the next; the log names what is unusable.
        self._describe_voices()

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            inputs = read_inputs(request)
            outputs = self._control(inputs) if "CONTROL" in inputs else self._prepare(inputs)
            return respond(outputs, request.requested_output_names())
        except Exception as error:
            return respond_error(error, request.request_id())

    def _prepare(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        request = parse_request(inputs, self._limits, self._frontend.sampling)
        voice = self._voice(request, inputs)
        if voice is not None:
            request = replace(request, prompt_text=voice.prompt_text)
        try:
            prepared = self._frontend.prepare(request)
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
            **self._frontend.voice_outputs(voice),
        }
        for field in self._frontend.sampling:
            dtype = np.int32 if field.integer else np.float32
            outputs[field.name] = np.array([request.sampling[field.name]], dtype=dtype)
        return outputs

    def _voice(self, request: SpeechRequest, inputs: Mapping[str, Array]) -> Voice | None:
        """The stored voice that a request asks for, as it is at this moment."""
        name = request.voice
        if name is None or name in self._frontend.built_in_voices:
            return None
        try:
            voice = self._voices.get(name)
            if voice is not None:
                self._check(voice)
        except VoiceFileError as error:
            raise invalid("VOICE", f"{name!r} cannot be used: it {error}") from error
        if voice is None:
            known = f"{', '.join(self._frontend.built_in_voices)} and those that 'triton-speech voice list' shows"
            raise unknown("VOICE", name, known)
        for field in ("REFERENCE_AUDIO", "PROMPT_AUDIO"):
            if field in inputs:
                raise invalid("VOICE", f"{name!r} cannot be given together with {field}: a voice has its own recording")
        if voice.prompt_text is not None and request.instruction is not None:
            raise invalid("INSTRUCTION", f"cannot be given together with the voice {name!r}, which continues a prompt")
        return voice

    def _check(self, voice: Voice) -> None:
        if voice.family != self.family:
            raise VoiceFileError(f"is of the family {voice.family!r}, and this is {self.family}")
        self._frontend.check_voice(voice)

    def _control(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        command = read_text(inputs, "CONTROL")
        if command != "voices":
            raise invalid("CONTROL", f"{echoed(command)} is not allowed, only 'voices' is")
        return {"VOICES": text_array(json.dumps(self._describe_voices()))}

    def _describe_voices(self) -> dict[str, Any]:
        problems = {}
        for name, found in self._voices.scan():
            if isinstance(found, Voice) and found.family == self.family:
                try:
                    self._check(found)
                except VoiceFileError as error:
                    problems[name] = str(error)
        return {"built_in": list(self._frontend.built_in_voices), "problems": problems}
