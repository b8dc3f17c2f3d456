"""Texts all the way: fronts by JSON, raw and gRPC, plain records, the client, and a model that takes them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import orjson
import pytest

from sluicegate.domain.models.tensor import joined
from sluicegate.sluice.catalogue.broker_log import BrokerLog
from sluicegate.stages.fronts.grpc_messages import MESSAGES
from sluicegate.streams import connect
from sluicegate.streams.ports import Headers
from sluicegate.streams.topics import Topics
from sluicegate_client import Client
from tests.contract.open_inference.test_open_inference_protocol import fronts_of
from tests.harness import PATIENCE_S
from tests.integration.fronts.test_client import prefix_of
from tests.models.text_models import KINDS, write_words

LENGTH = "Inference-Header-Content-Length"
PAIRS = [["cat", "none"], ["Öl", "a very long name of a dog"]]
NOTES = ["short", "länger"]
WANTED = [[KINDS[1], KINDS[0]], [KINDS[2], KINDS[1]]]
FLAT = [kind for row in WANTED for kind in row]


@asynccontextmanager
async def words(folder: Path, *names: str, **settings: Any) -> AsyncIterator[dict[str, str]]:
    """Addresses of fronts that serve the app of texts."""
    async with fronts_of(folder, write_words(folder / "catalogue"), *names, **settings) as addresses:
        yield addresses


def body(**changes: Any) -> dict[str, Any]:
    """A request of two rows."""
    return {
        "inputs": [
            {"name": "pair", "datatype": "BYTES", "shape": [2, 2], "data": PAIRS},
            {"name": "weight", "datatype": "FP32", "shape": [2], "data": [1, 2]},
            {"name": "note", "datatype": "BYTES", "shape": [2], "data": NOTES},
        ],
        "parameters": {"latency_ms": 30_000},
        **changes,
    }


def raw_body(pair: bytes | None = None) -> tuple[bytes, int]:
    """The same, texts raw; and the bytes of its JSON."""
    parts = (joined(t.encode() for row in PAIRS for t in row) if pair is None else pair, joined(map(str.encode, NOTES)))
    told = body()
    for tensor, part in zip(told["inputs"][::2], parts, strict=True):
        del tensor["data"]
        tensor["parameters"] = {"binary_data_size": len(part)}
    head = json.dumps(told).encode()
    return b"".join((head, *parts)), len(head)


async def test_http_takes_and_gives_texts_as_json_and_raw(tmp_path: Path) -> None:
    limits = {"max_element_bytes": 100}
    async with words(tmp_path, "http", admission=limits) as fronts, aiohttp.ClientSession(fronts["http"]) as session:
        model = await (await session.get("/v2/models/words")).json()
        assert model["inputs"][0] == {"name": "pair", "datatype": "BYTES", "shape": [-1, 2]}
        config = await (await session.get("/v2/models/words/config")).json()
        assert config["input"][0] == {"name": "pair", "data_type": "TYPE_STRING", "dims": [2]}
        whole, length = raw_body()
        for sent in ({"json": body()}, {"data": whole, "headers": {LENGTH: str(length)}}):
            async with session.post("/v2/models/words/infer", **sent) as response:  # type: ignore[arg-type]
                answer = await response.json()
                assert response.status == 200, answer
            found = {o["name"]: o for o in answer["outputs"]}
            assert (found["kind"]["datatype"], found["kind"]["shape"], found["kind"]["data"]) == ("BYTES", [2, 2], FLAT)
            assert found["said"]["data"] == NOTES and found["number"]["data"] == [1, 0, 2, 1]
        lying, length = raw_body(b"\xff\xff\xff\x7f" + bytes(40))
        long = body()
        long["inputs"][2]["data"] = ["x" * 101, ""]
        for sent, status, field in (
            ({"data": lying, "headers": {LENGTH: str(length)}}, 400, "inputs[0].data"),
            ({"json": long}, 400, "inputs.note.data[0]"),
        ):
            async with session.post("/v2/models/words/infer", **sent) as response:  # type: ignore[arg-type]
                told = (await response.json())["error"]
            assert response.status == status and field in told


def ask_as_triton_clients_do(triton: Any, address: str, *, by_http: bool) -> None:
    """With NVIDIA's client library."""
    client = triton.InferenceServerClient(address.removeprefix("http://"))
    try:
        arrays = {
            "pair": (np.array(PAIRS, np.object_), "BYTES"),
            "weight": (np.ones(2, np.float32), "FP32"),
            "note": (np.array([n.encode() for n in NOTES], np.object_), "BYTES"),
        }
        for binary in (True, False) if by_http else (True,):
            form = {"binary_data": binary} if by_http else {}
            given = []
            for name, (array, datatype) in arrays.items():
                tensor = triton.InferInput(name, list(array.shape), datatype)
                tensor.set_data_from_numpy(array, **form)
                given.append(tensor)
            wanted = [triton.InferRequestedOutput(name, **form) for name in ("kind", "said", "number")]
            answer = client.infer("words", given, outputs=wanted)
            told = answer.as_numpy("kind").tolist()
            assert [[t.decode() if isinstance(t, bytes) else t for t in row] for row in told] == WANTED
            assert [t.decode() if isinstance(t, bytes) else t for t in answer.as_numpy("said").tolist()] == NOTES
            assert answer.as_numpy("number").tolist() == [[1, 0], [2, 1]]
    finally:
        client.close()


async def test_tritons_clients_send_texts_over_http_and_grpc(tmp_path: Path) -> None:
    http = pytest.importorskip("tritonclient.http")
    grpc = pytest.importorskip("tritonclient.grpc")
    channels = pytest.importorskip("grpc")
    async with words(tmp_path, "http", "grpc", grpc={"port": 0}) as fronts:
        await asyncio.to_thread(ask_as_triton_clients_do, http, fronts["http"], by_http=True)
        await asyncio.to_thread(ask_as_triton_clients_do, grpc, fronts["grpc"], by_http=False)
        async with channels.aio.insecure_channel(fronts["grpc"]) as channel:
            ask = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                request_serializer=MESSAGES["ModelInferRequest"].SerializeToString,
                response_deserializer=MESSAGES["ModelInferResponse"].FromString,
            )
            given = {
                "pair": ("BYTES", [1, 2], {"bytes_contents": [t.encode() for t in PAIRS[1]]}),
                "note": ("BYTES", [1], {"bytes_contents": [NOTES[1].encode()]}),
                "weight": ("FP32", [1], {"fp32_contents": [1.0]}),
            }
            typed = [
                {"name": name, "datatype": datatype, "shape": shape, "contents": contents}
                for name, (datatype, shape, contents) in given.items()
            ]
            answer = await ask(MESSAGES["ModelInferRequest"](model_name="words", inputs=typed))
            assert answer.raw_output_contents[0] == joined(t.encode() for t in WANTED[1])
            lying = MESSAGES["ModelInferRequest"](
                model_name="words",
                inputs=[{k: v for k, v in t.items() if k != "contents"} for t in typed],
                raw_input_contents=[b"\xff\0\0\0aabbccdd", joined([b"x"]), np.float32(1).tobytes()],
            )
            with pytest.raises(channels.aio.AioRpcError, match=r"inputs\[0\].data") as refused:
                await ask(lying)
            assert refused.value.code() is channels.StatusCode.INVALID_ARGUMENT


async def test_plain_producers_and_the_client_send_texts_over_topics(tmp_path: Path) -> None:
    async with words(tmp_path, "http") as fronts:
        url = f"memory+{fronts['http']}"
        topics = Topics(await prefix_of(url))
        broker = connect(url)
        consumer = broker.consumer(topics=[topics.results("words")], group=None)
        await consumer.start()
        producer = broker.producer()
        await producer.start()
        whole, length = raw_body()
        sent: dict[str, tuple[bytes, Headers]] = {
            "as-json": (orjson.dumps(body()), ()),
            "as-raw": (whole, ((LENGTH.lower(), str(length).encode()),)),
            "lying": (raw_body(joined([b"a"] * 4) + b"\1\0\0\0")[0], ((LENGTH.lower(), str(length).encode()),)),
        }
        try:
            for name, (value, headers) in sent.items():
                await producer.send(
                    topics.queries("words"), value, key=name.encode(), headers=(("ce_id", name.encode()), *headers)
                )
            found: dict[str, Any] = {}
            async with asyncio.timeout(PATIENCE_S):
                while len(found) < len(sent):
                    for record in await consumer.get_many(wait=0.2):
                        told = orjson.loads(record.value or b"")
                        found[told["id"]] = told
            for name in ("as-json", "as-raw"):
                outputs = {o["name"]: o["data"] for o in found[name]["outputs"]}
                assert (outputs["kind"], outputs["said"]) == (FLAT, NOTES)
            assert found["lying"]["parameters"]["kind"] == "rejected"
        finally:
            await producer.stop()
            await consumer.stop()
        arrays = {"pair": np.array(PAIRS), "weight": np.ones(2, np.float32), "note": NOTES}
        async with (
            Client(BrokerLog(broker), prefix=topics.prefix) as over_topics,
            Client(fronts["http"]) as over_http,
        ):
            for client in (over_topics, over_http):
                answer = await client.infer("words", arrays, latency_ms=30_000)
                assert [[t.decode() for t in row] for row in answer.outputs["kind"].tolist()] == WANTED
                rows = await client.infer_rows("words", arrays, rows=1, latency_ms=30_000)
                assert [r.outputs["said"][0].decode() for r in rows] == NOTES
        await broker.close()
