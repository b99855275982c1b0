"""Steps over slots: streams do not touch each other, and a slot forgets the stream before."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from triton_speech.engine.kv_cache import SlotKVCache
from triton_speech.families.vibevoice import WARM_UP_TOKENS, load_frontend, load_talker, make_prompt, talker_facts
from triton_speech.families.vibevoice.frontend import FrontendParameters
from triton_speech.families.vibevoice.prompt import Prompt
from triton_speech.families.vibevoice.settings import Sampling
from triton_speech.families.vibevoice.talker import SlotTalker
from triton_speech.families.vibevoice.tiny import write_tiny_checkpoint
from triton_speech.request import SpeechRequest

LENGTH, SLOTS = 256, 5


class Desk:
    """A talker, its keys and values, and streams by slot."""

    def __init__(self, folder: Path, length: int = LENGTH) -> None:
        self.folder = folder
        self.talker: SlotTalker = load_talker(folder, slots=SLOTS, device="cpu", dtype=None, length=length)
        talker = self.talker
        self.cache = SlotKVCache(talker.kv_shape, slots=SLOTS, length=length, dtype=talker.dtype, device=talker.device)
        self.at: dict[int, int] = {}
        self.over: dict[int, bool] = {}
        self.states: dict[int, Tensor] = {}
        self.said: dict[int, str] = {}

    def prompt(self, text: str) -> Prompt:
        segment = load_frontend(self.folder, FrontendParameters()).prepare(SpeechRequest(text))
        return make_prompt(segment.tokens, None, None)

    @torch.inference_mode()
    def begin(self, slot: int, text: str, sampling: Sampling) -> None:
        prompt = self.prompt(text)
        self.cache.clear(slot)
        self.talker.write_prompts([(slot, prompt, sampling)])
        rows = torch.arange(prompt.length)
        states, _ = self.talker.hidden(torch.full_like(rows, slot), rows, self.cache.prefill(slot, 0, prompt.length))
        self.at[slot], self.states[slot] = prompt.length - 1, states[-1]
        self.said[slot] = ""

    @torch.inference_mode()
    def step(self, slots: list[int], most: int = 10) -> Tensor:
        """Patches (B, 1, 1 + hop) of the next step of each."""
        ids, positions = torch.tensor(slots), torch.tensor([self.at[slot] for slot in slots])
        states = torch.stack([self.states[slot] for slot in slots])
        patches, over = self.talker.emit(ids, positions, states, states, most)
        positions = positions + 1
        attend = self.cache.decode(ids, positions, int(positions.max()))
        states, _ = self.talker.hidden(ids, positions, attend)
        for row, slot in enumerate(slots):
            self.at[slot] += 1
            self.states[slot] = states[row]
            self.over[slot] = bool(over[row])
            self.said[slot] += "F" if patches[row, 0, 0] == 1 else "-"
        return patches

    def run(self, slot: int, frames: int) -> Tensor:
        return torch.cat([self.step([slot]) for _ in range(frames)])


def test_a_stream_is_the_same_whoever_else_speaks(folder: Path) -> None:
    alone = Desk(folder)
    alone.begin(2, "Hello.", Sampling(1))
    wanted = alone.run(2, 8)
    desk = Desk(folder)
    desk.begin(1, "Another one, who is longer.", Sampling(2, cfg_value=2.0, inference_steps=20))
    desk.run(1, 3)
    desk.begin(2, "Hello.", Sampling(1))
    desk.begin(4, "So.", Sampling(3, inference_steps=2))
    made = [desk.step([4, 2, 1], 20)[1:2] for _ in range(4)] + [desk.step([2, 1], 20)[:1] for _ in range(4)]
    torch.testing.assert_close(torch.cat(made), wanted, atol=1e-5, rtol=1e-4)


def test_a_slot_forgets_the_stream_before(folder: Path) -> None:
    desk = Desk(folder)
    desk.begin(1, "Hello.", Sampling(1))
    first = desk.run(1, 5)
    desk.begin(1, "A longer one, which fills more of the slot.", Sampling(9))
    desk.run(1, 9)
    desk.begin(1, "Hello.", Sampling(1))
    assert torch.equal(desk.run(1, 5), first)


def test_a_stream_that_broke_does_not_poison_the_next_in_its_slot(folder: Path) -> None:
    desk = Desk(folder)
    desk.begin(1, "Hello.", Sampling(1))
    first = desk.run(1, 5)
    desk.states[1] = torch.full_like(desk.states[1], torch.nan)
    assert desk.step([1]).isnan().all()
    desk.begin(1, "Hello.", Sampling(1))
    assert torch.equal(desk.run(1, 5), first)


def test_seed_guidance_and_steps_shape_the_frames(folder: Path) -> None:
    desk, made = Desk(folder), []
    for sampling in (Sampling(1), Sampling(2), Sampling(1, cfg_value=3.0), Sampling(1, inference_steps=9)):
        desk.begin(1, "Hello.", sampling)
        made.append(desk.run(1, 2))
    assert all(not torch.allclose(one, other, atol=1e-3) for i, one in enumerate(made) for other in made[:i])


def test_the_negative_stream_begins_anew_with_each_stretch_of_speech(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "chance", seed=45, stops_at_once=None, tie_word_embeddings=False)
    desk, places = Desk(folder), []
    desk.begin(1, "Speaker 1: And then?", Sampling(1))
    for _ in range(30):
        desk.step([1])
        places.append(int(desk.talker.negative.position[1]))
    said = desk.said[1]
    assert "F-" in said
    assert "-F" in said
    begun = [index for index in range(1, 30) if places[index] < places[index - 1]]
    assert begun
    for index in range(1, 30):
        if said[index] == "F":
            assert places[index] == places[index - 1] + 1
        else:
            assert places[index] in (0, places[index - 1])


def test_speech_that_ends_leaves_no_trace_in_the_speech_tokenizers(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "chance", seed=45, stops_at_once=None, tie_word_embeddings=False)
    desk = Desk(folder)
    desk.begin(1, "Speaker 1: And then?", Sampling(1))
    desk.run(1, 2)
    talker, slot = desk.talker, torch.tensor([1])
    assert talker.decoder_rows[1].any()
    assert talker.listener_rows[1].any()
    none, ends = torch.tensor([False]), torch.tensor([True])
    before = talker.decoder_rows.clone()
    talker._speak(slot, torch.ones(1, 64), none, none)
    assert torch.equal(talker.decoder_rows, before)
    talker._speak(slot, torch.ones(1, 64), none, ends)
    assert not talker.decoder_rows[1].any()
    assert not talker.listener_rows[1].any()


def test_a_stream_stops_at_once_where_it_is_told(tmp_path: Path) -> None:
    desk = Desk(write_tiny_checkpoint(tmp_path / "stops", stops_at_once=True))
    desk.begin(1, "Hello.", Sampling(1))
    assert not desk.step([1]).any()
    assert desk.over[1]


def test_frames_can_be_read_again(folder: Path) -> None:
    desk = Desk(folder)
    desk.begin(1, "Hello.", Sampling(1))
    start = desk.at[1]
    made = desk.run(1, 20)
    rows = [(1, start + 1 + frame) for frame in range(10, 20)]
    assert torch.equal(desk.talker.read_patches(rows), made[10:])


def test_a_prompt_that_is_too_long_is_told_with_its_limit(folder: Path) -> None:
    desk = Desk(folder, length=64)
    with pytest.raises(ValueError, match=r"the prompt has [0-9]+ positions, at most 64 are kept for a stream"):
        desk.talker.write_prompts([(1, desk.prompt("Hello."), Sampling(1))])


def test_prompts_that_do_not_fit_the_model_are_told(folder: Path) -> None:
    talker = Desk(folder).talker
    size = talker.config.decoder_config.vocab_size
    for prompt, told in (
        (Prompt((size,), (), size), f"{size} is no token"),
        (Prompt((1,), (), size + 1), f"for a vocabulary of {size + 1}, this model has {size}"),
        (Prompt((1, size), (torch.zeros(3, 5),), size), r"a voice's features are \(3, 5\), must be \(frames, 64\)"),
    ):
        with pytest.raises(ValueError, match=told):
            talker.write_prompts([(1, prompt, Sampling(1))])


def test_the_last_position_may_be_used(folder: Path) -> None:
    desk = Desk(folder)
    desk.begin(1, "Hello.", Sampling(1))
    desk.run(1, LENGTH - 1 - desk.at[1])
    slot, position = torch.tensor([1]), torch.tensor([LENGTH - 1])
    state = desk.states[1][None]
    patches, _ = desk.talker.emit(slot, position, state, state, 10)
    assert patches.isfinite().all()


def test_warm_up_tokens_fit_every_checkpoint(folder: Path) -> None:
    prompt = make_prompt(list(WARM_UP_TOKENS), None, None)
    Desk(folder).talker.write_prompts([(1, prompt, Sampling(1))])
    assert prompt.length == 8
    assert max(WARM_UP_TOKENS) < 151936


def test_the_facts_are_those_of_the_talker(folder: Path) -> None:
    facts = talker_facts(folder)
    talker: SlotTalker = load_talker(folder, slots=2, device="cpu", dtype=None, length=None)
    assert (talker.kv_shape, talker.length, str(talker.dtype)) == (facts.kv_shape, facts.length, f"torch.{facts.dtype}")


def test_what_lies_beyond_a_steps_rows_need_not_be_read(folder: Path) -> None:
    """Over several lengths that keys are rounded up to, with a slot that another stream has filled before."""
    every, near = Desk(folder), Desk(folder)
    made = []
    for desk in (every, near):
        desk.begin(1, "A longer one, which fills more of the slot.", Sampling(9))
        desk.run(1, 70)
        desk.begin(1, "Hello.", Sampling(1))
        patches = []
        for _ in range(70):
            desk.talker.reach = LENGTH if desk is every else desk.at[1] + 1
            patches.append(desk.step([1]))
        made.append(torch.cat(patches))
    assert int(near.talker.negative.position[1]) > 64
    torch.testing.assert_close(made[1], made[0], atol=1e-3, rtol=1e-2)
