"""Client of Triton Speech: streaming speech from an NVIDIA Triton server.

    from triton_speech_client import SpeechClient

    with SpeechClient("127.0.0.1:8001") as client:
        client.synthesize("Hello there.", seed=1).save("hello.wav")
        for chunk in client.stream("Hello there."):
            play(chunk.samples, chunk.sample_rate)

``SpeechClient`` blocks, ``AsyncSpeechClient`` is for asyncio; both speak gRPC and cancel at the server when a
stream is left early. ``HttpSpeechClient`` is for places that gRPC does not reach. Every error on purpose is a
``SpeechClientError``. ``build_inputs`` makes the request for those who use tritonclient itself.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triton_speech_client.aio_client import AsyncSpeechClient
    from triton_speech_client.audio_source import AudioSource
    from triton_speech_client.errors import (
        DeadlineExceeded,
        InvalidRequest,
        RequestCancelled,
        ServerError,
        ServerUnavailable,
        SpeechClientError,
        VoiceNotFound,
    )
    from triton_speech_client.grpc_client import SpeechClient
    from triton_speech_client.http_client import HttpSpeechClient
    from triton_speech_client.request import SpeechOptions, build_inputs
    from triton_speech_client.speech import AudioChunk, Speech
    from triton_speech_client.voices import Voice

__all__ = [
    "AsyncSpeechClient",
    "AudioChunk",
    "AudioSource",
    "DeadlineExceeded",
    "HttpSpeechClient",
    "InvalidRequest",
    "RequestCancelled",
    "ServerError",
    "ServerUnavailable",
    "Speech",
    "SpeechClient",
    "SpeechClientError",
    "SpeechOptions",
    "Voice",
    "VoiceNotFound",
    "build_inputs",
]

_MODULES = {
    "AsyncSpeechClient": "aio_client",
    "AudioChunk": "speech",
    "AudioSource": "audio_source",
    "HttpSpeechClient": "http_client",
    "Speech": "speech",
    "SpeechClient": "grpc_client",
    "SpeechOptions": "request",
    "Voice": "voices",
    "build_inputs": "request",
}


def __getattr__(name: str) -> Any:
    # On demand: the command line lives in this package and must start without the client's own requirements.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
