"""16 bit samples: the stated formula, and what libsndfile makes of the same floats."""

import io

import numpy as np
import pytest
import soundfile

from triton_speech.audio.pcm import to_pcm16


@pytest.mark.parametrize(
    ("sample", "written"),
    [
        (0.0, 0),
        (1 / 32768, 1),
        (0.9 / 32768, 0),
        (-0.1 / 32768, -1),
        (0.5, 16384),
        (-1.0, -32768),
        (1.0, 32767),
        (3.0, 32767),
        (-3.0, -32768),
        (32767 / 32768, 32767),
    ],
)
def test_values(sample: float, written: int) -> None:
    result = to_pcm16(np.array([sample], dtype=np.float32))
    assert result.dtype == np.int16
    assert result.tolist() == [written]


def test_every_16_bit_value_survives_the_round_trip() -> None:
    values = np.arange(-32768, 32768).astype(np.int16)
    np.testing.assert_array_equal(to_pcm16(values.astype(np.float32) / 32768), values)


def test_nothing_in_nothing_out() -> None:
    assert to_pcm16(np.zeros(0, dtype=np.float32)).shape == (0,)


def test_it_is_what_libsndfile_writes() -> None:
    """libsndfile rounds to 32 bit first and then drops 16: a sample just below a step may land on the step."""
    samples = np.random.default_rng(0).uniform(-1.2, 1.2, 500_000).astype(np.float32)
    samples[:250_000] *= 2**-9
    file = io.BytesIO()
    soundfile.write(file, samples, 48_000, format="WAV", subtype="PCM_16")
    file.seek(0)
    written, _ = soundfile.read(file, dtype="int16")
    difference = written.astype(np.int32) - to_pcm16(samples)
    below_a_step = np.ceil(samples * 32768.0) - samples * 32768.0 <= 2**-17
    assert set(difference[difference != 0]) <= {1}
    assert below_a_step[difference != 0].all()
    assert (difference != 0).mean() < 1e-4
