"""What a caller can get wrong, in every field and over every way in, and the sentence that tells it so.

Each row is refused by both pipelines with the field's name and what is allowed. One bad request costs nobody else
anything: the stream ends once, the text is clean, and the next request is served.
"""

from __future__ import annotations

import io
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import soundfile

RATE = 16_000
GOOD = {"TEXT": "Hello.", "SEED": np.array([1], np.uint64), "MAX_SECONDS": np.array([0.1], np.float32)}

# S8: neither paths nor tracebacks nor the names and versions of libraries.
UNCLEAN = re.compile(
    r"/\w+/|\.py\b|Traceback|\bline \d|0x[0-9a-f]{6}|libsnd|soundfile|soxr|torch|numpy|pydantic|pb_utils", re.IGNORECASE
)


class Bad(NamedTuple):
    name: str
    field: str
    says: str
    """Part of the text: what is allowed, or what is wrong."""
    inputs: dict[str, Any]


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def i32(*values: int) -> Any:
    return np.array(values, np.int32)


def tone(seconds: float, rate: int = RATE) -> Any:
    return 0.3 * np.sin(np.arange(int(seconds * rate)) * 0.05)


def audio_file(samples: Any, rate: int = RATE, kind: str = "WAV", subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


def with_text(name: str, field: str, says: str, value: Any, **others: Any) -> Bad:
    return Bad(name, field, says, {"TEXT": "Hello.", **others, field: value})


def texts() -> list[Bad]:
    rows = [
        Bad("text_missing", "TEXT", "is missing", {"SEED": np.array([1], np.uint64)}),
        with_text("text_has_only_zero_width_characters", "TEXT", "nothing that can be spoken", "\u200b\u200d\ufeff"),
        with_text("text_has_only_control_characters", "TEXT", "nothing that can be spoken", "\x00\x07\x1b"),
        with_text("text_has_only_pictures", "TEXT", "nothing that can be spoken", "\U0001f600\U0001f680"),
        with_text("text_too_long", "TEXT", "has 4097 characters, at most 4096", "x" * 4097),
        with_text("text_of_a_megabyte", "TEXT", "at most 4096", "x" * 2**20),
        with_text("text_has_too_many_tokens", "TEXT", "tokens, at most 256", "word " * 400),
        with_text("voice_unknown", "VOICE", "known are default", "nobody"),
        with_text("voice_climbs_out_of_its_folder", "VOICE", "letters A to Z, digits, '-' and '_'", "../x"),
        with_text("voice_is_a_path", "VOICE", "letters A to Z, digits, '-' and '_'", "a/b"),
        with_text("voice_has_a_line_break", "VOICE", "letters A to Z, digits, '-' and '_'", "default\n"),
        with_text("voice_has_a_nul", "VOICE", "letters A to Z, digits, '-' and '_'", "default\x00"),
        with_text("voice_too_long", "VOICE", "at most 64", "v" * 65),
        with_text("instruction_too_long", "INSTRUCTION", "at most 512", "x" * 513),
        with_text("instruction_has_only_zero_width", "INSTRUCTION", "nothing that can be spoken", "\u200b"),
        with_text("language_too_long", "LANGUAGE", "at most 16", "x" * 17),
    ]
    for field in ("TEXT", "VOICE", "INSTRUCTION", "LANGUAGE"):
        rows += [
            with_text(f"{field.lower()}_empty", field, "is empty", ""),
            with_text(f"{field.lower()}_blank", field, "is blank", " \t\n"),
            with_text(f"{field.lower()}_not_utf8", field, "is not UTF-8 (byte 1)", b"a\xff"),
        ]
    return rows


def prompts() -> list[Bad]:
    audio = audio_file(tone(1.5))
    long = "x" * 4097
    return [
        with_text("prompt_audio_without_text", "PROMPT_TEXT", "is missing; PROMPT_AUDIO needs", audio)._replace(
            inputs={"TEXT": "Hello.", "PROMPT_AUDIO": audio}
        ),
        Bad("prompt_text_without_audio", "PROMPT_AUDIO", "is missing", {"TEXT": "Hello.", "PROMPT_TEXT": "One."}),
        with_text("prompt_text_empty", "PROMPT_TEXT", "is empty", "", PROMPT_AUDIO=audio),
        with_text("prompt_text_blank", "PROMPT_TEXT", "is blank", "  ", PROMPT_AUDIO=audio),
        with_text("prompt_text_not_utf8", "PROMPT_TEXT", "is not UTF-8", b"\xff", PROMPT_AUDIO=audio),
        with_text("prompt_text_too_long", "PROMPT_TEXT", "at most 4096", long, PROMPT_AUDIO=audio),
        with_text("prompt_text_zero_width", "PROMPT_TEXT", "nothing that can be", "\u200b", PROMPT_AUDIO=audio),
        with_text(
            "instruction_with_prompt", "INSTRUCTION", "PROMPT_TEXT", "Slow.", PROMPT_TEXT="One.", PROMPT_AUDIO=audio
        ),
    ]


def numbers() -> list[Bad]:
    rows = [
        with_text("chunk_schedule_empty", "CHUNK_SCHEDULE", "must have 1 to 32", i32()),
        with_text("chunk_schedule_too_many", "CHUNK_SCHEDULE", "has 33 entries, must have 1 to 32", i32(*[1] * 33)),
        with_text("chunk_schedule_zero", "CHUNK_SCHEDULE", "holds 0, each entry must be 1 to 64", i32(1, 0)),
        with_text("chunk_schedule_negative", "CHUNK_SCHEDULE", "holds -1, each entry must be 1 to 64", i32(-1)),
        with_text("chunk_schedule_too_large", "CHUNK_SCHEDULE", "holds 65, each entry must be 1 to 64", i32(65)),
        with_text("chunk_schedule_huge", "CHUNK_SCHEDULE", "must be 1 to 64", i32(2**31 - 1)),
        with_text("inference_steps_too_few", "INFERENCE_STEPS", "1 is out of range, allowed is 2 to 100", i32(1)),
        with_text("inference_steps_too_many", "INFERENCE_STEPS", "101 is out of range, allowed is 2 to 100", i32(101)),
        with_text("inference_steps_negative", "INFERENCE_STEPS", "allowed is 2 to 100", i32(-(2**31))),
        with_text("cfg_value_negative", "CFG_VALUE", "-0.5 is out of range, allowed is 0 to 10", f32(-0.5)),
        with_text("cfg_value_too_large", "CFG_VALUE", "10.5 is out of range, allowed is 0 to 10", f32(10.5)),
        with_text("max_seconds_zero", "MAX_SECONDS", "0 is out of range, allowed is 0.1 to 120", f32(0)),
        with_text("max_seconds_negative", "MAX_SECONDS", "-1 is out of range, allowed is 0.1 to 120", f32(-1)),
        with_text("max_seconds_too_large", "MAX_SECONDS", "121 is out of range, allowed is 0.1 to 120", f32(121)),
    ]
    for field, limits in (("CFG_VALUE", "0 to 10"), ("MAX_SECONDS", "0.1 to 120")):
        for name, value in (("nan", np.nan), ("inf", np.inf), ("minus_inf", -np.inf)):
            rows.append(with_text(f"{field.lower()}_{name}", field, f"not a number, allowed is {limits}", f32(value)))
    return rows


def types_and_shapes() -> list[Bad]:
    rows = []
    texts = ("TEXT", "VOICE", "REFERENCE_AUDIO", "PROMPT_AUDIO", "PROMPT_TEXT", "INSTRUCTION", "LANGUAGE")
    for field in texts:
        rows.append(with_text(f"{field.lower()}_as_int32", field, "expects 'BYTES'", i32(1)))
        two = np.array([b"a", b"b"], np.object_)
        rows.append(with_text(f"{field.lower()}_twice", field, "Expected [1], got [2]", two))
    others = {"SEED": "UINT64", "CFG_VALUE": "FP32", "INFERENCE_STEPS": "INT32", "MAX_SECONDS": "FP32"}
    for field, dtype in others.items():
        rows.append(with_text(f"{field.lower()}_as_fp64", field, f"expects '{dtype}'", np.array([2.0])))
        rows.append(with_text(f"{field.lower()}_as_text", field, f"expects '{dtype}'", "2"))
        right = {"UINT64": np.uint64, "FP32": np.float32, "INT32": np.int32}[dtype]
        rows.append(with_text(f"{field.lower()}_twice", field, "Expected [1], got [2]", np.array([2, 2], right)))
        rows.append(with_text(f"{field.lower()}_of_no_element", field, "got [0]", np.array([], right)))
        rows.append(with_text(f"{field.lower()}_with_a_batch", field, "got [1,1]", np.array([[2]], right)))
    return [
        *rows,
        with_text("seed_as_int64", "SEED", "expects 'UINT64'", np.array([-1], np.int64)),
        with_text("chunk_schedule_as_int64", "CHUNK_SCHEDULE", "expects 'INT32'", np.array([1], np.int64)),
        with_text("chunk_schedule_with_a_batch", "CHUNK_SCHEDULE", "got [1,2]", i32(1, 2).reshape(1, 2)),
        with_text("field_that_no_pipeline_has", "TEMPERATURE", "unexpected inference input", f32(1)),
    ]


def recordings() -> list[Bad]:
    good = audio_file(tone(2))
    broken = tone(2).astype(np.float32)
    broken[100] = np.nan
    files = {
        "empty": (b"", "is empty"),
        "garbage": (bytes(range(256)) * 40, "WAV, AIFF, CAF, AU, FLAC, Ogg (Vorbis or Opus) and MP3"),
        "a_text": (b"http://127.0.0.1/voice.wav", "WAV, AIFF, CAF, AU, FLAC, Ogg (Vorbis or Opus) and MP3"),
        "only_a_header": (good[:44], "holds no audio"),
        "cut_off": (good[: len(good) // 2], "damaged or cut off"),
        "without_samples": (audio_file(tone(0)), "holds no audio"),
        "silent": (audio_file(np.zeros(2 * RATE)), "is silent"),
        "not_a_number": (audio_file(broken, subtype="FLOAT"), "NaN or infinity"),
        "too_short": (audio_file(tone(0.1)), "lasts 0.10 s; at least 1 s"),
        "too_long": (audio_file(tone(31)), "lasts 31.00 s; at most 30 s"),
        "of_a_low_rate": (audio_file(tone(2, 4000), 4000), "8000 to 192000 Hz"),
        "far_too_loud": (audio_file(tone(2) * 1e6, subtype="FLOAT"), "within -1 to 1"),
        "of_nine_channels": (audio_file(np.zeros((RATE, 9))), "at most 8"),
        "a_voc": (audio_file(tone(2), kind="VOC"), "WAV, AIFF, CAF, AU, FLAC, Ogg (Vorbis or Opus) and MP3"),
    }
    rows = []
    for name, (data, says) in files.items():
        rows.append(with_text(f"reference_audio_{name}", "REFERENCE_AUDIO", says, data))
        rows.append(with_text(f"prompt_audio_{name}", "PROMPT_AUDIO", says, data, PROMPT_TEXT="One."))
    return rows


ROWS = [*texts(), *prompts(), *numbers(), *types_and_shapes(), *recordings()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_bad_input_is_refused_with_field_and_limit(
    caller: Any, pipeline: str, row: Bad, record_property: Callable[[str, object], None]
) -> None:
    """S2, S6, S8, S29."""
    answer = caller.ask(pipeline, row.inputs)
    record_property("answer_seconds", answer.seconds)

    assert not answer.responses
    (text,) = answer.errors
    assert row.says in text
    # By a stage the field leads the text; by Triton's own check it stands in quotes.
    by_triton = f"'{row.field}'" in text and not answer.finals
    assert by_triton or re.sub(r"^in ensemble '\w+', ", "", text).startswith(f"{row.field}: ")
    assert by_triton or answer.finals == 1
    assert not UNCLEAN.search(text)

    after = caller.ask(pipeline, GOOD)
    assert (after.errors, after.finals, after.column("FINISH_REASON")[-1]) == ([], 1, b"length")


def test_the_table_covers_every_field_and_forty_inputs() -> None:
    fields = {"TEXT", "VOICE", "REFERENCE_AUDIO", "PROMPT_AUDIO", "PROMPT_TEXT", "INSTRUCTION", "LANGUAGE", "SEED"}
    fields |= {"CFG_VALUE", "INFERENCE_STEPS", "MAX_SECONDS", "CHUNK_SCHEDULE"}
    assert {row.field for row in ROWS} >= fields
    assert len({row.name for row in ROWS}) == len(ROWS) >= 40


HTTP_ROWS: dict[str, tuple[bytes, str]] = {
    "text_missing": (b'{"SEED": 1}', "TEXT: is missing"),
    "text_empty": (b'{"TEXT": ""}', "TEXT: is empty"),
    "voice_unknown": (b'{"TEXT": "Hi.", "VOICE": "nobody"}', "VOICE: 'nobody' is not known"),
    "cfg_value_too_large": (b'{"TEXT": "Hi.", "CFG_VALUE": 11}', "CFG_VALUE: 11 is out of range, allowed is 0 to 10"),
    "chunk_schedule_zero": (b'{"TEXT": "Hi.", "CHUNK_SCHEDULE": [0]}', "CHUNK_SCHEDULE: holds 0"),
    # Triton reads the JSON itself, and names no field.
    "text_is_a_number": (b'{"TEXT": 5}', "non-string"),
    "seed_negative": (b'{"TEXT": "Hi.", "SEED": -1}', "non-unsigned-integer"),
    "steps_is_a_text": (b'{"TEXT": "Hi.", "INFERENCE_STEPS": "ten"}', "non-signed-integer"),
    "no_json": (b"{TEXT:", "JSON"),
}


@pytest.mark.parametrize("name", HTTP_ROWS)
def test_bad_input_over_http_is_an_error_status_and_one_sentence(speech_server: Any, pipeline: str, name: str) -> None:
    body, says = HTTP_ROWS[name]
    request = urllib.request.Request(f"{speech_server.http_url}/v2/models/{pipeline}/generate_stream", body)

    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=30)
    text = json.loads(error.value.read().decode().removeprefix("data:"))["error"]
    assert says in text
    assert error.value.code == 400 or ": " not in says
    assert not UNCLEAN.search(text)
