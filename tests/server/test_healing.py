"""The launcher keeps its server well: models that die or hang are loaded anew, and no caller waits for ever."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

Launching = Callable[..., AbstractContextManager[Any]]
Calling = Callable[[str], AbstractContextManager[Any]]
Kill = Callable[..., None]

PIPELINES = ("voxcpm2", "voxcpm2_pipeline")
# Slow streams: a process that is killed within a call of Triton's takes the server along.
LONG = {"TEXT": "word " * 45, "CHUNK_SCHEDULE": np.array([1], np.int32), "INFERENCE_STEPS": np.array([100], np.int32)}
SHORT = {"TEXT": "Hi.", "SEED": np.array([1], np.uint64), "MAX_SECONDS": np.array([0.2], np.float32)}


@pytest.fixture(scope="module")
def launched(launching: Launching, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One launcher for all that heals; ``log`` is the server's."""
    log = tmp_path_factory.mktemp("log") / "server.log"
    options = ("--probe-interval=0.5", "--probe-seconds=4", "--heal-attempts=100", f"--log-file={log}")
    with launching(*options) as launched:
        launched.log = log
        yield launched


def end_of(stream: Any) -> str:
    """The error that ends a stream, from the pipeline or from the connection; empty for a whole one."""
    try:
        messages = list(stream)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "; ".join(message.error_message for message in messages)


def is_well(report: dict[str, Any], heals: int) -> bool:
    return bool(report["ready"]) and report["heals"] > heals


def wait_until_well(launched: Any, before: dict[str, Any], server: int) -> None:
    """Until a model is healed and the server is the same, unless Triton has ended itself: a process that dies within a
    call of Triton's takes a lock along, and what is left is to start the server anew."""

    def is_over(report: dict[str, Any]) -> bool:
        return is_well(report, before["heals"]) or (report["ready"] and report["restarts"] > before["restarts"])

    if launched.wait_report(is_over)["restarts"] == before["restarts"]:
        assert launched.pid == server
    else:
        assert "lock_exception" in launched.log.read_text(encoding="utf-8", errors="replace")


@pytest.mark.parametrize("stage", ["voxcpm2_talker", "voxcpm2_codec", "voxcpm2"])
def test_a_stage_that_dies_is_back_and_its_callers_hear_of_it(
    launched: Any, calling: Calling, kill_stage: Kill, stage: str
) -> None:
    """Also those of the ensemble, and of a front door that died itself, whom Triton leaves without an answer."""
    before, server = launched.report(), launched.pid
    with calling(launched.urls["grpc"]) as caller:
        streams = [caller.open(pipeline, {**LONG, "SEED": np.array([7], np.uint64)}) for pipeline in PIPELINES]
        for stream in streams:
            assert not next(stream).error_message
        kill_stage(launched, stage)
        told = launched.wait_report(lambda report: not report["ready"])
        assert told["problems"].get(stage) or told["state"] == "restarting"
        assert all(end_of(stream) for stream in streams)
        wait_until_well(launched, before, server)
        for pipeline in PIPELINES:
            assert caller.ask(pipeline, SHORT).errors == []


# Is loaded once there is no such file.
SLOW_REFERENCE = """
import os, time
from triton_speech.stage.reference import ReferenceStage

class TritonPythonModel(ReferenceStage):
    family = "voxcpm2"

    def initialize(self, args):
        while os.path.exists({lock!r}):
            time.sleep(0.05)
        super().initialize(args)
"""


def test_callers_of_a_death_hear_of_it_while_another_model_is_being_loaded(
    launching: Launching, calling: Calling, kill_stage: Kill, tmp_path: Path
) -> None:
    lock = tmp_path / "lock"
    parameters = {"voxcpm2_reference": {"threads": 1}}
    programs = {"voxcpm2_reference": SLOW_REFERENCE.format(lock=str(lock))}
    with launching(parameters=parameters, programs=programs) as launched, calling(launched.urls["grpc"]) as caller:
        lock.touch()
        kill_stage(launched, "voxcpm2_reference")
        launched.wait_report(lambda report: not report["ready"])
        stream = caller.open("voxcpm2", LONG)
        assert not next(stream).error_message
        kill_stage(launched, "voxcpm2")
        assert end_of(stream) == "UNAVAILABLE"
        assert launched.report()["problems"]["voxcpm2_reference"]
        lock.unlink()
        launched.wait_report(lambda report: is_well(report, 2))
        assert caller.ask("voxcpm2_pipeline", SHORT).errors == []


def test_a_talker_that_is_to_answer_a_front_door_that_died_is_loaded_anew_before_it_comes_to_that(
    launching: Launching, calling: Calling, kill_stage: Kill
) -> None:
    """Triton would keep it in its next answer for ever, and with it all who came after."""
    parameters = {"voxcpm2_talker": {"max_num_seqs": 1}}
    with launching("--probe-interval=600", parameters=parameters) as launched, calling(launched.urls["grpc"]) as caller:
        streams = [caller.open("voxcpm2_pipeline", LONG)]
        assert not next(streams[0]).error_message
        streams.append(caller.open("voxcpm2", LONG))
        while launched.metric("triton_speech_queue_depth", model="voxcpm2_talker") < 1:
            time.sleep(0.05)
        kill_stage(launched, "voxcpm2")
        assert all(end_of(stream) for stream in streams)
        launched.wait_report(lambda report: is_well(report, 1))
        for pipeline in PIPELINES:
            assert caller.ask(pipeline, SHORT).errors == []


@pytest.mark.parametrize("model", ["voxcpm2_frontend", "voices"])
def test_a_model_that_dies_without_work_is_back(launched: Any, calling: Calling, kill_stage: Kill, model: str) -> None:
    before = launched.report()
    kill_stage(launched, model)
    launched.wait_report(lambda report: is_well(report, before["heals"]))
    with calling(launched.urls["grpc"]) as caller:
        assert caller.ask("voxcpm2", SHORT).errors == []
        assert caller.ask("voices", {"COMMAND": "list"}, ("RESULT",)).errors == []


@pytest.mark.parametrize("stage", ["voxcpm2_talker", "voxcpm2"])
def test_a_stage_whose_process_stands_still_is_found_and_loaded_anew(
    launched: Any, calling: Calling, kill_stage: Kill, stage: str
) -> None:
    before, server = launched.report(), launched.pid
    kill_stage(launched, stage, signal.SIGSTOP)
    told = launched.wait_report(lambda report: not report["ready"])
    assert told["problems"][stage] == "is not healthy, says Triton"
    launched.wait_report(lambda report: is_well(report, before["heals"]))
    with calling(launched.urls["grpc"]) as caller:
        assert caller.ask("voxcpm2", SHORT).errors == []
    assert launched.pid == server


def test_streams_that_run_end_whole_while_the_server_drains(launching: Launching, calling: Calling) -> None:
    with launching() as launched, calling(launched.urls["grpc"]) as caller:
        streams = [caller.open(pipeline, {**LONG, "MAX_SECONDS": np.array([3], np.float32)}) for pipeline in PIPELINES]
        for stream in streams:
            assert not next(stream).error_message
        launched.process.send_signal(signal.SIGTERM)
        report = launched.wait_report(lambda report: report["state"] == "draining")
        assert (report["status"], report["ready"], report["live"]) == (503, False, True)
        for pipeline in PIPELINES:
            while not (refused := caller.ask(pipeline, SHORT).errors):
                assert launched.report()["state"] == "draining"
            assert "has no available versions" in refused[0]
        for stream in streams:
            *_, last = stream
            reasons = [output.name for output in last.infer_response.outputs]
            assert "FINISH_REASON" in reasons
            assert not last.error_message
        assert launched.end()[0] == 0


def test_nobody_but_the_launcher_may_load_models(launched: Any, calling: Calling) -> None:
    """Whoever may load a model may run code in the server."""
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.http import InferenceServerClient as HttpClient
    from tritonclient.utils import InferenceServerException

    clients = (
        InferenceServerClient(launched.urls["grpc"]),
        HttpClient(launched.urls["http"].removeprefix("http://")),
    )
    for client in clients:
        for act in (client.load_model, client.unload_model):
            with pytest.raises(InferenceServerException, match="restricted"):
                act("voices")
        client.close()
