"""The gRPC front against NVIDIA's client library: whatever passes over HTTP passes here, and streams."""

import asyncio
import queue
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluicegate.stages.fronts.grpc_messages import MESSAGES
from tests.contract.open_inference.test_open_inference_protocol import affine_fronts

grpc = pytest.importorskip("grpc", reason="no gRPC: pip install 'sluicegate[grpc]'")
triton = pytest.importorskip("tritonclient.grpc")
X = np.array([[1, 2], [4, 3]], np.float32)


def given(array: np.ndarray[Any, Any] = X, datatype: str = "FP32") -> Any:
    made = triton.InferInput("x", array.shape, datatype)
    made.set_data_from_numpy(array)
    return made


def ask_as_triton_clients_do(address: str) -> None:
    """The same as over HTTP: metadata, tensors, versions, parameters, then errors."""
    from tritonclient.utils import InferenceServerException

    with triton.InferenceServerClient(address) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("affine")
        assert not client.is_model_ready("none")
        assert client.get_server_metadata().name == "sluicegate"
        told = client.get_model_metadata("affine", as_json=True)
        assert told["versions"] == ["double", "triple"]
        assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "2"]}]
        config = client.get_model_config("affine", as_json=True)["config"]
        assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": ["2"]}]
        assert config["output"][1]["data_type"] == "TYPE_INT64" and config["max_batch_size"] == 16
        assert {m.version for m in client.get_model_repository_index().models} == {"double", "triple"}
        wanted = [triton.InferRequestedOutput(name) for name in ("y", "label")]
        answer = client.infer("affine", [given()], outputs=wanted, request_id="seven", timeout=4_000_000)
        assert answer.get_response().id == "seven"
        assert answer.as_numpy("y").tolist() == [[2.0, 4.0], [8.0, 6.0]]
        assert answer.as_numpy("label").tolist() == [1, 0]
        assert answer.get_response().parameters["late"].bool_param is False
        one = client.infer("affine", [given()], outputs=[triton.InferRequestedOutput("label")])
        assert one.as_numpy("y") is None
        everything = client.infer("affine", [given()], sequence_id=7, sequence_start=True, priority=1)
        assert everything.as_numpy("y").tolist() == [[2.0, 4.0], [8.0, 6.0]]
        versioned = client.infer("affine", [given()], model_version="double")
        assert versioned.get_response().model_version == "double"
        for problem, asked, options in (
            ("shape", given(np.zeros((1, 3), np.float32)), {}),
            ("FP32", given(X.astype(np.int32), "INT32"), {}),
            ("did you mean latency_ms", given(), {"parameters": {"latancy_ms": 100}}),
            ("nearest: double", given(), {"parameters": {"accuracy": 0.99}}),
            ("no output", given(), {"outputs": [triton.InferRequestedOutput("z")]}),
            ("classification: is not", given(), {"outputs": [triton.InferRequestedOutput("y", class_count=2)]}),
        ):
            with pytest.raises(InferenceServerException, match=problem) as refused:
                client.infer("affine", [asked], **options)
            assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
        with pytest.raises(InferenceServerException, match="known: affine"):
            client.infer("none", [given()])


def stream_as_triton_clients_do(address: str) -> None:
    """Answers in the order of the questions; what is wrong with one is told of that one."""
    heard: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(address) as client:
        client.start_stream(lambda result, error: heard.put((result, error)))
        for number in range(40):
            name = "none" if number == 7 else "affine"
            client.async_stream_infer(name, [given(X + number)], request_id=str(number))
        answers = [heard.get(timeout=500) for _ in range(40)]
        client.stop_stream()
    for number, (result, error) in enumerate(answers):
        if number == 7:
            assert "known: affine" in str(error)
        else:
            assert error is None
            assert result.get_response().id == str(number)
            assert result.as_numpy("y").tolist() == (2 * (X + number)).tolist()


async def test_tritons_client_passes_what_it_passes_over_http(tmp_path: Path) -> None:
    async with affine_fronts(tmp_path, "grpc", grpc={"port": 0}) as addresses:
        await asyncio.to_thread(ask_as_triton_clients_do, addresses["grpc"])
        await asyncio.to_thread(stream_as_triton_clients_do, addresses["grpc"])
        async with grpc.aio.insecure_channel(addresses["grpc"]) as channel:
            ask = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                request_serializer=MESSAGES["ModelInferRequest"].SerializeToString,
                response_deserializer=MESSAGES["ModelInferResponse"].FromString,
            )
            typed = {"name": "x", "datatype": "FP32", "shape": [1, 2], "contents": {"fp32_contents": [1.0, 2.5]}}
            answer = await ask(MESSAGES["ModelInferRequest"](model_name="affine", inputs=[typed]))
            assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [2.0, 5.0]
            for request, problem in (
                ({"inputs": [typed], "raw_input_contents": [b"", b""]}, "2 tensors for 1 inputs"),
                ({"inputs": [{**typed, "datatype": "FP16"}]}, "send it raw"),
                (
                    {"inputs": [{**typed, "contents": {"fp64_contents": [1.0, 2.5]}}]},
                    r"inputs\[0\]\.contents\.fp64_contents: holds values, but FP32 has fp32_contents",
                ),
                (
                    {"inputs": [{**typed, "datatype": "BYTES"}]},
                    "fp32_contents: holds values, but BYTES has bytes_contents",
                ),
                (
                    {"inputs": [typed], "raw_input_contents": [bytes(8)]},
                    "fp32_contents: holds values, but raw_input_contents has them; give one",
                ),
                (
                    {"inputs": [{**typed, "datatype": "FP32", "contents": {"fp32_contents": [float("nan"), 1]}}]},
                    "inputs",
                ),
                ({}, "inputs"),
            ):
                with pytest.raises(grpc.aio.AioRpcError, match=problem) as refused:
                    await ask(MESSAGES["ModelInferRequest"](model_name="affine", **request))
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_message_that_is_none_is_refused_by_itself_without_a_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = "cannot be read; give a ModelInferRequest of the Open Inference Protocol v2"
    typed = {"name": "x", "datatype": "FP32", "shape": [1, 2], "contents": {"fp32_contents": [1.0, 2.5]}}
    good = MESSAGES["ModelInferRequest"](model_name="affine", id="seven", inputs=[typed]).SerializeToString()
    read = MESSAGES["ModelStreamInferResponse"].FromString
    async with (
        affine_fronts(tmp_path, "grpc", grpc={"port": 0}) as addresses,
        grpc.aio.insecure_channel(addresses["grpc"]) as channel,
    ):
        ask = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.aio.AioRpcError, match=said) as refused:
            await ask(b"\xff\xff\xff")
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        heard = [read(answer) async for answer in stream(iter([b"\xff\xff\xff", good]))]
    assert said in heard[0].error_message and not heard[0].infer_response.outputs
    assert heard[1].infer_response.id == "seven" and heard[1].infer_response.outputs
    assert "Traceback" not in caplog.text and "DecodeError" not in caplog.text


async def test_a_stream_without_the_token_is_refused_before_it_asks(tmp_path: Path) -> None:
    async with (
        affine_fronts(tmp_path, "grpc", grpc={"port": 0, "token": "letmein", "idle_s": 60.0}) as addresses,
        grpc.aio.insecure_channel(addresses["grpc"]) as channel,
    ):
        begun = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
        async with asyncio.timeout(20.0):
            assert await begun.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "give the token" in await begun.details()


async def test_limits_hold_as_over_http(tmp_path: Path) -> None:
    access = {"port": 0, "token": "letmein", "rate": 0.001, "burst": 6}
    async with (
        affine_fronts(tmp_path, "grpc", grpc=access, admission={"max_body_bytes": 4000}) as addresses,
        grpc.aio.insecure_channel(addresses["grpc"]) as channel,
    ):

        def method(name: str) -> Any:
            return channel.unary_unary(
                f"/inference.GRPCInferenceService/{name}",
                request_serializer=MESSAGES[f"{name}Request"].SerializeToString,
                response_deserializer=MESSAGES[f"{name}Response"].FromString,
            )

        assert (await method("ServerLive")(MESSAGES["ServerLiveRequest"]())).live, "health needs no token"
        large = {"name": "x", "datatype": "FP32", "shape": [600, 2]}
        token = (("authorization", "Bearer letmein"),)
        codes, said = [], ""
        for size, metadata in (
            (4800, None),
            (4800, (("authorization", "Bearer no"),)),
            (4800, token),
            (90_000, token),
        ):
            request = MESSAGES["ModelInferRequest"](
                model_name="affine", inputs=[large], raw_input_contents=[bytes(size)]
            )
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await method("ModelInfer")(request, metadata=metadata)
            codes.append(refused.value.code())
            said += refused.value.details() or ""
            assert "retry-after" not in dict(refused.value.trailing_metadata()), "it would be refused again"
        assert codes == [
            grpc.StatusCode.UNAUTHENTICATED,
            grpc.StatusCode.UNAUTHENTICATED,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        ]
        assert "at most 4000 (admission.max_body_bytes) are taken" in said
        assert "Received message larger than max" in said, "as the guide has it"
        with pytest.raises(grpc.aio.AioRpcError, match="too many requests; try again in") as refused:
            for _ in range(6):
                await method("ServerMetadata")(MESSAGES["ServerMetadataRequest"](), metadata=token)
        told = float(refused.value.details().split()[-2])
        assert told > 100.0
        assert -0.01 < int(dict(refused.value.trailing_metadata())["retry-after"]) - told < 1.01
