"""How a code is drawn from logits; fixed shapes and nothing asked of the device."""

from __future__ import annotations

import torch
from torch import Tensor


def sample(logits: Tensor, uniforms: Tensor, top_k: Tensor | int, top_p: Tensor | float) -> Tensor:
    """Draws by the Gumbel maximum among the ``top_k`` largest and the nucleus ``top_p`` (arXiv 1904.09751).

    Equal logits at the k-th place all stay; the token with which the nucleus reaches ``top_p`` stays. Rows of nothing
    but -inf give 0, and a NaN gives its own place, as ``argmax`` does.

    Args:
        logits: (B, V) of any float type and stride.
        uniforms: (B, V) fp32 between 0 and 1, of any stride.
        top_k: of all rows, or (B,) int64; below 1 it is off.
        top_p: of all rows, or (B,) fp32; from 1 on it is off.

    Returns:
        (B,) int64.
    """
    ranked, order = logits.sort(dim=-1, descending=True, stable=True)
    rows, vocabulary = logits.shape
    most = _column(top_k, rows, torch.int64, logits.device)
    least = ranked.gather(1, (most - 1).clamp(0, vocabulary - 1))
    ranked = ranked.masked_fill((ranked < least) & (most > 0), -torch.inf)
    mass = _column(top_p, rows, torch.float32, logits.device)
    share = ranked.softmax(dim=-1, dtype=torch.float32)
    ranked = ranked.masked_fill((share.cumsum(-1) - share >= mass) & (mass < 1), -torch.inf)
    kept = torch.empty_like(ranked).scatter_(1, order, ranked)
    return (kept.float() - torch.log(-torch.log(uniforms))).argmax(-1)


def choose(logits: Tensor, uniforms: Tensor, temperature: Tensor, top_k: Tensor | int, top_p: Tensor | float) -> Tensor:
    """``sample`` at a temperature (B,); rows whose temperature is 0 take their largest logit. -> (B,) int64."""
    warm = temperature > 0
    scaled = logits / torch.where(warm, temperature, 1.0).unsqueeze(1).to(logits.dtype)
    return torch.where(warm, sample(scaled, uniforms, top_k, top_p), logits.argmax(-1))


def penalise(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Makes what a stream has said less likely (arXiv 1909.05858): its positive logits divided, negative multiplied.

    Args:
        logits: (B, V).
        seen: (B, V) bool.
        penalty: (B,), 1 changes nothing.
    """
    factor = penalty.unsqueeze(1).to(logits.dtype)
    return torch.where(seen, torch.where(logits < 0, logits * factor, logits / factor), logits)


def _column(value: Tensor | float, rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(dtype).unsqueeze(1)
    return torch.full((rows, 1), value, dtype=dtype, device=device)
