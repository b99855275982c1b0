"""The sentence that a failed start leaves, read from logs as Triton 2.51 writes them."""

from __future__ import annotations

from triton_speech.serve.startup_log import failure, still_loading

BROKEN_MODEL = r"""
I1130 15:25:29.006652 5896 model_lifecycle.cc:472] "loading: talker:1"
I1130 15:25:29.006706 5896 model_lifecycle.cc:472] "loading: codec:1"
I1130 15:25:29.116275 5896 model_lifecycle.cc:839] "successfully loaded 'codec'"
E1130 15:25:29.376456 5896 model_repository_manager.cc:703] "Invalid argument: ensemble 'pipe' depends on 'talker' ..."
E1130 15:25:29.376455 5896 model_lifecycle.cc:642] "failed to load 'talker' version 1: Internal: ValueError: slotz: not known\n\nAt:\n  /m/model.py(3): initialize\n"
+--------+---------+-------------------------------------------------------------------------------+
| Model  | Version | Status                                                                        |
+--------+---------+-------------------------------------------------------------------------------+
| pipe   | -       | UNAVAILABLE: Invalid argument: ensemble 'pipe' depends on 'talker' which has no loaded version |
| talker | 1       | UNAVAILABLE: Internal: ValueError: slotz: not known                           |
+--------+---------+-------------------------------------------------------------------------------+
error: creating server: Internal - failed to load all models
"""  # noqa: E501


def test_the_failed_stage_is_named_without_traceback_and_codes() -> None:
    assert failure(BROKEN_MODEL) == "model 'talker' did not load: ValueError: slotz: not known"


def test_an_error_of_several_lines_becomes_one() -> None:
    log = r"""E1130 1 1 x.cc:1] "failed to load 'a' version 1: Internal: Invalid: 1 error\nslots\n  > 0\n\nAt:\n" """

    assert failure(log) == "model 'a' did not load: Invalid: 1 error slots > 0"


def test_the_table_is_enough_when_the_line_is_missing() -> None:
    log = "| codec | 1 | UNAVAILABLE: Invalid argument: no version 7 |\n"

    assert failure(log) == "model 'codec' did not load: no version 7"


def test_an_unreadable_configuration_is_named_with_the_place_of_the_fault() -> None:
    log = (
        '[libprotobuf ERROR text_format.cc:337] Error parsing text-format inference.ModelConfig: 2:1: Expected "{".\n'
        "E1130 1 1 x.cc:1] \"Poll failed for model directory 'fe': failed to read text proto from /fe/config.pbtxt\"\n"
    )

    assert failure(log) == "model 'fe' did not load: config.pbtxt:2:1: Expected \"{\"."


def test_a_port_that_was_taken_meanwhile_is_named() -> None:
    log = (
        'E1130 15:33:12.307284 8939 server.cc:241] "CudaDriverHelper has not been initialized."\n'
        "E1130 15:34:06.142559 9759 main.cc:257] "
        "\"failed to start HTTP service: Unavailable - Socket '127.0.0.1:18100' already in use \"\n"
        'W1130 15:33:12.661226 8939 metrics.cc:798] "DCGM unable to start: DCGM initialization error"\n'
    )

    assert failure(log) == "failed to start HTTP service: Unavailable - Socket '127.0.0.1:18100' already in use"


def test_without_a_failed_model_the_last_error_counts() -> None:
    log = "tritonserver: error while loading shared libraries: libfoo.so: cannot open\nbye\n"

    assert failure(log) == "tritonserver: error while loading shared libraries: libfoo.so: cannot open"
    assert failure("something\n\n") == "something"
    assert failure("") == "its log is empty"


def test_models_that_hang_while_loading_are_listed() -> None:
    assert still_loading(BROKEN_MODEL) == []
    assert still_loading(BROKEN_MODEL.replace("successfully loaded 'codec'", "")) == ["codec"]
