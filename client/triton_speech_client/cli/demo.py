"""``triton-speech demo``: starts a server, speaks one sentence into a file, says where it is, and stops."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from triton_speech.serve.errors import SpeechSetupError
from triton_speech.serve.layout import find_checkpoints, find_models
from triton_speech.serve.locate import find_server
from triton_speech.serve.ports import Ports
from triton_speech.serve.server import ServerSettings, TritonServer
from triton_speech_client.cli.audio_file import AudioFile
from triton_speech_client.cli.say import summary
from triton_speech_client.grpc_client import SpeechClient
from triton_speech_client.speech import SpeechBuilder

READY_SECONDS = 120.0
FREE_PORTS = Ports(0, 0, 0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``demo``."""
    parser.add_argument("text", help="what to say")
    parser.add_argument("-o", "--output", type=Path, default=Path("hello.wav"), help="file to write (%(default)s)")
    parser.add_argument("--checkpoints", type=Path, help="folder of checkpoints (the quickstart voice)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same speech (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Speaks; raises ``SpeechClientError`` or ``ValueError`` when it cannot."""
    try:
        find_server()  # where only the client is installed, that is what has to be told
        models = find_models(None)
        checkpoints = find_checkpoints(args.checkpoints, models)
        settings = ServerSettings(models=models, checkpoints=checkpoints, profile="cpu", ports=FREE_PORTS)
        # The file first: a name that cannot be written is told before the server is started.
        file = AudioFile(args.output)
        print("starting the server ...", flush=True)
        began = time.monotonic()
        with file, TritonServer(settings) as server:
            server.wait_ready(READY_SECONDS)
            print(f"ready in {time.monotonic() - began:.1f} s, speaking ...", flush=True)
            builder = SpeechBuilder()
            with SpeechClient(server.grpc_url) as client:
                for chunk in client.stream(args.text, seed=args.seed, pcm16=True):
                    builder.add(chunk)
                    file.write(chunk)
        print(summary(builder.speech(), args.output.resolve(), played=False))
    except SpeechSetupError as error:
        raise ValueError(str(error)) from error
    return 0
