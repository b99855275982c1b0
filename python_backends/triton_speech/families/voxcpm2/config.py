"""The configuration of a VoxCPM2 checkpoint, read from its own ``config.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..facts import KVShape, TalkerFacts

ARCHITECTURE = "voxcpm2"


class _Section(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class RopeScaling(_Section):
    """LongRoPE: one frequency divisor for each pair of a head's dimensions (arXiv 2402.13753)."""

    type: Literal["longrope"]
    long_factor: list[float]
    short_factor: list[float]
    original_max_position_embeddings: int = Field(gt=1)


class StackConfig(_Section):
    """One MiniCPM4 stack: the base LM, the residual LM, the local encoder or the local DiT."""

    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_key_value_heads: int = Field(gt=0)
    rms_norm_eps: float = Field(gt=0)
    max_position_embeddings: int = Field(gt=0)
    rope_theta: float = Field(gt=0)
    rope_scaling: RopeScaling
    kv_channels: int | None = None
    vocab_size: int = Field(ge=0)
    use_mup: bool = True
    scale_emb: float = 1.0
    scale_depth: float = 1.0
    dim_model_base: int = 256
    no_rope: bool = False

    @property
    def head_dim(self) -> int:
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def residual_scale(self) -> float:
        """What muP multiplies each residual branch with; 1 without muP."""
        return self.scale_depth / self.num_hidden_layers**0.5 if self.use_mup else 1.0

    @property
    def embedding_scale(self) -> float:
        return self.scale_emb if self.use_mup else 1.0

    @model_validator(mode="after")
    def _heads_fit(self) -> StackConfig:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads is {self.num_attention_heads}, "
                f"not a multiple of num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.no_rope:
            return self
        for name in ("long_factor", "short_factor"):
            count = len(getattr(self.rope_scaling, name))
            if count != self.head_dim // 2:
                raise ValueError(
                    f"rope_scaling.{name} has {count} entries, half the head dimension is {self.head_dim // 2}"
                )
        return self


class LocalStackConfig(_Section):
    """What the local encoder and the local DiT change of the LM's stack."""

    hidden_dim: int = Field(default=1024, gt=0)
    ffn_dim: int = Field(default=4096, gt=0)
    num_heads: int = Field(default=16, gt=0)
    num_layers: int = Field(default=4, gt=0)
    kv_channels: int | None = None


class CfmConfig(_Section):
    """Conditional flow matching. Of its fields only the solver concerns inference."""

    solver: Literal["euler"] = "euler"
    inference_cfg_rate: float = 2.0


class DitConfig(LocalStackConfig):
    # The published file says ``mean_mode``, training code writes ``dit_mean_mode``.
    mean_mode: bool = Field(default=False, validation_alias=AliasChoices("dit_mean_mode", "mean_mode"))
    cfm_config: CfmConfig = CfmConfig()


class AudioVAEConfig(_Section):
    """AudioVAE V2: 16 kHz in, latents at ``sample_rate / prod(encoder_rates)`` Hz, ``out_sample_rate`` out."""

    encoder_dim: int = Field(default=128, gt=0)
    encoder_rates: list[int] = [2, 5, 8, 8]
    latent_dim: int = Field(default=64, gt=0)
    decoder_dim: int = Field(default=2048, gt=0)
    decoder_rates: list[int] = [8, 6, 5, 2, 2, 2]
    depthwise: bool = True
    sample_rate: int = Field(default=16000, gt=0)
    out_sample_rate: int = Field(default=48000, gt=0)
    use_noise_block: bool = False
    sr_bin_boundaries: list[int] | None = [20000, 30000, 40000]
    cond_type: Literal["scale_bias", "scale_bias_init", "add", "concat"] = "scale_bias"
    cond_dim: int = 128
    cond_out_layer: bool = False


class VoxCPM2Config(_Section):
    architecture: Literal["voxcpm2"]
    lm_config: StackConfig
    encoder_config: LocalStackConfig
    dit_config: DitConfig
    audio_vae_config: AudioVAEConfig = AudioVAEConfig()
    patch_size: int = Field(default=4, gt=0)
    feat_dim: int = Field(default=64, gt=0)
    residual_lm_num_layers: int = Field(default=8, gt=0)
    residual_lm_no_rope: bool = False
    scalar_quantization_latent_dim: int = Field(default=512, gt=0)
    scalar_quantization_scale: int = Field(default=9, gt=0)
    max_length: int = Field(default=8192, gt=1)
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    # Not upstream's: what a checkpoint of this project says of itself.
    follows_reference: bool = True
    """Whether it was trained to speak in the voice of a recording."""
    segment_chars: int = Field(default=300, ge=8)
    """Text that it speaks well in one go; what is longer is cut at sentences."""

    @model_validator(mode="after")
    def _parts_fit(self) -> VoxCPM2Config:
        if self.feat_dim != self.audio_vae_config.latent_dim:
            raise ValueError(
                f"feat_dim is {self.feat_dim}, audio_vae_config.latent_dim is {self.audio_vae_config.latent_dim}"
            )
        return self

    @classmethod
    def from_checkpoint(cls, folder: Path) -> VoxCPM2Config:
        """Reads ``folder/config.json``.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is not a VoxCPM2 configuration; names each field that is wrong.
        """
        text = (folder / "config.json").read_text(encoding="utf-8")
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'config.json'}: {e['msg']}" for e in error.errors())
            raise ValueError(f"config.json of checkpoint {folder.name!r} is not usable: {wrong}") from error

    @property
    def residual_config(self) -> StackConfig:
        return self.lm_config.model_copy(
            update={
                "num_hidden_layers": self.residual_lm_num_layers,
                "vocab_size": 0,
                "no_rope": self.residual_lm_no_rope,
            }
        )

    def local_stack(self, local: LocalStackConfig) -> StackConfig:
        """The full configuration of the local encoder's or the local DiT's stack."""
        return self.lm_config.model_copy(
            update={
                "hidden_size": local.hidden_dim,
                "intermediate_size": local.ffn_dim,
                "num_attention_heads": local.num_heads,
                "num_hidden_layers": local.num_layers,
                "kv_channels": local.kv_channels,
                "vocab_size": 0,
            }
        )

    @property
    def talker_facts(self) -> TalkerFacts:
        lm = self.lm_config
        layers = lm.num_hidden_layers + self.residual_lm_num_layers
        shape = KVShape(layers, lm.num_attention_heads, lm.num_key_value_heads, lm.head_dim)
        return TalkerFacts(shape, self.max_length, self.dtype)

    @property
    def frames_per_second(self) -> float:
        """LM steps, and so patches, per second of audio."""
        vae = self.audio_vae_config
        hop = 1
        for rate in vae.encoder_rates:
            hop *= rate
        return vae.sample_rate / (hop * self.patch_size)
