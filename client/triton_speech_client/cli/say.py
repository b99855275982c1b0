"""``triton-speech say``: a text becomes a file, or sound, while it is being made."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path
from typing import TextIO

from triton_speech_client.cli.audio_file import AudioFile
from triton_speech_client.cli.player import find_player
from triton_speech_client.grpc_client import SpeechClient
from triton_speech_client.request import SpeechOptions
from triton_speech_client.speech import Speech, SpeechBuilder

DEFAULT_OUTPUT = Path("speech.wav")
_SECONDS_BETWEEN_LINES = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``say``; those that are left out are not sent, so that the server's defaults hold."""
    parser.add_argument("text", help="what to say; - reads it from the standard input")
    parser.add_argument(
        "-o", "--output", type=Path, help=f"file to write: wav, flac, ogg or mp3 (default {DEFAULT_OUTPUT})"
    )
    parser.add_argument("--play", action="store_true", help="play it while it comes")
    add_request_arguments(parser)


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    """Whom to ask, and the fields of the request."""
    server = parser.add_argument_group("server")
    server.add_argument("--url", default="127.0.0.1:8001", help="host:port of Triton's gRPC (%(default)s)")
    server.add_argument("--pipeline", default="voxcpm2", help="model to ask (%(default)s)")
    server.add_argument(
        "--timeout", type=float, default=60.0, help="longest wait for a response, seconds (%(default)s)"
    )
    voice = parser.add_argument_group("voice")
    voice.add_argument(
        "--voice",
        action="append",
        metavar="NAME",
        help="name of a voice stored on the server; of a dialogue, once for each speaker",
    )
    voice.add_argument(
        "--reference",
        type=Path,
        action="append",
        metavar="FILE",
        help="recording whose timbre to take; of a dialogue, once for each speaker",
    )
    voice.add_argument("--prompt", type=Path, metavar="FILE", help="recording to continue")
    voice.add_argument("--prompt-text", metavar="TEXT", help="what is said in --prompt")
    voice.add_argument("--instruction", metavar="TEXT", help="description of the wanted voice or style")
    voice.add_argument("--language", help="language of the text")
    making = parser.add_argument_group("making")
    making.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same speech")
    making.add_argument("--cfg-value", type=float, metavar="X", help="strength of the guidance")
    making.add_argument("--steps", type=int, metavar="N", help="diffusion steps of a frame")
    making.add_argument("--temperature", type=float, metavar="X", help="how freely codes are drawn; 0 not at all")
    making.add_argument("--top-k", type=int, metavar="N", help="draw among so many of the likeliest; 0 for all")
    making.add_argument("--top-p", type=float, metavar="X", help="draw among the likeliest that make up this share")
    making.add_argument("--repetition-penalty", type=float, metavar="X", help="how much less likely what was said is")
    making.add_argument("--codes-temperature", type=float, metavar="X", help="of the codes of a frame after its first")
    making.add_argument("--codes-top-k", type=int, metavar="N", help="of these")
    making.add_argument("--codes-top-p", type=float, metavar="X", help="of these")
    making.add_argument("--max-seconds", type=float, metavar="S", help="longest audio")
    making.add_argument("--priority", type=int, metavar="N", help="1 goes before 0 where requests wait")
    making.add_argument("--deadline", type=float, metavar="S", help="longest time that all of it may take")


def run(args: argparse.Namespace) -> int:
    """Speaks; raises ``SpeechClientError`` or ``OSError``, before anything is sent where that is possible."""
    text = sys.stdin.read().rstrip("\n") if args.text == "-" else args.text
    output = args.output or (None if args.play else DEFAULT_OUTPUT)
    player = find_player() if args.play else None
    builder = SpeechBuilder()
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(AudioFile(output)) if output else None
        play = stack.enter_context(player()) if player else None
        client = stack.enter_context(SpeechClient(args.url, args.pipeline, args.timeout))
        chunks = stack.enter_context(
            contextlib.closing(client.stream(text, pcm16=True, deadline=args.deadline, **options(args)))
        )
        progress = stack.enter_context(contextlib.closing(Progress(sys.stderr)))
        builder.started = time.perf_counter()
        for chunk in chunks:
            builder.add(chunk)
            progress.show(builder)
            if file:
                file.write(chunk)
            if play:
                play(chunk)
        speech = builder.speech()
    print(summary(speech, output, args.play))
    return 0


def options(args: argparse.Namespace) -> SpeechOptions:
    """The fields of the request that the arguments set."""
    return SpeechOptions(
        voice=args.voice,
        reference=args.reference,
        prompt_audio=args.prompt,
        prompt_text=args.prompt_text,
        instruction=args.instruction,
        language=args.language,
        seed=args.seed,
        cfg_value=args.cfg_value,
        inference_steps=args.steps,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        repetition_penalty=args.repetition_penalty,
        codes_temperature=args.codes_temperature,
        codes_top_k=args.codes_top_k,
        codes_top_p=args.codes_top_p,
        max_seconds=args.max_seconds,
        priority=args.priority,
    )


def summary(speech: Speech, output: Path | None, played: bool) -> str:
    """One line on what was made, how fast, and where it is. Playing takes its time: its speed says nothing."""
    parts = [f"{output or 'played'}: {speech.duration:.2f} s of speech"]
    if not played:
        parts.append(f"made in {speech.wall_seconds:.2f} s, real-time factor {speech.real_time_factor:.3f}")
    parts.append(f"first audio after {1000 * speech.seconds_to_first_audio:.0f} ms")
    if speech.finish_reason == "length":
        parts.append("cut at the length limit")
    return ", ".join(parts)


class Progress:
    """One line that is rewritten while the speech comes; silent where ``stream`` is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._visible = stream.isatty()
        self._shown_at = 0.0

    def show(self, builder: SpeechBuilder) -> None:
        """Rewrites the line, at most ten times a second."""
        now = time.perf_counter()
        if not self._visible or not builder.samples_made or now - self._shown_at < _SECONDS_BETWEEN_LINES:
            return
        self._shown_at = now
        made = builder.samples_made / builder.sample_rate
        first = 1000 * builder.seconds_to_first_audio
        line = f"{made:.1f} s made, real-time factor {(now - builder.started) / made:.3f}"
        self._stream.write(f"\r{line}, first audio after {first:.0f} ms\033[K")
        self._stream.flush()

    def close(self) -> None:
        """Takes the line away."""
        if self._shown_at:
            self._stream.write("\r\033[K")
            self._stream.flush()
