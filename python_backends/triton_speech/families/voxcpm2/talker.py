"""The talker over state slots: every step is a function of (slot, position), so any engine can drive it.

Row (slot, position) reads its input from the slot's buffers, whether it belongs to a prompt or to a frame made
before. From the last position of the prompt on, a row also makes the patch for the next position and writes it
where that position will read it. Slot 0 is scratch: padded rows of a batch work there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..host_copies import HostCopies
from ..protocol import SCRATCH_SLOT, Diffuse
from .frontend import CFG_VALUE, INFERENCE_STEPS
from .minicpm import Attend
from .model import VoxCPM2Talker
from .noise import gaussian
from .prompt import Prompt, lay_out


@dataclass(frozen=True)
class Sampling:
    """How a stream's patches are drawn. ``seed`` is taken modulo 2**64."""

    seed: int
    cfg_value: float = 2.0
    inference_steps: int = 10

    def __post_init__(self) -> None:
        """Raises SpeechError where a value would stop or poison the batch that the stream runs in."""
        CFG_VALUE.check(self.cfg_value)
        INFERENCE_STEPS.check(self.inference_steps)

    @property
    def batch_key(self) -> int:
        """A batch that is run with a key serves streams with keys up to it; fewest rounds where all are equal."""
        return self.inference_steps


class SlotTalker:
    """State buffers for ``slots`` streams of up to ``model.length`` positions, and the steps over them.

    Args:
        model: without its diffusion, where ``diffuse`` is given.
        slots: streams, and scratch.
        diffuse: makes the patches of a step; by default the model does.
    """

    min_frames = 4
    """A stop is not obeyed before this many patches (upstream's ``min_len`` of 2)."""
    ends_with_frame = True
    marks_frames = False
    can_be_captured = True

    def __init__(self, model: VoxCPM2Talker, slots: int, diffuse: Diffuse | None = None) -> None:
        config, length = model.config, model.length
        self._diffuse = diffuse
        self.emits_elsewhere = diffuse is not None
        weight = model.enc_to_lm_proj.weight
        self.model = model
        self.length = self.reach = length
        self.vocabulary = config.lm_config.vocab_size
        self.patch_shape = (config.patch_size, config.feat_dim)
        self.voice_shape = self.patch_shape
        self.kv_shape = config.talker_facts.kv_shape
        self.device, self.dtype = weight.device, weight.dtype
        self._copies = HostCopies(weight.device)

        def buffer(*shape: int, dtype: torch.dtype | None = None) -> Tensor:
            return torch.zeros(slots, *shape, dtype=dtype or weight.dtype, device=weight.device)

        # One position more than the LM reads: the last row writes its patch there.
        self.inputs = buffer(length + 1, config.lm_config.hidden_size)
        self.patches = buffer(length + 1, *self.patch_shape)
        self.is_audio = buffer(length + 1, dtype=torch.bool)
        self.prompt_length = buffer(dtype=torch.int64)
        self.seed = buffer(dtype=torch.int64)
        self.cfg_value = buffer(dtype=torch.float32)
        self.steps = buffer(dtype=torch.int64)

    @torch.inference_mode()
    def write_prompts(self, prompts: Sequence[tuple[int, Prompt, Sampling]]) -> None:
        """Fills the buffers of slots, each with its prompt; rows 0 to ``prompt.length - 1`` may be run afterwards.

        What it costs hardly depends on how many there are: everything goes to the device in a few copies.
        """
        laid = [lay_out(prompt, self.patch_shape) for _, prompt, _ in prompts]
        rows = [
            torch.stack((torch.full_like(one.tokens, slot), torch.arange(len(one.tokens)), one.tokens, one.is_audio))
            for (slot, _, _), one in zip(prompts, laid, strict=True)
        ]
        slots, positions, tokens, is_audio = self._copies.upload(torch.cat(rows, dim=1))
        self.inputs[slots, positions] = self.model.base_lm.embed(tokens)
        self.patches[slots, positions] = torch.zeros(1, dtype=self.dtype, device=self.device)
        self.is_audio[slots, positions] = is_audio.bool()
        for (slot, _, _), one in zip(prompts, laid, strict=True):
            if len(where := one.is_audio.nonzero().squeeze(1)):
                # One prompt at a time, so that the shape of the products does not depend on who else arrives.
                audio = self._copies.upload(one.patches[where]).to(self.dtype)
                at = self._copies.upload(torch.stack((torch.full_like(where, slot), where)))
                self.write_patches(at[0], at[1], audio)
        settings = [
            (slot, prompt.length, (sampling.seed + 2**63) % 2**64 - 2**63, sampling.inference_steps)
            for slot, prompt, sampling in prompts
        ]
        slots, lengths, seeds, steps = self._copies.upload(torch.tensor(settings, dtype=torch.int64).T.contiguous())
        self.prompt_length[slots] = lengths
        self.seed[slots] = seeds
        self.steps[slots] = steps
        self.cfg_value[slots] = self._copies.upload(torch.tensor([sampling.cfg_value for _, _, sampling in prompts]))

    @torch.inference_mode()
    def hidden(self, slots: Tensor, positions: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        """Rows (N,) of slots and positions -> LM state (N, H) and residual state (N, H)."""
        return self.model.hidden(self.inputs[slots, positions], self.is_audio[slots, positions], positions, attend)

    @torch.inference_mode()
    def emit(
        self, slots: Tensor, positions: Tensor, state: Tensor, residual: Tensor, batch_key: int
    ) -> tuple[Tensor, Tensor]:
        """Makes the patch that follows each row and writes it for the next position.

        Args:
            slots, positions: (B,), positions at or after the last of the prompt.
            state, residual: (B, H) of these rows.
            batch_key: at least every stream's ``Sampling.batch_key``.

        Raises:
            SpeechError: the diffusion runs elsewhere and failed.

        Returns:
            Patches (B, P, D), and whether the stream ends with this patch (B,) bool.
        """
        frame = positions + 1 - self.prompt_length[slots]
        count = self.patch_shape[0] * self.patch_shape[1]
        if self._diffuse is not None:
            patches = self._ask(self._diffuse, slots, positions, self.model.condition(state, residual), frame)
        else:
            noise = gaussian(self.seed[slots], frame, count).view(-1, *self.patch_shape).to(self.dtype)
            patches = self.model.next_patch(
                state,
                residual,
                self.patches[slots, positions],
                noise,
                self.cfg_value[slots],
                self.steps[slots],
                most_steps=batch_key,
            )
        self.write_patches(slots, positions + 1, patches)
        go_on, stop = self.model.stop_logits(state).unbind(-1)
        return patches, (stop > go_on) & (frame >= self.min_frames - 1)

    def _ask(self, diffuse: Diffuse, slots: Tensor, positions: Tensor, mu: Tensor, frame: Tensor) -> Tensor:
        """Patches (B, P, D) from elsewhere. Rows that only pad the batch get zeros; those that are no numbers, NaN."""
        cond = self.patches[slots, positions].flatten(1)
        # Two copies to the host, whatever there is.
        floats = torch.cat((mu.float(), cond.float(), self.cfg_value[slots, None]), dim=1).cpu()
        numbers = torch.stack((slots, self.seed[slots], frame, self.steps[slots]), dim=1).cpu()
        is_stream = numbers[:, 0] != SCRATCH_SLOT
        is_finite = floats.isfinite().all(1)
        patches = torch.zeros(len(slots), *self.patch_shape).masked_fill(~is_finite[:, None, None], math.nan)
        rows = (is_stream & is_finite).nonzero().squeeze(1)
        if len(rows):
            mu, cond, cfg_value = torch.split(floats[rows], [mu.shape[1], cond.shape[1], 1], dim=1)
            _, seed, frame, steps = numbers[rows].chunk(4, dim=1)
            patches[rows] = diffuse(
                {
                    "MU": mu,
                    "COND": cond.view(-1, *self.patch_shape),
                    "SEED": seed,
                    "POSITION": frame,
                    CFG_VALUE.name: cfg_value,
                    INFERENCE_STEPS.name: steps,
                }
            )
        return self._copies.upload(patches).to(self.dtype)

    @torch.inference_mode()
    def write_patches(self, slots: Tensor, positions: Tensor, patches: Tensor) -> None:
        """Sets the patch (B, P, D) that each row (slot, position) reads: what ``emit`` does with its own."""
        self.patches[slots, positions] = patches
        self.inputs[slots, positions] = self.model.encode_patches(patches)
        self.is_audio[slots, positions] = torch.ones_like(slots, dtype=torch.bool)

    @torch.inference_mode()
    def read_patches(self, rows: list[tuple[int, int]]) -> Tensor:
        """Patches (N, P, D) fp32 on the CPU that rows (slot, position) read; see ``HostCopies.read``."""
        return self._copies.read(self.patches, rows).float()
