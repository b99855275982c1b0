"""T10: every name that one file uses for another's model or tensor exists there."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from triton_speech.families.registry import family_names
from triton_speech.families.voxcpm2 import SAMPLING_INPUTS
from triton_speech.families.voxcpm2.portable import NAMES
from triton_speech.stage import __file__ as stage_file

ROOT = Path(__file__).resolve().parents[2]
REPOSITORIES = ("model_repository", "ensembles")
PIPELINES = ("voxcpm2", "voxcpm2_pipeline", "voxcpm2_split")
CONFIGS = {path.parent.name: path for name in REPOSITORIES for path in sorted((ROOT / name).glob("*/config.pbtxt"))}
PROFILES = [path for name in REPOSITORIES for path in sorted((ROOT / name).glob("*/configs/*.pbtxt"))]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]

CONTRACT_INPUTS = {
    "TEXT": ("TYPE_STRING", [1]),
    "VOICE": ("TYPE_STRING", [1]),
    "REFERENCE_AUDIO": ("TYPE_STRING", [1]),
    "PROMPT_AUDIO": ("TYPE_STRING", [1]),
    "PROMPT_TEXT": ("TYPE_STRING", [1]),
    "INSTRUCTION": ("TYPE_STRING", [1]),
    "LANGUAGE": ("TYPE_STRING", [1]),
    "SEED": ("TYPE_UINT64", [1]),
    "CFG_VALUE": ("TYPE_FP32", [1]),
    "INFERENCE_STEPS": ("TYPE_INT32", [1]),
    "MAX_SECONDS": ("TYPE_FP32", [1]),
    "CHUNK_SCHEDULE": ("TYPE_INT32", [-1]),
    "PRIORITY": ("TYPE_INT32", [1]),
}
CONTRACT_OUTPUTS = {
    "AUDIO": ("TYPE_FP32", [-1]),
    "PCM16": ("TYPE_INT16", [-1]),
    "SAMPLE_RATE": ("TYPE_INT32", [1]),
    "CHUNK_INDEX": ("TYPE_INT32", [1]),
    "FINISH_REASON": ("TYPE_STRING", [1]),
}


@cache
def read(path: Path) -> Any:
    return text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())


def tensors(declared: Any) -> dict[str, tuple[str, list[int]]]:
    """Type and shape by name."""
    return {one.name: (model_config_pb2.DataType.Name(one.data_type), list(one.dims)) for one in declared}


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_pipelines_tensors_are_those_of_the_contract(pipeline: str) -> None:
    config = read(CONFIGS[pipeline])
    assert tensors(config.input) == CONTRACT_INPUTS
    assert tensors(config.output) == CONTRACT_OUTPUTS
    # A missing TEXT too reaches the frontend, which says so in the same words as for every other field.
    assert all(one.optional for one in config.input)
    assert config.max_batch_size == 0


def test_the_family_adds_the_contracts_sampling_fields() -> None:
    assert set(SAMPLING_INPUTS) <= set(CONTRACT_INPUTS)
    assert set(SAMPLING_INPUTS) <= set(tensors(read(CONFIGS["voxcpm2_frontend"]).output))


def steps() -> list[Any]:
    return [step for path in CONFIGS.values() for step in read(path).ensemble_scheduling.step]


@pytest.mark.parametrize("model", CONFIGS)
def test_no_tensor_is_declared_twice(model: str) -> None:
    """Triton takes a second declaration without a word."""
    config = read(CONFIGS[model])
    for declared in (config.input, config.output):
        assert len(tensors(declared)) == len(declared) > 0
    blocks = CONFIGS[model].read_text(encoding="utf-8").split("model_name")[1:]
    for step, block in zip(config.ensemble_scheduling.step, blocks, strict=True):
        assert block.count("input_map") == len(step.input_map), step.model_name


def test_there_is_an_ensemble_to_check() -> None:
    assert len(steps()) == 5 * len(family_names())


@pytest.mark.parametrize("step", steps(), ids=lambda step: step.model_name)
def test_an_ensembles_step_uses_tensors_that_its_model_has(step: Any) -> None:
    config = read(CONFIGS[step.model_name])
    assert set(step.input_map) <= set(tensors(config.input))
    assert set(step.output_map) <= set(tensors(config.output))
    needed = {one.name for one in config.input if not one.optional}
    assert needed <= set(step.input_map)


def test_an_ensembles_tensors_connect_with_equal_types() -> None:
    for pipeline in CONFIGS:
        config = read(CONFIGS[pipeline])
        made = tensors(config.input)
        for step in config.ensemble_scheduling.step:
            model = read(CONFIGS[step.model_name])
            for key, value in step.input_map.items():
                assert made[value][0] == tensors(model.input)[key][0], f"{step.model_name}: {key} is given {value}"
            made |= {value: tensors(model.output)[key] for key, value in step.output_map.items()}
        assert set(tensors(config.output)) <= set(made) or not config.ensemble_scheduling.step


@pytest.mark.parametrize("name", [name for name in CONFIGS if read(CONFIGS[name]).ensemble_scheduling.step])
def test_an_ensembles_steps_begin_one_after_another(name: str) -> None:
    """Triton crashes when one of two steps that begin together fails before the other one has begun."""
    steps = read(CONFIGS[name]).ensemble_scheduling.step
    for earlier, later in pairwise(steps):
        assert set(earlier.output_map.values()) & set(later.input_map.values()), later.model_name


def test_the_front_door_calls_stages_and_tensors_that_exist() -> None:
    folder = Path(stage_file).parent
    source = "".join((folder / f"{name}.py").read_text(encoding="utf-8") for name in ("speech_stream", "stage_calls"))
    stages = set(re.findall(r'\b(?:call|call_alive|submit)\(\s*"(\w+)"', source))
    assert stages == {"frontend", "reference", "talker", "codec"}
    models = {f"voxcpm2_{stage}" for stage in stages}
    assert models <= set(CONFIGS)
    known = {name for model in models for one in (read(CONFIGS[model]),) for name in tensors([*one.input, *one.output])}
    assert set(re.findall(r'"([A-Z][A-Z0-9_]+)"', source)) - {"CANCELLED", "INTERNAL", "UNAVAILABLE", "END"} <= known


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: f"{path.parents[1].name}-{path.stem}")
def test_a_profile_is_the_whole_configuration(path: Path) -> None:
    """Triton takes one file or the other and merges nothing."""
    profile, config = read(path), read(CONFIGS[path.parents[1].name])
    for part in ("input", "output", "backend", "max_batch_size", "model_transaction_policy"):
        assert getattr(profile, part) == getattr(config, part), part
    assert set(profile.parameters) >= set(config.parameters)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_models_that_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    used = set(re.findall(rf"\b(?:{'|'.join(family_names())})(?:_[a-z]+)*\b(?![./])", text))
    used |= set(re.findall(r"/v2/models/([\w-]+)", text))
    # The architecture's own name in checkpoints, and packages, look like models; what is exported is served elsewhere.
    assert used - {"voxcpm2_tiny", *NAMES} <= set(CONFIGS)


def test_the_split_pipeline_is_the_front_door_over_a_talker_of_the_same_tensors() -> None:
    for ours, usual in (("voxcpm2_split", "voxcpm2"), ("voxcpm2_split_talker", "voxcpm2_talker")):
        one, other = read(CONFIGS[ours]), read(CONFIGS[usual])
        for part in ("input", "output", "backend", "max_batch_size", "model_transaction_policy"):
            assert getattr(one, part) == getattr(other, part), (ours, part)
    stages = read(CONFIGS["voxcpm2_split"]).parameters["stages"].string_value.split(",")
    assert set(stages) <= set(CONFIGS)
