"""The talker over state slots: every step is a function of (slot, position), so any engine can drive it.

Row (slot, position) reads its input from the slot's buffer, whether it belongs to a prompt or to a frame made before.
From the last position of the prompt on, a row also says what follows: a frame of speech, that a stretch of speech
begins or ends, or that all is over. A frame is drawn, decoded to samples, and what is heard in them becomes a part of
the next input. Slot 0 is scratch: padded rows of a batch work there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..facts import KVShape
from ..host_copies import HostCopies
from ..noise import gaussian
from ..protocol import Attend
from .model import VibeVoice
from .negative_stream import NegativeStream
from .prompt import Prompt
from .script import MOST_SPEAKERS
from .settings import Sampling
from .solver import Solver
from .tokenizer import Controls

KEPT_FRAMES = 16
"""Frames of a slot that ``read_patches`` can give again, the last ones."""


class SlotTalker:
    """State buffers for ``slots`` streams of up to ``model.length`` positions, and the steps over them.

    Patches are (1, 1 + hop) fp32: 1 and the samples of a frame, or zeros where a step makes none. NaN tells of a stream
    whose state is no longer finite.
    """

    ends_with_frame = False
    """The step that ends a stream makes no frame: what it returns there is not to be heard."""
    marks_frames = True
    can_be_captured = True
    emits_elsewhere = False

    def __init__(self, whole: VibeVoice, controls: Controls, slots: int) -> None:
        model, self.controls = whole.model, controls
        config = model.config
        self.model, self.config = model, config
        self.length = model.length
        self.vocabulary = config.decoder_config.vocab_size + MOST_SPEAKERS
        self.hop = config.acoustic_tokenizer_config.hop
        self.patch_shape = (1, 1 + self.hop)
        self.voice_shape = (1, 1 + config.acoustic_tokenizer_config.vae_dim)
        self.kv_shape: KVShape = config.talker_facts.kv_shape
        weight = model.language_model.embed_tokens.weight
        self.device, self.dtype = weight.device, weight.dtype
        self._copies = HostCopies(weight.device)
        self.solver = Solver(config.diffusion_head_config, self.device)
        self.reach = self.length
        """No row of the next step lies at or beyond this position; engines that know less leave it."""
        self.negative = NegativeStream(self.kv_shape, slots, self.length, weight)
        self._ids = torch.tensor([controls.start, controls.end, controls.frame, controls.over], device=self.device)
        self._said = whole.head_weight[self._ids]
        self._embedded = model.language_model.embed_tokens.weight[self._ids]

        def buffer(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(slots, *shape, dtype=dtype, device=self.device)

        # One position more than the model reads: the last row writes its frame there.
        self.inputs = buffer(self.length + 1, config.decoder_config.hidden_size, dtype=self.dtype)
        self.patches = buffer(KEPT_FRAMES, *self.patch_shape, dtype=torch.float32)
        self.prompt_length = buffer(dtype=torch.int64)
        self.seed = buffer(dtype=torch.int64)
        self.steps = buffer(dtype=torch.int64)
        self.scale = buffer(dtype=torch.float32)
        self.steps.fill_(1)
        self.decoder_rows = model.acoustic_tokenizer.decoder.new_rows(slots)
        self.listener_rows = model.semantic_tokenizer.encoder.new_rows(slots)

    @torch.inference_mode()
    def write_prompts(self, prompts: Sequence[tuple[int, Prompt, Sampling]]) -> None:
        """Fills the buffers of slots, each with its prompt; rows 0 to ``prompt.length - 1`` may be run afterwards.

        Raises:
            ValueError: a token or the features of a voice do not fit the checkpoint, or the prompt is too long.
        """
        for slot, prompt, sampling in prompts:
            rows = self._embed(prompt)
            if len(rows) > self.length:
                raise ValueError(f"the prompt has {len(rows)} positions, at most {self.length} are kept for a stream")
            self.inputs[slot, : len(rows)] = rows
            self.prompt_length[slot] = len(rows)
            self.seed[slot] = (sampling.seed + 2**63) % 2**64 - 2**63
            self.steps[slot] = sampling.inference_steps
            self.scale[slot] = sampling.cfg_value
            self.decoder_rows[slot] = 0
            self.listener_rows[slot] = 0
            self.negative.begin(slot)

    @torch.inference_mode()
    def hidden(self, slots: Tensor, positions: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        """Rows (N,) of slots and positions -> states (N, H), twice: engines carry a second one for other families."""
        state = self.model.language_model(self.inputs[slots, positions], positions, attend)
        return state, state

    @torch.inference_mode()
    def emit(
        self, slots: Tensor, positions: Tensor, state: Tensor, residual: Tensor, batch_key: int
    ) -> tuple[Tensor, Tensor]:
        """Says what follows each row and writes what the next position reads. Once for each row, in order.

        Args:
            slots, positions: (B,), positions at or after the last of the prompt.
            state: (B, H) of these rows.
            batch_key: diffusion steps that are run, at least those of each stream.

        Returns:
            Patches (B, 1, 1 + hop) fp32, and whether the stream is over (B,) bool.
        """
        said = (state @ self._said.T).float().argmax(1)
        begins, ends, has_frame, over = (said == kind for kind in range(4))
        inputs = self.inputs[slots, positions]
        # It is never further than the stream itself.
        opposite = self.negative.hidden(self.model.language_model, slots, inputs, self.reach)
        self.negative.advance(slots, has_frame, begins)
        latents = self.draw(slots, positions + 1 - self.prompt_length[slots], state, opposite, batch_key)
        samples, heard = self._speak(slots, latents, has_frame, ends)
        frame = self.model.acoustic_connector(latents.to(self.dtype)) + self.model.semantic_connector(heard)
        self.inputs[slots, positions + 1] = torch.where(has_frame.unsqueeze(1), frame, self._embedded[said])
        patches = torch.cat((torch.ones_like(samples[:, :1]), samples), dim=1) * has_frame.unsqueeze(1)
        patches = torch.where(state.isfinite().all(1, keepdim=True), patches, torch.nan).unsqueeze(1)
        self.patches[slots, (positions + 1) % KEPT_FRAMES] = patches
        return patches, over

    def draw(self, slots: Tensor, frame: Tensor, state: Tensor, opposite: Tensor, most: int) -> Tensor:
        """Latents (B, D) fp32 of frames (B,), under the states (B, H) of the streams and of their negatives."""
        noise = gaussian(self.seed[slots], frame, self.config.acoustic_tokenizer_config.vae_dim)
        conditions = torch.cat((state, opposite))
        head = self.model.prediction_head
        return self.solver.sample(head, conditions, noise, self.scale[slots], self.steps[slots], most)

    @torch.inference_mode()
    def read_patches(self, rows: list[tuple[int, int]]) -> Tensor:
        """Patches (N, 1, 1 + hop) fp32 on the CPU that rows (slot, position) read; of the last ``KEPT_FRAMES``."""
        return self._copies.read(self.patches, [(slot, position % KEPT_FRAMES) for slot, position in rows])

    def _speak(self, slots: Tensor, latents: Tensor, has_frame: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """Samples (B, hop) fp32 of latents, and what is heard in them (B, S). Streams without a frame keep their
        state, except that a stretch that ends is forgotten."""
        decoder, listener = self.model.acoustic_tokenizer.decoder, self.model.semantic_tokenizer.encoder
        unscaled = latents / self.model.speech_scaling_factor - self.model.speech_bias_factor
        speaking, hearing = self.decoder_rows[slots], self.listener_rows[slots]
        samples = decoder.run(unscaled.unsqueeze(1), speaking)
        heard = listener.run(samples, hearing).squeeze(1)
        for rows, new in ((self.decoder_rows, speaking), (self.listener_rows, hearing)):
            kept = rows[slots].masked_fill(ends.unsqueeze(1), 0.0)
            rows[slots] = torch.where(has_frame.unsqueeze(1), new, kept)
        return samples, heard.to(self.dtype)

    def _embed(self, prompt: Prompt) -> Tensor:
        """Rows (T, H) of a prompt."""
        size, width = self.config.decoder_config.vocab_size, self.config.acoustic_tokenizer_config.vae_dim
        if prompt.vocabulary > size:
            raise ValueError(f"the prompt is for a vocabulary of {prompt.vocabulary}, this model has {size}")
        pieces: list[Tensor] = []
        embed = self.model.language_model.embed_tokens
        ids: list[int] = []

        def flush() -> None:
            if ids:
                pieces.append(embed(self._copies.upload(torch.tensor(ids))))
                ids.clear()

        for token in prompt.tokens:
            if not 0 <= token < prompt.vocabulary + len(prompt.voices):
                raise ValueError(f"{token} is no token; they end at {size - 1}, and the prompt's voices follow")
            if token < prompt.vocabulary:
                ids.append(token)
                continue
            flush()
            features = self._copies.upload(prompt.voices[token - prompt.vocabulary].to(self.dtype))
            if features.dim() != 2 or features.shape[1] != width:
                raise ValueError(f"a voice's features are {tuple(features.shape)}, must be (frames, {width})")
            pieces.append(self.model.acoustic_connector(features))
        flush()
        return torch.cat(pieces)
