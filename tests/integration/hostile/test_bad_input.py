"""Whatever comes by a query topic has its outcome or its dead letter, and the partition goes on."""

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from sluicegate.domain.outcome import OutcomeKind
from sluicegate.sluice.audit.result_log import read_results
from sluicegate.streams import connect
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.records import codec
from tests.harness import PIXELS, Running, running, settings_for

pytestmark = pytest.mark.virtual


@pytest.fixture
async def system(broker_url: str, tmp_path: Path) -> AsyncIterator[Running]:
    settings = settings_for(broker_url, tmp_path, partitions=1)
    async with running(settings, connect(broker_url)) as run:
        await run.planned()
        yield run


def body(**changes: object) -> bytes:
    whole: dict[str, object] = {
        "inputs": [{"name": "image", "shape": [1, PIXELS], "datatype": "FP32", "data": [0.0] * PIXELS}],
        **changes,
    }
    return orjson.dumps(whole)


def tensor(**changes: object) -> list[dict[str, object]]:
    return [{"name": "image", "shape": [1, PIXELS], "datatype": "FP32", "data": [0.0] * PIXELS, **changes}]


def headers(query_id: str, app: str = "toy") -> tuple[tuple[str, bytes], ...]:
    return codec.query_headers(query_id, app=app, source="test", now=1.0)


REJECTED = {
    "not json": (b"{nonsense", "body"),
    "a list": (b"[1,2]", "body"),
    "no inputs": (b"{}", "inputs"),
    "wrong shape": (body(inputs=tensor(shape=[1, PIXELS + 1])), "inputs"),
    "wrong dtype": (body(inputs=tensor(datatype="INT8")), "inputs"),
    "unknown dtype": (body(inputs=tensor(datatype="FP31")), "inputs"),
    "ragged data": (body(inputs=tensor(data=[[1.0], [2.0, 3.0]])), "inputs"),
    "too many rows": (body(inputs=tensor(shape=[99, PIXELS], data=[0.0] * 99 * PIXELS)), "inputs"),
    "nan": (b'{"inputs":[{"name":"image","shape":[1,4],"datatype":"FP32","data":[NaN,0,0,0]}]}', "body"),
    "overflow to infinity": (body(inputs=tensor(data=[1e300, 0.0, 0.0, 0.0])), "inputs"),
    "negative latency": (body(parameters={"latency_ms": -5}), "latency_ms"),
    "absurd latency": (body(parameters={"latency_ms": 1e18}), "latency_ms"),
    "latency and timeout differ": (body(parameters={"latency_ms": 5, "timeout": 7}), "timeout"),
    "accuracy above one": (body(parameters={"accuracy": 1.5}), "accuracy"),
    "unknown class": (body(parameters={"class": "vip"}), "class"),
    "a parameter misspelt": (
        body(parameters={"latancy_ms": 5}),
        "parameters.latancy_ms: is unknown; did you mean latency_ms?",
    ),
    "a parameter of nobody's": (
        body(parameters={"binary_data_output": True, "zzz": 5}),
        "parameters.zzz: is unknown; known: latency_ms, ",
    ),
    "empty": (b"", "body"),
    "two megabytes": (body(padding="x" * 2_000_000), "body"),
}


async def test_every_kind_of_bad_query_is_rejected_and_good_ones_go_on(system: Running) -> None:
    for name, (value, _) in REJECTED.items():
        await system.send("toy", value, key=name.encode(), headers=headers(name))
    good = [await system.ask(parameters={"latency_ms": 5_000}) for _ in range(5)]
    report = await system.settled()
    assert (report.lost, report.duplicates, report.unknown) == (0, 0, 0)
    outcomes = await system.outcomes()
    for name, (_, field) in REJECTED.items():
        assert outcomes[name].kind is OutcomeKind.REJECTED, name
        assert field in (outcomes[name].detail or ""), name
    assert all(outcomes[query_id].kind is OutcomeKind.ANSWERED for query_id in good)


async def test_what_cannot_be_attributed_goes_to_the_dead_letters(system: Running) -> None:
    await system.send("toy", b"{nonsense")
    await system.send("toy", None, key=b"k")
    await system.send("toy", body(), headers=(("ce_id", b"\xff\xfe"),))
    good = await system.ask()
    report = await system.settled()
    letters = await system.dead_letters()
    assert len(letters) == 3
    assert report.dead_letters == 3
    assert all(any(name.startswith("__dlq.errors.") for name, _ in letter.headers) for letter in letters)
    assert (await system.outcomes())[good].kind is OutcomeKind.ANSWERED


async def test_a_second_record_with_an_id_seen_before_gets_a_dead_letter(system: Running) -> None:
    query_id = await system.ask()
    await system.settled()
    await system.ask(query_id)
    report = await system.settled()
    assert report.duplicate_ids == 1
    assert report.duplicates == 0
    assert report.outcomes == 1


async def test_a_deadline_in_the_past_is_rejected_with_its_reason(system: Running) -> None:
    query_id = await system.ask(expires=system.system.clock.wall() - 5.0)
    await system.settled()
    outcome = (await system.outcomes())[query_id]
    assert (outcome.kind, outcome.reason) == (OutcomeKind.REJECTED, "deadline_past")


async def test_memory_stays_bounded_under_a_flood_of_garbage(system: Running) -> None:
    for i in range(2000):
        await system.send("toy", struct.pack("<q", i) * 20)
        if i % 200 == 0:
            await asyncio.sleep(0)
    report = await system.settled()
    assert report.dead_letters == 2000
    assert report.lost == 0


async def test_poison_reaches_the_dead_letters_within_a_second_and_its_partition_goes_on(system: Running) -> None:
    for _ in range(5):
        await system.send("toy", b"\xff\x00 no record of ours")
        await asyncio.sleep(0.2)
    behind = await system.ask(parameters={"latency_ms": 5_000})
    report = await system.settled()
    assert (report.dead_letters, report.balanced) == (5, True)
    source = TopicPartition(system.topics.queries("toy"), 0)
    asked = {r.offset: r.timestamp async for r in read_results(system.broker, [source], follow=False)}
    took = []
    for letter in await system.dead_letters():
        origin = codec.dead_letter_origin(letter)
        assert origin is not None and origin[:2] == source
        took.append(letter.timestamp - asked[origin[2]])
    assert min(took) < 1.0  # the others say as much of this machine as of the door
    assert (await system.outcomes())[behind].kind is OutcomeKind.ANSWERED
