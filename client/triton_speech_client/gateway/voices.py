"""``/v1/audio/voices``: the voices that are stored at Triton, as OpenAI describes voices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from fastapi import FastAPI, Request

from triton_speech_client.errors import ServerError
from triton_speech_client.gateway.body import VoiceBody, check_fields, read_fields
from triton_speech_client.gateway.depends import KnownCaller, SharedGateway
from triton_speech_client.gateway.errors import ApiError
from triton_speech_client.gateway.references import recording_bytes
from triton_speech_client.voices import Recordings, Voice

PATH = "/v1/audio/voices"


def add_voice_routes(app: FastAPI) -> None:
    """Lists and shows voices to every caller; adds and removes them for those who may."""

    @app.get(PATH)
    async def list_voices(gateway: SharedGateway, _caller: KnownCaller) -> Mapping[str, Any]:
        with _voices_are_offered():
            return {"object": "list", "data": [_described(voice) for voice in await gateway.catalog.voices()]}

    @app.get(PATH + "/{name}")
    async def show_voice(name: str, gateway: SharedGateway, _caller: KnownCaller) -> Mapping[str, Any]:
        with _voices_are_offered():
            for voice in await gateway.catalog.voices():
                if voice.name == name:
                    return _described(voice)
        raise ApiError(404, f"voice: {name!r} is not known", param="voice", code="voice_not_found")

    @app.post(PATH, openapi_extra={"requestBody": {"content": {"multipart/form-data": {}, "application/json": {}}}})
    async def add_voice(request: Request, gateway: SharedGateway, caller: KnownCaller) -> Mapping[str, Any]:
        caller.check_manages_voices()
        fields, has_types = await read_fields(request, gateway.settings.body_seconds)
        body = check_fields(VoiceBody, fields, has_types)
        recordings = Recordings(
            reference=await recording_bytes("reference_audio", body.reference_audio, gateway.fetcher),
            prompt_audio=await recording_bytes("prompt_audio", body.prompt_audio, gateway.fetcher),
            prompt_text=body.prompt_text,
            family=body.family,
        )
        with _voices_are_offered():
            return _described(await gateway.catalog.add_voice(body.name, recordings))

    @app.delete(PATH + "/{name}")
    async def remove_voice(name: str, gateway: SharedGateway, caller: KnownCaller) -> Mapping[str, Any]:
        caller.check_manages_voices()
        with _voices_are_offered():
            await gateway.catalog.remove_voice(name)
        return {"id": name, "object": "audio.voice.deleted", "deleted": True}


def _described(voice: Voice) -> dict[str, Any]:
    return {
        "id": voice.name,
        "object": "audio.voice",
        "name": voice.name,
        "type": "audio_sample",
        "created_at": _timestamp(voice.created),
        "family": voice.family,
        "mode": voice.mode,
        "prompt_text": voice.prompt_text,
        "problem": voice.problem,
        "replaced": voice.replaced,
    }


def _timestamp(created: str) -> int:
    """Unix seconds; 0 for a voice that was always there."""
    return int(datetime.fromisoformat(created.replace("Z", "+00:00")).timestamp()) if created else 0


@contextmanager
def _voices_are_offered() -> Iterator[None]:
    """Turns a server without stored voices into what it is for the caller: a route that is not there."""
    try:
        yield
    except ServerError as error:
        if "does not offer the model 'voices'" not in str(error):
            raise
        raise ApiError(404, "the speech server keeps no voices", code="not_found") from error
