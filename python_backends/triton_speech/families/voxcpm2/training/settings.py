"""What a training run does, in one file: ``settings.json`` of its folder. The defaults are the quickstart voice's."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

PATHS = ("held_out", "wordnet", "word_list")
"""Of the texts."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TextSettings(_Section):
    seed: int = 7
    held_out: Path | None = None
    """JSON file of sentences to judge the voice by: no text has one of them in it."""
    wordnet: Path | None = None
    """Folder of WordNet 3.0 with its ``data.*``."""
    word_list: Path | None = None
    """File with a word on each line."""
    patterns: int = Field(default=8000, ge=0)
    examples: int = Field(default=14000, ge=0)
    meanings: int = Field(default=8000, ge=0)
    joined: int = Field(default=6000, ge=0)
    """Texts of two to five sentences."""
    word_lists: int = Field(default=2500, ge=0)
    default_speaker_share: float = Field(default=0.5, gt=0, le=1)
    """Of the texts that the first speaker says; the others share the rest."""


class SpeechSettings(_Section):
    seed: int = 1
    shard: int = Field(default=64, ge=1)
    """Utterances in a file."""
    limit: int | None = Field(default=None, ge=1)
    """Shards at most; all texts where None."""


class StageSettings(_Section):
    """``seconds`` is the stage's time over all of its runs, ``steps`` the most of its steps: what is first ends it.

    Each run's first step, which may compile, is not counted into ``seconds``.
    """

    seed: int = 1
    seconds: float = Field(default=600, gt=0)
    steps: int | None = Field(default=None, ge=1)
    batch: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0)
    warm_up: int = Field(default=200, ge=1)
    ema: float = Field(default=0.999, ge=0, lt=1)
    save_seconds: float = Field(default=120, gt=0)
    """From one saving of the state to the next."""


class CodecSettings(StageSettings):
    """The AudioVAE: encoder and decoder together by spectra, or the decoder alone against discriminators."""

    seconds: float = Field(default=420, gt=0)
    frames: int = Field(default=32, ge=8)
    """Latent frames of each piece of audio."""
    mel_weight: float = Field(default=10, ge=0)
    linear_weight: float = Field(default=10, ge=0)
    feature_weight: float = Field(default=2, ge=0)
    """Of the discriminators' features; only where there are discriminators."""
    discriminator_rate: float = Field(default=2e-4, gt=0)
    latent_noise: float = Field(default=0.3, ge=0)
    """Largest spread of the noise on the latents: the decoder has to bear with what the talker draws."""


class DecoderSettings(CodecSettings):
    """The same with defaults for the decoder alone, which hold for every field that a file leaves out."""

    seed: int = 2
    seconds: float = Field(default=700, gt=0)
    learning_rate: float = Field(default=4e-4, gt=0)
    warm_up: int = Field(default=100, ge=1)
    save_seconds: float = Field(default=100, gt=0)


class TalkerSettings(StageSettings):
    seconds: float = Field(default=600, gt=0)
    batch: int = Field(default=32, ge=1)
    """Rows of ``length`` positions."""
    length: int = Field(default=512, ge=32)
    patch_share: float = Field(default=0.5, gt=0, lt=1)
    """Room for target patches, by all positions of a batch."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """Of everything but matrices."""
    muon_rate: float = Field(default=0.02, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    warm_up: int = Field(default=300, ge=1)
    ema: float = Field(default=0.9995, ge=0, lt=1)
    draws: int = Field(default=2, ge=1)
    """Noise levels for each patch of a step."""
    history_noise: float = Field(default=0.2, ge=0)
    """Largest spread of the noise on the patches that are read, not on those that are to be made."""
    guidance_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Share of the patches that are made without the language model, for guidance."""
    stop_weight: float = Field(default=1, ge=0)
    reference_share: float = Field(default=0.34, ge=0, le=1)
    continuation_share: float = Field(default=0.16, ge=0, le=1)
    reference_seconds: float = Field(default=6, gt=0)
    """Longest part of an utterance that is given as a reference."""

    @model_validator(mode="after")
    def _shares_fit(self) -> TalkerSettings:
        both = self.reference_share + self.continuation_share
        if both > 1:
            raise ValueError(f"reference_share and continuation_share are {both} together, at most 1 is possible")
        return self


class TrainSettings(_Section):
    """Relative paths begin at the folder of the file."""

    base: Path
    """A checkpoint whose ``config.json`` and tokenizer the new one takes; the tokenizer must know all letters."""
    teacher: Path | None = None
    """A Piper voice's ONNX file; the one of the extra ``train`` where None."""
    segment_chars: int = Field(default=200, ge=8)
    share_case: bool = True
    """Capital letters read as small ones: they get the same embeddings."""
    texts: TextSettings = TextSettings()
    speech: SpeechSettings = SpeechSettings()
    codec: CodecSettings = CodecSettings()
    decoder: DecoderSettings = DecoderSettings()
    talker: TalkerSettings = TalkerSettings()

    @classmethod
    def read(cls, path: Path) -> TrainSettings:
        """
        Raises:
            FileNotFoundError: there is no such file.
            ValueError: names each field that is wrong.
        """
        try:
            settings = cls.model_validate(json.loads(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, one['loc'])) or path.name}: {one['msg']}" for one in error.errors())
            raise ValueError(f"{path.name} is not usable: {wrong}") from error
        texts = settings.texts
        found = {name: _under(path.parent, getattr(texts, name)) for name in PATHS}
        return settings.model_copy(
            update={
                "base": path.parent / settings.base,
                "teacher": _under(path.parent, settings.teacher),
                "texts": texts.model_copy(update=found),
            }
        )


def _under(folder: Path, path: Path | None) -> Path | None:
    return None if path is None else folder / path
