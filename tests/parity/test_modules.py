"""Every module of the model against upstream's, in fp32, within 1e-5 of its output's largest value."""

from typing import Any

import pytest
import torch
from torch import Tensor

from triton_speech.engine.kv_cache import SlotKVCache
from triton_speech.families.facts import KVShape
from triton_speech.families.voxcpm2.audio_vae import AudioVAE
from triton_speech.families.voxcpm2.checkpoint import load_audio_vae, load_talker
from triton_speech.families.voxcpm2.minicpm import MiniCPM
from triton_speech.families.voxcpm2.model import VoxCPM2Talker
from triton_speech.families.voxcpm2.reference import ReferenceEncoder
from triton_speech.families.voxcpm2.streaming_decoder import StreamingDecoder
from triton_speech.families.voxcpm2.tokenizer import Tokenizer

LIMIT = 1e-5


@pytest.fixture(scope="module", params=[False, True], ids=["unfused", "fused"])
def talker(request: pytest.FixtureRequest, golden: Any) -> VoxCPM2Talker:
    return load_talker(golden.checkpoint, fused=request.param)


@pytest.fixture(scope="module")
def vae(golden: Any) -> AudioVAE:
    return load_audio_vae(golden.checkpoint)


@pytest.fixture(autouse=True)
def _inference() -> Any:
    with torch.inference_mode():
        yield


def in_chunks(lm: MiniCPM, first_layer: int, prompt: Tensor, rows: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Outputs of a prompt that is run in chunks, and of single rows after it, through the engine's cache."""
    shape = KVShape(
        first_layer + len(lm.layers), lm.config.num_attention_heads, lm.config.num_key_value_heads, lm.config.head_dim
    )
    length, slot = len(prompt) + len(rows), 1
    cache = SlotKVCache(shape, slots=2, length=length, dtype=prompt.dtype, device=prompt.device)
    prefilled, stepped = [], []
    for start in range(0, len(prompt), chunk):
        stop = min(start + chunk, len(prompt))
        prefilled.append(lm(prompt[start:stop], torch.arange(start, stop), cache.prefill(slot, start, stop)))
    for position, row in enumerate(rows, start=len(prompt)):
        attend = cache.decode(torch.tensor([slot]), torch.tensor([position]), position)
        stepped.append(lm(row[None], torch.tensor([position]), attend))
    return torch.cat(prefilled), torch.cat(stepped)


@pytest.mark.parametrize("chunk", [9, 4, 1])
@pytest.mark.parametrize("name", ["base_lm", "residual_lm"])
def test_language_model_prefill_and_steps(golden: Any, talker: VoxCPM2Talker, name: str, chunk: int) -> None:
    first_layer = 0 if name == "base_lm" else len(talker.base_lm.layers)
    prompt, rows = golden.module(f"{name}.prefill", "x"), golden.module(f"{name}.step", "x")
    prefilled, stepped = in_chunks(getattr(talker, name), first_layer, prompt, rows, chunk)
    golden.check(f"module: {name} prefill", prefilled, golden.module(f"{name}.prefill", "y"), LIMIT)
    golden.check(f"module: {name} step", stepped, golden.module(f"{name}.step", "y"), LIMIT)


def test_quantiser(golden: Any, talker: VoxCPM2Talker) -> None:
    assert golden.notes["fsq_edge"] > 1e-4, "a value of the golden input lies on an edge: draw another"
    golden.check("module: FSQ", talker.fsq_layer(golden.module("fsq", "x")), golden.module("fsq", "y"), LIMIT)


def test_stop_head(golden: Any, talker: VoxCPM2Talker) -> None:
    golden.check("module: stop head", talker.stop_logits(golden.module("stop", "x")), golden.module("stop", "y"), LIMIT)


def test_local_encoder(golden: Any, talker: VoxCPM2Talker) -> None:
    ours = talker.encode_patches(golden.module("encoder", "x"))
    golden.check("module: local encoder", ours, golden.module("encoder", "y"), LIMIT)


def test_locdit(golden: Any, talker: VoxCPM2Talker) -> None:
    x, mu, cond, t, dt = (golden.module("locdit", role) for role in ("x", "mu", "cond", "t", "dt"))
    dit = talker.feat_decoder.estimator
    time = dit.embed_time(t, dt).unsqueeze(1)
    ours = dit(x, mu.view(len(x), dit.mu_tokens, dit.size), time, dit.cond_proj(cond))
    golden.check("module: LocDiT", ours, golden.module("locdit", "y"), LIMIT)


@pytest.mark.parametrize("steps", [10, 50])
def test_solver(golden: Any, talker: VoxCPM2Talker, steps: int) -> None:
    """10 steps with CFG 2.0; and 50 with 1.5, of which two are left out instead of one."""
    x, mu, cond, cfg = (golden.module(f"solver.{steps}", role) for role in ("x", "mu", "cond", "cfg"))
    counts = torch.full((len(x),), steps)
    ours = talker.feat_decoder.solve(x, mu, cond, cfg, counts, steps)
    golden.check(f"module: solver, {steps} steps", ours, golden.module(f"solver.{steps}", "y"), LIMIT)


def test_vae_encode(golden: Any, vae: AudioVAE) -> None:
    ours = vae.encode(golden.module("vae.encode", "x"))
    golden.check("module: VAE encode", ours, golden.module("vae.encode", "y"), LIMIT)


def test_vae_decode(golden: Any, vae: AudioVAE) -> None:
    ours = vae.decode(golden.module("vae.decode", "x"))
    golden.check("module: VAE decode", ours, golden.module("vae.decode", "y"), LIMIT)


def test_vae_decode_for_another_rate(golden: Any, vae: AudioVAE) -> None:
    ours = vae.decode(golden.module("vae.decode.24000", "x"), 24_000)[:, :: golden.notes["audio_stride"]]
    golden.check("module: VAE decode, 24 kHz", ours, golden.module("vae.decode.24000", "y"), LIMIT)


@pytest.mark.parametrize("frames", [1, 3])
def test_vae_decode_as_a_stream(golden: Any, vae: AudioVAE, frames: int) -> None:
    decoder, slot = StreamingDecoder(vae), torch.tensor([1])
    state = decoder.new_state(2)
    chunks = torch.split(golden.module("vae.decode", "x"), frames, dim=2)
    ours = torch.cat([decoder.decode(chunk, state, slot) for chunk in chunks], dim=1)
    golden.check("module: VAE decode, streaming", ours, golden.module("vae.decode", "y"), LIMIT)


@pytest.mark.parametrize("role", ["reference", "prompt"])
def test_audio_of_a_speaker_becomes_the_same_patches(golden: Any, role: Any) -> None:
    encoder = ReferenceEncoder.from_checkpoint(golden.checkpoint)
    ours = torch.from_numpy(encoder.encode(golden.tensors[f"audio/{role}"].numpy(), role))
    golden.check(f"module: {role} patches", ours, golden.tensors[f"prompt/{role}"], LIMIT)


def test_text_becomes_the_same_tokens(golden: Any) -> None:
    tokenizer = Tokenizer.from_checkpoint(golden.checkpoint)
    sentences = golden.notes["sentences"]
    assert {text: tokenizer.encode(text) for text in sentences} == sentences
