"""Inputs and results in an object store: queries refer to what they hold, and outcomes to what topics do not take."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import orjson
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.tensor import Tensor as ModelTensor
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.domain.outcome import OutcomeKind, Reason
from sluicegate.domain.plan import Epoch
from sluicegate.domain.query import Query
from sluicegate.sluice.audit.result_log import read_results, result_topics
from sluicegate.sluice.catalogue.broker_log import BrokerLog
from sluicegate.stages.worker.stage import WorkerStage
from sluicegate.streams import connect
from sluicegate.streams.objects import store as store_module
from sluicegate.streams.objects.claims import Claim
from sluicegate.streams.ports import TopicSpec
from sluicegate.streams.records import codec, control
from sluicegate.streams.topics import Topics
from sluicegate_client import Client, Reference, Tensor
from tests.contract.open_inference.test_open_inference_protocol import affine_fronts
from tests.harness import PATIENCE, PIXELS, ROLES, Running, running, settings_for, toy_catalogue
from tests.integration.fronts.test_client import prefix_of

WIDE = 20_000
LIMIT = 330_000  # bytes of a record: of one row of WIDE numbers as JSON, and not of eight
WAYS = [
    pytest.param("memory", "at_least_once", id="memory"),
    pytest.param("kafka", "at_least_once", id="kafka", marks=pytest.mark.kafka),
    pytest.param("kafka", "exactly_once", id="exactly-once", marks=pytest.mark.kafka),
]


def put(folder: Path, name: str, data: bytes) -> dict[str, Any]:
    """Into the folder that queries may refer to; the reference."""
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_bytes(data)
    return {"ref": f"file://{folder}/in/{name}", "sha256": sha256(data).hexdigest(), "bytes": len(data)}


@asynccontextmanager
async def system(
    request: pytest.FixtureRequest, folder: Path, broker: str, delivery: str, *, results: str | None = None, **wide: Any
) -> AsyncIterator[Running]:
    """A system that takes references to ``folder``/in, and keeps results in ``folder``/out or ``results``."""
    url = "memory://" if broker == "memory" else str(request.getfixturevalue("kafka_url"))
    objects = {"prefixes": [f"file://{folder}/in/"], "results": results or f"file://{folder}/out/", "timeout_s": 30}
    settings = settings_for(url, folder, partitions=1, devices=1, delivery=delivery, objects=objects)
    catalogue = toy_catalogue(slo=30.0)
    catalogue = replace(catalogue, apps={"toy": replace(catalogue.apps["toy"], **wide)})
    connected = connect(url)
    topics = Topics(settings.prefix)
    await connected.admin().create_topics([TopicSpec(name=topics.results("toy"), max_message_bytes=LIMIT)])
    async with running(settings, connected, catalogue=catalogue) as run:
        await run.planned()
        yield run


async def ask(run: Running, name: str, data: object, rows: int = 1) -> None:
    """A query of this data."""
    tensor = {"name": "image", "datatype": "FP32", "shape": [rows, PIXELS], "data": data}
    value = orjson.dumps({"inputs": [tensor], "parameters": {"latency_ms": PATIENCE}})
    headers = codec.query_headers(name, app="toy", source="test", now=run.system.clock.wall())
    await run.send("toy", value, key=name.encode(), headers=headers)


ONE = np.arange(PIXELS, dtype="<f4").tobytes()


@pytest.mark.parametrize(("broker", "delivery"), WAYS)
async def test_a_query_that_refers_to_what_is_not_there_fails_alone_and_by_its_name(
    request: pytest.FixtureRequest, tmp_path: Path, broker: str, delivery: str
) -> None:
    async with system(request, tmp_path, broker, delivery) as run:
        good = put(tmp_path, "good", ONE)
        gone = {**put(tmp_path, "gone", ONE), "ref": f"file://{tmp_path}/in/never"}
        other = {**good, "sha256": "ab" * 32}
        not_finite = put(tmp_path, "nan", np.full(PIXELS, np.nan, "<f4").tobytes())
        for name, data in (
            ("plain", [0.0] * PIXELS),
            ("good", good),
            ("gone", gone),
            ("other", other),
            ("nan", not_finite),
            ("outside", {**good, "ref": f"file://{tmp_path}/secret"}),
            ("climbs", {**good, "ref": f"file://{tmp_path}/in/../secret"}),
            ("again", good),
        ):
            await ask(run, name, data)
        report = await run.settled()
        ends = await run.outcomes()
    assert report.balanced and report.dead_letters == 0
    assert {name for name, end in ends.items() if end.kind is OutcomeKind.ANSWERED} == {"plain", "good", "again"}
    for name, part in (("gone", "is not there"), ("other", "SHA-256"), ("nan", "finite")):
        assert (ends[name].kind, ends[name].reason) == (OutcomeKind.FAILED, Reason.OBJECT_UNREADABLE)
        assert part in (ends[name].detail or "") and "/in/" in (ends[name].detail or "")
    for name in ("outside", "climbs"):
        assert (ends[name].kind, ends[name].reason) == (OutcomeKind.REJECTED, Reason.INVALID)
        assert "inputs[0].data.ref" in (ends[name].detail or "")


async def test_a_store_that_hangs_holds_up_nobody_else(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    read = store_module._read

    def hang(claim: Claim, prefix: str) -> bytes:
        if claim.ref.endswith("hangs"):
            released.wait()
        return read(claim, prefix)

    monkeypatch.setattr(store_module, "_read", hang)
    try:
        async with system(request, tmp_path, "memory", "at_least_once") as run:
            (worker,) = [stage for stage in run.stages if stage.name == "worker d0"]
            store = run.system.objects
            assert store is not None and worker is not None
            store._timeout = 1.0
            hangs = put(tmp_path, "hangs", ONE)
            for name in ("h1", "h2", "h3"):
                await ask(run, name, hangs)
            for number in range(20):
                await ask(run, f"p{number}", [0.0] * PIXELS)
            async with asyncio.timeout(PATIENCE):
                while len(ends := await run.outcomes()) < 20:
                    await asyncio.sleep(0.02)
            assert all(end.on_time for name, end in ends.items() if name.startswith("p"))
            report = await run.settled()
            ends = await run.outcomes()
            assert report.balanced and {ends[f"h{n}"].reason for n in (1, 2, 3)} == {Reason.OBJECT_UNREADABLE}
            assert "within 1 s" in (ends["h1"].detail or "")
    finally:
        released.set()


async def test_what_is_fetched_while_its_worker_ends_is_for_others_and_no_failure(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    began, released = threading.Event(), threading.Event()
    read = store_module._read

    def late(claim: Claim, prefix: str) -> bytes:
        began.set()
        released.wait()
        return read(claim, prefix)

    monkeypatch.setattr(store_module, "_read", late)
    try:
        async with system(request, tmp_path, "memory", "at_least_once") as run:
            (worker,) = [stage for stage in run.stages if isinstance(stage, WorkerStage)]
            assert worker._answers.intake is not None
            worker._answers.intake._drain_s = 0.1
            await ask(run, "late", put(tmp_path, "late", ONE))
            while not began.is_set():
                await asyncio.sleep(0.01)
            worker._outbox.post("nowhere", b"waits")  # which its end waits for
            run.stop.set()
            while worker.core.named:
                await asyncio.sleep(0.01)
            released.set()
            await asyncio.sleep(0.2)
            await run.broker.admin().create_topics([TopicSpec(name="nowhere")])
            await run.task
    finally:
        released.set()
    assert not [said.getMessage() for said in caplog.records if said.levelname in ("ERROR", "CRITICAL")]


OUTPUTS = (TensorSpec("scores", "FP32", (WIDE,)), TensorSpec("label", "INT64", ()))


def content_of(claim: Claim) -> bytes:
    """Of an object in a folder."""
    return Path(claim.ref.removeprefix("file://")).read_bytes()


@pytest.mark.parametrize(("broker", "delivery"), WAYS)
async def test_a_result_that_its_topic_does_not_take_lies_in_the_store_and_the_outcome_says_where(
    request: pytest.FixtureRequest, tmp_path: Path, broker: str, delivery: str
) -> None:
    async with system(request, tmp_path, broker, delivery, outputs=OUTPUTS) as run:
        for name, rows in (("a", 1), ("b", 8), ("c", 1), ("d", 8), ("e", 1)):
            await ask(run, name, [0.0] * PIXELS * rows, rows)
        report = await run.settled()
        found = {}
        async for record in read_results(run.broker, await result_topics(run.broker, run.topics), follow=False):
            message = codec.decode_outcome(record)
            found[message.outcome.query_id] = message
    assert report.balanced and {m.outcome.kind for m in found.values()} == {OutcomeKind.ANSWERED}
    assert sum(run.system.telemetry.meters.values("sluice_outcomes").values()) == 5
    for name in "ace":
        assert found[name].claims() == () and [t.name for t in found[name].outputs()] == ["scores", "label"]
    for name in "bd":
        assert [t.name for t in found[name].outputs()] == ["label"]
        ((tensor, claim),) = found[name].claims()
        data = content_of(claim)
        assert (tensor.name, tensor.shape, len(data)) == ("scores", (8, WIDE), 4 * 8 * WIDE)
        assert sha256(data).hexdigest() == claim.sha256


async def test_a_result_that_the_store_does_not_take_either_fails_and_says_both(
    request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    where = f"file://{tmp_path}/file/out/"
    async with system(request, tmp_path, "memory", "at_least_once", results=where, outputs=OUTPUTS) as run:
        assert f"objects.results: {where} cannot be written" in caplog.text, "before anybody asks"
        for name, rows in (("a", 1), ("b", 8), ("c", 1)):
            await ask(run, name, [0.0] * PIXELS * rows, rows)
        report = await run.settled()
        ends = await run.outcomes()
    assert report.balanced
    assert (ends["b"].kind, ends["b"].reason) == (OutcomeKind.FAILED, Reason.RESULT_TOO_LARGE)
    assert str(LIMIT) in (ends["b"].detail or "")
    assert f"and objects.results: {where}toy/" in (ends["b"].detail or "")
    assert ends["a"].on_time and ends["c"].on_time


async def test_fronts_and_clients_refer_and_are_answered_whole(tmp_path: Path) -> None:
    objects = {"prefixes": [f"file://{tmp_path}/in/"], "results": f"file://{tmp_path}/out/"}
    async with affine_fronts(tmp_path, "http", objects=objects) as fronts:
        rows = np.arange(6, dtype=np.float32).reshape(3, 2)
        put(tmp_path, "rows", Tensor.to(rows).data)
        reference = Reference.to(f"file://{tmp_path}/in/rows", rows)
        url = f"memory+{fronts['http']}"
        async with (
            Client(BrokerLog(connect(url)), prefix=await prefix_of(url)) as over_topics,
            Client(fronts["http"]) as over_http,
        ):
            for client in (over_topics, over_http):
                answer = await client.infer("affine", {"x": reference}, latency_ms=30_000)
                assert answer.outputs["y"].tolist() == (2 * rows).tolist()
                with pytest.raises(Exception, match="cut into rows"):
                    await client.infer_rows("affine", {"x": reference}, rows=1)
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [3, 2], "data": reference.document()}]}
        body["inputs"][0]["data"]["ref"] += ".gone"  # type: ignore[index]
        async with (
            aiohttp.ClientSession(fronts["http"]) as session,
            session.post("/v2/models/affine/infer", json=body) as response,
        ):
            assert response.status == 500 and "rows.gone is not there" in (await response.json())["error"]


@pytest.mark.parametrize("front", ["http", "grpc"])
async def test_a_front_gives_what_lies_in_the_store(request: pytest.FixtureRequest, tmp_path: Path, front: str) -> None:
    if front == "grpc":
        pytest.importorskip("grpc")
    objects = {"prefixes": [], "results": f"file://{tmp_path}/out/"}
    catalogue = toy_catalogue(slo=30.0)
    catalogue = replace(catalogue, apps={"toy": replace(catalogue.apps["toy"], outputs=OUTPUTS)})
    changes = {front: {"port": 0}, **({"http": {"port": 0}} if front == "grpc" else {})}
    settings = settings_for("memory://", tmp_path, partitions=1, devices=1, objects=objects, **changes)
    broker = connect("memory://")
    await broker.admin().create_topics(
        [TopicSpec(name=Topics(settings.prefix).results("toy"), max_message_bytes=LIMIT)]
    )
    async with running(settings, broker, catalogue=catalogue, roles=(*ROLES, front)) as run:
        await run.planned()
        (stage,) = [stage for stage in run.stages if stage.name == front]
        await stage.bound.wait()  # type: ignore[attr-defined]
        tensor = {"name": "image", "datatype": "FP32", "shape": [8, PIXELS], "data": [0.0] * 8 * PIXELS}
        body = {"inputs": [tensor], "parameters": {"latency_ms": PATIENCE}}
        if front == "grpc":
            await ask_grpc(stage.address)  # type: ignore[attr-defined]
        else:
            async with aiohttp.ClientSession(stage.address) as session:  # type: ignore[attr-defined]
                for wanted in ({}, {"outputs": [{"name": "scores", "parameters": {"binary_data": True}}]}):
                    asked = {**body, **wanted}
                    async with session.post("/v2/models/toy/infer", json=asked) as response:
                        whole = await response.read()
                        length = int(response.headers.get("Inference-Header-Content-Length", len(whole)))
                    scores = next(o for o in json.loads(whole[:length])["outputs"] if o["name"] == "scores")
                    assert scores["shape"] == [8, WIDE]
                    assert (len(whole) - length == 4 * 8 * WIDE) if wanted else (len(scores["data"]) == 8 * WIDE)
        assert len(list((tmp_path / "out" / "toy").iterdir())) == 1
        for kept in (tmp_path / "out" / "toy").iterdir():
            kept.write_bytes(b"x")
        if front == "http":
            async with aiohttp.ClientSession(stage.address) as session:  # type: ignore[attr-defined]
                store = run.system.objects
                assert store is not None
                store.write = refusing_reads(store)  # type: ignore[method-assign]
                async with session.post("/v2/models/toy/infer", json=body) as response:
                    told = (await response.json())["error"]
                assert response.status == 502 and "was answered, but" in told


def refusing_reads(store: store_module.ObjectStore) -> Any:
    """Writes that nobody finds again."""

    async def write(app: str, data: bytes | memoryview) -> Claim:
        digest = sha256(data).hexdigest()
        return Claim(f"{store.results}{app}/lost", digest, len(data))

    return write


async def ask_grpc(address: str) -> None:
    """Eight rows, whose scores are larger than the topic takes."""
    import grpc

    from sluicegate.stages.fronts.grpc_messages import MESSAGES

    limits = [("grpc.max_receive_message_length", 64 << 20)]
    async with grpc.aio.insecure_channel(address, options=limits) as channel:
        ask = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=MESSAGES["ModelInferRequest"].SerializeToString,
            response_deserializer=MESSAGES["ModelInferResponse"].FromString,
        )
        given = {"name": "image", "datatype": "FP32", "shape": [8, PIXELS]}
        request = MESSAGES["ModelInferRequest"](
            model_name="toy", inputs=[given], raw_input_contents=[bytes(4 * 8 * PIXELS)]
        )
        answer = await ask(request)
        assert [len(raw) for raw in answer.raw_output_contents] == [4 * 8 * WIDE, 64]


def test_settings_without_what_an_address_needs_say_so(tmp_path: Path) -> None:
    with pytest.raises((InvalidInputError, ValueError), match="names no place"):
        settings_for("memory://", tmp_path, objects={"prefixes": ["http://example.org/in/"]})


@pytest.mark.virtual
async def test_what_comes_with_the_word_that_its_worker_is_dead_is_not_fetched(tmp_path: Path) -> None:
    """As after a pause of the process, when the work and that plan are both there."""
    settings = settings_for(
        "memory://", tmp_path, partitions=1, devices=1, objects={"prefixes": [f"file://{tmp_path}/"]}
    )
    async with running(settings, connect("memory://")) as run:
        await run.planned()
        plans = [control.decode_plan(r.value) for r in await run._control(run.topics.plan) if r.value is not None]
        plan = max(plans, key=lambda known: known.epoch)
        now = run.system.clock.wall()
        query = Query("q1", "toy", now, now + 30.0, stream="toy", source="test")
        claim = (0, Claim(f"file://{tmp_path}/a", sha256(ONE).hexdigest(), len(ONE)))
        (tmp_path / "a").write_bytes(ONE)
        message = codec.QueryMessage(query, (ModelTensor("image", "FP32", (1, PIXELS), b""),), (), (claim,))
        work = codec.encode_work(message, epoch=plan.epoch, slice=plan.placements[0].slice)
        dead = replace(plan, epoch=Epoch(plan.epoch.term, plan.epoch.number + 1), incarnations={})
        run.producer.try_send(run.topics.work("d0"), work.value, key=work.key, headers=work.headers)
        run.producer.try_send(run.topics.plan, control.encode_plan(dead), key=b"plan")
        await asyncio.sleep(1.0)
        assert not run.task.done(), "the worker's process goes on"
