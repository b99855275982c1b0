"""Settings, key files and the arithmetic of limits, without any server."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import pytest

from triton_speech_client.cli import main
from triton_speech_client.gateway.access import Access, Bucket
from triton_speech_client.gateway.command import add_arguments, gateway_settings
from triton_speech_client.gateway.errors import ApiError
from triton_speech_client.gateway.settings import ApiKey, read_keys

SECRET = "sk-a-long-secret"
TOML = """
[[keys]]
name = "app"
key = "sk-a-long-secret"
requests_per_minute = 60

[[keys]]
name = "hashed"
sha256 = "{digest}"
"""


def write(tmp_path: Path, text: str, suffix: str) -> Path:
    path = tmp_path / f"keys{suffix}"
    path.write_text(text, encoding="utf-8")
    return path


def test_keys_come_from_toml_or_json(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"sk-another-secret").hexdigest()
    app, hashed = read_keys(write(tmp_path, TOML.format(digest=digest), ".toml"))
    assert (app.name, app.requests_per_minute, app.max_concurrent) == ("app", 60, None)
    assert app.digest == hashlib.sha256(SECRET.encode()).digest()
    assert hashed.digest.hex() == digest
    (one,) = read_keys(write(tmp_path, '{"keys": [{"name": "app", "key": "sk-a-long-secret"}]}', ".json"))
    assert one.digest == app.digest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("{}", "has no list 'keys'"),
        ('{"keys": []}', "has no list 'keys'"),
        ('{"keys": [{"name": "a"}]}', "one of key and sha256 is needed"),
        ('{"keys": [{"name": "a", "key": "short"}]}', "key is shorter than 8 characters"),
        ('{"keys": [{"name": "a b", "key": "sk-a-long-secret"}]}', "keys: name: "),
        ('{"keys": [{"name": "a", "key": "sk-a-long-secret", "limit": 1}]}', "keys: limit: "),
        ('{"keys": [{"name": "a", "key": "sk-a-long-secret", "max_concurrent": 0}]}', "keys: max_concurrent: "),
        (
            '{"keys": [{"name": "a", "key": "sk-a-long-secret"}, {"name": "a", "key": "sk-b-long-secret"}]}',
            "two have the same name",
        ),
        (
            '{"keys": [{"name": "a", "key": "sk-a-long-secret"}, {"name": "b", "key": "sk-a-long-secret"}]}',
            "two have the same key",
        ),
    ],
)
def test_a_wrong_key_file_is_told_without_its_keys(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError, match="keys") as error:
        read_keys(write(tmp_path, text, ".json"))
    assert said in str(error.value)
    assert SECRET not in str(error.value)
    assert "short'" not in str(error.value)


def test_a_key_does_not_show_itself() -> None:
    assert SECRET not in repr(ApiKey(name="a", key=SECRET))  # type: ignore[arg-type]


def parsed(*arguments: str) -> Any:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return gateway_settings(parser.parse_args(list(arguments)))


def test_arguments_become_settings() -> None:
    settings = parsed("--triton", "speech:8001", "--voice-alias", "amy", "--max-body-mib", "2", "--reference-urls")
    assert settings.triton == "speech:8001"
    assert settings.voice_aliases == ("amy",)
    assert "tts-1" in settings.model_aliases
    assert settings.max_body_bytes == 2 * 2**20
    assert settings.reference_urls
    assert parsed().cors_origins == ()
    assert not parsed().reference_urls


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--triton", "http://x:1"], "is not host:port"),
        (["--max-concurrent", "0"], "--max-concurrent: input should be greater than or equal to 1"),
        (["--keys", "no.toml"], "No such file"),
    ],
)
def test_a_wrong_argument_is_one_sentence(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", *arguments]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_gives_a_minutes_worth_and_refills_evenly() -> None:
    clock = Clock()
    bucket = Bucket(60, clock)
    bucket.take(60)
    assert bucket.wait(5) == pytest.approx(5)
    clock.now = 5.0
    assert bucket.wait(5) == 0
    bucket.take(5)
    clock.now = 1000.0
    assert bucket.wait(60) == 0
    assert bucket.wait(61) == float("inf")
    assert Bucket(None, clock).wait(10**9) == 0


def test_a_refused_request_costs_nothing() -> None:
    key = ApiKey(name="a", key=SECRET, max_concurrent=1, requests_per_minute=2, characters_per_minute=9)  # type: ignore[arg-type]
    access = Access([key], max_concurrent=9)
    caller = access.caller(f"Bearer {SECRET}")
    with caller.utterance(1), pytest.raises(ApiError) as error, caller.utterance(1):
        pass
    assert error.value.status == 429
    with pytest.raises(ApiError, match="characters of this minute"), caller.utterance(9):
        pass
    with caller.utterance(8):
        pass
    with pytest.raises(ApiError, match="requests of this minute"), caller.utterance():
        pass
    assert (caller.active, access.house.active) == (0, 0)


def test_keys_are_told_apart() -> None:
    keys = [ApiKey(name=name, key=f"sk-secret-{name}") for name in ("a", "b")]  # type: ignore[arg-type]
    access = Access(keys, max_concurrent=1)
    assert access.caller("Bearer sk-secret-b").name == "b"
    assert access.caller("bearer  sk-secret-a ").name == "a"
    with pytest.raises(ApiError):
        access.caller("Bearer sk-secret-c")
