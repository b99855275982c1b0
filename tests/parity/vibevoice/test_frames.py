"""Prompts, states and frames of whole streams against upstream's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from triton_speech.engine.kv_cache import SlotKVCache
from triton_speech.families.vibevoice import load_frontend, load_reference_encoder, load_talker, make_prompt
from triton_speech.families.vibevoice.frontend import FrontendParameters
from triton_speech.families.vibevoice.settings import Sampling
from triton_speech.families.vibevoice.talker import SlotTalker
from triton_speech.request import SpeechRequest

LIMIT, FREE_LIMIT = 1e-4, 1e-3
FREE_FRAMES = 10
LENGTH = 320
CASES = ("solo", "dialogue", "untied", "by_chance", "stops_at_some_time")
Checkpoint = Callable[[str], Path]


class Run:
    """Streams of several cases of one checkpoint, in slots from 1 on."""

    def __init__(self, goldens: Any, checkpoint: Checkpoint, names: list[str]) -> None:
        self.goldens, self.names = goldens, names
        self.folder = checkpoint(goldens.notes["cases"][names[0]]["checkpoint"])
        slots = len(names) + 1
        self.talker: SlotTalker = load_talker(self.folder, slots=slots, device="cpu", dtype=None, length=LENGTH)
        talker = self.talker
        self.cache = SlotKVCache(talker.kv_shape, slots=slots, length=LENGTH, dtype=talker.dtype, device=talker.device)
        self.prompts = [self.prompt(name) for name in names]
        sampling = Sampling(goldens.notes["seed"], goldens.notes["scale"], goldens.notes["steps"])
        talker.write_prompts([(slot, prompt, sampling) for slot, prompt in enumerate(self.prompts, 1)])
        self.slots = torch.arange(1, slots)
        self.first = torch.tensor([prompt.length - 1 for prompt in self.prompts])
        self.latents: list[Tensor] = []
        self.opposites: list[Tensor] = []
        draw = talker.draw

        def listen(slots: Tensor, frame: Tensor, state: Tensor, opposite: Tensor, most: int) -> Tensor:
            self.opposites.append(opposite)
            self.latents.append(draw(slots, frame, state, opposite, most))
            return self.latents[-1]

        talker.draw = listen  # type: ignore[method-assign]

    def prompt(self, name: str) -> Any:
        case = self.goldens.notes["cases"][name]
        frontend = load_frontend(self.folder, FrontendParameters(normalise_text=False))
        segment = frontend.prepare(SpeechRequest(case["text"], references=len(case["voices"])))
        encoder = load_reference_encoder(self.folder)
        voices = []
        for number, recording in enumerate(case["voices"]):
            rows = torch.from_numpy(encoder.encode(self.goldens.audio(recording).numpy(), "reference"))
            rows[..., 0] = number
            voices.append(rows)
        return make_prompt(segment.tokens, torch.cat(voices) if voices else None, None)

    @torch.inference_mode()
    def prefill(self, pieces: int = 1) -> list[Tensor]:
        """States (T, H) of each prompt, run in so many pieces."""
        states = []
        for slot, prompt in enumerate(self.prompts, 1):
            made = []
            for rows in torch.arange(prompt.length).tensor_split(pieces):
                attend = self.cache.prefill(slot, int(rows[0]), int(rows[-1]) + 1)
                made.append(self.talker.hidden(torch.full_like(rows, slot), rows, attend)[0])
            states.append(torch.cat(made))
        return states

    @torch.inference_mode()
    def step(self, index: int, states: Tensor | None, batch_key: int) -> tuple[Tensor, Tensor, Tensor]:
        """States (B, H), patches (B, 1, 1 + hop) and ends (B,) of the frames of that index."""
        positions = self.first + index
        if states is None:
            attend = self.cache.decode(self.slots, positions, int(positions.max()))
            states, _ = self.talker.hidden(self.slots, positions, attend)
        return states, *self.talker.emit(self.slots, positions, states, states, batch_key)

    def next_inputs(self, index: int) -> Tensor:
        return self.talker.inputs[self.slots, self.first + index + 1]

    def said(self, states: Tensor) -> list[int]:
        controls = self.talker.controls
        kinds = (controls.start, controls.end, controls.frame, controls.over)
        return [kinds[kind] for kind in (states @ self.talker._said.T).argmax(1).tolist()]


@pytest.mark.parametrize("name", CASES)
def test_a_prompts_rows_and_states_are_upstreams(goldens: Any, checkpoint: Checkpoint, name: str) -> None:
    run = Run(goldens, checkpoint, [name])
    theirs = goldens.tensors[f"{name}/prompt/states"]
    inputs = run.talker.inputs[1, : run.prompts[0].length]
    goldens.check(f"{name}: rows of the prompt", inputs, goldens.tensors[f"{name}/prompt/inputs"], LIMIT)
    for pieces in (1, 3, run.prompts[0].length):
        goldens.check(f"{name}: states of the prompt", run.prefill(pieces)[0], theirs, LIMIT)


@pytest.mark.parametrize("name", CASES)
def test_teacher_forced_frames_are_upstreams(goldens: Any, checkpoint: Checkpoint, name: str) -> None:
    """Each step reads upstream's input; state of the speech tokenizers is our own, from the first frame on."""
    run = Run(goldens, checkpoint, [name])
    theirs = {what: goldens.tensors[f"{name}/{what}"] for what in ("input", "state", "latent", "audio", "semantic")}
    opposites = goldens.tensors[f"{name}/opposite"]
    said, stride = goldens.notes["cases"][name]["said"], goldens.notes["audio_stride"]
    frame, states = 0, run.prefill()[0][-1:]
    for index, token in enumerate(said):
        run.talker.inputs[1, run.first[0] + index] = theirs["input"][index]
        states, patches, over = run.step(index, states if index == 0 else None, goldens.notes["steps"])
        goldens.check(f"{name}: states, teacher-forced", states[0], theirs["state"][index], LIMIT)
        assert run.said(states) == [token]
        assert over.item() == (token == run.talker.controls.over)
        assert patches[0, 0, 0] == (token == run.talker.controls.frame)
        if token == run.talker.controls.frame:
            goldens.check(f"{name}: negative states, teacher-forced", run.opposites[-1][0], opposites[frame], LIMIT)
            goldens.check(f"{name}: latents, teacher-forced", run.latents[-1][0], theirs["latent"][frame], LIMIT)
            goldens.check(f"{name}: audio, teacher-forced", patches[0, 0, 1::stride], theirs["audio"][frame], LIMIT)
            frame += 1
        else:
            assert not patches.any()
        if index + 1 < len(said):
            goldens.check(
                f"{name}: next inputs, teacher-forced", run.next_inputs(index)[0], theirs["input"][index + 1], LIMIT
            )
    assert frame == len(theirs["latent"])
    assert frame * 3200 == goldens.notes["cases"][name]["samples"]


@pytest.mark.parametrize("name", CASES)
def test_a_stream_that_runs_freely_begins_as_upstreams(goldens: Any, checkpoint: Checkpoint, name: str) -> None:
    run = Run(goldens, checkpoint, [name])
    said, stride = goldens.notes["cases"][name]["said"], goldens.notes["audio_stride"]
    frame, states = 0, run.prefill()[0][-1:]
    for index, token in enumerate(said[:FREE_FRAMES]):
        states, patches, _ = run.step(index, states if index == 0 else None, goldens.notes["steps"])
        assert run.said(states) == [token]
        goldens.check(f"{name}: states, free", states[0], goldens.tensors[f"{name}/state"][index], FREE_LIMIT)
        if token == run.talker.controls.frame:
            audio = goldens.tensors[f"{name}/audio"][frame]
            goldens.check(f"{name}: audio, free", patches[0, 0, 1::stride], audio, FREE_LIMIT)
            frame += 1


def test_streams_at_different_positions_in_one_batch_are_upstreams(goldens: Any, checkpoint: Checkpoint) -> None:
    """The dialogue's prompt is longer by hundreds of positions than the other's."""
    names = ["solo", "dialogue"]
    run = Run(goldens, checkpoint, names)
    assert run.first[0] + 50 < run.first[1]
    states: Tensor | None = torch.stack([made[-1] for made in run.prefill()])
    for index in range(FREE_FRAMES):
        states, patches, _ = run.step(index, states if index == 0 else None, goldens.notes["steps"])
        for row, name in enumerate(names):
            theirs, stride = goldens.tensors[f"{name}/state"][index], goldens.notes["audio_stride"]
            goldens.check("batch: states", states[row], theirs, LIMIT if index == 0 else FREE_LIMIT)
            audio = goldens.tensors[f"{name}/audio"][index]
            goldens.check("batch: audio", patches[row, 0, 1::stride], audio, FREE_LIMIT)
