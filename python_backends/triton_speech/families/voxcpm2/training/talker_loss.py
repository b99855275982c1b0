"""The talker's loss: flow matching of every patch, and where speech ends (upstream ``VoxCPM2Model.forward``)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from ..minicpm import Attend
from ..model import VoxCPM2Talker
from .rows import NO_DOCUMENT, Batch

TIME_MEAN, TIME_SPREAD = -0.4, 1.0
"""Of the logit of the time that a patch is noised to (upstream's ``sample_r_t``)."""


class Draws(NamedTuple):
    """The chance in a loss, for K N made patches (K draws of each, one draw after the other).

    Attributes:
        noise: (K N, P, D) fp32.
        time: (K N,) fp32 in (0, 1).
        guided: (K N,) fp32, 0 where the language models are not heard.
        history: (M, P, D) fp32, added to what is read.
    """

    noise: Tensor
    time: Tensor
    guided: Tensor
    history: Tensor

    @classmethod
    def random(
        cls, batch: Batch, patch_shape: tuple[int, int], draws: int, dropout: float, history_noise: float
    ) -> Draws:
        """From torch's own source of chance, on the batch's device."""
        device = batch.tokens.device
        count = draws * len(batch.made)
        # One level for each utterance: a talker's own patches are all about as good.
        level = torch.rand(batch.tokens.numel() + 1, device=device).square() * history_noise
        document = F.pad(batch.document.flatten(), (0, 1))[batch.heard].clamp(min=0)
        history = torch.randn(len(batch.heard), *patch_shape, device=device) * level[document, None, None]
        return cls(
            torch.randn(count, *patch_shape, device=device),
            torch.sigmoid(torch.randn(count, device=device) * TIME_SPREAD + TIME_MEAN),
            (torch.rand(count, device=device) >= dropout).float(),
            history,
        )


def talker_loss(model: VoxCPM2Talker, patches: Tensor, batch: Batch, draws: Draws) -> tuple[Tensor, Tensor]:
    """Means over the patches to be made of the squared error of the velocity, and of the stop's cross-entropy.

    Args:
        model: not fused.
        patches: (L, P, D), what ``heard_patch`` and ``made_patch`` count in.
    """
    rows, length = batch.tokens.shape
    places = rows * length
    heard = patches[batch.heard_patch].float() + draws.history
    # One place more, for what fills up.
    read = heard.new_zeros(places + 1, *heard.shape[1:]).index_copy(0, batch.heard, heard)
    # What the layers add up stays in fp32, also under autocast.
    encoded = model.encode_patches(heard).float()
    embedded = encoded.new_zeros(places + 1, encoded.shape[-1]).index_copy(0, batch.heard, encoded)
    embedded = embedded[:-1].view(rows, length, -1)
    audio = batch.is_audio.unsqueeze(-1)
    inputs = torch.where(audio, embedded, model.base_lm.embed(batch.tokens).float())
    state, residual = _hidden(model, inputs, audio, batch.position, _attend_within(batch.document))
    before = batch.made - 1
    state, residual = state.flatten(0, 1)[before], residual.flatten(0, 1)[before]
    logits = model.stop_logits(state).float()
    weight = batch.weight / batch.weight.sum().clamp(min=1)
    stop = (F.cross_entropy(logits, batch.stop, reduction="none") * weight).sum()
    mu = torch.cat((ops.linear(state, model.lm_to_dit_proj), ops.linear(residual, model.res_to_dit_proj)), dim=-1)
    error = _velocity_error(model, patches[batch.made_patch].float(), mu, read[before], draws)
    return (error.view(-1, len(weight)).mean(0) * weight).sum(), stop


def _velocity_error(model: VoxCPM2Talker, real: Tensor, mu: Tensor, cond: Tensor, draws: Draws) -> Tensor:
    """(K N,) mean squared errors for real (N, P, D), mu (N, 2h) and cond (N, P, D)."""
    count = len(draws.time) // len(real)
    real, mu, cond = (value.repeat(count, *[1] * (value.dim() - 1)) for value in (real, mu, cond))
    time = draws.time[:, None, None]
    noisy = (1 - time) * real + time * draws.noise
    net = model.feat_decoder.estimator
    embedded = net.embed_time(draws.time, torch.zeros_like(draws.time)).unsqueeze(1)
    tokens = (mu.float() * draws.guided.unsqueeze(1)).view(len(mu), net.mu_tokens, net.size)
    velocity = net(noisy, tokens, embedded.float(), net.cond_proj(cond).float())
    return (velocity.float() - (draws.noise - real)).square().mean((1, 2))


def _hidden(
    model: VoxCPM2Talker, inputs: Tensor, audio: Tensor, positions: Tensor, attend: Attend
) -> tuple[Tensor, Tensor]:
    """``VoxCPM2Talker.hidden`` with a gradient through the rounding."""
    state = model.base_lm(inputs, positions, attend)
    quantiser = model.fsq_layer
    levels = quantiser.levels(state)
    rounded = levels + (torch.round(levels) - levels).detach()
    state = torch.where(audio, ops.linear(rounded / quantiser.scale, quantiser.out_proj).to(state.dtype), state)
    fused = ops.linear(torch.cat((state, inputs.to(state.dtype) * audio), dim=-1), model.fusion_concat_proj)
    return state, model.residual_lm(fused.to(state.dtype), positions, attend)


def _attend_within(document: Tensor) -> Attend:
    """Causal attention of each position to those of its own document (B, T)."""
    length = document.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=document.device).tril()
    same = document.unsqueeze(2) == document.unsqueeze(1)
    # What belongs to no document sees itself, for a row without anything to attend to is not a number.
    mask = ((same & (document != NO_DOCUMENT).unsqueeze(2)) & causal).unsqueeze(1)
    mask = mask | torch.eye(length, dtype=torch.bool, device=document.device)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in (q, k.to(q.dtype), v.to(q.dtype)))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)

    return attend
