"""Checkpoints come whole, checked and by revision, from sources that break off; what is here asks nobody."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.unit.pull.conftest import REVISION, Site, write_manifest

import triton_speech.pull.download
from triton_speech.pull.manifest import Manifest, make_manifest
from triton_speech_client.cli import main

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting between attempts."""
    monkeypatch.setattr(triton_speech.pull.download, "_FIRST_SECONDS", 0.0)


def same(folder: Path, other: Path) -> bool:
    return make_manifest(folder, REVISION).files == make_manifest(other, REVISION).files


def pull(*arguments: object) -> int:
    return main(["pull", *map(str, arguments)])


@pytest.mark.parametrize("kind", ["folder", "file", "http", "hub", "revision in the address"])
def test_every_source_brings_the_same_files(
    checkpoint: Path, open_site: Any, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(checkpoint, tmp_path / "hub" / "owner" / "voice" / "resolve" / REVISION)
    site = open_site(tmp_path)
    source = {
        "folder": [checkpoint],
        "file": [checkpoint.as_uri()],
        "http": [f"{site.url}/origin/voice"],
        "hub": ["hub:owner/voice", "--hub", f"{site.url}/hub", "--revision", REVISION],
        "revision in the address": [f"{site.url}/hub/owner/voice/resolve/{{revision}}", "--revision", REVISION],
    }[kind]
    assert pull(*source, "--to", tmp_path / "to", "--name", "voice") == 0
    assert same(tmp_path / "to" / "voice", checkpoint)
    assert f"revision {REVISION}" in capsys.readouterr().out


def test_a_transfer_that_breaks_off_goes_on_where_it_was(checkpoint: Path, site: Site, tmp_path: Path) -> None:
    write_manifest_of_one(checkpoint, "model.safetensors")
    site.cuts[:] = [1000, 300_000, 0]
    assert pull(f"{site.url}/voice", "--to", tmp_path / "to") == 0
    assert site.ranges("model.safetensors") == [None, "bytes=1000-", "bytes=301000-", "bytes=301000-"]
    content = (tmp_path / "to" / "voice" / "model.safetensors").read_bytes()
    assert content == (checkpoint / "model.safetensors").read_bytes()


def write_manifest_of_one(checkpoint: Path, name: str) -> None:
    whole = make_manifest(checkpoint, REVISION)
    manifest = Manifest(revision=REVISION, files={name: whole.files[name]})
    (checkpoint / "manifest.json").write_text(manifest.to_json(), encoding="utf-8")


def test_the_next_run_goes_on_after_one_that_gave_up(
    checkpoint: Path, site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_manifest_of_one(checkpoint, "model.safetensors")
    site.cuts[:] = [500, *[0] * 6]
    assert pull(f"{site.url}/voice", "--to", tmp_path / "to") == 1
    assert "gave up after 6 attempts, what has arrived is kept" in capsys.readouterr().err
    assert not (tmp_path / "to" / "voice").exists()
    assert pull(f"{site.url}/voice", "--to", tmp_path / "to") == 0
    assert site.ranges("model.safetensors")[-1] == "bytes=500-"


def test_a_server_without_ranges_sends_from_the_start(checkpoint: Path, site: Site, tmp_path: Path) -> None:
    site.has_ranges = False
    site.cuts[:] = [27, 5000]
    assert pull(f"{site.url}/voice", "--to", tmp_path / "to") == 0
    assert same(tmp_path / "to" / "voice", checkpoint)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_status_that_may_pass_is_tried_again(checkpoint: Path, site: Site, tmp_path: Path, status: int) -> None:
    manifest = checkpoint / "manifest.json"
    site.statuses[:] = [status, status]
    assert pull(f"{site.url}/voice", "--to", tmp_path / "to", "--manifest", manifest) == 0
    assert same(tmp_path / "to" / "voice", checkpoint)


def test_a_status_that_will_not_pass_is_told_at_once(
    checkpoint: Path, site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint / "model.safetensors").unlink()
    assert pull(f"{site.url}/voice", "--to", tmp_path / "to") == 1
    assert "voice/model.safetensors: status 404" in capsys.readouterr().err
    assert len(site.ranges("model.safetensors")) == 1


@pytest.mark.parametrize("change", ["other bytes", "longer"])
def test_a_file_that_is_not_the_manifests_is_refused(
    checkpoint: Path, site: Site, tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkpoint / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[::-1] if change == "other bytes" else content + b"x")
    assert pull(f"{site.url}/voice", "--to", tmp_path / "to") == 1
    assert "is not the file of the manifest" in capsys.readouterr().err
    assert not (tmp_path / "to" / "voice").exists()


def test_a_beginning_of_another_version_is_thrown_away(checkpoint: Path, site: Site, tmp_path: Path) -> None:
    partial = tmp_path / "to" / ".pulled" / "voice" / f"{REVISION}.partial"
    partial.mkdir(parents=True)
    (partial / "model.safetensors.part").write_bytes(b"another beginning")
    assert pull(f"{site.url}/voice", "--to", tmp_path / "to") == 0
    assert site.ranges("model.safetensors") == ["bytes=17-", None]
    assert same(tmp_path / "to" / "voice", checkpoint)


def test_what_is_here_asks_nobody(checkpoint: Path, site: Site, tmp_path: Path) -> None:
    source = f"{site.url}/voice"
    assert pull(source, "--to", tmp_path / "to", "--revision", REVISION) == 0
    site.requests.clear()
    for options in ([], ["--revision", REVISION], ["--offline"], ["--verify"], ["--prune"]):
        assert pull(source, "--to", tmp_path / "to", *options) == 0
    assert site.requests == []


def test_offline_and_not_here_is_an_error(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pull(f"{site.url}/voice", "--to", tmp_path / "to", "--offline") == 1
    assert "--offline asks nobody" in capsys.readouterr().err
    assert site.requests == []


def test_damage_is_found_and_mended(checkpoint: Path, site: Site, tmp_path: Path) -> None:
    pulled = tmp_path / "to" / "voice" / "model.safetensors"
    source = f"{site.url}/voice"
    assert pull(source, "--to", tmp_path / "to") == 0
    content = pulled.read_bytes()
    pulled.write_bytes(content[::-1])
    assert pull(source, "--to", tmp_path / "to", "--verify") == 0
    assert pulled.read_bytes() == content
    pulled.write_bytes(content[:-1])
    assert pull(source, "--to", tmp_path / "to") == 0
    assert pulled.read_bytes() == content


def test_another_revision_takes_the_name_and_the_old_one_stays_until_pruned(
    checkpoint: Path, site: Site, tmp_path: Path
) -> None:
    to, source = tmp_path / "to", f"{site.url}/voice"
    assert pull(source, "--to", to) == 0
    (checkpoint / "config.json").write_text("{}", encoding="utf-8")
    write_manifest(checkpoint, "v2")
    assert pull(source, "--to", to, "--revision", "v2") == 0
    assert (to / "voice" / "config.json").read_text(encoding="utf-8") == "{}"
    site.requests.clear()
    assert pull(source, "--to", to, "--revision", REVISION) == 0
    assert (to / "voice" / "config.json").read_text(encoding="utf-8") != "{}"
    assert site.requests == []
    assert pull(source, "--to", to, "--revision", REVISION, "--prune") == 0
    assert [path.name for path in (to / ".pulled" / "voice").iterdir() if path.is_dir()] == [REVISION]


def test_a_revision_that_the_source_has_not_is_refused(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pull(f"{site.url}/voice", "--to", tmp_path / "to", "--revision", "v9") == 1
    assert f"is of revision {REVISION}, not of v9" in capsys.readouterr().err


def test_several_that_start_at_once_bring_it_once(site: Site, checkpoint: Path, tmp_path: Path) -> None:
    ends: list[int] = []
    threads = [
        threading.Thread(target=lambda: ends.append(pull(f"{site.url}/voice", "--to", tmp_path / "to")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends == [0, 0, 0, 0]
    assert len(site.ranges("model.safetensors")) == 1
    assert same(tmp_path / "to" / "voice", checkpoint)


@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", "a/../../b", "a\\b", "manifest.json", ""])
def test_a_manifest_cannot_write_outside(
    site: Site, checkpoint: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (checkpoint / "manifest.json").read_text(encoding="utf-8").replace('"config.json"', repr_json(name))
    (checkpoint / "manifest.json").write_text(text, encoding="utf-8")
    assert pull(f"{site.url}/voice", "--to", tmp_path / "to") == 1
    assert "is not the path of a file inside the checkpoint" in capsys.readouterr().err


def repr_json(text: str) -> str:
    return '"' + text.replace("\\", "\\\\") + '"'


def test_what_was_not_pulled_keeps_its_name(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "to" / "voice").mkdir(parents=True)
    assert pull(checkpoint, "--to", tmp_path / "to") == 1
    assert "was not pulled; choose another --name" in capsys.readouterr().err


def test_a_token_is_not_sent_in_the_clear(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text("secret-token\n", encoding="ascii")
    assert pull(f"{site.url}/voice", "--to", tmp_path / "to", "--token-file", tmp_path / "token") == 1
    said = capsys.readouterr().err
    assert "use https://" in said
    assert "secret-token" not in said
    assert site.requests == []


def test_a_token_does_not_follow_a_redirect(checkpoint: Path, site: Site, open_site: Any) -> None:
    from triton_speech.pull.source import Source

    away = open_site(checkpoint.parent)
    site.redirect_to = away.url
    assert Source(f"{site.url}/voice", "secret-token").read("config.json", 1000)
    assert [token for _, _, token in site.requests] == ["Bearer secret-token"]
    assert [token for _, _, token in away.requests] == [None]


def test_a_disk_that_is_full_is_told_and_not_tried_again(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1000))
    assert pull(f"{site.url}/voice", "--to", tmp_path / "to") == 1
    assert "has room for 0 MiB" in capsys.readouterr().err
    assert site.ranges("model.safetensors") == []


def test_nothing_that_serves_pulls() -> None:
    """Nothing comes over the network while a server starts or answers."""
    package = ROOT / "python_backends" / "triton_speech"
    users = [path for path in package.rglob("*.py") if "triton_speech.pull" in path.read_text(encoding="utf-8")]
    assert {path.relative_to(package).parts[0] for path in users} == {"pull"}
    models = [*(ROOT / "model_repository").rglob("*.py"), *(ROOT / "ensembles").rglob("*.py")]
    assert not [path for path in models if "pull" in path.read_text(encoding="utf-8")]


def test_a_manifest_that_was_written_is_what_pull_reads(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint / "manifest.json").unlink()
    (checkpoint / ".hidden").write_text("not part of it", encoding="utf-8")
    assert main(["manifest", str(checkpoint), "--revision", "r7"]) == 0
    assert pull(checkpoint, "--to", tmp_path / "to", "--revision", "r7") == 0
    assert not (tmp_path / "to" / "voice" / ".hidden").exists()
    assert main(["manifest", str(checkpoint), "--revision", "../r7"]) == 1
    assert "revision" in capsys.readouterr().err
