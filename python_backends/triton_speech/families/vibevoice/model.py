"""The whole network under the names that a checkpoint uses (without their ``model.``)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..decoder_layers import QWEN2, Stack
from .config import VibeVoiceConfig
from .diffusion_head import Connector, DiffusionHead
from .speech_tokenizer import AcousticTokenizer, SemanticTokenizer


class VibeVoiceModel(nn.Module):
    """``length`` bounds the positions of a stream."""

    speech_scaling_factor: Tensor
    speech_bias_factor: Tensor

    def __init__(self, config: VibeVoiceConfig, *, length: int) -> None:
        super().__init__()
        decoder, acoustic, semantic = (
            config.decoder_config,
            config.acoustic_tokenizer_config,
            config.semantic_tokenizer_config,
        )
        self.config, self.length = config, length
        self.language_model = Stack(decoder, QWEN2, length, decoder.vocab_size)
        self.acoustic_tokenizer = AcousticTokenizer(acoustic)
        self.semantic_tokenizer = SemanticTokenizer(semantic)
        self.acoustic_connector = Connector(acoustic.vae_dim, decoder.hidden_size)
        self.semantic_connector = Connector(semantic.vae_dim, decoder.hidden_size)
        self.prediction_head = DiffusionHead(config.diffusion_head_config)
        self.register_buffer("speech_scaling_factor", torch.ones(()))
        self.register_buffer("speech_bias_factor", torch.zeros(()))


class VibeVoice(nn.Module):
    """The model and its head over the vocabulary, which a checkpoint with tied weights does not hold."""

    def __init__(self, config: VibeVoiceConfig, *, length: int) -> None:
        super().__init__()
        self.model = VibeVoiceModel(config, length=length)
        self.lm_head = (
            None
            if config.is_tied
            else nn.Linear(config.decoder_config.hidden_size, config.decoder_config.vocab_size, bias=False)
        )

    @property
    def head_weight(self) -> Tensor:
        """(vocabulary, H)."""
        return self.model.language_model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
