"""Word error rate and sound of a voice, through the server that people run.

    python -m tests.perf.wer [--checkpoint DIR] [--limit N] [--runs plain:1 plain:8 ...] [--json FILE] [--keep DIR]

110 sentences of six kinds (``sentences.json``), which ``triton-speech train --held-out`` keeps out of its texts, go to
a server that ``triton-speech serve`` starts, alone and eight at once: without a recording, with a reference recording
of each of eight speakers, and as a continuation of it. What comes back is written down by Whisper tiny.en, both sides
are compared after numbers, signs and case have been made alike (``normal.py``). The teacher's own speech and the
checkpoint's AudioVAE alone (encoded and decoded again) go the same way: what these lose, nothing else brings back.

Columns: WER and CER as percentages of all words and letters; seconds of audio for each word; share of streams that
ended by ``length``; share whose voice is most like the right one of the eight (1 in 8 by chance); mel distance to the
teacher after alignment; harmonic-to-noise ratio (hoarse voices are low) and pitch of voiced frames, medians.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import soundfile
import soxr
import torch
from tests.perf.launched import Launcher

from triton_speech.families.voxcpm2.checkpoint import load_audio_vae
from triton_speech.families.voxcpm2.training.teacher import bundled_teacher
from triton_speech_client.errors import SpeechClientError

from .asked import MODES, Recordings, Said, Sentence, ask
from .report import HEADS, Assessor, Figures, table

ROOT = Path(__file__).resolve().parents[3]
SENTENCES = Path(__file__).with_name("sentences.json")
RUNS = ("teacher", "codec", *(f"{mode}:{streams}" for mode in MODES for streams in (1, 8)))


def load_sentences(limit: int | None = None) -> list[Sentence]:
    """All of them, or about ``limit`` spread evenly over the categories."""
    kinds = json.loads(SENTENCES.read_text(encoding="utf-8"))
    each = None if limit is None else max(1, math.ceil(limit / len(kinds)))
    return [Sentence(text, kind) for kind, texts in kinds.items() for text in texts[:each]]


@torch.inference_mode()
def through_codec(checkpoint: Path, said: Sequence[Said]) -> list[Said]:
    """What is left of each after the checkpoint's AudioVAE."""
    vae = load_audio_vae(checkpoint)
    rate_in, rate_out = vae.config.sample_rate, vae.config.out_sample_rate
    out = []
    for one in said:
        heard = torch.from_numpy(soxr.resample(one.samples, one.rate, rate_in)).unsqueeze(0)
        out.append(Said(one.sentence, vae.decode(vae.encode(heard))[0].numpy(), rate_out))
    return out


def keep(folder: Path, said: Sequence[Said]) -> None:
    """Writes every sentence as FLAC."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, one in enumerate(said):
        soundfile.write(folder / f"{number:03d}.flac", one.samples, one.rate)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.perf.wer")
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "checkpoints" / "quickstart")
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--limit", type=int, help="about so many sentences, of all kinds, instead of all")
    parser.add_argument("--steps", type=int, help="diffusion steps; the server's default where it is not given")
    parser.add_argument("--json", type=Path, help="also write every sentence and figure to this file")
    parser.add_argument("--keep", type=Path, help="also write the audio of all runs under this folder")
    args = parser.parse_args()
    sentences = load_sentences(args.limit)
    recordings = Recordings(bundled_teacher())
    assessor = Assessor(recordings.of_speakers)
    spoken = recordings.say(sentences)
    teacher = {one.sentence.text: one for one in spoken}
    options: dict[str, Any] = {} if args.steps is None else {"inference_steps": args.steps}
    found: list[Figures] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "voices").mkdir()
        server = Launcher(args.checkpoint, place / "voices", place / "server.log", ["--profile", args.profile])
        try:
            for run in args.runs:
                began = time.monotonic()
                mode, _, streams = run.partition(":")
                if run == "teacher":
                    said = spoken
                elif run == "codec":
                    said = through_codec(args.checkpoint, spoken)
                else:
                    try:
                        said = ask(server.urls["grpc"], sentences, mode, int(streams), recordings, **options)
                    except SpeechClientError as error:
                        print(f"{run}: left out, for a request failed: {error}", flush=True)
                        continue
                if args.keep:
                    keep(args.keep / run.replace(":", "_"), said)
                found.append(assessor.assess(run, said, teacher, voices=mode in ("reference", "continuation")))
                print(f"{run}: {time.monotonic() - began:.0f} s", flush=True)
        finally:
            server.end()
    if found:
        show(args.checkpoint, found, assessor.likeness.method, args.json)
    if len(found) < len(args.runs):
        raise SystemExit(1)


def show(checkpoint: Path, found: Sequence[Figures], method: str, target: Path | None) -> None:
    """Prints the tables, and writes everything as JSON where that is asked for."""
    print(f"\ncheckpoint {checkpoint.name}; likeness of voices by {method}\n")
    print(table([one.summary() for one in found], HEADS))
    kinds = list(dict.fromkeys(row["category"] for row in found[0].rows))
    lines = [{"WER %": one.name} | {kind: one.summary(kind)["WER %"] for kind in kinds} for one in found]
    print("\n" + table(lines, ["WER %", *kinds]))
    if target:
        content = [{"summary": known(one.summary()), "rows": [known(row) for row in one.rows]} for one in found]
        whole = {"checkpoint": checkpoint.name, "likeness": method, "runs": content}
        target.write_text(json.dumps(whole, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def known(figures: Mapping[str, Any]) -> dict[str, Any]:
    """With None for what was not measured: JSON has no word for what is not a number."""
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in figures.items()}


if __name__ == "__main__":
    main()
