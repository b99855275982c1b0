"""Keys and values by slot, and the attention that reads them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..families.facts import KVShape
from ..families.protocol import Attend

_BUCKET = 64
"""Key lengths are rounded up to this, so that few shapes occur."""


class SlotKVCache:
    """``layers`` pairs of buffers (slots, kv_heads, length, d)."""

    def __init__(self, shape: KVShape, *, slots: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
        size = (shape.layers, slots, shape.kv_heads, length, shape.head_dim)
        self.keys = torch.zeros(size, dtype=dtype, device=device)
        self.values = torch.zeros(size, dtype=dtype, device=device)
        self.length = length
        self.device = device

    def clear(self, slot: int) -> None:
        """Forgets a slot's past. Masked positions count for nothing, but 0 times NaN is NaN."""
        self.keys[:, slot].zero_()
        self.values[:, slot].zero_()

    def prefill(self, slot: int, start: int, stop: int) -> Attend:
        """Attention of rows ``start`` to ``stop - 1`` of one slot, causal over all that the slot holds."""
        columns = torch.arange(stop, device=self.device)
        mask = columns <= torch.arange(start, stop, device=self.device).unsqueeze(1)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.keys[layer, slot], self.values[layer, slot]
            keys[:, start:stop] = k.transpose(0, 1)
            values[:, start:stop] = v.transpose(0, 1)
            out = F.scaled_dot_product_attention(
                q.transpose(0, 1).unsqueeze(0),
                keys[:, :stop].unsqueeze(0),
                values[:, :stop].unsqueeze(0),
                attn_mask=mask,
                enable_gqa=True,
            )
            return out.squeeze(0).transpose(0, 1)

        return attend

    def decode(self, slots: Tensor, positions: Tensor, longest: int) -> Attend:
        """Attention of one row for each slot: row i attends to positions 0 to ``positions[i]`` of ``slots[i]``.

        Args:
            slots, positions: (B,) int64.
            longest: at least ``max(positions)``, known to the host without asking the device.
        """
        limit = min(-(-(longest + 1) // _BUCKET) * _BUCKET, self.length)
        mask = (torch.arange(limit, device=self.device) <= positions.unsqueeze(1)).view(-1, 1, 1, limit)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.keys[layer], self.values[layer]
            keys[slots, :, positions] = k
            values[slots, :, positions] = v
            out = F.scaled_dot_product_attention(
                q.unsqueeze(2),
                keys[:, :, :limit].index_select(0, slots),
                values[:, :, :limit].index_select(0, slots),
                attn_mask=mask,
                enable_gqa=True,
            )
            return out.squeeze(2)

        return attend
