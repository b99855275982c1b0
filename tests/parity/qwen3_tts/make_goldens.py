"""Runs PyPI qwen-tts==0.1.1 on tiny checkpoints and writes down what it computes.

Upstream is never a dependency: this script is its only user, in an environment of its own (Python 3.10 to 3.12)::

    python -m venv upstream
    upstream/bin/pip install --no-deps qwen-tts==0.1.1
    upstream/bin/pip install torch transformers==4.57.3 librosa soundfile einops

and with the project's own Python first, for the checkpoints that upstream is to load::

    python tests/parity/qwen3_tts/tiny_for_parity.py CHECKPOINTS
    upstream/bin/python tests/parity/qwen3_tts/make_goldens.py CHECKPOINTS tests/parity/qwen3_tts/data

Written are ``goldens.safetensors`` and ``goldens.json``. Upstream draws codes by ``torch.multinomial``; here it hears
``families/noise.py``, the one file of ours that is read.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.machinery
import importlib.util
import json
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

NOISE_FILE = Path(__file__).parents[3] / "python_backends/triton_speech/families/noise.py"
FRAMES = 50
SAMPLED_FRAMES = 20
PREDICTED = 3
"""Frames of which the code predictor's logits are kept."""
SEED = 2**40 + 77
AUDIO_STRIDE = 17
"""Of decoded audio every 17th sample is kept: prime to all rates, so every phase of every frame is seen."""
LONG = "Then the user said that the assistant is at the end of the street, and that is the whole of it."
SAMPLED = {
    "do_sample": True,
    "temperature": 0.9,
    "top_k": 30,
    "top_p": 0.8,
    "repetition_penalty": 1.3,
    "subtalker_dosample": True,
    "subtalker_temperature": 1.1,
    "subtalker_top_k": 20,
    "subtalker_top_p": 0.9,
}
GREEDY = {"do_sample": False, "repetition_penalty": 1.05, "subtalker_dosample": False}
CASES: dict[str, dict[str, Any]] = {
    "clone_by_vector": {"checkpoint": "base", "text": "The cat sat.", "x_vector_only_mode": True},
    "clone_by_vector_whole_text": {
        "checkpoint": "base",
        "text": "Hello!",
        "x_vector_only_mode": True,
        "non_streaming_mode": True,
        "language": "German",
    },
    "clone_short_text": {"checkpoint": "base", "text": "So.", "ref_text": "It is."},
    "clone_long_text": {"checkpoint": "base", "text": LONG, "ref_text": "It was the end.", "language": "English"},
    "clone_whole_text": {
        "checkpoint": "base",
        "text": "And so.",
        "ref_text": "It is.",
        "non_streaming_mode": True,
    },
    "speaker": {"checkpoint": "custom_voice", "text": "The end, 你好.", "speaker": "Vivian", "language": "English"},
    "speaker_with_dialect": {
        "checkpoint": "custom_voice",
        "text": "你好世界",
        "speaker": "dylan",
        "instruct": "Calm, the user says.",
        "non_streaming_mode": False,
    },
    "design": {"checkpoint": "voice_design", "text": "A storm.", "instruct": "An old voice"},
    "design_streaming": {
        "checkpoint": "voice_design",
        "text": "A storm is coming.",
        "instruct": "",
        "language": "chinese",
        "non_streaming_mode": False,
    },
    "clone_sampled": {"checkpoint": "base", "text": LONG, "x_vector_only_mode": True, "sampled": True},
    "design_sampled": {"checkpoint": "voice_design", "text": "A storm.", "instruct": "Old", "sampled": True},
}
SENTENCES = [
    "Hello, the world!",
    "你好世界, the 今天天气。",
    "Ärger & naïveté: 12.5% — 😀",
    "it's  the   user's",
    "CamelCaseWords and/or http://a.b/c",
    "e\u0301 is one letter",
]
AUDIO_SECONDS = {"short": 0.5, "whole": 0.96, "long": 2.7}


def import_upstream() -> Any:
    """``qwen_tts``; the 25 Hz tokenizer, which is not run, drags in libraries of its own."""
    importlib.import_module("librosa")
    importlib.import_module("transformers")
    for name in ("sox", "onnxruntime", "torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"):
        module = types.ModuleType(name)
        module.__path__ = []  # type: ignore[attr-defined]
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules.setdefault(name, module)
    return importlib.import_module("qwen_tts")


def load_uniforms() -> Callable[[Tensor, Tensor, range, int], Tensor]:
    spec = importlib.util.spec_from_file_location("noise", NOISE_FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.uniforms


def load_model(upstream: Any, folder: Path) -> Any:
    """Upstream's model with its processor, after making sure that no tensor was missing or left over."""
    from qwen_tts.core.models import Qwen3TTSForConditionalGeneration, Qwen3TTSProcessor
    from transformers import Qwen2TokenizerFast

    model = Qwen3TTSForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    codec = model.speech_tokenizer.model
    for whose, module, path in (
        ("model", model, folder / "model.safetensors"),
        ("speech tokenizer", codec, folder / "speech_tokenizer/model.safetensors"),
    ):
        found, held = load_file(path), module.state_dict()
        if found.keys() != held.keys() or any(not torch.equal(found[name], held[name]) for name in found):
            raise SystemExit(f"{whose} of {folder.name}: {sorted(found.keys() ^ held.keys())}, or other values")
    # Qwen's own pre-tokeniser, as upstream gets it with a name of the hub. From a folder it gets Mistral's, by a
    # repair of transformers 4.57.3 that is not meant for Qwen.
    processor = Qwen3TTSProcessor(tokenizer=Qwen2TokenizerFast.from_pretrained(folder))
    return upstream.Qwen3TTSModel(model=model.eval(), processor=processor, generate_defaults=model.generate_config)


def digest(folder: Path) -> str:
    return hashlib.sha256(
        b"".join((folder / name).read_bytes() for name in ("model.safetensors", "speech_tokenizer/model.safetensors"))
    ).hexdigest()


class Recorder:
    """What passes through upstream's talker while it runs, and the chance that it hears."""

    def __init__(self, model: Any, uniforms: Callable[[Tensor, Tensor, range, int], Tensor]) -> None:
        self.model, self.uniforms = model.model, uniforms
        self.inputs: Tensor | None = None
        self.trailing: Tensor | None = None
        self.codes: Tensor | None = None
        self.logits: list[Tensor] = []
        self.predicted: list[Tensor] = []
        self.drawn = 0
        self.group = 0

    def multinomial(self, shares: Tensor, num_samples: int, **_: Any) -> Tensor:
        """Draws by the Gumbel maximum, of the frame and codebook whose turn it is."""
        vocabulary = self.model.config.talker_config.vocab_size
        if shares.shape[1] == vocabulary:
            frame, group = self.drawn, 0
            self.drawn, self.group = self.drawn + 1, 0
        else:
            self.group += 1
            frame, group = self.drawn - 1, self.group
        chance = self.uniforms(torch.tensor([SEED]), torch.tensor([frame]), range(group, group + 1), shares.shape[1])
        return (shares.log() - torch.log(-torch.log(chance[:, 0]))).argmax(-1, keepdim=True)

    @contextmanager
    def listening(self) -> Iterator[None]:
        talker, multinomial, generate = self.model.talker, torch.multinomial, self.model.generate

        def began(_: Any, args: Any, options: dict[str, Any]) -> None:
            if self.inputs is None:
                self.inputs = options["inputs_embeds"][0].clone()
                self.trailing = options["trailing_text_hidden"][0].clone()

        def generated(**options: Any) -> Any:
            codes, states = generate(**options)
            self.codes = codes[0].clone()
            return codes, states

        handles = [
            talker.register_forward_pre_hook(began, with_kwargs=True),
            talker.codec_head.register_forward_hook(lambda _, args, output: self.logits.append(output[0, -1].clone())),
            *(
                head.register_forward_hook(lambda _, args, output: self.predicted.append(output[0, -1].clone()))
                for head in talker.code_predictor.lm_head
            ),
        ]
        torch.multinomial, self.model.generate = self.multinomial, generated
        try:
            yield
        finally:
            torch.multinomial, self.model.generate = multinomial, generate
            for handle in handles:
                handle.remove()


def speak(model: Any, case: dict[str, Any], audio: Tensor) -> Tensor:
    """Runs upstream from text to samples (N,)."""
    options = {name: value for name, value in case.items() if name not in ("checkpoint", "sampled")}
    options |= SAMPLED if case.get("sampled") else GREEDY
    # Its last token is drawn, but its frame is not made.
    options["max_new_tokens"] = (SAMPLED_FRAMES if case.get("sampled") else FRAMES) + 1
    if case["checkpoint"] == "base":
        made, _ = model.generate_voice_clone(ref_audio=(audio.numpy(), 24000), **options)
    elif case["checkpoint"] == "custom_voice":
        made, _ = model.generate_custom_voice(**options)
    else:
        made, _ = model.generate_voice_design(**options)
    return torch.from_numpy(made[0])


def make_audio(seconds: float) -> Tensor:
    """A voice of a kind: harmonics that glide, and breath."""
    count = round(24000 * seconds)
    time = torch.arange(count) / 24000
    source = torch.Generator().manual_seed(count)
    phase = 2 * torch.pi * (140 * time + 15 * torch.sin(3 * time))
    tones = sum(torch.sin(harmonic * phase) / harmonic for harmonic in range(1, 9))
    return (0.2 * tones * (0.6 + 0.4 * torch.sin(9 * time)) + 0.02 * torch.randn(count, generator=source)).float()


def record_case(model: Any, case: dict[str, Any], audio: Tensor, uniforms: Any) -> tuple[dict[str, Tensor], int]:
    recorder = Recorder(model, uniforms)
    with recorder.listening():
        samples = speak(model, case, audio)
    talker = model.model.config.talker_config
    kept = [*range(talker.vocab_size - 1024), talker.codec_eos_token_id]
    assert recorder.inputs is not None
    assert recorder.trailing is not None
    assert recorder.codes is not None
    groups = talker.num_code_groups - 1
    return {
        "inputs": recorder.inputs,
        "trailing": recorder.trailing,
        "codes": recorder.codes.to(torch.int16),
        "logits": torch.stack(recorder.logits)[: len(recorder.codes), kept],
        "predicted": torch.stack(recorder.predicted[: PREDICTED * groups]).unflatten(0, (PREDICTED, groups)),
        "audio": samples[::AUDIO_STRIDE],
    }, len(samples)


def record_codec(model: Any, audio: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the speech tokenizer makes of codes and of audio."""
    codec = model.model.speech_tokenizer
    source = torch.Generator().manual_seed(5)
    codes = torch.randint(0, codec.config.decoder_config.codebook_size, (60, 16), generator=source)
    tensors = {"codec/codes": codes.to(torch.int16)}
    with torch.inference_mode():
        tensors["codec/audio"] = codec.model.decoder(codes.T.unsqueeze(0))[0, 0, ::AUDIO_STRIDE].clone()
    for name, samples in audio.items():
        tensors[f"encode/{name}/audio"] = samples
        encoded = codec.encode(samples.numpy(), sr=24000).audio_codes[0]
        tensors[f"encode/{name}/codes"] = encoded.to(torch.int16).contiguous()
    return tensors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoints", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    upstream, uniforms = import_upstream(), load_uniforms()
    kinds = sorted({case["checkpoint"] for case in CASES.values()})
    models = {kind: load_model(upstream, options.checkpoints / kind) for kind in kinds}
    audio = {name: make_audio(seconds) for name, seconds in AUDIO_SECONDS.items()}
    base = models["base"]
    tensors = record_codec(base, audio)
    for name, samples in audio.items():
        vector = base.model.extract_speaker_embedding(samples.numpy(), sr=24000)
        tensors[f"encode/{name}/speaker"] = vector.clone()
    notes: dict[str, Any] = {}
    for name, case in CASES.items():
        recorded, samples = record_case(models[case["checkpoint"]], case, audio["whole"], uniforms)
        tensors |= {f"{name}/{what}": tensor.contiguous() for what, tensor in recorded.items()}
        notes[name] = case | {"frames": len(recorded["codes"]), "samples": samples}
    stopping = load_model(upstream, options.checkpoints / "stops_at_once")
    stopped, _ = stopping.generate_voice_design(text="A storm.", instruct="", **GREEDY, max_new_tokens=9)
    tokenizer = base.processor.tokenizer
    save_file(tensors, options.out / "goldens.safetensors")
    written = {
        "versions": {name: version(name) for name in ("qwen-tts", "transformers", "torch", "librosa")},
        "checkpoints": {kind: digest(options.checkpoints / kind) for kind in (*kinds, "stops_at_once")},
        "audio_stride": AUDIO_STRIDE,
        "seed": SEED,
        "sampled": SAMPLED,
        "cases": notes,
        "frames_of_a_stream_that_stops_at_once": len(stopped[0]) // 1920,
        "sentences": {text: tokenizer(text)["input_ids"] for text in SENTENCES},
    }
    text = json.dumps(written, ensure_ascii=False, indent=1) + "\n"
    (options.out / "goldens.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
