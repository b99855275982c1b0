"""Which models are served, by what the pipelines' configurations say."""

from __future__ import annotations

from pathlib import Path

import pytest

from triton_speech.families.registry import family_names
from triton_speech.serve.errors import SpeechSetupError
from triton_speech.serve.layout import find_models
from triton_speech.serve.models import Model
from triton_speech.serve.wiring import left_out, read_pipelines
from triton_speech.wiring import models_of, usual_models

ROOT = Path(__file__).resolve().parents[3]
PIPELINES = read_pipelines(find_models(ROOT) / "ensembles")
SPLIT_ONLY = {"voxcpm2_split_talker", "voxcpm2_dit"}


@pytest.mark.parametrize("family", family_names())
def test_front_door_and_ensemble_are_made_of_the_familys_models(family: str) -> None:
    assert PIPELINES[family].models == set(usual_models(family))
    assert PIPELINES[f"{family}_pipeline"].models == set(usual_models(family))


def test_a_second_language_model_is_not_loaded_unless_it_is_asked_for() -> None:
    assert left_out(PIPELINES, ()) == {"voxcpm2_split", *SPLIT_ONLY}


def test_a_pipeline_that_is_named_is_served_with_what_it_needs_and_no_other() -> None:
    missing = left_out(PIPELINES, ("voxcpm2_split",))
    assert {"voxcpm2", "voxcpm2_pipeline", "voxcpm2_talker", "vibevoice", "qwen3_tts_codec"} <= missing
    assert not missing & {"voxcpm2_split", "voxcpm2_frontend", "voxcpm2_reference", "voxcpm2_codec", *SPLIT_ONLY}
    assert not left_out(PIPELINES, ("voxcpm2", "voxcpm2_split")) & {"voxcpm2_talker", *SPLIT_ONLY}


def test_a_pipeline_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(SpeechSetupError, match=r"^--pipeline voxcpm3 is not known; known are .*voxcpm2_split"):
        left_out(PIPELINES, ("voxcpm3",))


def test_what_is_commented_out_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "config.pbtxt").write_text(
        '# parameters { key: "on_request" value: { string_value: "true" } }\n'
        'parameters { key: "stages" value: { string_value: "a_talker, a_codec" } }\n'
    )
    (one,) = read_pipelines(tmp_path).values()
    assert (one.models, one.on_request) == ({"a_talker", "a_codec"}, False)


def test_a_front_door_calls_the_models_that_it_names() -> None:
    named = "voxcpm2_frontend,voxcpm2_reference,voxcpm2_split_talker,voxcpm2_dit,voxcpm2_codec"
    assert models_of("voxcpm2", named) == {
        "frontend": "voxcpm2_frontend",
        "reference": "voxcpm2_reference",
        "talker": "voxcpm2_split_talker",
        "codec": "voxcpm2_codec",
    }
    assert models_of("voxcpm2", "")["talker"] == "voxcpm2_talker"


@pytest.mark.parametrize("named", ["a_frontend", "a_frontend,a_reference,a_talker,b_talker,a_codec"])
def test_a_stage_that_is_not_named_once_is_told(named: str) -> None:
    with pytest.raises(ValueError, match=r"^parameter stages is 'a_.*': must name one model that ends with '_"):
        models_of("voxcpm2", named)


def test_a_dead_stage_is_only_those_pipelines_loss_that_need_it() -> None:
    def model(name: str, *calls: str) -> Model:
        return Model(name, None, (), bool(calls), False, None, calls=calls)  # type: ignore[arg-type]

    inline = model("voxcpm2", *usual_models("voxcpm2"))
    split = model("voxcpm2_split", *PIPELINES["voxcpm2_split"].models)
    talker, split_talker, codec = (model(f"voxcpm2_{name}") for name in ("talker", "split_talker", "codec"))
    assert [inline.serves(one) for one in (talker, split_talker, codec)] == [True, False, True]
    assert [split.serves(one) for one in (talker, split_talker, codec)] == [False, True, True]
