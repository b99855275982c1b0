"""The talker's network under the names that a checkpoint's ``model.safetensors`` uses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import ops
from .config import VoxCPM2Config
from .fsq import ScalarQuantization
from .local_encoder import LocalEncoder
from .locdit import FlowMatching, LocDiT
from .minicpm import Attend, MiniCPM, fuse


class VoxCPM2Talker(nn.Module):
    """Base LM, quantiser, residual LM, local DiT, local encoder and stop head.

    Args:
        config: the checkpoint's configuration.
        length: positions that a stream may have; the checkpoint's ``max_length`` when None.
    """

    def __init__(self, config: VoxCPM2Config, *, length: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.length = length or config.max_length
        lm, encoder = config.lm_config, config.local_stack(config.encoder_config)
        dit = config.local_stack(config.dit_config)
        self.base_lm = MiniCPM(lm, length=self.length)
        self.residual_lm = MiniCPM(config.residual_config, length=self.length, first_layer=lm.num_hidden_layers)
        self.feat_encoder = LocalEncoder(encoder, feat_dim=config.feat_dim, patch_size=config.patch_size)
        # mu joins the projections of both language models: two tokens of the DiT's width.
        estimator = LocDiT(dit, feat_dim=config.feat_dim, patch_size=config.patch_size, mu_tokens=2)
        self.feat_decoder = FlowMatching(estimator, mean_mode=config.dit_config.mean_mode)
        self.fsq_layer = ScalarQuantization(
            lm.hidden_size, config.scalar_quantization_latent_dim, config.scalar_quantization_scale
        )
        self.enc_to_lm_proj = nn.Linear(encoder.hidden_size, lm.hidden_size)
        self.lm_to_dit_proj = nn.Linear(lm.hidden_size, dit.hidden_size)
        self.res_to_dit_proj = nn.Linear(lm.hidden_size, dit.hidden_size)
        self.fusion_concat_proj = nn.Linear(2 * lm.hidden_size, lm.hidden_size)
        self.stop_proj = nn.Linear(lm.hidden_size, lm.hidden_size)
        self.stop_head = nn.Linear(lm.hidden_size, 2, bias=False)

    def fuse(self) -> None:
        """Joins projections that read the same input. The checkpoint's names are gone afterwards."""
        fuse(self)

    def encode_patches(self, patches: Tensor) -> Tensor:
        """Latent patches (B, P, D) -> what the LM reads in their place (B, H)."""
        return ops.linear(self.feat_encoder(patches), self.enc_to_lm_proj)

    def hidden(self, inputs: Tensor, is_audio: Tensor, positions: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        """Both language models over rows that ``attend`` knows how to place.

        Args:
            inputs: (..., T, H) text or patch embeddings.
            is_audio: (..., T) bool; only there is the LM's state quantised and the patch added again.
            positions: (..., T).

        Returns:
            LM state (..., T, H) and residual state (..., T, H).
        """
        audio = is_audio.unsqueeze(-1)
        state = self.base_lm(inputs, positions, attend)
        state = torch.where(audio, self.fsq_layer(state), state)
        fused = ops.linear(torch.cat((state, inputs * audio), dim=-1), self.fusion_concat_proj)
        return state, self.residual_lm(fused, positions, attend)

    def condition(self, state: Tensor, residual: Tensor) -> Tensor:
        """mu (B, 2h), what the diffusion hears of both language models' states (B, H)."""
        return torch.cat((ops.linear(state, self.lm_to_dit_proj), ops.linear(residual, self.res_to_dit_proj)), dim=-1)

    def next_patch(
        self,
        state: Tensor,
        residual: Tensor,
        cond: Tensor,
        noise: Tensor,
        cfg_value: Tensor,
        steps: Tensor,
        most_steps: int,
    ) -> Tensor:
        """The patch (B, P, D) that follows each row.

        Args:
            state, residual: (B, H).
            cond: (B, P, D), the patch before.
            noise: (B, P, D).
            cfg_value: (B,) guidance.
            steps: (B,) int64, diffusion steps of each row, at most ``most_steps``.
        """
        return self.feat_decoder.solve(noise, self.condition(state, residual), cond, cfg_value, steps, most_steps)

    def stop_logits(self, state: Tensor) -> Tensor:
        """state (B, H) -> (B, 2): go on, stop."""
        return self.stop_head(F.silu(ops.linear(state, self.stop_proj)))
