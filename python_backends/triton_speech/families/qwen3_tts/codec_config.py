"""The configuration of the 12 Hz speech tokenizer, read from ``speech_tokenizer/config.json``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from .sections import AttentionSection, Section, read_section

FOLDER = "speech_tokenizer"


class DecoderConfig(AttentionSection):
    """Codes to audio: quantiser, windowed transformer, and convolutions that raise the rate."""

    latent_dim: int = Field(gt=0)
    codebook_dim: int = Field(gt=0, multiple_of=2)
    codebook_size: int = Field(gt=1)
    decoder_dim: int = Field(gt=0)
    hidden_act: Literal["silu"] = "silu"
    num_quantizers: int = Field(gt=1)
    rms_norm_eps: float = Field(gt=0)
    sliding_window: int = Field(gt=0)
    """Frames that a frame of the transformer attends to, itself included."""
    upsample_rates: list[int] = Field(min_length=1)
    upsampling_ratios: list[int] = Field(min_length=1)

    @property
    def hop(self) -> int:
        """Samples of a frame."""
        return math.prod(self.upsample_rates) * math.prod(self.upsampling_ratios)

    @model_validator(mode="after")
    def _halves(self) -> DecoderConfig:
        if self.decoder_dim % 2 ** len(self.upsample_rates):
            raise ValueError(
                f"decoder_dim is {self.decoder_dim}, it must be halved for each of {len(self.upsample_rates)} "
                "upsample_rates"
            )
        return self


class EncoderConfig(AttentionSection):
    """Audio to codes: the encoder of Mimi (arXiv 2410.00037), of whose codebooks the first ones are used."""

    audio_channels: Literal[1] = 1
    codebook_dim: int = Field(gt=0)
    codebook_size: int = Field(gt=1)
    compress: int = Field(gt=0)
    dilation_growth_rate: int = Field(gt=0)
    hidden_act: Literal["gelu"] = "gelu"
    kernel_size: int = Field(gt=0)
    last_kernel_size: int = Field(gt=0)
    norm_eps: float = Field(gt=0)
    num_filters: int = Field(gt=0)
    num_quantizers: int = Field(gt=1)
    num_residual_layers: int = Field(gt=0)
    num_semantic_quantizers: int = Field(default=1, gt=0)
    pad_mode: Literal["constant"] = "constant"
    residual_kernel_size: int = Field(gt=0)
    upsampling_ratios: list[int] = Field(min_length=1)
    use_causal_conv: Literal[True] = True
    use_conv_shortcut: Literal[False] = False
    vector_quantization_hidden_dimension: int = Field(gt=0)

    @property
    def hop(self) -> int:
        """Samples of a frame of the convolutions; the last one then halves the rate."""
        return math.prod(self.upsampling_ratios)


class SpeechTokenizerConfig(Section):
    model_type: Literal["qwen3_tts_tokenizer_12hz"]
    encoder_valid_num_quantizers: int = Field(gt=0)
    input_sample_rate: int = Field(gt=0)
    output_sample_rate: int = Field(gt=0)
    decode_upsample_rate: int = Field(gt=0)
    encode_downsample_rate: int = Field(gt=0)
    decoder_config: DecoderConfig
    encoder_config: EncoderConfig

    @model_validator(mode="after")
    def _parts_fit(self) -> SpeechTokenizerConfig:
        decoder, encoder = self.decoder_config, self.encoder_config
        pairs = [
            ("decode_upsample_rate", self.decode_upsample_rate, "the decoder's rates", decoder.hop),
            ("encode_downsample_rate", self.encode_downsample_rate, "twice the encoder's ratios", 2 * encoder.hop),
            (
                "encoder_valid_num_quantizers",
                self.encoder_valid_num_quantizers,
                "decoder_config.num_quantizers",
                decoder.num_quantizers,
            ),
            (
                "encoder_config.codebook_size",
                encoder.codebook_size,
                "decoder_config.codebook_size",
                decoder.codebook_size,
            ),
            (
                "encoder_config.codebook_dim",
                encoder.codebook_dim,
                "encoder_config.vector_quantization_hidden_dimension",
                encoder.vector_quantization_hidden_dimension,
            ),
        ]
        for name, value, other, wanted in pairs:
            if value != wanted:
                raise ValueError(f"{name} is {value}, {other} make it {wanted}")
        if encoder.num_quantizers < self.encoder_valid_num_quantizers:
            raise ValueError(
                f"encoder_config.num_quantizers is {encoder.num_quantizers}, "
                f"encoder_valid_num_quantizers is {self.encoder_valid_num_quantizers}"
            )
        return self

    @classmethod
    def from_checkpoint(cls, folder: Path) -> SpeechTokenizerConfig:
        """Reads ``folder/speech_tokenizer/config.json``.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is not the configuration of a 12 Hz tokenizer; names each field that is wrong.
        """
        return read_section(cls, folder, f"{FOLDER}/config.json")
