"""What the talker may be told of its diffusion, and what does not go together."""

from __future__ import annotations

import json

import pytest
import torch

from triton_speech.stage.talker_parameters import TalkerParameters


def read(**parameters: str) -> TalkerParameters:
    given = {name: {"string_value": value} for name, value in parameters.items()}
    return TalkerParameters.from_triton(json.dumps({"parameters": given}))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"diffusion": "elsewhere"}, "parameter diffusion is 'elsewhere': .*'inline' or 'stage'"),
        (
            {"diffusion": "stage", "engine": "vllm"},
            "^parameter diffusion is 'stage': the engine 'vllm' captures the diffusion in its graphs, .*"
            "set engine to 'torch', or diffusion to 'inline'$",
        ),
        (
            {"diffusion": "stage", "cfg_cutoff_ratio": "0.5"},
            "^parameter cfg_cutoff_ratio is 0.5: where diffusion is 'stage', it is that stage's own parameter$",
        ),
        ({"diffusion": "stage", "diffusion_dtype": "int8"}, "parameter diffusion_dtype is 'int8'"),
    ],
    ids=str,
)
def test_what_cannot_be_is_told_by_name(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(**given)


def test_a_diffusion_stage_takes_every_number_of_steps_unless_a_limit_is_set() -> None:
    def most(**given: str) -> int:
        return read(**given).engine_choice("cpu", torch.zeros_like).most

    assert most(diffusion="stage") == 100
    assert most(diffusion="stage", max_inference_steps="20") == 20
    assert most() == 10
    assert most(max_inference_steps="20") == 20
