"""The model ``voices``: adds, lists, shows and removes stored voices of every family that is served beside it."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils
from pydantic import Field

from ..errors import SpeechError, echoed, invalid, unknown
from ..families.registry import load_family
from ..parameters import Parameters
from ..voices.name import check_name
from ..voices.store import Found, VoiceLimits, VoiceStore
from ..voices.voice import Array, Voice
from .late import PING_OUTPUT, ping_inputs, while_alive
from .pings import Pings
from .triton import read_inputs, read_text, respond, respond_error, start_stage, tensors, text_array, voices_folder

log = logging.getLogger(__name__)

RECORDINGS = ("REFERENCE_AUDIO", "PROMPT_AUDIO")
HOW_TO_LIST = "those that the command 'list' shows"


class VoicesParameters(Parameters):
    writable: bool = True
    """Whether voices may be added and removed through this model."""
    max_voices: int = Field(default=1000, ge=1)
    max_bytes: int = Field(default=2**30, ge=1)


class VoicesStage:
    """Binds the folder of voices to Triton. One operation a request, one after the other, not decoupled.

    A recording is encoded by its family's reference stage, so that encoder weights exist once. What may be spoken in is
    for each family's frontend to say, which has the checkpoint.
    """

    def initialize(self, args: Mapping[str, str]) -> None:
        start_stage(args)
        parameters = VoicesParameters.from_triton(args["model_config"])
        self._writable = parameters.writable
        self._limits = VoiceLimits(parameters.max_voices, parameters.max_bytes)
        self._store = VoiceStore(voices_folder(args), keep_bytes=0)
        stages = Path(args["model_repository"]).parent.glob("*_reference/config.pbtxt")
        self._families = sorted(path.parent.name.removesuffix("_reference") for path in stages)
        self._commands = {"add": self._add, "list": self._list, "show": self._show, "remove": self._remove}

    async def execute(self, requests: list[Any]) -> list[Any]:
        return [await self._answer(request) for request in requests]

    async def _answer(self, request: Any) -> Any:
        try:
            inputs = read_inputs(request)
            command = read_text(inputs, "COMMAND")
            if command not in self._commands:
                raise invalid("COMMAND", f"{echoed(command)} is not allowed, only {', '.join(self._commands)} are")
            if command in ("add", "remove") and not self._writable:
                raise invalid("COMMAND", f"{echoed(command)} is not allowed: the voices of this server are read-only")
            result = await self._commands[command](inputs)
            return respond({"RESULT": text_array(json.dumps(result))}, request.requested_output_names())
        except OSError as error:
            log.exception("the folder of voices cannot be written")
            told = SpeechError("INTERNAL", f"the folder of voices cannot be written: {error.strerror}")
            return respond_error(told, request.request_id())
        except Exception as error:
            return respond_error(error, request.request_id())

    async def _add(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        name = await self._changeable_name(inputs)
        family = self._family(inputs)
        recordings = {field: inputs[field] for field in RECORDINGS if field in inputs}
        if not recordings:
            raise invalid("REFERENCE_AUDIO", "is missing; a voice is made from a recording")
        prompt_text = read_text(inputs, "PROMPT_TEXT") if "PROMPT_TEXT" in inputs else None
        if prompt_text is not None or "PROMPT_AUDIO" in inputs:
            # The frontend's own checks of a prompt, before anything is encoded.
            prompt = {field: inputs[field] for field in ("PROMPT_AUDIO", "PROMPT_TEXT") if field in inputs}
            await _ask(f"{family}_frontend", {"TEXT": text_array("Hello."), **prompt}, ["TOKENS"])
        modes = load_family(family).VOICE_MODES
        outputs = frozenset[str]().union(*modes.values())
        encoder = f"{family}_reference"
        encoded = await while_alive(
            "reference", _ask(encoder, recordings, outputs), partial(Pings(_ping).check, encoder)
        )
        latents = {output: array for output, array in encoded.items() if len(array)}
        mode = next((mode for mode, outputs in modes.items() if outputs == set(latents)), None)
        if mode is None:
            raise invalid("REFERENCE_AUDIO", f"and PROMPT_AUDIO do not fit {family}, which offers {', '.join(modes)}")
        voice = Voice(
            family,
            mode,
            latents,
            prompt_text,
            datetime.now(timezone.utc).isoformat(timespec="seconds"),
            {field: hashlib.sha256(array.reshape(-1)[0]).hexdigest() for field, array in recordings.items()},
        )
        replaced = self._store.put(name, voice, self._limits)
        return {**self._describe(name, voice, await self._offers()), "replaced": replaced}

    async def _list(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        offers = await self._offers()
        voices = [
            {"name": name, "family": family, "mode": "built_in", "problem": ""}
            for family, offer in offers.items()
            for name in offer["built_in"]
        ]
        voices += [self._describe(name, found, offers) for name, found in self._store.scan()]
        return {"voices": voices, "writable": self._writable}

    async def _show(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        name = read_text(inputs, "NAME")
        for voice in (await self._list(inputs))["voices"]:
            if voice["name"] == name:
                return dict(voice)
        raise unknown("NAME", check_name("NAME", name), HOW_TO_LIST)

    async def _remove(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        name = await self._changeable_name(inputs)
        if not self._store.remove(name):
            raise unknown("NAME", name, HOW_TO_LIST)
        return {"name": name, "removed": True}

    def _describe(self, name: str, found: Found, offers: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(found, Voice):
            return {"name": name, "problem": str(found)}
        if found.family not in offers:
            problem = f"is of the family {found.family!r}, and this server offers {', '.join(offers) or 'none'}"
        elif "silent" in offers[found.family]:
            problem = f"is of the family {found.family!r}, which does not answer"
        elif name in offers[found.family]["built_in"]:
            problem = "has the name of a built-in voice"
        else:
            problem = offers[found.family]["problems"].get(name, "")
        return {
            "name": name,
            "family": found.family,
            "mode": found.mode,
            "version": found.version,
            "created": found.created,
            "frames": found.frames,
            "sources": dict(found.sources),
            **({} if found.prompt_text is None else {"prompt_text": found.prompt_text}),
            "problem": problem,
        }

    async def _changeable_name(self, inputs: Mapping[str, Array]) -> str:
        name = check_name("NAME", read_text(inputs, "NAME"))
        if any(name in offer["built_in"] for offer in (await self._offers()).values()):
            raise invalid("NAME", f"{name!r} is a built-in voice, which can be neither replaced nor removed")
        return name

    def _family(self, inputs: Mapping[str, Array]) -> str:
        families = ", ".join(self._families) or "none"
        if "FAMILY" not in inputs:
            if len(self._families) != 1:
                raise invalid("FAMILY", f"is missing; this server has {families}")
            return self._families[0]
        family = read_text(inputs, "FAMILY")
        if family not in self._families:
            raise invalid("FAMILY", f"{family!r} is none of this server's, which are {families}")
        return family

    async def _offers(self) -> dict[str, Any]:
        """What each family's frontend says of its voices."""
        offers = {}
        for family in self._families:
            try:
                answer = await _ask(f"{family}_frontend", {"CONTROL": text_array("voices")}, ["VOICES"])
                offers[family] = json.loads(answer["VOICES"].reshape(-1)[0])
            except SpeechError as error:
                log.error("the frontend of %s does not tell its voices: %s", family, error)
                offers[family] = {"built_in": [], "problems": {}, "silent": True}
        return offers


async def _ping(encoder: str) -> None:
    await _ask(encoder, ping_inputs("reference"), [PING_OUTPUT["reference"]])


async def _ask(model: str, inputs: Mapping[str, Array], outputs: Iterable[str]) -> dict[str, Array]:
    """The outputs of another stage, or its error."""
    call = pb_utils.InferenceRequest(
        model_name=model,
        inputs=tensors(inputs),
        requested_output_names=sorted(outputs),
    )
    response = await call.async_exec()
    if response.has_error():
        raise SpeechError.from_text(response.error().message())
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
