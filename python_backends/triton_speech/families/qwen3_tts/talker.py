"""The talker over state slots: every step is a function of (slot, position), so any engine can drive it.

Row (slot, position) reads its input from the slot's buffer, whether it belongs to a prompt or to a frame made
before. From the last position of the prompt on, a row also makes a frame, and adds its embedding to the text that
waits at the next position. Slot 0 is scratch: padded rows of a batch work there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..facts import KVShape
from ..host_copies import HostCopies
from ..noise import uniforms
from ..protocol import Attend
from .config import Qwen3TTSConfig
from .model import Qwen3TTSTalker
from .prompt import NOTHING, REFERENCE, SPEAKER, Prompt, lay_out
from .sampling import choose, penalise
from .settings import Sampling

MIN_FRAMES = 2
"""A stream does not end before it has made so many frames (upstream's ``min_new_tokens``)."""


class SlotTalker:
    """State buffers for ``slots`` streams of up to ``model.length`` positions, and the steps over them.

    Frames are (1, G) codes in fp32, which holds every code exactly: what engines carry for every family. A frame of
    NaN tells of a stream whose state is no longer finite.
    """

    ends_with_frame = False
    """The step that ends a stream makes no frame: what it returns there is not to be heard."""
    marks_frames = False
    can_be_captured = True
    emits_elsewhere = False

    def __init__(self, model: Qwen3TTSTalker, config: Qwen3TTSConfig, slots: int) -> None:
        talker, length = config.talker_config, model.length
        weight = model.codec_head.weight
        self.model, self.config = model, config
        self.length = length
        # Packed prompts hold controls and sizes too, counted from 1.
        self.vocabulary = max(talker.text_vocab_size, talker.vocab_size + 1)
        self.groups = talker.num_code_groups
        self.patch_shape = (1, self.groups)
        self.voice_shape = self.patch_shape
        self.kv_shape: KVShape = config.talker_facts.kv_shape
        self.device, self.dtype = weight.device, weight.dtype
        self._copies = HostCopies(weight.device)
        self.reach = length

        def buffer(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(slots, *shape, dtype=dtype, device=weight.device)

        # One position more than the stack reads: the last row writes its frame there.
        self.inputs = buffer(length + 1, talker.hidden_size, dtype=weight.dtype)
        self.frames = buffer(length + 1, *self.patch_shape, dtype=torch.float32)
        self.seen = buffer(talker.vocab_size, dtype=torch.bool)
        self.prompt_length = buffer(dtype=torch.int64)
        self.text_end = buffer(dtype=torch.int64)
        self.seed = buffer(dtype=torch.int64)
        # Of the first code and of the others.
        self.top_k = buffer(2, dtype=torch.int64)
        self.top_p = buffer(2, dtype=torch.float32)
        self.temperature = buffer(2, dtype=torch.float32)
        self.penalty = buffer(dtype=torch.float32)

        end = talker.codec_eos_token_id
        self._end = end
        self._controls = torch.zeros(talker.vocab_size, dtype=torch.bool, device=weight.device)
        self._controls[talker.codes :] = True
        self._controls[end] = False
        with torch.inference_mode():
            self._pad = model.embed_text(torch.tensor([config.tts_pad_token_id], device=weight.device))[0]

    @torch.inference_mode()
    def write_prompts(self, prompts: Sequence[tuple[int, Prompt, Sampling]]) -> None:
        """Fills the buffers of slots, each with its prompt; rows 0 to ``prompt.length - 1`` may be run afterwards.

        One prompt at a time, so that the shape of the products does not depend on who else arrives.

        Raises:
            ValueError: a token, a speaker's vector or reference codes do not fit the checkpoint.
        """
        for slot, prompt, sampling in prompts:
            layout = lay_out(prompt, self.config)
            if (largest := max(*layout.text, *layout.trailing)) >= self.config.talker_config.text_vocab_size:
                raise ValueError(
                    f"{largest} is no text token, they end at {self.config.talker_config.text_vocab_size - 1}"
                )
            if (largest := max(layout.audio)) >= self.config.talker_config.vocab_size:
                raise ValueError(f"{largest} is no control, they end at {self.config.talker_config.vocab_size - 1}")
            rows = self._embed(layout.text, layout.audio, prompt)
            # Text beyond the buffer's end would never be spoken.
            trailing = layout.trailing[: self.length + 1 - len(rows)]
            if trailing:
                rows = torch.cat((rows, self.model.embed_text(self._ids(trailing))))
            self.inputs[slot, : len(rows)] = rows
            self.prompt_length[slot] = prompt.length
            self.text_end[slot] = len(rows)
            self.seed[slot] = (sampling.seed + 2**63) % 2**64 - 2**63
            self.seen[slot] = False
            self.penalty[slot] = sampling.repetition_penalty
            for column, prefix in enumerate(("", "codes_")):
                self.top_k[slot, column] = getattr(sampling, f"{prefix}top_k")
                self.top_p[slot, column] = getattr(sampling, f"{prefix}top_p")
                self.temperature[slot, column] = getattr(sampling, f"{prefix}temperature")

    @torch.inference_mode()
    def hidden(self, slots: Tensor, positions: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        """Rows (N,) of slots and positions -> states (N, H), twice: engines carry a second one for other families."""
        state = self.model.hidden(self.inputs[slots, positions], positions, attend)
        return state, state

    @torch.inference_mode()
    def emit(
        self, slots: Tensor, positions: Tensor, state: Tensor, residual: Tensor, batch_key: int
    ) -> tuple[Tensor, Tensor]:
        """Makes the frame that follows each row and adds it to what the next position reads. Once for each row.

        Args:
            slots, positions: (B,), positions at or after the last of the prompt.
            state: (B, H) of these rows.

        Returns:
            Frames (B, 1, G) fp32, and whether the stream ended before this frame (B,) bool.
        """
        frame = positions + 1 - self.prompt_length[slots]
        first = self._first_codes(slots, frame, state)
        ends = first == self._end
        top_k, top_p, temperature = self.top_k[slots, 1], self.top_p[slots, 1], self.temperature[slots, 1]
        predictor = self.model.code_predictor
        lanes = self.model.config.code_predictor_config.vocab_size
        chance = uniforms(self.seed[slots], frame, range(1, self.groups), lanes)

        def pick(group: int, logits: Tensor) -> Tensor:
            return choose(logits, chance[:, group - 1], temperature, top_k, top_p)

        first_row = self.model.embed_control(first)
        rest, embedded = predictor(state, first_row, pick)
        codes = torch.cat((first.unsqueeze(1), rest), dim=1).float()
        frames = torch.where(state.isfinite().all(-1, keepdim=True), codes, torch.nan).unsqueeze(1)
        self._write_frames(slots, positions + 1, frames, first_row + embedded)
        self.seen[slots, first] = torch.ones_like(ends)
        return frames, ends

    @torch.inference_mode()
    def write_patches(self, slots: Tensor, positions: Tensor, patches: Tensor) -> None:
        """Sets the frame (B, 1, G) before each row (slot, position): what ``emit`` does with its own."""
        codes = patches[:, 0].to(torch.int64)
        self._write_frames(slots, positions, patches, self.model.embed_frames(codes))
        self.seen[slots, codes[:, 0]] = torch.ones_like(slots, dtype=torch.bool)

    @torch.inference_mode()
    def read_patches(self, rows: list[tuple[int, int]]) -> Tensor:
        """Frames (N, 1, G) fp32 on the CPU that rows (slot, position) read; see ``HostCopies.read``."""
        return self._copies.read(self.frames, rows)

    def _first_codes(self, slots: Tensor, frame: Tensor, state: Tensor) -> Tensor:
        logits = penalise(self.model.codec_head(state).float(), self.seen[slots], self.penalty[slots])
        logits = logits.masked_fill(self._controls, -torch.inf)
        early = torch.zeros_like(logits, dtype=torch.bool)
        early[:, self._end] = frame < MIN_FRAMES
        logits = logits.masked_fill(early, -torch.inf)
        chance = uniforms(self.seed[slots], frame, range(1), logits.shape[1])[:, 0]
        return choose(logits, chance, self.temperature[slots, 0], self.top_k[slots, 0], self.top_p[slots, 0])

    def _write_frames(self, slots: Tensor, positions: Tensor, frames: Tensor, embedded: Tensor) -> None:
        has_text = (positions < self.text_end[slots]).unsqueeze(1)
        text = torch.where(has_text, self.inputs[slots, positions], self._pad)
        self.inputs[slots, positions] = embedded + text
        self.frames[slots, positions] = frames

    def _embed(self, text: list[int], audio: list[int], prompt: Prompt) -> Tensor:
        """Rows (T, H) of a prompt."""
        tokens, controls = self._ids(text), self._ids(audio)
        rows = torch.where(
            (tokens != NOTHING).unsqueeze(1), self.model.embed_text(tokens.clamp(min=0)), self.inputs.new_zeros(1)
        )
        heard = torch.where(
            (controls >= 0).unsqueeze(1), self.model.embed_control(controls.clamp(min=0)), self.inputs.new_zeros(1)
        )
        if prompt.speaker_vector is not None:
            vector = self._copies.upload(prompt.speaker_vector.to(self.dtype))
            if vector.shape != heard.shape[1:]:
                raise ValueError(f"the speaker's vector is {tuple(vector.shape)}, must be {tuple(heard.shape[1:])}")
            heard[audio.index(SPEAKER)] = vector
        if prompt.reference_codes is not None:
            codes = self._copies.upload(prompt.reference_codes.to(torch.int64))
            if codes.dim() != 2 or codes.shape[1] != self.groups:
                raise ValueError(f"the reference's codes are {tuple(codes.shape)}, must be (frames, {self.groups})")
            # Its rows lie side by side, and a mask would have the device asked for them.
            first = audio.index(REFERENCE) if len(codes) else 0
            heard[first : first + len(codes)] = self.model.embed_frames(codes)
        return rows + heard

    def _ids(self, values: list[int]) -> Tensor:
        return self._copies.upload(torch.tensor(values, dtype=torch.int64))
