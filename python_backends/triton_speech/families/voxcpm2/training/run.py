"""A training run in its folder: what is there, what comes next, and the checkpoint at the end."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ..audio_vae import AudioVAE
from ..checkpoint import save_checkpoint
from ..config import VoxCPM2Config
from ..tokenizer import Tokenizer
from .clock import Clock
from .codec import CodecStage
from .loop import run_stage
from .pieces import Pieces
from .rows import Rows
from .settings import CodecSettings, TrainSettings
from .speakers import SAMPLE_RATE
from .speech import Job, make_speech
from .talker import TalkerStage, encode_speech, new_talker
from .teacher import bundled_teacher
from .texts import Row, make_texts, read_rows
from .vocabulary import Vocabulary

STAGES = ("texts", "speech", "codec", "decoder", "talker", "export")
FIRST_SPEECH_SECONDS = 300.0
"""For which the AudioVAE's training waits, where speech is made beside it."""
COMPILING_SECONDS = 120.0
"""That a compiled step's first call may take."""
SAVING_SECONDS = 10.0
"""Before the end of a run's time, for the last saving."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True)
class Machine:
    """What a run may use: ``workers`` are processes for speech and batches."""

    device: torch.device
    workers: int
    compiled: bool


class Run:
    """The stages of a folder that has a ``settings.json``."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        """
        Raises:
            FileNotFoundError: there are no settings, or no checkpoint where they say.
            ValueError: the settings or the checkpoint's configuration are not usable.
        """
        self.folder, self._machine = folder, machine
        self.settings = TrainSettings.read(folder / "settings.json")
        self._config = VoxCPM2Config.from_checkpoint(self.settings.base)
        self._texts, self._speech, self._state = folder / "texts.jsonl", folder / "speech", folder / "state"
        vae = self._config.audio_vae_config
        hop = SAMPLE_RATE * self._config.patch_size
        for rate in vae.encoder_rates:
            hop *= rate
        if hop % vae.sample_rate:
            raise ValueError(f"patches of {hop / vae.sample_rate} samples at {SAMPLE_RATE} Hz are not whole")
        self._patch = hop // vae.sample_rate

    def run(self, stages: tuple[str, ...], clock: Clock) -> bool:
        """Goes through ``stages`` in order until one is not done in time; True when all are done."""
        work: dict[str, Callable[[Clock], bool]] = {
            "texts": self._make_texts,
            "speech": self._make_speech,
            "codec": self._train_codec,
            "decoder": self._train_decoder,
            "talker": self._train_talker,
            "export": self._export,
        }
        return all(work[name](clock) for name in STAGES if name in stages)

    @property
    def _teacher(self) -> Path:
        return self.settings.teacher or bundled_teacher()

    def _make_texts(self, clock: Clock) -> bool:
        if not self._texts.is_file():
            unfinished = self._texts.with_suffix(".part")
            count = make_texts(self.settings.texts, self._teacher, unfinished)
            unfinished.replace(self._texts)
            print(f"texts: {count}", flush=True)
        return True

    def _make_speech(self, clock: Clock) -> bool:
        job = Job(self._texts, self._teacher, self._speech, self.settings.speech, self._patch)
        return make_speech(job, workers=self._machine.workers, clock=clock)

    def _train_codec(self, clock: Clock) -> bool:
        if self._is_done("codec"):
            return True
        torch.manual_seed(self.settings.codec.seed)
        vae = AudioVAE(self._config.audio_vae_config).to(self._machine.device)
        return self._train_vae(vae, "codec", self.settings.codec, clock)

    def _train_decoder(self, clock: Clock) -> bool:
        if self._is_done("decoder"):
            return True
        return self._train_vae(self._trained_vae("codec"), "decoder", self.settings.decoder, clock)

    def _train_vae(self, vae: AudioVAE, name: str, settings: CodecSettings, clock: Clock) -> bool:
        pieces = Pieces(self._speech, vae, self._machine.device)
        stage = CodecStage(vae, pieces, settings, adversarial=name == "decoder", compiled=self._machine.compiled)
        patience = Clock(FIRST_SPEECH_SECONDS)
        while pieces.poll() == 0 and min(clock.left(), patience.left()) > 0 and self._texts.is_file():
            time.sleep(1)
        if pieces.poll() == 0:
            raise FileNotFoundError(f"{self._speech} has no speech yet: stage 'speech' comes first")
        return run_stage(stage, name, settings, self._state, clock, first_seconds=self._first_seconds)

    def _train_talker(self, clock: Clock) -> bool:
        if self._is_done("talker"):
            return True
        settings, texts = self.settings.talker, read_rows(self._texts)
        tokens, vocabulary = self._tokens(texts)
        vae = self._trained_vae("codec").eval().requires_grad_(False)
        patches, utterances = encode_speech(vae, self._speech, texts, tokens, self._config.patch_size)
        seconds = len(patches) / self._config.frames_per_second
        print(f"talker: {len(utterances)} utterances, {seconds / 3600:.2f} h", flush=True)
        rows = Rows(utterances, settings, self._config.frames_per_second, word_start=vocabulary.space)
        model = new_talker(self._config, settings.seed).to(self._machine.device)
        workers = min(self._machine.workers, 8) if self._machine.device.type == "cuda" else 0
        stage = TalkerStage(model, patches, rows, settings, workers=workers, compiled=self._machine.compiled)
        return run_stage(stage, "talker", settings, self._state, clock, first_seconds=self._first_seconds)

    def _export(self, clock: Clock) -> bool:
        """Writes the checkpoint from the averages as they are, whether or not the stages are done."""
        decoder = "decoder" if (self._state / "decoder.pt").is_file() else "codec"
        vae = self._trained_vae(decoder)
        talker = new_talker(self._config, 0)
        average = self._load("talker")["average"]
        talker.load_state_dict(average)
        _, vocabulary = self._tokens(read_rows(self._texts))
        embeddings = talker.base_lm.embed_tokens
        embeddings.weight.data = vocabulary.spread(embeddings.weight.data)
        target = self.folder / "checkpoint"
        target.mkdir(exist_ok=True)
        for name in _TOKENIZER_FILES:
            if (self.settings.base / name).is_file():
                shutil.copyfile(self.settings.base / name, target / name)
        config = json.loads((self.settings.base / "config.json").read_text(encoding="utf-8"))
        config |= {"follows_reference": True, "segment_chars": self.settings.segment_chars}
        save_checkpoint(target, json.dumps(config, indent=1) + "\n", talker.bfloat16(), vae.cpu().half())
        print(f"export: {target}", flush=True)
        return True

    def _tokens(self, texts: list[Row]) -> tuple[list[list[int]], Vocabulary]:
        tokenizer = Tokenizer.from_checkpoint(self.settings.base)
        size = self._config.lm_config.vocab_size
        vocabulary = Vocabulary(tokenizer, size, share_case=self.settings.share_case)
        return [vocabulary.read(tokenizer.encode(row.text)) for row in texts], vocabulary

    def _trained_vae(self, name: str) -> AudioVAE:
        """The AudioVAE that a stage has come to, on the run's device."""
        stage = self._load(name)
        vae = AudioVAE(self._config.audio_vae_config)
        # Buffers have no average.
        vae.load_state_dict(vae.state_dict() | stage["average"])
        return vae.to(self._machine.device)

    @property
    def _first_seconds(self) -> float:
        return COMPILING_SECONDS if self._machine.compiled else 0.0

    def _is_done(self, name: str) -> bool:
        """Asked before the speech is read, which takes longer than what a finished stage has left to do."""
        path = self._state / f"{name}.pt"
        # Written by a run of this folder.
        return path.is_file() and bool(torch.load(path, map_location="cpu", mmap=True, weights_only=False)["done"])

    def _load(self, name: str) -> dict[str, dict[str, torch.Tensor]]:
        path = self._state / f"{name}.pt"
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: stage {name!r} comes first")
        # Written by a run of this folder.
        saved = torch.load(path, map_location="cpu", weights_only=False)
        if name == "codec" and not saved["done"]:
            raise FileNotFoundError(f"{path} is not done: the other stages need the finished encoder")
        return dict(saved["stage"])
