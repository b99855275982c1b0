"""What a model makes of its own accord and nobody should hear: endless silence, values that are no numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from triton_speech.families.voxcpm2.checkpoint import load_audio_vae
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint
from triton_speech.families.voxcpm2.tokenizer import Tokenizer
from triton_speech.streaming.silence import SILENCE

PIPELINES = ("voxcpm2", "voxcpm2_pipeline")
QUICKSTART = Path(__file__).resolve().parents[2] / "checkpoints" / "quickstart"
MAX_SILENCE_SECONDS, RATE = 0.02, 24_000

Serving = Callable[..., AbstractContextManager[Any]]
Calling = Callable[[str], AbstractContextManager[Any]]


def request(text: str, **others: Any) -> dict[str, Any]:
    return {"TEXT": text, "SEED": np.array([1], np.uint64), **others}


def test_silence_at_the_end_is_not_sent(serving: Serving, calling: Calling) -> None:
    """Endless silence after a very short text. What is sent is the offline result, up to its silent end."""
    parameters = {"voxcpm2_codec": {"max_trailing_silence": MAX_SILENCE_SECONDS}}
    inputs = request("The kettle is on the table.", CHUNK_SCHEDULE=np.array([1], np.int32))
    with serving(parameters, QUICKSTART) as server, calling(server.grpc_url) as caller:
        prepared = caller.ask("voxcpm2_frontend", inputs, ()).responses[0]
        names = ("TOKENS", "SEED", "MAX_FRAMES", "CFG_VALUE", "INFERENCE_STEPS")
        given = {name: prepared.as_numpy(name) for name in names}
        latents = caller.ask("voxcpm2_talker", given, ("LATENTS",)).samples("LATENTS")
        answers = [caller.ask(name, inputs) for name in PIPELINES]
    vae = load_audio_vae(QUICKSTART, device="cpu")
    with torch.inference_mode():
        offline = vae.decode(torch.from_numpy(latents).flatten(0, 1).T.unsqueeze(0)).flatten().numpy()
    most = round(MAX_SILENCE_SECONDS * RATE)
    expected = int(np.flatnonzero(np.abs(offline) >= SILENCE)[-1]) + 1 + most
    assert expected < len(offline) - most
    for answer in answers:
        assert (answer.errors, answer.finals, answer.column("FINISH_REASON")[-1]) == ([], 1, b"stop")
        assert answer.column("CHUNK_INDEX") == list(range(len(latents)))
        # A sample at the very threshold may fall on either side of it.
        assert abs(len(answer.samples()) - expected) <= most
        np.testing.assert_allclose(answer.samples(), offline[: len(answer.samples())], rtol=0, atol=1e-5)


def test_latents_that_are_no_numbers_end_their_stream_and_no_other(
    serving: Serving, calling: Calling, tmp_path: Path
) -> None:
    """One token of the model is broken: a text that holds it is an error, never a sound."""
    folder = write_tiny_checkpoint(tmp_path / "tiny")
    good, bad = "Hello there.", "Zebra quiz."
    tokenizer = Tokenizer.from_checkpoint(folder)
    weights = load_file(folder / "model.safetensors")
    broken = sorted(set(tokenizer.encode(bad)) - set(tokenizer.encode(good)))
    weights["base_lm.embed_tokens.weight"][broken] = torch.nan
    save_file(weights, folder / "model.safetensors")
    limit = {"MAX_SECONDS": np.array([1.0], np.float32)}
    with serving({}, folder) as server, calling(server.grpc_url) as caller:
        for name in PIPELINES:
            alone = caller.ask(name, request(good, **limit))
            answers = caller.ask_all(name, [request(text, **limit) for text in (good, bad, good, bad, bad)])
            for answer, is_good in zip(answers, (True, False, True, False, False), strict=True):
                assert answer.finals == 1
                if is_good:
                    np.testing.assert_allclose(answer.samples(), alone.samples(), rtol=0, atol=1e-4)
                else:
                    assert answer.responses == []
                    assert answer.errors[0].endswith("the talker made NaN or infinite values; the stream was ended")


def test_samples_that_are_no_numbers_are_never_sent(serving: Serving, calling: Calling, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "tiny")
    saved = torch.load(folder / "audiovae.pth", weights_only=True)
    saved["state_dict"]["decoder.sr_cond_model.7.bias_embed.weight"].fill_(torch.nan)
    torch.save(saved, folder / "audiovae.pth")
    with serving({}, folder) as server, calling(server.grpc_url) as caller:
        for name in PIPELINES * 2:
            answer = caller.ask(name, request("Hello there."))
            assert (answer.responses, answer.finals) == ([], 1)
            assert answer.errors[0].endswith("the codec made NaN or infinite samples; the stream was ended")
