"""The configuration of a VibeVoice checkpoint, read from its own ``config.json``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ..facts import KVShape, TalkerFacts

ARCHITECTURE = "vibevoice"
LENGTH = 8192
"""Positions of a stream where the deployment names none: ten minutes of speech are 4500, the rest is for the script."""
SAMPLE_RATE = 24000
"""Of all published checkpoints; ``config.json`` does not name it."""
KERNEL = 7
"""Taps of every convolution that changes no rate; ``config.json`` does not name it."""


class Section(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class DecoderConfig(Section):
    """A Qwen2 language model."""

    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    max_position_embeddings: int = Field(gt=0)
    rms_norm_eps: float = Field(gt=0)
    rope_theta: float = Field(gt=0)
    rope_scaling: None = None
    hidden_act: Literal["silu"] = "silu"
    use_sliding_window: Literal[False] = False
    tie_word_embeddings: bool | None = None

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @model_validator(mode="after")
    def _heads_fit(self) -> DecoderConfig:
        if self.hidden_size % (2 * self.num_attention_heads):
            raise ValueError(
                f"hidden_size is {self.hidden_size}, not a multiple of 2 * num_attention_heads "
                f"({self.num_attention_heads})"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads is {self.num_attention_heads}, "
                f"not a multiple of num_key_value_heads ({self.num_key_value_heads})"
            )
        return self


class TokenizerConfig(Section):
    """A causal convolutional encoder, and for acoustic latents a decoder too."""

    vae_dim: int = Field(gt=0)
    channels: Literal[1] = 1
    causal: Literal[True] = True
    conv_bias: Literal[True] = True
    conv_norm: Literal["none"] = "none"
    pad_mode: Literal["constant"] = "constant"
    mixer_layer: Literal["depthwise_conv"] = "depthwise_conv"
    layernorm: Literal["RMSNorm"] = "RMSNorm"
    layernorm_elementwise_affine: Literal[True] = True
    disable_last_norm: Literal[True] = True
    layernorm_eps: float = Field(gt=0)
    layer_scale_init_value: float = Field(gt=0)
    fix_std: float = Field(default=0.0, ge=0)
    std_dist_type: Literal["gaussian", "none"] = "none"
    encoder_n_filters: int = Field(gt=0)
    encoder_ratios: tuple[int, ...] = Field(min_length=1)
    encoder_depths: tuple[int, ...]
    decoder_n_filters: int | None = None
    decoder_ratios: tuple[int, ...] | None = None
    decoder_depths: tuple[int, ...] | None = None

    @field_validator("encoder_depths", "decoder_depths", mode="before")
    @classmethod
    def _read_depths(cls, value: object) -> object:
        """Published files write depths as "3-3-8"."""
        return tuple(value.split("-")) if isinstance(value, str) else value

    @property
    def upsampling(self) -> tuple[int, ...]:
        """Ratios of the decoder, the first at the frames' rate."""
        return self.decoder_ratios or self.encoder_ratios

    @property
    def decoder_blocks(self) -> tuple[int, ...]:
        """Blocks of each stage of the decoder."""
        return self.decoder_depths or tuple(reversed(self.encoder_depths))

    @property
    def decoder_filters(self) -> int:
        return self.decoder_n_filters or self.encoder_n_filters

    @property
    def hop(self) -> int:
        """Samples of a frame."""
        return math.prod(self.encoder_ratios)

    @model_validator(mode="after")
    def _stages_fit(self) -> TokenizerConfig:
        pairs = {
            "encoder_depths": (self.encoder_depths, self.encoder_ratios),
            "decoder_depths": (self.decoder_blocks, self.upsampling),
        }
        for name, (depths, ratios) in pairs.items():
            if len(depths) != len(ratios) + 1:
                raise ValueError(f"{name} has {len(depths)} entries, must have {len(ratios) + 1}: one more than ratios")
            if min(depths) < 1 or min(ratios) < 2:
                raise ValueError(f"{name} is {depths} and its ratios {ratios}; at least 1 and 2 are allowed")
        if (hop := math.prod(self.upsampling)) != self.hop:
            raise ValueError(f"decoder_ratios multiply to {hop}, encoder_ratios to {self.hop}")
        return self


class HeadConfig(Section):
    """The diffusion head."""

    hidden_size: int = Field(gt=0)
    latent_size: int = Field(gt=0)
    head_layers: int = Field(gt=0)
    head_ffn_ratio: float = Field(gt=0)
    rms_norm_eps: float = Field(gt=0)
    prediction_type: Literal["v_prediction"] = "v_prediction"
    diffusion_type: Literal["ddpm"] = "ddpm"
    ddpm_beta_schedule: Literal["cosine"] = "cosine"
    ddpm_num_steps: int = Field(ge=200)
    ddpm_num_inference_steps: int = Field(gt=0)


class VibeVoiceConfig(Section):
    model_type: Literal["vibevoice"]
    decoder_config: DecoderConfig
    acoustic_tokenizer_config: TokenizerConfig
    semantic_tokenizer_config: TokenizerConfig
    diffusion_head_config: HeadConfig
    tie_word_embeddings: bool | None = None
    torch_dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"

    @model_validator(mode="after")
    def _parts_fit(self) -> VibeVoiceConfig:
        acoustic, semantic, head = (
            self.acoustic_tokenizer_config,
            self.semantic_tokenizer_config,
            self.diffusion_head_config,
        )
        equal = {
            "diffusion_head_config.hidden_size": (head.hidden_size, self.decoder_config.hidden_size),
            "diffusion_head_config.latent_size": (head.latent_size, acoustic.vae_dim),
            "semantic_tokenizer_config.encoder_ratios multiplied": (semantic.hop, acoustic.hop),
        }
        for name, (value, wanted) in equal.items():
            if value != wanted:
                raise ValueError(f"{name} is {value}, must be {wanted} as in the rest of the model")
        return self

    @classmethod
    def from_checkpoint(cls, folder: Path) -> VibeVoiceConfig:
        """Reads ``folder/config.json``.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is not a configuration of VibeVoice; names each field that is wrong.
        """
        path = folder / "config.json"
        if not path.is_file():
            raise FileNotFoundError(f"checkpoint {folder.name!r} has no config.json")
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except ValidationError as error:
            wrong = "; ".join(_told(one.get("loc", ()), one["msg"], one.get("input")) for one in error.errors())
            raise ValueError(f"config.json of checkpoint {folder.name!r} is not usable: {wrong}") from error

    @property
    def is_tied(self) -> bool:
        """Whether the head shares the embeddings' weights. The whole's word counts before the decoder's."""
        choices = (self.tie_word_embeddings, self.decoder_config.tie_word_embeddings, True)
        return next(one for one in choices if one is not None)

    @property
    def frames_per_second(self) -> float:
        return SAMPLE_RATE / self.acoustic_tokenizer_config.hop

    @property
    def talker_facts(self) -> TalkerFacts:
        decoder = self.decoder_config
        shape = KVShape(
            decoder.num_hidden_layers, decoder.num_attention_heads, decoder.num_key_value_heads, decoder.head_dim
        )
        return TalkerFacts(shape, min(LENGTH, decoder.max_position_embeddings), self.torch_dtype)


def _told(where: tuple[int | str, ...], message: str, value: object) -> str:
    shown = "" if isinstance(value, dict | list) else f" is {value!r}"
    return f"{'.'.join(map(str, where)) or 'the file'}{shown}: {message}"
