"""The Open Inference Protocol front, over a real socket."""

import asyncio
import io
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.sluice.audit.result_log import read_results
from sluicegate.stages.fronts.front_error import FrontError
from sluicegate.stages.fronts.http_front import HttpStage
from sluicegate.streams import connect
from sluicegate.streams.ports import Record, TopicPartition
from sluicegate.streams.records import codec
from tests.harness import PIXELS, ROLES, Running, running, settings_for, toy_catalogue


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[tuple[Running, aiohttp.ClientSession]]:
    settings = settings_for("memory://", tmp_path, http={"port": 0})
    async with running(settings, connect("memory://"), roles=(*ROLES, "http")) as run:
        await run.planned()
        http = next(stage for stage in run.stages if isinstance(stage, HttpStage))
        await http.bound.wait()
        async with aiohttp.ClientSession(http.address) as session:
            yield run, session


def body(**changes: Any) -> dict[str, Any]:
    return {
        "inputs": [{"name": "image", "shape": [1, PIXELS], "datatype": "FP32", "data": [0.0] * PIXELS}],
        **changes,
    }


async def test_a_query_is_answered_as_the_protocol_says(front: tuple[Running, aiohttp.ClientSession]) -> None:
    _, session = front
    async with session.post("/v2/models/toy/infer", json=body(id="mine")) as response:
        assert response.status == 200
        answer = await response.json()
    assert answer["model_name"] == "toy"
    assert answer["model_version"].startswith("toy-v")
    assert {o["name"] for o in answer["outputs"]} == {"scores", "label"}
    assert answer["parameters"]["late"] is False


async def test_health_and_metadata(front: tuple[Running, aiohttp.ClientSession]) -> None:
    _, session = front
    for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/toy", "/v2/models/toy/ready"):
        async with session.get(path) as response:
            assert response.status == 200, path
    async with session.get("/v2/models/toy") as response:
        metadata = await response.json()
    assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, PIXELS]}]


@pytest.mark.parametrize(
    ("path", "sent", "status", "told"),
    [
        ("/v2/models/nobody/infer", body(), 404, "nobody"),
        ("/v2/models/toy/infer", {"inputs": []}, 400, "inputs"),
        ("/v2/models/toy/infer", body(parameters={"latency_ms": -1}), 400, "latency_ms"),
        ("/v2/models/toy/infer", body(padding="x" * 1_100_000), 413, "body"),
    ],
)
async def test_what_is_wrong_is_told_with_its_status(
    front: tuple[Running, aiohttp.ClientSession], path: str, sent: Any, status: int, told: str
) -> None:
    _, session = front
    sending = io.BytesIO(json.dumps(sent).encode())
    async with session.post(path, data=sending, headers={"Content-Type": "application/json"}) as response:
        assert response.status == status
        assert told in (await response.json())["error"]


async def _in_chunks(sent: bytes) -> AsyncIterator[bytes]:
    yield sent


@pytest.mark.parametrize("whole", [True, False])
async def test_who_sends_too_much_is_told_how_much_is_taken_and_which_setting_says_so(
    front: tuple[Running, aiohttp.ClientSession], whole: bool
) -> None:
    _, session = front
    sent = bytes(1_000_001)
    async with session.post("/v2/models/toy/infer", data=io.BytesIO(sent) if whole else _in_chunks(sent)) as response:
        assert response.status == 413
        assert "1000001 bytes; at most 1000000 (admission.max_body_bytes) are taken" in await response.text()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Content-Type": "application/json", "Origin": "https://example.org"}, 403),
        ({"Content-Type": "application/json", "Origin": "null"}, 403),
        ({"Content-Type": "application/json", "Host": "rebound.example.org"}, 403),
        ({"Content-Type": "application/json", "Host": "localhost:80"}, 200),
    ],
)
async def test_no_web_page_of_another_place_is_answered(
    front: tuple[Running, aiohttp.ClientSession], headers: dict[str, str], status: int
) -> None:
    _, session = front
    sending = json.dumps(body()).encode()
    async with session.post("/v2/models/toy/infer", data=sending, headers=headers) as response:
        assert response.status == status


async def test_the_page_of_the_same_origin_is_answered(front: tuple[Running, aiohttp.ClientSession]) -> None:
    _, session = front
    headers = {"Origin": str(session._base_url).rstrip("/")}
    async with session.post("/v2/models/toy/infer", json=body(), headers=headers) as response:
        assert response.status == 200


@pytest.mark.parametrize(
    "given",
    [
        "",
        "garbage",
        "\udcff\udcfe",
        "00-" + "0" * 32 + "-" + "1" * 16 + "-01",
        "ff-" + "1" * 32 + "-" + "1" * 16 + "-01",
    ],
)
async def test_a_malformed_traceparent_is_passed_over(front: tuple[Running, aiohttp.ClientSession], given: str) -> None:
    run, session = front
    headers = {"traceparent": given}
    async with session.post("/v2/models/toy/infer", json=body(), headers=headers) as response:
        assert response.status == 200
    topic = run.topics.queries("toy")
    records = [r for tp in await _partitions(run, topic) async for r in read_results(run.broker, [tp], follow=False)]
    assert all(name != "traceparent" for record in records for name, _ in record.headers)


async def test_what_a_request_brings_along_comes_back_with_its_result(
    front: tuple[Running, aiohttp.ClientSession],
) -> None:
    run, session = front
    wanted = {"TraceState": "vendor=1", "baggage": "tenant=7", "X-Request-Id": "r-1", "Correlation-Id": "c-2"}
    async with session.post("/v2/models/toy/infer", json=body(), headers={**wanted, "X-Else": "no"}) as response:
        assert response.status == 200
    topic = run.topics.results("toy")
    records = [r for tp in await _partitions(run, topic) async for r in read_results(run.broker, [tp], follow=False)]
    told = {name: held.decode() for name, held in records[0].headers}
    assert {name.lower(): held for name, held in wanted.items()}.items() <= told.items()
    assert "x-else" not in told


async def test_too_much_to_carry_along_is_refused(front: tuple[Running, aiohttp.ClientSession]) -> None:
    _, session = front
    given = dict.fromkeys(("tracestate", "baggage", "x-request-id"), "x" * 6000)
    async with session.post("/v2/models/toy/infer", json=body(), headers=given) as response:
        assert response.status == 400
        assert "headers: 18" in (await response.json())["error"]


@pytest.mark.parametrize("header", ["Authorization", "Inference-Header-Content-Length", "Host", "Origin"])
async def test_headers_that_are_no_text_are_refused_and_not_a_defect(
    front: tuple[Running, aiohttp.ClientSession], header: str
) -> None:
    _, session = front
    async with session.post("/v2/models/toy/infer", json=body(), headers={header: "\udcff"}) as response:
        assert response.status in (200, 400, 403)


async def _partitions(run: Running, topic: str) -> list[TopicPartition]:
    counts = await run.broker.admin().partitions([topic])
    return [TopicPartition(topic, number) for number in range(counts[topic])]


async def test_every_request_is_accounted_for(front: tuple[Running, aiohttp.ClientSession]) -> None:
    run, session = front
    for i in range(20):
        async with session.post("/v2/models/toy/infer", json=body() if i % 4 else {"inputs": 7}) as response:
            await response.read()
    report = await run.audit()
    assert report.queries == 20
    assert report.balanced


async def test_who_asks_while_all_stops_is_answered_or_refused_and_nothing_is_lost(
    front: tuple[Running, aiohttp.ClientSession],
) -> None:
    run, session = front
    told: Counter[int] = Counter()

    async def ask_until_it_is_gone() -> None:
        while True:
            try:
                async with session.post("/v2/models/toy/infer", json=body(parameters={"latency_ms": 9000})) as response:
                    told[response.status] += 1
            except aiohttp.ClientError:
                return
            if told[200] == 40:
                run.stop.set()

    await asyncio.gather(*(ask_until_it_is_gone() for _ in range(24)))
    await run.task
    report = await run.audit()
    assert report.balanced, report
    assert report.queries == told[200] >= 40


async def test_health_is_told_to_everybody_and_nothing_else_without_the_token(tmp_path: Path) -> None:
    settings = settings_for("memory://", tmp_path, http={"port": 0, "token": "open sesame"})
    async with running(settings, connect("memory://"), roles=(*ROLES, "http")) as run:
        http = next(stage for stage in run.stages if isinstance(stage, HttpStage))
        await http.bound.wait()
        async with aiohttp.ClientSession(http.address) as session:

            async def status(method: str, path: str) -> int:
                async with session.request(method, path, json=body() if method == "POST" else None) as response:
                    return response.status

            assert [await status("GET", f"/v2/health/{what}") for what in ("live", "ready")] == [200, 200]
            for path in ("/v2", "/v2/models/toy", "/v2/models/toy/ready", "/v2/health/ready/", "/v2/health"):
                assert await status("GET", path) == 401, path
            assert await status("POST", "/v2/models/toy/infer") == 401


async def test_an_outcome_of_another_app_or_source_is_not_taken_for_ones_own(
    front: tuple[Running, aiohttp.ClientSession],
) -> None:
    run, _ = front
    desk = next(stage for stage in run.stages if isinstance(stage, HttpStage))._desk
    came: list[codec.OutcomeMessage | FrontError] = []
    asked = desk.begin(toy_catalogue().apps["toy"], b"{}", None, (), "http", came.append)

    def told(app: str, source: str) -> Record:
        ended = Outcome(
            query_id=asked.id, app=app, source=source, kind=OutcomeKind.EXPIRED, arrival=1.0, deadline=2.0, at=3.0
        )
        message = codec.encode_outcome(ended, ())
        return Record(run.topics.results(app), 0, 0, message.key, message.value, message.headers, 3.0)

    for app, source in (("other", "/http"), ("toy", "/client"), ("toy", "")):
        desk._on_result(told(app, source))
        assert not came
    desk._on_result(told("toy", "/http"))
    desk._on_result(told("toy", "/http"))
    (message,) = came
    assert isinstance(message, codec.OutcomeMessage)
    assert message.outcome.source == "/http"
