"""The stream that guidance pulls away from: it hears the speech alone, without script and voices.

It has positions of its own, which begin anew with each stretch of speech. Its keys and values are kept here: an engine
knows one stream for each slot.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..decoder_layers import Stack
from ..facts import KVShape

_BUCKET = 64
"""Key lengths are rounded up to this, so that few shapes occur."""


class NegativeStream:
    """Keys and values for ``slots`` streams of up to ``length`` positions."""

    def __init__(self, shape: KVShape, slots: int, length: int, like: Tensor) -> None:
        size = (shape.layers, slots, shape.kv_heads, length, shape.head_dim)
        self.keys = torch.zeros(size, dtype=like.dtype, device=like.device)
        self.values = torch.zeros_like(self.keys)
        self.position = torch.zeros(slots, dtype=torch.int64, device=like.device)
        self._columns = torch.arange(length, device=like.device)

    def begin(self, slot: int) -> None:
        """A new stream in ``slot``. Masked positions count for nothing, but 0 times NaN is NaN."""
        self.keys[:, slot].zero_()
        self.values[:, slot].zero_()
        self.position[slot] = 0

    def hidden(self, model: Stack, slots: Tensor, inputs: Tensor, reach: int) -> Tensor:
        """Reads inputs (B, H) at the place of each stream -> states (B, H). The place stays until ``advance``.

        Args:
            reach: a position that all places lie below.
        """
        places = self.position[slots]
        reach = min(-(-reach // _BUCKET) * _BUCKET, len(self._columns))
        mask = (self._columns[:reach] <= places.unsqueeze(1)).view(len(slots), 1, 1, -1)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.keys[layer], self.values[layer]
            keys[slots, :, places] = k
            values[slots, :, places] = v
            out = F.scaled_dot_product_attention(
                q.unsqueeze(2),
                keys[:, :, :reach].index_select(0, slots),
                values[:, :, :reach].index_select(0, slots),
                attn_mask=mask,
                enable_gqa=True,
            )
            return out.squeeze(2)

        return model(inputs, places, attend)

    def advance(self, slots: Tensor, has_frame: Tensor, begins: Tensor) -> None:
        """What was read counts where a frame came of it; with a stretch that begins all is forgotten.

        Args:
            slots: (B,) int64.
            has_frame, begins: (B,) bool, never both.
        """
        places = self.position[slots] + has_frame
        self.position[slots] = places * ~begins
