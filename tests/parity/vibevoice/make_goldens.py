"""Runs PyPI vibevoice==0.0.1 on tiny checkpoints and writes down what it computes.

Upstream is never a dependency: this script is its only user, in an environment of its own (Python 3.10 to 3.12)::

    python -m venv upstream
    upstream/bin/pip install --no-deps vibevoice==0.0.1 transformers==4.51.3 diffusers==0.35.2
    upstream/bin/pip install torch==2.13.0 scipy "huggingface_hub<1" tokenizers==0.21.4 safetensors tqdm pillow \
        pyyaml regex requests importlib_metadata

and with the project's own Python first, for the checkpoints that upstream is to load::

    python tests/parity/vibevoice/tiny_for_parity.py CHECKPOINTS
    upstream/bin/python tests/parity/vibevoice/make_goldens.py CHECKPOINTS tests/parity/vibevoice/data

Written are ``goldens.safetensors`` and ``goldens.json``. Upstream draws by ``torch.randn``; here it hears
``families/noise.py``, the one file of ours that is read.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

NOISE_FILE = Path(__file__).parents[3] / "python_backends/triton_speech/families/noise.py"
FRAMES = 40
SEED = 2**40 + 77
VOICE_SEED = 0
STEPS, SCALE = 10, 1.3
AUDIO_STRIDE = 17
"""Of audio every 17th sample is kept: prime to all rates, so every phase of every frame is seen."""
HOP = 3200
RECORDINGS = {"short": 5000, "whole": 4 * HOP, "long": 30001}
CASES: dict[str, dict[str, Any]] = {
    "solo": {"checkpoint": "tied", "text": "Speaker 1: The end is near.", "voices": []},
    "dialogue": {
        "checkpoint": "tied",
        "text": "Speaker 1: Hello there!\nSpeaker 2: 你好 — it's the 2nd speaker.\nSpeaker 1: So it is.",
        "voices": ["long", "whole"],
    },
    "untied": {"checkpoint": "untied", "text": "Speaker 1: In the end.", "voices": ["short"]},
    "by_chance": {"checkpoint": "by_chance", "text": "Speaker 1: And then?", "voices": []},
    "stops_at_some_time": {"checkpoint": "stops_at_some_time", "text": "Speaker 1: And then?", "voices": []},
}
SCRIPTS = {
    "one": ("Speaker 1: Hello, the world!", 0),
    "from_zero": ("Speaker 0: a\nSpeaker 1: b", 2),
    "four": (
        "Speaker 1: one\n\nspeaker 2 : two: 2\nSPEAKER 3:three \nSpeaker 4: it's  the   fourth\nSpeaker 2: bye",
        4,
    ),
}
SENTENCES = [
    "Hello, the world!",
    "你好世界, the 今天天气。",
    "Ärger & naïveté: 12.5% — 😀",
    "it's  the   speaker's",
    "CamelCaseWords and/or http://a.b/c",
    "e\u0301 is one letter",
]


def load_gaussian() -> Callable[[Tensor, Tensor, int], Tensor]:
    spec = importlib.util.spec_from_file_location("noise", NOISE_FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.gaussian


def load_upstream(folder: Path) -> tuple[Any, Any]:
    """Upstream's model and processor, after making sure that no tensor was missing or left over."""
    from vibevoice.modular.modeling_vibevoice_inference import VibeVoiceForConditionalGenerationInference
    from vibevoice.modular.modular_vibevoice_text_tokenizer import VibeVoiceTextTokenizerFast
    from vibevoice.processor.vibevoice_processor import VibeVoiceProcessor
    from vibevoice.processor.vibevoice_tokenizer_processor import VibeVoiceTokenizerProcessor

    model = VibeVoiceForConditionalGenerationInference.from_pretrained(
        folder, torch_dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
    ).eval()
    found, held = load_file(folder / "model.safetensors"), model.state_dict()
    if model.config.tie_word_embeddings:
        held.pop("lm_head.weight")
    if found.keys() != held.keys() or any(not torch.equal(found[name], held[name]) for name in found):
        raise SystemExit(f"{folder.name}: {sorted(found.keys() ^ held.keys())}, or other values")
    tokenizer = VibeVoiceTextTokenizerFast.from_pretrained(folder)
    return model, VibeVoiceProcessor(tokenizer=tokenizer, audio_processor=VibeVoiceTokenizerProcessor())


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


class Recorder:
    """What passes through upstream while it runs, and the chance that it hears."""

    def __init__(self, model: Any, gaussian: Callable[[Tensor, Tensor, int], Tensor]) -> None:
        self.model, self.gaussian = model, gaussian
        self.kept: dict[str, list[Tensor]] = {}
        self.prompt: dict[str, Tensor] = {}
        self.frame = -1
        self.is_negative = False

    def keep(self, name: str, value: Tensor) -> None:
        self.kept.setdefault(name, []).append(value.detach().clone())

    def randn(self, *size: Any, **_: Any) -> Tensor:
        width = self.model.config.acoustic_vae_dim
        if len(size) == 1:
            # The spread of each voice sample: the first of the lanes.
            return self.gaussian(torch.tensor([VOICE_SEED]), torch.tensor([0]), width)[0, :1].expand(size)
        noise = self.gaussian(torch.tensor([SEED]), torch.tensor([self.frame]), width)
        # The second row is drawn and never used.
        return torch.cat((noise, torch.zeros_like(noise)))

    def randn_like(self, like: Tensor, **_: Any) -> Tensor:
        frames = torch.arange(1, like.shape[1] + 1)
        return self.gaussian(torch.full_like(frames, VOICE_SEED), frames, like.shape[2]).expand(like.shape)

    def began(self, _: Any, args: Any, options: dict[str, Any]) -> None:
        # Upstream asks for the last logits of the stream, and for all of its negative.
        self.is_negative = options["logits_to_keep"] == 0

    def ran(self, _: Any, args: Any, options: dict[str, Any], made: Any) -> None:
        inputs, states = options["inputs_embeds"][0], made.last_hidden_state[0]
        if self.is_negative:
            self.keep("opposite", states[-1])
            return
        if not self.prompt:
            self.prompt = {"inputs": inputs.clone(), "states": states.clone()}
        self.frame += 1
        self.keep("input", inputs[-1])
        self.keep("state", states[-1])

    def heard(self, _: Any, args: Any, output: Tensor) -> None:
        self.keep("audio", args[0][0, 0, ::AUDIO_STRIDE])
        self.keep("semantic", output[0, :, 0])

    @contextmanager
    def listening(self) -> Iterator[None]:
        model, randn, randn_like, sample = self.model, torch.randn, torch.randn_like, self.model.sample_speech_tokens

        def sampled(*args: Any, **options: Any) -> Tensor:
            latents = sample(*args, **options)
            self.keep("latent", latents[0])
            return latents

        handles = [
            model.register_forward_pre_hook(self.began, with_kwargs=True),
            model.model.language_model.register_forward_hook(self.ran, with_kwargs=True),
            model.model.semantic_tokenizer.encoder.register_forward_hook(self.heard),
        ]
        model.sample_speech_tokens = sampled
        torch.randn, torch.randn_like = self.randn, self.randn_like
        try:
            yield
        finally:
            torch.randn, torch.randn_like, model.sample_speech_tokens = randn, randn_like, sample
            for handle in handles:
                handle.remove()


def make_audio(count: int) -> Tensor:
    """A voice of a kind: harmonics that glide, and breath."""
    time = torch.arange(count) / 24000
    source = torch.Generator().manual_seed(count)
    phase = 2 * torch.pi * (140 * time + 15 * torch.sin(3 * time))
    tones = sum(torch.sin(harmonic * phase) / harmonic for harmonic in range(1, 9))
    voice = 0.2 * tones * (0.6 + 0.4 * torch.sin(9 * time)) + 0.02 * torch.randn(count, generator=source)
    # Steps of 16 bits, so that files can hold it exactly.
    return (voice * 2**15).round().float() / 2**15


def record_case(
    model: Any, processor: Any, case: dict[str, Any], audio: dict[str, Tensor], gaussian: Any
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Runs upstream from a script to frames."""
    voices = [audio[name].numpy() for name in case["voices"]]
    inputs = processor(text=[case["text"]], voice_samples=[voices] if voices else None, return_tensors="pt")
    if not voices:
        # Upstream's generate reads a recording even where no place in the prompt is for one.
        inputs |= {"speech_tensors": torch.zeros(1, HOP), "speech_masks": torch.zeros(1, 1, dtype=torch.bool)}
    model.set_ddpm_inference_steps(STEPS)
    recorder = Recorder(model, gaussian)
    with recorder.listening():
        made = model.generate(
            **inputs,
            max_new_tokens=FRAMES,
            cfg_scale=SCALE,
            tokenizer=processor.tokenizer,
            generation_config={"do_sample": False},
            show_progress_bar=False,
        )
    prompt = inputs["input_ids"].shape[1]
    said = made.sequences[0, prompt:].tolist()
    tensors = {f"prompt/{name}": tensor for name, tensor in recorder.prompt.items()}
    tensors |= {name: torch.stack(values) for name, values in recorder.kept.items()}
    samples = 0 if made.speech_outputs[0] is None else made.speech_outputs[0].shape[-1]
    return tensors, {"tokens": inputs["input_ids"][0].tolist(), "said": said, "samples": samples}


@torch.inference_mode()
def record_parts(model: Any, gaussian: Any) -> dict[str, Tensor]:
    """The diffusion head and the solver."""
    source = torch.Generator().manual_seed(5)
    hidden, width = model.config.decoder_config.hidden_size, model.config.acoustic_vae_dim
    tensors = {
        "head/latents": torch.randn(5, width, generator=source),
        "head/times": torch.tensor([999, 899, 500, 100, 1]),
        "head/conditions": torch.randn(5, hidden, generator=source),
        "solver/conditions": torch.randn(2, hidden, generator=source),
    }
    inputs = (tensors["head/latents"], tensors["head/times"].float())
    tensors["head/velocities"] = model.model.prediction_head(*inputs, condition=tensors["head/conditions"])
    for steps in (1, 2, 3, 10, 20):
        model.set_ddpm_inference_steps(steps)
        recorder = Recorder(model, gaussian)
        recorder.frame = steps
        with recorder.listening():
            stream, negative = tensors["solver/conditions"].split(1)
            tensors[f"solver/{steps}"] = model.sample_speech_tokens(stream, negative, cfg_scale=SCALE)
    return tensors


@torch.inference_mode()
def record_audio(model: Any, processor: Any, audio: dict[str, Tensor], gaussian: Any) -> dict[str, Tensor]:
    """What the speech tokenizers make of latents and of audio, at once and frame by frame."""
    from vibevoice.modular.modular_vibevoice_tokenizer import VibeVoiceTokenizerStreamingCache

    source = torch.Generator().manual_seed(6)
    acoustic, semantic = model.model.acoustic_tokenizer, model.model.semantic_tokenizer
    tensors = {"decoder/latents": torch.randn(12, model.config.acoustic_vae_dim, generator=source)}
    tensors["decoder/audio"] = acoustic.decode(tensors["decoder/latents"].T[None])[0, 0, ::AUDIO_STRIDE].clone()
    for name, samples in audio.items():
        tensors[f"encode/{name}/acoustic"] = acoustic.encode(samples[None, None]).mean[0].clone()
        tensors[f"encode/{name}/semantic"] = semantic.encode(samples[None, None]).mean[0].clone()
        loud = torch.from_numpy(processor.audio_normalizer(samples.numpy()))[None]
        mask = torch.ones(1, -(-len(samples) // HOP), dtype=torch.bool)
        with Recorder(model, gaussian).listening():
            tensors[f"encode/{name}/features"] = model._process_speech_inputs(loud, mask)[0][0].clone()
    cache, one = VibeVoiceTokenizerStreamingCache(), torch.tensor([0])
    pieces = audio["whole"].split(HOP)
    heard = [semantic.encode(piece[None, None], cache=cache, sample_indices=one, use_cache=True) for piece in pieces]
    tensors["feedback/semantic"] = torch.cat([one_frame.mean[0] for one_frame in heard])
    return tensors


def record_text(processor: Any, audio: dict[str, Tensor]) -> dict[str, Any]:
    notes: dict[str, Any] = {}
    for name, (text, count) in SCRIPTS.items():
        voices = [audio["whole"].numpy()] * count
        made = processor(text=[text], voice_samples=[voices] if voices else None, return_tensors="pt")
        notes[name] = {"text": text, "voices": count, "tokens": made["input_ids"][0].tolist()}
    return notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkpoints", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    gaussian = load_gaussian()
    loaded = {
        name: load_upstream(options.checkpoints / name)
        for name in sorted({case["checkpoint"] for case in CASES.values()})
    }
    audio = {name: make_audio(count) for name, count in RECORDINGS.items()}
    model, processor = loaded["untied"]
    tensors = record_parts(model, gaussian) | record_audio(model, processor, audio, gaussian)
    tensors |= {f"audio/{name}": (samples * 2**15).to(torch.int16) for name, samples in audio.items()}
    cases: dict[str, Any] = {}
    for name, case in CASES.items():
        recorded, notes = record_case(*loaded[case["checkpoint"]], case, audio, gaussian)
        tensors |= {f"{name}/{what}": tensor for what, tensor in recorded.items()}
        cases[name] = case | notes
        print(
            name, len(notes["said"]), notes["samples"], {token: notes["said"].count(token) for token in notes["said"]}
        )
    notes = {
        "made_with": {name: version(name) for name in ("vibevoice", "transformers", "torch")},
        "seed": SEED,
        "steps": STEPS,
        "scale": SCALE,
        "audio_stride": AUDIO_STRIDE,
        "digests": {name: digest(options.checkpoints / name) for name in loaded},
        "cases": cases,
        "scripts": record_text(processor, audio),
        "sentences": [[text, processor.tokenizer.encode(text, add_special_tokens=False)] for text in SENTENCES],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, options.out / "goldens.safetensors")
    text = json.dumps(notes, ensure_ascii=False, separators=(",", ":"))
    (options.out / "goldens.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
