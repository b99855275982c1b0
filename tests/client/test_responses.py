"""One stream of responses held to its contract: order, final flag, finish reason."""

from __future__ import annotations

import numpy as np
import pytest
from tritonclient.grpc import service_pb2
from tritonclient.utils import serialize_byte_tensor

from triton_speech_client import InvalidRequest, RequestCancelled, ServerError
from triton_speech_client.wire import ResponseReader, model_names, unknown_pipeline


def response(index: int, finish_reason: str = "", final: bool = False, samples: int = 4) -> service_pb2:
    """A response as a pipeline sends it."""
    message = service_pb2.ModelInferResponse()
    reason = serialize_byte_tensor(np.array([finish_reason.encode()], dtype=np.object_)).item()
    for name, datatype, shape, content in [
        ("AUDIO", "FP32", [samples], np.full(samples, 0.5, np.float32).tobytes()),
        ("SAMPLE_RATE", "INT32", [1], np.array([48000], np.int32).tobytes()),
        ("CHUNK_INDEX", "INT32", [1], np.array([index], np.int32).tobytes()),
        ("FINISH_REASON", "BYTES", [1], reason),
    ]:
        message.outputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_output_contents.append(content)
    message.parameters["triton_final_response"].bool_param = final
    return service_pb2.ModelStreamInferResponse(infer_response=message)


def empty_final() -> service_pb2:
    """A response that holds the final flag and nothing else."""
    message = service_pb2.ModelInferResponse()
    message.parameters["triton_final_response"].bool_param = True
    return service_pb2.ModelStreamInferResponse(infer_response=message)


def test_a_stream_ends_with_the_final_flag_on_its_last_chunk() -> None:
    reader = ResponseReader(pcm16=False)
    first, last = reader.read(response(0)), reader.read(response(1, "stop", final=True))
    assert first is not None
    assert last is not None
    assert (first.index, first.finish_reason, first.sample_rate) == (0, "", 48000)
    assert (last.index, last.finish_reason) == (1, "stop")
    assert first.samples.tolist() == [0.5] * 4
    assert reader.ended


def test_a_stream_may_end_with_an_empty_response() -> None:
    reader = ResponseReader(pcm16=False)
    reader.read(response(0, "length"))
    assert not reader.ended
    assert reader.read(empty_final()) is None
    assert reader.ended


def test_the_last_chunk_may_have_no_samples() -> None:
    reader = ResponseReader(pcm16=False)
    reader.read(response(0))
    last = reader.read(response(1, "stop", final=True, samples=0))
    assert last is not None
    assert last.samples.shape == (0,)


def test_a_chunks_samples_are_its_own_and_may_be_written_to() -> None:
    chunk = ResponseReader(pcm16=False).read(response(0))
    assert chunk is not None
    assert chunk.samples.flags.writeable
    assert chunk.samples.flags.owndata


def test_no_speech_is_an_error_never_silence() -> None:
    with pytest.raises(ServerError, match="no speech"):
        ResponseReader(pcm16=False).read(empty_final())


def test_a_cut_stream_is_an_error_never_a_shorter_speech() -> None:
    reader = ResponseReader(pcm16=False)
    reader.read(response(0))
    with pytest.raises(ServerError, match="without a finish reason after 1 chunks"):
        reader.read(empty_final())


def test_chunks_out_of_order_are_an_error() -> None:
    reader = ResponseReader(pcm16=False)
    reader.read(response(0))
    with pytest.raises(ServerError, match="chunk 2 arrived where chunk 1 was due"):
        reader.read(response(2))


def test_a_response_without_an_output_names_it() -> None:
    with pytest.raises(ServerError, match="lacks the output PCM16"):
        ResponseReader(pcm16=True).read(response(0))


def test_a_request_that_the_server_cancelled_raises() -> None:
    with pytest.raises(RequestCancelled):
        ResponseReader(pcm16=False).read(response(0, "cancelled", final=True))


def test_an_error_response_raises_its_error() -> None:
    with pytest.raises(InvalidRequest):
        ResponseReader(pcm16=False).read(service_pb2.ModelStreamInferResponse(error_message="TEXT: is empty"))


def test_a_model_with_several_versions_is_named_once() -> None:
    statistics = service_pb2.ModelStatisticsResponse()
    for name, version in [("voxcpm2", "1"), ("voices", "1"), ("voxcpm2", "2")]:
        statistics.model_stats.add(name=name, version=version)
    assert model_names(statistics) == ["voices", "voxcpm2"]


def test_an_unknown_pipeline_lists_those_that_there_are() -> None:
    assert "are voxcpm2, voxcpm2_pipeline" in str(unknown_pipeline("nope", ["voxcpm2", "voxcpm2_pipeline"]))
