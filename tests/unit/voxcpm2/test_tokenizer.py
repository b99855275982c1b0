"""The tokenizer of VoxCPM2, against the published vocabulary where it is at hand and a tiny one anywhere."""

import json
import random
import resource
import string
from pathlib import Path

import pytest
from tokenizers import models

from triton_speech.families.voxcpm2.tiny_tokenizer import write_tiny_tokenizer
from triton_speech.families.voxcpm2.tokenizer import (
    AUDIO_END,
    AUDIO_START,
    CONTROL_IDS,
    REF_AUDIO_END,
    REF_AUDIO_START,
    Tokenizer,
)

PUBLISHED = Path(__file__).resolve().parents[4] / "shared" / "data" / "voxcpm2"
GOLDEN = PUBLISHED / "tokenizer_golden_tf4.57.3.json"
CONTROL_WORDS = [
    "<|audio_start|>",
    "<|audio_end|>",
    "<|ref_audio_start|>",
    "<|ref_audio_end|>",
    "<|background|>",
    "<|/span|>",
    "<|im_start|>",
    "<|im_end|>",
    "<unk>",
    "<s>",
    "</s>",
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_tokenizer(folder)
    return Tokenizer.from_checkpoint(folder)


@pytest.fixture(scope="module")
def published() -> Tokenizer:
    if not GOLDEN.exists():
        pytest.skip("the published tokenizer is not at hand (shared/data/voxcpm2 beside the repository)")
    return Tokenizer.from_checkpoint(PUBLISHED / "tok")


@pytest.fixture(params=["tiny", "published"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


def names(tokenizer: Tokenizer, text: str) -> list[str | None]:
    return [tokenizer.token(index) for index in tokenizer.encode(text)]


def test_published_vocabulary_gives_the_golden_ids(published: Tokenizer) -> None:
    cases = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]
    plain = [case for case in cases if not any(word in case["text"] for word in CONTROL_WORDS)]
    assert len(plain) >= 14
    for case in plain:
        assert published.encode(case["text"]) == case["ids"], case["text"]


def test_published_vocabulary_has_the_published_size(published: Tokenizer) -> None:
    assert published.size == 73_448


def test_markers_have_the_ids_of_the_vocabulary(tokenizer: Tokenizer) -> None:
    markers = (AUDIO_START, AUDIO_END, REF_AUDIO_START, REF_AUDIO_END)
    assert markers == (101, 102, 103, 104)
    assert [tokenizer.token(index) for index in markers] == CONTROL_WORDS[:4]


def test_no_token_for_the_beginning(tokenizer: Tokenizer) -> None:
    assert names(tokenizer, "A")[0] in ("▁", "▁A")
    assert tokenizer.encode("") == []


def test_chinese_words_are_split_into_characters(tokenizer: Tokenizer) -> None:
    assert names(tokenizer, "你好世界") == ["▁", "你", "好", "世", "界"]


def test_unknown_characters_become_their_bytes(tokenizer: Tokenizer) -> None:
    assert names(tokenizer, "気") == ["▁", "<0xE6>", "<0xB0>", "<0x97>"]


@pytest.mark.parametrize("word", CONTROL_WORDS)
@pytest.mark.parametrize("text", ["{}", "say {} now", "你好{}", "{0}{0}"])
def test_text_cannot_utter_control_or_special_tokens(tokenizer: Tokenizer, word: str, text: str) -> None:
    ids = tokenizer.encode(text.format(word))
    assert CONTROL_IDS.isdisjoint(ids)
    assert not {"<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"} & set(names(tokenizer, text.format(word)))
    spoken = "".join(name or "" for name in names(tokenizer, text.format(word))).replace("▁", " ")
    assert spoken.strip() == text.format(word)


def test_a_merge_that_builds_a_control_token_is_spelled_out(tmp_path: Path) -> None:
    """Vocabularies that transformers converts have merges for every token, special ones included."""
    write_tiny_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content["model"]["vocab"] |= {"<s": 900}
    content["model"]["merges"] += [["<", "s"], ["<s", ">"]]
    file.write_text(json.dumps(content), encoding="utf-8")
    tokenizer = Tokenizer.from_checkpoint(tmp_path)
    assert names(tokenizer, "<s>") == ["▁", "<", "s", ">"]


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        Tokenizer.from_checkpoint(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", "no json"])
def test_an_unreadable_tokenizer_says_so(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json of checkpoint .* is not readable"):
        Tokenizer.from_checkpoint(tmp_path)


def test_a_vocabulary_without_byte_fallback_is_refused(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content["model"]["byte_fallback"] = False
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match="byte fallback"):
        Tokenizer.from_checkpoint(tmp_path)


def test_texts_are_not_remembered(tokenizer: Tokenizer) -> None:
    """A server that reads thousands of texts must not grow by them; remembering these would take 25 MB or more."""
    if not hasattr(models.BPE, "_resize_cache"):
        pytest.skip("this release of tokenizers always remembers")
    source = random.Random(1)
    tokenizer.encode("Warm up.")
    before = resident_mib()
    for _ in range(6_000):
        tokenizer.encode("".join(source.choices(string.ascii_lowercase, k=200)))
    assert resident_mib() - before < 8


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * resource.getpagesize() / 2**20
