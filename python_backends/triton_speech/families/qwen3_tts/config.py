"""The configuration of a Qwen3-TTS checkpoint of the 12 Hz models, read from its own ``config.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from ..facts import KVShape, TalkerFacts
from .sections import AttentionSection, Section, read_section

ARCHITECTURE = "qwen3_tts"
RESERVED = 1024
"""The last ids of the talker's vocabulary are controls, never a code (upstream suppresses them)."""
LENGTH = 4096
"""Positions of a stream where the deployment names none: five minutes of speech and its prompt."""

ModelType = Literal["base", "custom_voice", "voice_design"]


class RopeScaling(Section):
    """Sections of multimodal rotary positions. Speech has one position in all three: they are then plain ones."""

    mrope_section: list[int]
    interleaved: bool
    rope_type: Literal["default"] = "default"


class StackConfig(AttentionSection):
    """A stack of Qwen3 decoder layers."""

    rms_norm_eps: float = Field(gt=0)
    hidden_act: Literal["silu"] = "silu"
    vocab_size: int = Field(gt=0)
    use_sliding_window: Literal[False] = False
    max_position_embeddings: int = Field(gt=0)


class CodePredictorConfig(StackConfig):
    """Makes the codes of a frame after the first. ``vocab_size`` is the size of each codebook."""

    num_code_groups: int = Field(gt=1)


class TalkerConfig(StackConfig):
    """Makes the first code of each frame. ``vocab_size`` counts codes and controls."""

    num_code_groups: int = Field(gt=1)
    text_hidden_size: int = Field(gt=0)
    text_vocab_size: int = Field(gt=0)
    rope_scaling: RopeScaling
    code_predictor_config: CodePredictorConfig
    codec_bos_id: int
    codec_eos_token_id: int
    codec_pad_id: int
    codec_think_id: int
    codec_nothink_id: int
    codec_think_bos_id: int
    codec_think_eos_id: int
    codec_language_id: dict[str, int]
    spk_id: dict[str, int] = Field(default_factory=dict)
    spk_is_dialect: dict[str, str | Literal[False]] = Field(default_factory=dict)

    @property
    def codes(self) -> int:
        """Ids below this one are codes of the first codebook."""
        return self.vocab_size - RESERVED

    @model_validator(mode="after")
    def _parts_fit(self) -> TalkerConfig:
        predictor = self.code_predictor_config
        if predictor.num_code_groups != self.num_code_groups:
            raise ValueError(
                f"num_code_groups is {self.num_code_groups}, that of code_predictor_config {predictor.num_code_groups}"
            )
        if (count := sum(self.rope_scaling.mrope_section)) != self.head_dim // 2:
            raise ValueError(f"rope_scaling.mrope_section has {count} pairs, half of head_dim is {self.head_dim // 2}")
        controls = {
            name: getattr(self, name) for name in type(self).model_fields if name.startswith("codec_") and "id" in name
        }
        languages = controls.pop("codec_language_id")
        controls |= {f"codec_language_id.{name}": value for name, value in languages.items()}
        controls |= {f"spk_id.{name}": value for name, value in self.spk_id.items()}
        for name, value in controls.items():
            if not self.codes <= value < self.vocab_size:
                raise ValueError(
                    f"{name} is {value}, controls are {self.codes} to {self.vocab_size - 1}, "
                    f"the last {RESERVED} of vocab_size"
                )
        for speaker, dialect in self.spk_is_dialect.items():
            if dialect is not False and dialect not in self.codec_language_id:
                raise ValueError(f"spk_is_dialect.{speaker} is {dialect!r}, which codec_language_id does not know")
        return self


class SpeakerEncoderConfig(Section):
    """An ECAPA-TDNN (arXiv 2005.07143) on mel spectra; published files name ``enc_dim`` and ``sample_rate`` only."""

    enc_dim: int = Field(default=1024, gt=0)
    sample_rate: Literal[24000] = 24000
    mel_dim: int = Field(default=128, gt=0)
    enc_channels: list[int] = Field(default=[512, 512, 512, 512, 1536])
    enc_kernel_sizes: list[int] = Field(default=[5, 3, 3, 3, 1])
    enc_dilations: list[int] = Field(default=[1, 2, 3, 4, 1])
    enc_attention_channels: int = Field(default=128, gt=0)
    enc_res2net_scale: int = Field(default=8, gt=1)
    enc_se_channels: int = Field(default=128, gt=0)

    @model_validator(mode="after")
    def _layers_fit(self) -> SpeakerEncoderConfig:
        layers = len(self.enc_channels)
        for name in ("enc_kernel_sizes", "enc_dilations"):
            if (count := len(getattr(self, name))) != layers:
                raise ValueError(f"{name} has {count} entries, enc_channels has {layers}")
        if layers < 3 or self.enc_channels[-1] != sum(self.enc_channels[1:-1]):
            raise ValueError(
                f"enc_channels is {self.enc_channels}, its last must be the sum of those between first and last"
            )
        return self


class Qwen3TTSConfig(Section):
    model_type: Literal["qwen3_tts"]
    tokenizer_type: Literal["qwen3_tts_tokenizer_12hz"]
    tts_model_type: ModelType
    tts_model_size: str
    talker_config: TalkerConfig
    speaker_encoder_config: SpeakerEncoderConfig | None = None
    im_start_token_id: int
    im_end_token_id: int
    assistant_token_id: int
    tts_bos_token_id: int
    tts_eos_token_id: int
    tts_pad_token_id: int
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"

    @model_validator(mode="after")
    def _parts_fit(self) -> Qwen3TTSConfig:
        talker = self.talker_config
        if self.tts_model_type == "base":
            width = None if self.speaker_encoder_config is None else self.speaker_encoder_config.enc_dim
            if width != talker.hidden_size:
                raise ValueError(
                    f"speaker_encoder_config.enc_dim is {width}, talker_config.hidden_size is {talker.hidden_size}"
                )
            if width % talker.num_code_groups:
                raise ValueError(
                    f"speaker_encoder_config.enc_dim is {width}, not a multiple of num_code_groups "
                    f"({talker.num_code_groups}): vectors travel in rows of that width"
                )
        for name in ("im_start", "im_end", "assistant", "tts_bos", "tts_eos", "tts_pad"):
            value = getattr(self, f"{name}_token_id")
            if not 0 <= value < talker.text_vocab_size:
                raise ValueError(f"{name}_token_id is {value}, text tokens are 0 to {talker.text_vocab_size - 1}")
        return self

    @classmethod
    def from_checkpoint(cls, folder: Path) -> Qwen3TTSConfig:
        """Reads ``folder/config.json``.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is not a configuration of Qwen3-TTS 12 Hz; names each field that is wrong.
        """
        return read_section(cls, folder, "config.json")

    @property
    def talker_facts(self) -> TalkerFacts:
        talker = self.talker_config
        shape = KVShape(
            talker.num_hidden_layers, talker.num_attention_heads, talker.num_key_value_heads, talker.head_dim
        )
        return TalkerFacts(shape, min(LENGTH, talker.max_position_embeddings), self.dtype)

    @property
    def follows_instructions(self) -> bool:
        """Whether an instruction shapes the voice. Upstream drops those given to the small CustomVoice model."""
        return self.tts_model_type == "voice_design" or (
            self.tts_model_type == "custom_voice" and self.tts_model_size != "0b6"
        )
