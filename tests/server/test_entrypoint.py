"""The images' entrypoint, as a plain process: the launcher as in a container, and how it ends."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triton_speech_client import ServerUnavailable, SpeechClient

Launching = Callable[..., AbstractContextManager[Any]]
Calling = Callable[[str], AbstractContextManager[Any]]

ENTRYPOINT = Path(__file__).resolve().parents[2] / "docker" / "entrypoint"
PIPELINES = ("voxcpm2", "voxcpm2_pipeline")
STREAMS = 16
LONG = {
    "TEXT": "word " * 45,
    "CHUNK_SCHEDULE": np.array([1], np.int32),
    "INFERENCE_STEPS": np.array([60], np.int32),
    "MAX_SECONDS": np.array([3], np.float32),
}


def is_refused(client: SpeechClient) -> bool:
    try:
        client.synthesize("Too late.", max_seconds=0.2)
    except ServerUnavailable:
        return True
    return False


def test_a_container_that_is_stopped_lets_sixteen_streams_end_and_takes_no_new_one(
    launching: Launching, calling: Calling, tmp_path: Path
) -> None:
    options = ("--log-file", str(tmp_path / "log"), "--drain-seconds=80")
    slots = {"voxcpm2_talker": {"max_num_seqs": STREAMS}}
    with (
        launching(*options, command=[ENTRYPOINT], parameters=slots) as launched,
        calling(launched.urls["grpc"]) as caller,
        SpeechClient(launched.urls["grpc"], retries=0) as connected,
    ):
        assert connected.is_ready()
        streams = [
            caller.open(PIPELINES[n % 2], {**LONG, "SEED": np.array([n], np.uint64)}, seconds=200)
            for n in range(STREAMS)
        ]
        for stream in streams:
            assert not next(stream).error_message
        deadline = time.monotonic() + 60
        while launched.metric("triton_speech_slots_in_use", model="voxcpm2_talker") < STREAMS:
            assert time.monotonic() < deadline, "the streams did not run side by side"
            time.sleep(0.05)
        assert launched.metric("triton_speech_launcher_ready", "health") == 1

        launched.process.send_signal(signal.SIGTERM)
        launched.wait_report(lambda report: report["state"] == "draining")
        assert launched.metric("triton_speech_launcher_ready", "health") == 0
        assert launched.metric("triton_speech_launcher_live", "health") == 1
        launched.wait_report(lambda _report: not connected.is_ready() and is_refused(connected))
        with pytest.raises(ServerUnavailable) as refused:
            connected.synthesize("Too late.", max_seconds=0.2)
        assert "no connection" not in str(refused.value)
        host, _, port = launched.urls["grpc"].rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), timeout=10)
        assert launched.report()["state"] == "draining"

        for stream in streams:
            *_, last = stream
            assert not last.error_message
            assert "FINISH_REASON" in [output.name for output in last.infer_response.outputs]
        assert launched.end()[0] == 0


def test_connections_are_asked_to_move_on_and_their_streams_end_first(launching: Launching, calling: Calling) -> None:
    """A client that stayed on its first connection would never find a server that came later."""
    import grpc

    with launching("--connection-seconds=1") as launched, calling(launched.urls["grpc"]) as caller:
        states: list[grpc.ChannelConnectivity] = []
        caller._channel.subscribe(states.append)
        stream = caller.open("voxcpm2", {**LONG, "INFERENCE_STEPS": np.array([100], np.int32)})
        *_, last = stream
        assert not last.error_message
        deadline = time.monotonic() + 60
        while states.count(grpc.ChannelConnectivity.READY) < 2:
            assert time.monotonic() < deadline, states
            assert caller.ask("voxcpm2", {"TEXT": "Hi.", "MAX_SECONDS": np.array([0.2], np.float32)}).errors == []
