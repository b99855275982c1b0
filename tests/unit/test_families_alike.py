"""What one family's models are wired with, every family's are: only names, sampling fields and settings differ, and
whether there may be several voices."""

import re
from pathlib import Path

import pytest

from triton_speech.families.registry import family_names, load_family

ROOT = Path(__file__).resolve().parents[2]
FIRST = "voxcpm2"
LISTS = "VOICE|REFERENCE_AUDIO"
"""The inputs that are lists where a family has several voices in a request."""
REPOSITORIES = ("model_repository", "ensembles")
ITS_OWN = ("voxcpm2_dit", "voxcpm2_split", "voxcpm2_split_talker")
"""Models that the first family has and others have not: its diffusion as a stage."""


def files(family: str) -> list[Path]:
    """Of the family's models, relative to the project and without its name."""
    found = []
    for repository in REPOSITORIES:
        for model in (ROOT / repository).glob(f"{family}*"):
            if model.name in ITS_OWN:
                continue
            found += [
                Path(str(path.relative_to(ROOT)).replace(family, "FAMILY", 1))
                for path in model.rglob("*")
                if path.suffix in (".pbtxt", ".py")
            ]
    return sorted(found)


def wiring(family: str, file: Path) -> list[str]:
    """The lines of a file but for comments, settings, the family's name and its sampling fields."""
    text = (ROOT / str(file).replace("FAMILY", family)).read_text(encoding="utf-8").replace(family, "FAMILY")
    if load_family(family).MOST_VOICES > 1:
        text = re.sub(rf'(name: "({LISTS})" data_type: TYPE_STRING dims: \[) -1 \]', r"\1 1 ]", text)
    sampling = "|".join(load_family(family).SAMPLING_INPUTS)
    ours = re.compile(rf'(name|key): "({sampling})"')
    lines = (line.strip().rstrip(",") for line in text.splitlines())
    return [line for line in lines if line and not line.startswith(("#", "parameters {")) and not ours.search(line)]


@pytest.mark.parametrize("family", [name for name in family_names() if name != FIRST])
def test_every_family_has_the_same_models_and_profiles(family: str) -> None:
    assert files(family) == files(FIRST)


@pytest.mark.parametrize("family", [name for name in family_names() if name != FIRST])
@pytest.mark.parametrize("file", files(FIRST), ids=str)
def test_models_of_every_family_have_the_same_wiring(family: str, file: Path) -> None:
    assert wiring(family, file) == wiring(FIRST, file)


@pytest.mark.parametrize("family", family_names())
@pytest.mark.parametrize("model", ["FAMILY", "FAMILY_pipeline", "FAMILY_frontend", "FAMILY_talker"])
def test_a_familys_sampling_fields_are_declared_wherever_they_pass(family: str, model: str) -> None:
    name = model.replace("FAMILY", family)
    repository = "model_repository" if (ROOT / "model_repository" / name).is_dir() else "ensembles"
    for path in (ROOT / repository / name).rglob("*.pbtxt"):
        text = path.read_text(encoding="utf-8")
        for field in load_family(family).SAMPLING_INPUTS:
            assert f'name: "{field}"' in text, (path.name, field)


@pytest.mark.parametrize("family", family_names())
@pytest.mark.parametrize("model", ["FAMILY", "FAMILY_pipeline", "FAMILY_frontend", "FAMILY_reference"])
def test_voices_are_lists_where_a_family_has_several(family: str, model: str) -> None:
    name = model.replace("FAMILY", family)
    repository = "model_repository" if (ROOT / "model_repository" / name).is_dir() else "ensembles"
    wanted = "1" if load_family(family).MOST_VOICES == 1 else "-1"
    for path in (ROOT / repository / name).rglob("*.pbtxt"):
        shapes = re.findall(rf'name: "(?:{LISTS})" data_type: TYPE_STRING dims: \[ (\S+) \]', path.read_text("utf-8"))
        assert shapes
        assert set(shapes) == {wanted}


@pytest.mark.parametrize("family", family_names())
def test_a_family_bears_the_name_of_its_architecture(family: str) -> None:
    assert family == load_family(family).ARCHITECTURE
