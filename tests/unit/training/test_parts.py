"""The parts of the recipe, each by itself."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from triton_speech.families.voxcpm2 import ops
from triton_speech.families.voxcpm2.audio_vae import AudioVAE
from triton_speech.families.voxcpm2.config import AudioVAEConfig, VoxCPM2Config
from triton_speech.families.voxcpm2.training.blocked import is_blocked
from triton_speech.families.voxcpm2.training.codec import use_sums
from triton_speech.families.voxcpm2.training.optimisers import Muon, adamw, restore, set_rate
from triton_speech.families.voxcpm2.training.rows import NO_DOCUMENT, Rows, Utterance
from triton_speech.families.voxcpm2.training.settings import TalkerSettings
from triton_speech.families.voxcpm2.training.speakers import SAMPLE_RATE, SPEAKERS, Speaker, speak_as
from triton_speech.families.voxcpm2.training.spectra import linear_loss, mel_filters, mel_loss
from triton_speech.families.voxcpm2.training.talker import new_talker
from triton_speech.families.voxcpm2.training.talker_loss import Draws, talker_loss
from triton_speech.families.voxcpm2.training.teacher import LOUDNESS, tidy
from triton_speech.families.voxcpm2.training.templates import WORDS, Patterns

FIRST_SPEAKER, MARKS = 0, {"reference": 103, "reference_end": 104, "start": 101}


def utterances(count: int) -> list[Utterance]:
    source, begin, made = random.Random(1), 0, []
    for index in range(count):
        patches = source.randint(3, 20)
        made.append(Utterance([5 + index % 90] * source.randint(2, 12), begin, patches, index % 4))
        begin += patches
    return made


def rows(**changes: float) -> Rows:
    return Rows(utterances(80), TalkerSettings(batch=4, length=128, **changes), 12.5)


def test_a_batch_depends_on_the_seed_and_its_number_alone() -> None:
    first, second = rows(), rows()
    second[3]
    for name in ("tokens", "document", "heard_patch", "made_patch", "stop"):
        assert torch.equal(getattr(first[7], name), getattr(second[7], name))
    assert not torch.equal(first[7].tokens, first[8].tokens)


def test_every_made_patch_follows_what_it_is_made_from() -> None:
    """Its place reads that same patch, the place before it belongs to the same utterance, the last one stops."""
    batch = rows()[0]
    places = batch.document.flatten()
    read = dict(zip(batch.heard.tolist(), batch.heard_patch.tolist(), strict=True))
    count = int(batch.weight.sum())
    assert count > 20
    for place, patch in zip(batch.made[:count].tolist(), batch.made_patch[:count].tolist(), strict=True):
        assert read[place] == patch
        assert places[place] == places[place - 1] != NO_DOCUMENT
    stops = [place for place, stop in zip(batch.made.tolist(), batch.stop.tolist(), strict=True) if stop]
    assert len(stops) == int(places.max()) + 1
    for place in stops:
        assert place + 1 == len(places) or places[place + 1] != places[place]


def test_a_reference_is_of_the_same_speaker_and_not_made() -> None:
    known = utterances(80)
    owner = {one.begin + i: one.speaker for one in known for i in range(one.count)}
    batch = rows(reference_share=1.0, continuation_share=0.0)[0]
    tokens, document = batch.tokens.flatten(), batch.document.flatten()
    read = dict(zip(batch.heard.tolist(), batch.heard_patch.tolist(), strict=True))
    made = set(batch.made[batch.weight > 0].tolist())
    for number in range(int(document.max()) + 1):
        places = (document == number).nonzero().flatten().tolist()
        marks = [int(token) for token in tokens[places] if token > 100]
        assert marks == [MARKS["reference"], MARKS["reference_end"], MARKS["start"]]
        audio = [place for place in places if bool(batch.is_audio.flatten()[place])]
        assert len({owner[read[place]] for place in audio}) == 1
        assert 0 < len(set(audio) & made) < len(audio)


@pytest.mark.parametrize("share", ["reference_share", "continuation_share"])
def test_a_recording_is_another_utterance_than_the_one_to_be_made(share: str) -> None:
    """With two utterances each is the other's recording."""
    known = [Utterance([5 + index], 4 * index, 4, 0) for index in range(2)]
    shares = {"reference_share": 0.0, "continuation_share": 0.0} | {share: 1.0}
    batch = Rows(known, TalkerSettings(batch=4, length=64, **shares), 12.5)[0]
    document, made = batch.document.flatten(), set(batch.made[batch.weight > 0].tolist())
    read = dict(zip(batch.heard.tolist(), batch.heard_patch.tolist(), strict=True))
    for number in range(int(document.max()) + 1):
        places = [place for place in (document == number).nonzero().flatten().tolist() if place in read]
        given = {read[place] // 4 for place in places if place not in made}
        assert given.isdisjoint(read[place] // 4 for place in places if place in made)


def test_an_only_utterance_is_its_own_recording() -> None:
    settings = TalkerSettings(batch=1, length=64, reference_share=1, continuation_share=0)
    assert Rows([Utterance([5], 0, 4, 0)], settings, 12.5)[0].weight.sum() > 0


def test_without_a_recording_only_the_first_speaker_is_heard() -> None:
    batch = rows(reference_share=0.0, continuation_share=0.0)[0]
    owner = {one.begin + i: one.speaker for one in utterances(80) for i in range(one.count)}
    assert {owner[patch] for patch in batch.made_patch[batch.weight > 0].tolist()} == {FIRST_SPEAKER}


def test_long_utterances_are_made_as_often_as_they_are_there() -> None:
    """Laid out as they are drawn, they would seldom fit into what is left of a row."""
    known, begin = [], 0
    for index in range(300):
        count = 100 if index % 3 == 0 else 10
        known.append(Utterance([5] * count, begin, count, 0))
        begin += count
    settings = TalkerSettings(batch=16, length=256, reference_share=0, continuation_share=0)
    drawn = Rows(known, settings, 12.5)
    long = {one.begin + 99 for one in known if one.count == 100}
    ends = [patch for step in range(10) for patch in drawn[step].made_patch[drawn[step].stop == 1].tolist()]
    assert sum(end in long for end in ends) / len(ends) == pytest.approx(1 / 3, abs=0.06)


def test_a_continuation_reads_its_text_joined_to_the_prompts() -> None:
    """As the server does, which asks for the tokens of both at once."""
    start = 3
    known = [Utterance([start, 5 + index], 4 * index, 4, 0) for index in range(9)]
    settings = TalkerSettings(batch=2, length=64, reference_share=0, continuation_share=1)
    batch = Rows(known, settings, 12.5, word_start=start)[0]
    for number in range(int(batch.document.max()) + 1):
        tokens = batch.tokens[(batch.document == number) & ~batch.is_audio].tolist()
        assert [token == start for token in tokens] == [True, False, False, False]


def test_rows_end_where_nothing_fits() -> None:
    settings = TalkerSettings(batch=2, length=32, reference_share=1, continuation_share=0)
    batch = Rows([Utterance([5] * 8, 0, 20, 0)], settings, 100.0)[0]
    assert batch.weight.sum() == 0


def test_sums_of_layers_are_fp32_under_autocast(base: Path) -> None:
    """Of both language models: bf16 has 8 bits for a sum of many layers."""
    model = new_talker(VoxCPM2Config.from_checkpoint(base), 0)
    seen = []
    for part in (model.base_lm, model.residual_lm, model.feat_encoder.encoder, model.feat_decoder.estimator.decoder):
        part.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    config = model.config
    patches = torch.randn(2000, config.patch_size, config.feat_dim)
    batch = rows()[0]
    draws = Draws.random(batch, (config.patch_size, config.feat_dim), 1, 0.1, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        talker_loss(model, patches, batch, draws)
    assert seen == [torch.float32] * 4


def test_a_layer_that_is_trained_asks_for_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels have no gradients, and its input may need none."""
    layer, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    monkeypatch.setattr(ops, "few_rows", lambda *_: pytest.fail("asked for a kernel"))
    assert ops.linear(x, layer).requires_grad


def test_no_row_for_the_first_speaker_is_told() -> None:
    with pytest.raises(ValueError, match=r"talker\.length is 32"):
        Rows([Utterance([5] * 30, 0, 20, 0)], TalkerSettings(length=32), 12.5)


def test_sums_of_taps_are_the_convolutions() -> None:
    config = AudioVAEConfig(encoder_dim=4, latent_dim=8, decoder_dim=64, decoder_rates=[8, 6, 5, 4])
    vae = AudioVAE(config)
    latents, audio = torch.randn(2, 8, 6), torch.randn(2, 6400) * 0.1
    plain = vae.encode(audio), vae.decode(latents)
    use_sums(vae)
    for before, after in zip(plain, (vae.encode(audio), vae.decode(latents)), strict=True):
        torch.testing.assert_close(before, after, atol=1e-5, rtol=1e-4)


def test_losses_are_zero_for_the_same_and_have_a_gradient_at_silence() -> None:
    audio = 0.1 * torch.randn(2, 8000)
    assert mel_loss(audio, audio, 24000) < 1e-4
    assert linear_loss(audio, audio) < 1e-4
    silent = torch.zeros(2, 8000, requires_grad=True)
    (mel_loss(silent, audio, 24000) + linear_loss(silent, audio)).backward()
    assert silent.grad is not None
    assert bool(torch.isfinite(silent.grad).all())


def test_mel_filters_have_equal_areas() -> None:
    areas = mel_filters(24000, 2048, 40).sum(1) * 24000 / 2048
    torch.testing.assert_close(areas, torch.ones(40), atol=0.05, rtol=0)


def voiced(pitch: float) -> np.ndarray:
    """A second of a voice at 22.05 kHz with a formant at 1 kHz."""
    time = np.arange(22050) / 22050
    harmonics = np.arange(1, int(8000 / pitch)) * pitch
    levels = 1 / (1 + ((harmonics - 1000) / 200) ** 2)
    return (0.1 * np.sin(2 * np.pi * harmonics[:, None] * time) * levels[:, None]).sum(0).astype(np.float32)


def peak(samples: np.ndarray, low: float, high: float) -> float:
    """The frequency in Hz with most energy between two, of a smoothed spectrum."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    step = SAMPLE_RATE / len(samples)
    begin, end = int(low / step), int(high / step)
    return (begin + int(spectrum[begin:end].argmax())) * step


def centre(samples: np.ndarray, low: float, high: float) -> float:
    """The mean frequency in Hz of the energy between two."""
    power = np.abs(np.fft.rfft(samples * np.hanning(len(samples)))) ** 2
    frequencies = np.arange(len(power)) * SAMPLE_RATE / len(samples)
    inside = (frequencies > low) & (frequencies < high)
    return float((frequencies * power)[inside].sum() / power[inside].sum())


@pytest.mark.parametrize(("pitch", "formants"), [(1.0, 1.0), (1.5, 1.0), (0.8, 1.2), (1.6, 1.2)])
def test_a_speaker_has_the_pitch_and_the_formants_of_its_own(pitch: float, formants: float) -> None:
    said = speak_as(Speaker("x", pitch, formants), voiced(100.0), 22050)
    assert len(said) == pytest.approx(SAMPLE_RATE / pitch, rel=0.01)
    assert peak(said, 70 * pitch, 130 * pitch) == pytest.approx(100 * pitch, rel=0.03)
    assert centre(said, 500 * formants, 1600 * formants) == pytest.approx(1000 * formants, rel=0.1)


def test_the_speakers_are_eight_of_different_names_and_factors() -> None:
    assert len(SPEAKERS) >= 8
    assert len({one.name for one in SPEAKERS}) == len(SPEAKERS)
    assert SPEAKERS[0].length_scale == 1
    for one in SPEAKERS:
        for other in SPEAKERS:
            gap = max(abs(one.pitch / other.pitch - 1), abs(one.formants / other.formants - 1))
            assert one is other or gap > 0.08


def test_silence_around_speech_is_cut_and_the_loudness_set() -> None:
    said = np.concatenate((np.zeros(24000), 0.5 * np.sin(np.arange(24000)), np.zeros(24000))).astype(np.float32)
    kept = tidy(said, 24000)
    assert len(kept) == pytest.approx(24000 * 1.17, abs=500)
    assert np.sqrt(np.square(kept[1200 : 1200 + 24000]).mean()) == pytest.approx(LOUDNESS, rel=0.05)


def test_patterns_are_sentences_that_depend_on_chance_alone() -> None:
    first, second = Patterns(random.Random(1)), Patterns(random.Random(1))
    made = [first.sentence() for _ in range(2000)]
    assert made == [second.sentence() for _ in range(2000)]
    assert all(
        "{" not in text and (text.lstrip('"')[0].isupper() or text[0].isdigit()) and text[-1] in '.?!"' for text in made
    )
    assert len(set(made)) > 1000


@pytest.mark.parametrize("text", ["They went to war.", "A gun in the drawer", "It KILLED the mood", "oh hell"])
def test_blocked_words_are_found(text: str) -> None:
    assert is_blocked(text)


@pytest.mark.parametrize(
    "text",
    [
        "A warm wardrobe",
        "Hello there",
        "The deadline",
        "Say it again, Diego",
        "A stable bridge in Warsaw",
        "They demonstrate it",
    ],
)
def test_words_that_only_look_alike_are_kept(text: str) -> None:
    assert not is_blocked(text)


def test_no_word_of_a_pattern_is_blocked() -> None:
    """A sentence with one would be left out, and the word never be learnt."""
    assert [word for words in WORDS.values() for word in re.split(r"[| ]", words) if is_blocked(word)] == []


def test_matrices_of_a_shape_are_moved_together_as_each_alone_is() -> None:
    """Against torch's own, which takes one after another, over steps of another rate each."""
    source = torch.Generator().manual_seed(3)
    shapes = [(6, 10), (6, 10), (12, 4), (5, 5), (12, 4)]
    begin = [torch.randn(shape, generator=source) for shape in shapes]
    ours, theirs = ([one.clone().requires_grad_() for one in begin] for _ in range(2))
    mine = Muon(ours, 1.0, weight_decay=0.1, momentum=0.9)
    torchs = torch.optim.Muon(theirs, 1.0, weight_decay=0.1, momentum=0.9)
    for rate in (0.1, 0.02, 0.3):
        for here, there in zip(ours, theirs, strict=True):
            here.grad = torch.randn(here.shape, generator=source)
            there.grad = here.grad.clone()
        set_rate(mine, rate)
        torchs.param_groups[0]["lr"] = rate
        mine.step()
        torchs.step()
    for here, there, first in zip(ours, theirs, begin, strict=True):
        assert (here - there).abs().max() < 0.02
        assert (here - first).abs().max() > 0.1


def test_an_optimiser_goes_on_from_its_state() -> None:
    weight = torch.ones(3, 3, requires_grad=True)
    for make in (lambda: Muon([weight], 0.1, weight_decay=0, momentum=0.9), lambda: adamw([weight], 0.1, (0.9, 0.99))):
        whole, resumed = [], []
        for kept in (whole, resumed):
            with torch.no_grad():
                weight.fill_(1.0)
            optimiser = make()
            for step in range(4):
                if step == 2 and kept is resumed:
                    state = optimiser.state_dict()
                    optimiser = make()
                    restore(optimiser, state)
                weight.grad = torch.eye(3) * (step + 1)
                set_rate(optimiser, 0.1 / (step + 1))
                optimiser.step()
                kept.append(weight.detach().clone())
        assert all(torch.equal(*pair) for pair in zip(whole, resumed, strict=True))


def test_a_state_saved_on_a_gpu_goes_on_on_the_cpu() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    before = adamw([weight], 0.1, (0.9, 0.99))
    before.step()
    state = before.state_dict()
    state["param_groups"][0]["capturable"] = True  # as a GPU's optimiser saves it
    after = adamw([weight], 0.1, (0.9, 0.99))
    restore(after, state)
    after.step()
    assert after.state[weight]["step"] == 2
