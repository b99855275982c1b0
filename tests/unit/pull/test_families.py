"""One folder of checkpoints for all families: pulled one after the other, served together."""

from __future__ import annotations

from pathlib import Path

import pytest

from triton_speech.families.qwen3_tts.tiny import write_tiny_checkpoint as write_qwen3_tts
from triton_speech.families.vibevoice.tiny import write_tiny_checkpoint as write_vibevoice
from triton_speech.families.voxcpm2.tiny import write_tiny_checkpoint as write_voxcpm2
from triton_speech.serve.layout import PIPELINES, RunDirectory, find_checkpoints, find_models
from triton_speech.serve.locate import ServerInstall
from triton_speech.serve.wiring import left_out, read_pipelines
from triton_speech_client.cli import main

WRITERS = {"VoxCPM2": write_voxcpm2, "Qwen3-TTS": write_qwen3_tts, "VibeVoice": write_vibevoice}


def test_checkpoints_of_all_families_are_pulled_side_by_side_and_served_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of Qwen3-TTS has folders in it."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name, write in WRITERS.items():
        origin = write(tmp_path / "origin" / name)
        assert main(["manifest", str(origin), "--revision", "r1"]) == 0
        assert main(["pull", str(origin), "--revision", "r1", "--name", name, "--to", str(tmp_path / "models")]) == 0
        kept = {path.relative_to(origin) for path in origin.rglob("*") if path.is_file()} - {Path("manifest.json")}
        pulled = tmp_path / "models" / name
        assert kept == {path.relative_to(pulled) for path in pulled.rglob("*") if path.is_file()} - {
            Path("manifest.json")
        }
    models = find_models()
    on_request = left_out(read_pipelines(models / PIPELINES), ())
    assert len(on_request) < 4
    run = RunDirectory.create()
    try:
        install = ServerInstall("system", Path("tritonserver"))
        run.fill(install, models, find_checkpoints(tmp_path / "models", models), tmp_path / "voices")
        for repository in run.repositories:
            linked = {entry.name for entry in repository.iterdir()}
            assert linked == {entry.name for entry in (models / repository.name).iterdir()} - on_request
    finally:
        run.remove()
