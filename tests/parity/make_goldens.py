"""Runs PyPI voxcpm==2.0.3 on a tiny checkpoint and writes down what it computes.

Upstream is never a dependency: this script is its only user, in an environment of its own (Python 3.10 to 3.12)::

    python -m venv upstream
    upstream/bin/pip install --no-deps voxcpm==2.0.3
    upstream/bin/pip install torch transformers==4.57.3 einops pydantic safetensors tqdm

and with the project's own Python first, for the checkpoint that upstream is to load::

    python tests/parity/tiny_for_parity.py CHECKPOINT
    upstream/bin/python tests/parity/make_goldens.py CHECKPOINT tests/parity/data

Written are ``checkpoint/`` (the weights as upstream saves them), ``goldens.safetensors`` and ``goldens.json``. Upstream
draws its noise from torch's generator; here it hears ``families/noise.py``, the one file of ours that is read.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import shutil
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

NOISE_FILE = Path(__file__).parents[2] / "python_backends/triton_speech/families/noise.py"
FRAMES = 30
STEPS, CFG = 10, 2.0
MIN_LEN = 2
"""Upstream's default: the index of the last frame after which it does not stop, whatever the stop head says."""
MIN_EDGE = 5e-4
"""The nearest that a quantised value may come to the edge between two levels, whose distance is 1."""
MAX_SEEDS = 200
AUDIO_STRIDE = 17
"""Of decoded audio every 17th sample is kept: prime to all rates, so every phase of every frame is seen."""
MODES: dict[str, dict[str, Any]] = {
    "zero_shot": {"text": "The cat sat.", "prompt_text": "", "reference": False, "prompt": False},
    "reference": {"text": "Hello, the world!", "prompt_text": "", "reference": True, "prompt": False},
    "continuation": {"text": "And on it went.", "prompt_text": "So it began, ", "reference": False, "prompt": True},
    "reference_continuation": {
        "text": "今天天气 is fine.",
        "prompt_text": "你好, the ",
        "reference": True,
        "prompt": True,
    },
}
SENTENCES = [
    "Hello, the world!",
    "你好世界, the 今天天气。",
    " leading, trailing  and double  spaces ",
    "Ärger & naïveté: 12.5% — 😀",
    "(a calm voice)Then the end.",
    "你好",
]
# Neither is a whole number of patches: one is padded on the right, the other on the left.
AUDIO_SAMPLES = {"reference": 5_000, "prompt": 4_700}


def import_upstream() -> Any:
    """``voxcpm.model.voxcpm2``, without the packages around it: they import denoisers, command lines and librosa."""
    spec = importlib.util.find_spec("voxcpm")
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("voxcpm is not installed for this Python: pip install --no-deps voxcpm==2.0.3")
    root = Path(next(iter(spec.submodule_search_locations)))
    for name, folder in (("voxcpm", root), ("voxcpm.model", root / "model")):
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    importlib.import_module("transformers")  # looks for librosa itself, and must not find this one
    sys.modules["librosa"] = types.ModuleType("librosa")
    module = importlib.import_module("voxcpm.model.voxcpm2")
    module.tqdm = lambda frames: frames
    return module


def load_noise() -> Callable[[Tensor, Tensor, int], Tensor]:
    spec = importlib.util.spec_from_file_location("noise", NOISE_FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.gaussian


def load_model(upstream: Any, folder: Path) -> Any:
    """Upstream's model, after making sure that nothing was missing or left over: it would not say so itself."""
    model = upstream.VoxCPM2Model.from_local(str(folder), optimize=False, device="cpu")
    found = set(load_file(folder / "model.safetensors"))
    vae = torch.load(folder / "audiovae.pth", weights_only=True)["state_dict"]
    found |= {f"audio_vae.{name}" for name in vae}
    expected = set(model.state_dict())
    if found != expected:
        raise SystemExit(f"missing: {sorted(expected - found)}; surplus: {sorted(found - expected)}")
    return model


def save_model(model: Any, source: Path, folder: Path) -> None:
    """A checkpoint folder with the weights as upstream holds them."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.glob("*.json"):
        shutil.copyfile(file, folder / file.name)
    state = model.state_dict()
    prefix = "audio_vae."
    talker = {name: t.contiguous() for name, t in state.items() if not name.startswith(prefix)}
    save_file(talker, folder / "model.safetensors")
    vae = {name[len(prefix) :]: t for name, t in state.items() if name.startswith(prefix)}
    torch.save({"state_dict": vae}, folder / "audiovae.pth")


class Recorder:
    """What passes through upstream's model while it runs, unchanged, from end to end.

    Args:
        forced: (FRAMES, P, D) patches that take the place of those the model makes, or None.
    """

    def __init__(self, model: Any, gaussian: Callable[[Tensor, Tensor, int], Tensor], seed: int) -> None:
        self.model, self.gaussian, self.seed = model, gaussian, seed
        self.forced: Tensor | None = None
        self.patches: list[Tensor] = []
        self.states: list[Tensor] = []
        self.residuals: list[Tensor] = []
        self.stops: list[Tensor] = []
        self.levels: list[Tensor] = []
        self.audio_rows: Tensor | None = None

    def randn(self, shape: tuple[int, ...], **_: Any) -> Tensor:
        """Noise (1, D, P) of the frame that is made next; ours is laid out (P, D)."""
        batch, features, size = shape
        seed, frame = torch.tensor([self.seed]), torch.tensor([len(self.patches)])
        return self.gaussian(seed, frame, features * size).view(batch, size, features).transpose(1, 2).contiguous()

    def _patch_made(self, module: Any, args: Any, output: Tensor) -> Tensor | None:
        self.patches.append(output[0].T.clone())
        return None if self.forced is None else self.forced[len(self.patches) - 1].T.unsqueeze(0)

    def _quantised(self, module: Any, args: Any, output: Tensor) -> None:
        levels = torch.tanh(output) * self.model.fsq_layer.scale
        # The prompt's text rows pass the layer too, but upstream throws their result away.
        self.levels.append(levels[0][self.audio_rows] if levels.dim() == 3 else levels)

    @contextmanager
    def listening(self) -> Iterator[None]:
        model, randn, inference = self.model, torch.randn, self.model._inference

        def with_mask(text: Tensor, text_mask: Tensor, feat: Tensor, feat_mask: Tensor, **options: Any) -> Any:
            self.audio_rows = feat_mask[0].bool()
            return inference(text, text_mask, feat, feat_mask, **options)

        handles = [
            model.feat_decoder.register_forward_hook(self._patch_made),
            model.fsq_layer.in_proj.register_forward_hook(self._quantised),
            model.lm_to_dit_proj.register_forward_pre_hook(lambda _, args: self.states.append(args[0][0].clone())),
            model.res_to_dit_proj.register_forward_pre_hook(lambda _, args: self.residuals.append(args[0][0].clone())),
            model.stop_head.register_forward_hook(lambda _, args, output: self.stops.append(output[0].clone())),
        ]
        torch.randn, model._inference = self.randn, with_mask
        try:
            yield
        finally:
            torch.randn = randn
            del model._inference
            for handle in handles:
                handle.remove()

    @property
    def edge(self) -> float:
        """The smallest distance of a quantised value to the edge between two levels."""
        levels = torch.cat(self.levels)
        return (0.5 - (levels - levels.round()).abs()).min().item()

    def generate(self, mode: dict[str, Any]) -> Tensor:
        """Runs upstream's ``generate`` -> audio (N,). With forced patches it does not stop before the last."""
        with self.listening():
            audio = self.model.generate(
                target_text=mode["text"],
                prompt_text=mode["prompt_text"],
                prompt_wav_path="prompt" if mode["prompt"] else "",
                reference_wav_path="reference" if mode["reference"] else "",
                min_len=MIN_LEN if self.forced is None else FRAMES,
                max_len=FRAMES,
                inference_timesteps=STEPS,
                cfg_value=CFG,
            )
        return audio[0]


class Maker:
    """Fills ``tensors`` and ``notes``."""

    def __init__(self, upstream: Any, model: Any) -> None:
        self.model = model
        self.gaussian = load_noise()
        self.config = model.config
        self.shape = (model.patch_size, model.feat_dim)
        self.tensors: dict[str, Tensor] = {}
        self.notes: dict[str, Any] = {
            "voxcpm": version("voxcpm"),
            "transformers": version("transformers"),
            "torch": torch.__version__,
            "frames": FRAMES,
            "steps": STEPS,
            "cfg_value": CFG,
            "audio_stride": AUDIO_STRIDE,
            "min_edge": MIN_EDGE,
            "modes": {},
        }
        self.source = torch.Generator().manual_seed(1)
        for name, samples in AUDIO_SAMPLES.items():
            self.tensors[f"audio/{name}"] = 0.3 * self.draw(samples)
        upstream.librosa.load = lambda name, sr, mono: (self.tensors[f"audio/{name}"].numpy(), sr)

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.source)

    def keep(self, name: str, **tensors: Tensor) -> None:
        self.tensors |= {f"module/{name}/{role}": tensor for role, tensor in tensors.items()}

    @torch.inference_mode()
    def modules(self) -> None:
        model, (size, features) = self.model, self.shape
        hidden = self.config.lm_config.hidden_size
        for name in ("base_lm", "residual_lm"):
            self._language_model(name, hidden)
        state = self.draw(6, hidden)
        self.keep("fsq", x=state, y=model.fsq_layer(state))
        levels = torch.tanh(model.fsq_layer.in_proj(state)) * model.fsq_layer.scale
        self.notes["fsq_edge"] = (0.5 - (levels - levels.round()).abs()).min().item()
        self.keep("stop", x=state, y=model.stop_head(model.stop_actn(model.stop_proj(state))))
        patches = self.draw(5, size, features)
        self.keep("encoder", x=patches, y=model.enc_to_lm_proj(model.feat_encoder(patches[None]))[0])
        self._diffusion(size, features)
        self._vae()

    def _language_model(self, name: str, hidden: int) -> None:
        lm = getattr(self.model, name)
        prompt, rows = self.draw(9, hidden), self.draw(4, hidden)
        out, cache = lm(inputs_embeds=prompt[None], is_causal=True)
        self.keep(f"{name}.prefill", x=prompt, y=out[0])
        lm.kv_cache.fill_caches(cache)
        steps = [lm.forward_step(row[None], torch.tensor([lm.kv_cache.step()])) for row in rows]
        self.keep(f"{name}.step", x=rows, y=torch.cat(steps))

    def _diffusion(self, size: int, features: int) -> None:
        decoder = self.model.feat_decoder
        batch, width = 3, 2 * self.config.dit_config.hidden_dim
        x, cond = self.draw(batch, size, features), self.draw(batch, size, features)
        mu, t, dt = self.draw(batch, width), torch.tensor([0.9, 0.5, 0.1]), torch.tensor([0.0, 0.1, 0.2])
        velocity = decoder.estimator(x.transpose(1, 2), mu, t, cond.transpose(1, 2), dt)
        self.keep("locdit", x=x, mu=mu, cond=cond, t=t, dt=dt, y=velocity.transpose(1, 2).contiguous())
        randn = torch.randn
        for steps, guidance in ((STEPS, CFG), (50, 1.5)):
            torch.randn = lambda shape, **_: x.transpose(1, 2)
            solved = decoder(mu=mu, n_timesteps=steps, patch_size=size, cond=cond.transpose(1, 2), cfg_value=guidance)
            torch.randn = randn
            self.keep(f"solver.{steps}", x=x, mu=mu, cond=cond, cfg=torch.full((batch,), guidance))
            self.keep(f"solver.{steps}", y=solved.transpose(1, 2).contiguous())

    def _vae(self) -> None:
        vae = self.model.audio_vae
        audio = 0.3 * self.draw(1, 3_000)
        self.keep("vae.encode", x=audio, y=vae.encode(audio, vae.sample_rate))
        latents = self.draw(1, vae.latent_dim, 4)
        self.keep("vae.decode", x=latents, y=vae.decode(latents)[:, 0])
        low = vae.decode(latents, torch.tensor([24_000], dtype=torch.int32))[:, 0, ::AUDIO_STRIDE]
        self.keep("vae.decode.24000", x=latents, y=low.contiguous())
        for role, side in (("reference", "right"), ("prompt", "left")):
            patches = self.model._encode_wav(role, padding_mode=side)
            self.tensors[f"prompt/{role}"] = patches.contiguous()

    def modes(self) -> None:
        for name, mode in MODES.items():
            free, audio = self._far_from_edges(mode, forced=False)
            forced, _ = self._far_from_edges(mode, forced=True)
            for kind, run in (("free", free), ("forced", forced)):
                self.tensors[f"{kind}/{name}/patches"] = torch.stack(run.patches)
                self.tensors[f"{kind}/{name}/state"] = torch.stack(run.states)
                self.tensors[f"{kind}/{name}/residual"] = torch.stack(run.residuals)
                self.tensors[f"{kind}/{name}/stop"] = torch.stack(run.stops)
            assert forced.forced is not None
            self.tensors[f"forced/{name}/fed"] = forced.forced
            self.tensors[f"free/{name}/audio"] = audio[::AUDIO_STRIDE].contiguous()
            tokens = self.model.text_tokenizer(mode["prompt_text"] + mode["text"])
            self.notes["modes"][name] = mode | {
                "tokens": tokens,
                "samples": len(audio),
                "free": {"seed": free.seed, "edge": free.edge, "frames": len(free.patches)},
                "forced": {"seed": forced.seed, "edge": forced.edge},
            }

    def stopping(self) -> None:
        """Frames that are made when the stop head says the opposite of what it says of itself, and at once."""
        weight = self.model.stop_head.weight.data
        weight.neg_()
        run = Recorder(self.model, self.gaussian, seed=0)
        run.generate(MODES["zero_shot"])
        weight.neg_()
        self.notes["frames_with_stop_head_negated"] = len(run.patches)

    def _far_from_edges(self, mode: dict[str, Any], *, forced: bool) -> tuple[Recorder, Tensor]:
        """The run of the first seed in which no quantised value lies within ``MIN_EDGE`` of an edge."""
        for seed in range(MAX_SEEDS):
            run = Recorder(self.model, self.gaussian, seed)
            if forced:
                run.forced = torch.randn(FRAMES, *self.shape, generator=torch.Generator().manual_seed(seed))
            audio = run.generate(mode)
            if run.edge > MIN_EDGE:
                return run, audio
        raise SystemExit(f"no seed below {MAX_SEEDS} keeps {MIN_EDGE} away from every edge of the quantiser")

    def write(self, folder: Path) -> None:
        self.notes["sentences"] = {text: self.model.text_tokenizer(text) for text in SENTENCES}
        save_file({name: t.clone() for name, t in self.tensors.items()}, folder / "goldens.safetensors")
        text = json.dumps(self.notes, ensure_ascii=False, indent=1)
        (folder / "goldens.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the golden tensors with upstream's package.")
    parser.add_argument("checkpoint", type=Path, help="a tiny checkpoint, written by this project")
    parser.add_argument("out", type=Path, help="folder that gets checkpoint/, goldens.safetensors and goldens.json")
    parser.add_argument("--only-checkpoint", action="store_true", help="load and save the weights, nothing more")
    args = parser.parse_args()
    torch.set_num_threads(1)
    upstream = import_upstream()
    model = load_model(upstream, args.checkpoint)
    save_model(model, args.checkpoint, args.out / "checkpoint")
    if not args.only_checkpoint:
        maker = Maker(upstream, model)
        maker.modules()
        maker.modes()
        maker.stopping()
        maker.write(args.out)


if __name__ == "__main__":
    main()
