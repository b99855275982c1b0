"""Residual vector quantisers of the speech tokenizer: the first codebook apart from the rest.

Codebooks are kept as sums and counts, as training left them. The decoder's and the encoder's are the same thing under
different names.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .codec_config import DecoderConfig, EncoderConfig

EPSILON = 1e-5
"""The least that an entry's count is taken for (upstream)."""


def entries(sums: Tensor, usage: Tensor) -> Tensor:
    """The codebook (V, D) of sums (V, D) and counts (V,)."""
    return sums / usage.clamp(min=EPSILON).unsqueeze(1)


class DecoderCodebook(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.ones(config.codebook_size))
        self.embedding_sum = nn.Parameter(torch.zeros(config.codebook_size, config.codebook_dim // 2))


class _DecoderLayer(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self._codebook = DecoderCodebook(config)

    def table(self) -> Tensor:
        return entries(self._codebook.embedding_sum, self._codebook.cluster_usage)


class _DecoderLayers(nn.Module):
    def __init__(self, config: DecoderConfig, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_DecoderLayer(config) for _ in range(count))


class _DecoderHalf(nn.Module):
    def __init__(self, config: DecoderConfig, count: int) -> None:
        super().__init__()
        width = config.codebook_dim // 2
        self.input_proj = nn.Conv1d(config.codebook_dim, width, 1, bias=False)
        self.output_proj = nn.Conv1d(width, config.codebook_dim, 1, bias=False)
        self.vq = _DecoderLayers(config, count)

    def tables(self) -> Tensor:
        """(codebooks, V, codebook_dim): entries with the output projection applied."""
        inner = torch.stack([layer.table() for layer in self.vq.layers if isinstance(layer, _DecoderLayer)])
        return inner @ self.output_proj.weight[:, :, 0].T


class DecoderQuantizer(nn.Module):
    """Codes to vectors."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.rvq_first = _DecoderHalf(config, 1)
        self.rvq_rest = _DecoderHalf(config, config.num_quantizers - 1)

    def tables(self) -> Tensor:
        """(G, V, codebook_dim): what each code of each codebook adds to a frame's vector."""
        return torch.cat((self.rvq_first.tables(), self.rvq_rest.tables()))


def look_up(tables: Tensor, codes: Tensor) -> Tensor:
    """Sums the entries of frames: tables (G, V, D), codes (..., G) -> (..., D). Codes out of range are clamped."""
    groups, size, width = tables.shape
    offsets = torch.arange(groups, device=codes.device) * size
    return F.embedding(codes.clamp(0, size - 1) + offsets, tables.view(-1, width)).sum(-2)


class EncoderCodebook(nn.Module):
    cluster_usage: Tensor
    embed_sum: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        # Training's mark that the entries are set.
        self.register_buffer("initialized", torch.ones(1))
        self.register_buffer("cluster_usage", torch.ones(config.codebook_size))
        self.register_buffer("embed_sum", torch.zeros(config.codebook_size, config.codebook_dim))


class _EncoderLayer(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.codebook = EncoderCodebook(config)

    def table(self) -> Tensor:
        return entries(self.codebook.embed_sum, self.codebook.cluster_usage)


class _EncoderHalf(nn.Module):
    def __init__(self, config: EncoderConfig, count: int) -> None:
        super().__init__()
        inner = config.vector_quantization_hidden_dimension
        self.layers = nn.ModuleList(_EncoderLayer(config) for _ in range(count))
        self.projected = inner != config.hidden_size
        if self.projected:
            self.input_proj = nn.Conv1d(config.hidden_size, inner, 1, bias=False)
            self.output_proj = nn.Conv1d(inner, config.hidden_size, 1, bias=False)

    def encode(self, x: Tensor, count: int) -> list[Tensor]:
        """x (B, C, T) -> the nearest entries (B, T) of the first ``count`` codebooks."""
        rest = (self.input_proj(x) if self.projected else x).transpose(1, 2)
        codes = []
        for layer in self.layers[:count]:
            assert isinstance(layer, _EncoderLayer)
            table = layer.table()
            codes.append(torch.cdist(rest, table.unsqueeze(0)).argmin(-1))
            rest = rest - F.embedding(codes[-1], table)
        return codes


class EncoderQuantizer(nn.Module):
    """Vectors to codes."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.semantic = config.num_semantic_quantizers
        self.semantic_residual_vector_quantizer = _EncoderHalf(config, self.semantic)
        self.acoustic_residual_vector_quantizer = _EncoderHalf(config, config.num_quantizers - self.semantic)

    def encode(self, x: Tensor, count: int) -> Tensor:
        """x (B, C, T) -> the codes (B, T, count) of the first ``count`` codebooks, which are at least two."""
        codes = self.semantic_residual_vector_quantizer.encode(x, self.semantic)
        codes += self.acoustic_residual_vector_quantizer.encode(x, count - self.semantic)
        return torch.stack(codes, dim=-1)
