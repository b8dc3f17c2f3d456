"""The HTTP front against the Open Inference Protocol v2: schemas of all it says, binary tensors, errors, a real client.

The schemas are those of the protocol's document (required_api.md and extension_binary_data.md), written out as JSON
schemas: numbers, strings and booleans in parameters, tensors with name, shape and datatype, errors as one string.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import numpy as np
import pytest

from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import digest_of, model_path, save_catalogue
from sluicegate.streams import connect
from tests.harness import ROLES, running, settings_for
from tests.models.executor_models import APP, affine

PARAMETERS = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "datatype": {"enum": ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
                              "FP16", "FP32", "FP64", "BYTES"]},
    },
}  # fmt: skip
OUTPUT = {**TENSOR, "properties": {**TENSOR["properties"], "parameters": PARAMETERS, "data": {"type": "array"}}}  # type: ignore[dict-item]
SERVER = {
    "type": "object",
    "required": ["name", "version", "extensions"],
    "properties": {
        "name": {"type": "string"},
        "version": {"type": "string"},
        "extensions": {"type": "array", "items": {"type": "string"}},
    },
}
MODEL = {
    "type": "object",
    "required": ["name", "platform", "inputs", "outputs"],
    "properties": {
        "name": {"type": "string"},
        "versions": {"type": "array", "items": {"type": "string"}},
        "platform": {"type": "string"},
        "inputs": {"type": "array", "items": TENSOR, "minItems": 1},
        "outputs": {"type": "array", "items": TENSOR, "minItems": 1},
    },
}
READY = {
    "type": "object",
    "required": ["name", "ready"],
    "properties": {"name": {"type": "string"}, "ready": {"type": "boolean"}},
}
ANSWER = {
    "type": "object",
    "required": ["model_name", "outputs"],
    "additionalProperties": False,
    "properties": {
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "id": {"type": "string"},
        "parameters": PARAMETERS,
        "outputs": {"type": "array", "items": OUTPUT},
    },
}
ERROR = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {"error": {"type": "string"}},
}
LENGTH = "Inference-Header-Content-Length"


@asynccontextmanager
async def affine_front(folder: Path) -> AsyncIterator[str]:
    """Address of an HTTP front that serves y = 2 x and y = 3 x, through ONNX Runtime, and the larger of the two."""
    async with affine_fronts(folder, "http") as addresses:
        yield addresses["http"]


@asynccontextmanager
async def affine_fronts(folder: Path, *names: str, **settings_given: Any) -> AsyncIterator[dict[str, str]]:
    """Addresses of such fronts, of these names."""
    variants = []
    for name, factor, accuracy in (("double", 2.0, 0.9), ("triple", 3.0, 0.8)):
        digest = digest_of(affine(factor))
        variants.append(Variant(name=name, app="affine", accuracy=accuracy, model=model_path(digest), digest=digest))
    points = (BatchLatency(1, 0.001, 0.002), BatchLatency(8, 0.002, 0.003))
    profiles = [Profile(variant=v.name, device_type="cpu", points=points, load=0.01) for v in variants]
    catalogue = Catalogue.of([APP], variants, profiles)
    models = {digest_of(affine(factor)): affine(factor) for factor in (2.0, 3.0)}
    save_catalogue(folder / "catalogue", catalogue, models)
    async with fronts_of(folder, catalogue, *names, **settings_given) as addresses:
        yield addresses


@asynccontextmanager
async def fronts_of(
    folder: Path, catalogue: Catalogue, *names: str, **settings_given: Any
) -> AsyncIterator[dict[str, str]]:
    """Addresses of fronts, of these names, that serve what lies in ``folder``'s folder ``catalogue``."""
    settings = settings_for(
        "memory://",
        folder,
        worker={"executor": "onnx"},
        slo_s=dict.fromkeys(catalogue.apps, 5.0),
        **{"http": {"port": 0}, **settings_given},
    )
    async with running(
        settings,
        connect("memory://"),
        catalogue=catalogue,
        models=folder / "catalogue",
        roles=(*ROLES, *names),
    ) as run:
        await run.planned()
        fronts = [stage for stage in run.stages if stage.name in names]
        for front in fronts:
            await front.bound.wait()
        yield {front.name: front.address for front in fronts}


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    async with affine_front(tmp_path) as address, aiohttp.ClientSession(address) as session:
        yield session


def json_request(**changes: Any) -> dict[str, Any]:
    tensor = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1.0, 2.0], [4.0, 3.0]]}
    return {"id": "mine", "inputs": [tensor], **changes}


def binary_request(**changes: Any) -> tuple[bytes, dict[str, str]]:
    raw = np.array([[1, 2], [4, 3]], "<f4").tobytes()
    tensor = {"name": "x", "shape": [2, 2], "datatype": "FP32", "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"id": "mine", "inputs": [tensor], **changes}).encode()
    return head + raw, {LENGTH: str(len(head)), "Content-Type": "application/octet-stream"}


async def told(session: aiohttp.ClientSession, path: str, schema: dict[str, Any], status: int = 200) -> Any:
    async with session.get(path) as response:
        assert response.status == status, path
        body = await response.json()
    jsonschema.validate(body, schema)
    return body


async def test_health_and_metadata_have_the_protocols_shape(front: aiohttp.ClientSession) -> None:
    assert "binary_tensor_data" in (await told(front, "/v2", SERVER))["extensions"]
    await told(front, "/v2/health/live", {"type": "object", "required": ["live"]})
    await told(front, "/v2/health/ready", {"type": "object", "required": ["ready"]})
    model = await told(front, "/v2/models/affine", MODEL)
    assert model["versions"] == ["double", "triple"]
    assert model["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    assert await told(front, "/v2/models/affine/ready", READY) == {"name": "affine", "ready": True}
    await told(front, "/v2/models/affine/versions/double", MODEL)
    await told(front, "/v2/models/affine/versions/double/ready", READY)
    for path in ("/v2/models/none", "/v2/models/none/ready", "/v2/models/affine/versions/none/ready"):
        assert "none" in (await told(front, path, ERROR, 404))["error"]


async def test_json_in_json_out_with_the_clients_own_id(front: aiohttp.ClientSession) -> None:
    async with front.post("/v2/models/affine/infer", json=json_request()) as response:
        assert (response.status, response.content_type) == (200, "application/json")
        assert LENGTH not in response.headers
        answer = await response.json()
    jsonschema.validate(answer, ANSWER)
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("mine", "affine", "double")
    by_name = {o["name"]: o for o in answer["outputs"]}
    assert (by_name["y"]["shape"], by_name["y"]["data"]) == ([2, 2], [2.0, 4.0, 8.0, 6.0])
    assert by_name["label"]["data"] == [1, 0]


async def test_without_an_id_the_front_gives_one(front: aiohttp.ClientSession) -> None:
    request = json_request()
    del request["id"]
    async with front.post("/v2/models/affine/infer", json=request) as response:
        answer = await response.json()
    jsonschema.validate(answer, ANSWER)
    assert len(answer["id"]) == 32


async def test_only_the_outputs_asked_for_come_back(front: aiohttp.ClientSession) -> None:
    request = json_request(outputs=[{"name": "label"}])
    async with front.post("/v2/models/affine/infer", json=request) as response:
        answer = await response.json()
    jsonschema.validate(answer, ANSWER)
    assert [o["name"] for o in answer["outputs"]] == ["label"]


@pytest.mark.parametrize(
    ("asked", "raw"),
    [
        ({"parameters": {"binary_data_output": True}}, {"y", "label"}),
        ({"outputs": [{"name": "y", "parameters": {"binary_data": True}}, {"name": "label"}]}, {"y"}),
        (
            {
                "parameters": {"binary_data_output": True},
                "outputs": [{"name": "y", "parameters": {"binary_data": False}}, {"name": "label"}],
            },
            {"label"},
        ),
    ],
)
async def test_binary_in_binary_out_where_it_is_asked(
    front: aiohttp.ClientSession, asked: dict[str, Any], raw: set[str]
) -> None:
    body, headers = binary_request(**asked)
    async with front.post("/v2/models/affine/infer", data=body, headers=headers) as response:
        assert (response.status, response.content_type) == (200, "application/octet-stream")
        length = int(response.headers[LENGTH])
        whole = await response.read()
    answer = json.loads(whole[:length])
    jsonschema.validate(answer, ANSWER)
    found: dict[str, Any] = {}
    at = length
    for output in answer["outputs"]:
        assert (output["name"] in raw) == ("data" not in output)
        if output["name"] in raw:
            size = output["parameters"]["binary_data_size"]
            kind = {"FP32": "<f4", "INT64": "<i8"}[output["datatype"]]
            found[output["name"]] = np.frombuffer(whole[at : at + size], kind).reshape(output["shape"]).tolist()
            at += size
        else:
            found[output["name"]] = np.reshape(output["data"], output["shape"]).tolist()
    assert at == len(whole)
    assert found == {"y": [[2.0, 4.0], [8.0, 6.0]], "label": [1, 0]}


async def test_a_version_is_a_variant_and_a_request_to_it_is_answered_by_it_or_says_that_nothing_hosts_it(
    front: aiohttp.ClientSession,
) -> None:
    body, headers = binary_request()
    async with front.post("/v2/models/affine/versions/double/infer", data=body, headers=headers) as response:
        assert response.status == 200
        assert (await response.json())["model_version"] == "double"
    async with front.post("/v2/models/affine/versions/triple/infer", json=json_request()) as response:
        assert response.status == 503
        jsonschema.validate(await response.json(), ERROR)


RAW, HEADERS = binary_request()
WRONG: dict[str, tuple[bytes, dict[str, str], int, str]] = {
    "no JSON": (b"{", {}, 400, "body"),
    "an array": (b"[]", {}, 400, "body"),
    "no inputs": (b"{}", {}, 400, "inputs"),
    "an unknown input": (json.dumps({"inputs": [{**json_request()["inputs"][0], "name": "z"}]}).encode(), {}, 400, "z"),
    "another datatype": (
        json.dumps({"inputs": [{**json_request()["inputs"][0], "datatype": "INT64"}]}).encode(), {}, 400, "INT64"
    ),
    "another shape": (
        json.dumps({"inputs": [{**json_request()["inputs"][0], "shape": [4, 1]}]}).encode(), {}, 400, "shape"
    ),
    "an unknown output": (json.dumps(json_request(outputs=[{"name": "z"}])).encode(), {}, 400, "outputs[0].name"),
    "outputs that are no list": (json.dumps(json_request(outputs=7)).encode(), {}, 400, "outputs"),
    "raw data cut short": (RAW[:-4], HEADERS, 400, "inputs[0].data"),
    "raw data left over": (RAW + b"more", HEADERS, 400, "body"),
    "no length of the JSON": (RAW, {}, 400, "body"),
    "a length beyond the body": (RAW, {LENGTH: "999999"}, 400, "inference-header-content-length"),
    "a length that is no number": (RAW, {LENGTH: "ten"}, 400, "inference-header-content-length"),
    "an impossible accuracy": (json.dumps(json_request(parameters={"accuracy": 0.99})).encode(), {}, 400, "nearest"),
}  # fmt: skip


async def test_every_error_has_the_protocols_shape_and_says_what_is_wrong(front: aiohttp.ClientSession) -> None:
    for name, (body, headers, status, part) in WRONG.items():
        async with front.post("/v2/models/affine/infer", data=body, headers=headers) as response:
            assert response.status == status, name
            error = await response.json()
        jsonschema.validate(error, ERROR)
        assert part in error["error"], name
    for path in ("/v2/models/none/infer", "/v2/models/affine/versions/none/infer"):
        async with front.post(path, json=json_request()) as response:
            assert response.status == 404
            jsonschema.validate(await response.json(), ERROR)


def ask_as_triton_clients_do(address: str) -> None:
    """With NVIDIA's client library: metadata, then JSON and binary tensors both ways, then an error."""
    import tritonclient.http as triton
    from tritonclient.utils import InferenceServerException

    client = triton.InferenceServerClient(address.removeprefix("http://"))
    try:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("affine")
        assert not client.is_model_ready("none")
        assert client.get_server_metadata()["name"] == "sluicegate"
        assert client.get_model_metadata("affine")["versions"] == ["double", "triple"]
        x = np.array([[1, 2], [4, 3]], np.float32)
        for binary in (True, False):
            given = triton.InferInput("x", x.shape, "FP32")
            given.set_data_from_numpy(x, binary_data=binary)
            wanted = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("y", "label")]
            answer = client.infer("affine", [given], outputs=wanted, request_id="seven", timeout=4_000_000)
            assert answer.get_response()["id"] == "seven"
            assert answer.as_numpy("y").tolist() == [[2.0, 4.0], [8.0, 6.0]]
            assert answer.as_numpy("label").tolist() == [1, 0]
        everything = client.infer("affine", [given], sequence_id=7, sequence_start=True, priority=1)
        assert everything.as_numpy("y").tolist() == [[2.0, 4.0], [8.0, 6.0]]
        assert {m["version"] for m in client.get_model_repository_index()} == {"double", "triple"}
        config = client.get_model_config("affine")
        assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}]
        assert config["max_batch_size"] == 16
        versioned = client.infer("affine", [given], model_version="double")
        assert versioned.get_response()["model_version"] == "double"
        wrong = triton.InferInput("x", [1, 3], "FP32")
        wrong.set_data_from_numpy(np.zeros((1, 3), np.float32))
        with pytest.raises(InferenceServerException, match="shape"):
            client.infer("affine", [wrong])
        with pytest.raises(InferenceServerException, match="latancy_ms: is unknown; did you mean latency_ms"):
            client.infer("affine", [given], parameters={"latancy_ms": 100})
        for asked, named in (({"class_count": 2}, "classification"), ({}, "shared_memory_region")):
            form = triton.InferRequestedOutput("y", **asked)
            if not asked:
                form.set_shared_memory("region", 16)
            with pytest.raises(InferenceServerException, match=rf"outputs\[1\].parameters.{named}: is not served"):
                client.infer("affine", [given], outputs=[triton.InferRequestedOutput("label"), form])
    finally:
        client.close()


async def test_a_third_party_client_works_against_the_front(tmp_path: Path) -> None:
    async with affine_front(tmp_path) as address:
        await asyncio.to_thread(ask_as_triton_clients_do, address)
