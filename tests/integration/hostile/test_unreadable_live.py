"""Batches that a stage cannot read: each costs its own records, which have dead letters, in every stage that reads."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import aiokafka.codec
import pytest

from sluicegate.domain.outcome import OutcomeKind
from sluicegate.sluice.system import process
from sluicegate.stages.following.control_follower import Follower
from sluicegate.streams import connect
from sluicegate.streams.kafka import fetched_batches
from sluicegate.streams.memory.consumer import MemoryConsumer
from sluicegate.streams.ports import Record, Unreadable
from sluicegate.streams.records import codec
from tests.contract.damaged import write_batch
from tests.harness import PATIENCE_S, Running, running, settings_for, toy_catalogue

pytestmark = pytest.mark.virtual

PACKED = [b"one", b"two"]
WAYS = [
    pytest.param("memory", "at_least_once", id="memory"),
    pytest.param("kafka", "at_least_once", id="kafka", marks=[pytest.mark.kafka, pytest.mark.thorough]),
    pytest.param("kafka", "exactly_once", id="exactly-once", marks=pytest.mark.kafka),
]
"""Broker and delivery. The embedded one packs nothing: it is made to say what an unreadable record would be."""


@pytest.fixture
def without_zstd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody here can unpack zstd; writing it goes on, as by somebody else's program."""
    monkeypatch.setattr(aiokafka.codec, "has_zstd", lambda: not getattr(fetched_batches._unpacking, "ours", False))
    plain = MemoryConsumer.get_many

    async def get_many(self: MemoryConsumer, *, wait: float, max_records: int = 500) -> Sequence[Record]:
        found = await plain(self, wait=wait, max_records=max_records)
        return [
            Unreadable.at(*record[:3], record.timestamp, "no zstd here") if record.value in PACKED else record
            for record in found
        ]

    monkeypatch.setattr(MemoryConsumer, "get_many", get_many)


def told(letters: list[Record]) -> set[tuple[str, int, int]]:
    origins = {codec.dead_letter_origin(letter) for letter in letters}
    assert None not in origins and len(origins) == len(letters)
    for letter in letters:
        assert codec.dead_letter_reason(letter) == "unreadable"
        assert b"zstd" in dict(letter.headers)["__dlq.errors.message"]
    return {origin for origin in origins if origin is not None}


async def poison(run: Running, url: str, topic: str) -> set[tuple[str, int, int]]:
    """Two records that cannot be read at the end of ``topic``; returns their places."""
    if url.startswith("kafka"):
        at = await write_batch(url.removeprefix("kafka://"), topic, PACKED, compression="zstd")
    else:
        at = (await asyncio.gather(*[await run.producer.send(topic, value, key=value) for value in PACKED]))[0].offset
    run.sent += 2 if topic == run.topics.queries("toy") else 0
    return {(topic, 0, at), (topic, 0, at + 1)}


@pytest.mark.parametrize(("kind", "delivery"), WAYS)
@pytest.mark.usefixtures("without_zstd")
async def test_every_stage_goes_on_behind_what_it_cannot_read(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, delivery: str
) -> None:
    url = "memory://" if kind == "memory" else str(request.getfixturevalue("kafka_url"))
    settings = settings_for(url, tmp_path, partitions=1, devices=1, delivery=delivery)
    broker = connect(url)
    async with running(settings, broker, close=False) as run:
        await run.planned()
        topics = run.topics
        asked = [await run.ask("before", parameters={"latency_ms": 30_000})]
        read = [topics.queries("toy"), topics.admitted("toy"), topics.work("d0"), topics.results("toy")]
        places = set[tuple[str, int, int]]().union(*[await poison(run, url, topic) for topic in read])
        for topic in (topics.plan, topics.acks, topics.demand, topics.devices_metrics, topics.registry):
            await poison(run, url, topic)
        asked.append(await run.ask("behind", parameters={"latency_ms": 30_000}))
        await run.settled()
        async with asyncio.timeout(PATIENCE_S):
            while told(await run.dead_letters()) != places:
                await asyncio.sleep(0.1)
    async with running(settings, broker if kind == "memory" else connect(url)) as again:
        await again.planned()
        again.sent = run.sent
        asked.append(await again.ask("restarted", parameters={"latency_ms": 30_000}))
        report = await again.settled()
        outcomes = await again.outcomes()
        assert told(await again.dead_letters()) == places
    await broker.close()
    assert (report.queries, report.lost, report.duplicates, report.dead_letters) == (5, 0, 0, 2)
    ends = [(outcomes[name].kind, outcomes[name].reason) for name in asked]
    assert {kind for kind, _ in ends} == {OutcomeKind.ANSWERED}, ends


@pytest.mark.kafka
@pytest.mark.usefixtures("without_zstd")
async def test_what_is_read_without_a_group_has_a_dead_letter_once_a_process(kafka_url: str, tmp_path: Path) -> None:
    settings = settings_for(kafka_url, tmp_path, partitions=1, devices=1)
    stop = asyncio.Event()
    heard: list[bytes | None] = []
    async with process.system(settings, toy_catalogue(), Path(), tmp_path / "run") as built:
        run = Running(built, stop, asyncio.create_task(stop.wait()))  # type: ignore[arg-type]
        topic = built.topics.status
        places = await poison(run, kafka_url, topic)
        await (await built.producer.send(topic, b"behind", key=b"k"))
        followers = [Follower(built.broker, topic, lambda record: heard.append(record.value)) for _ in range(3)]
        following = asyncio.gather(*(follower.run(stop) for follower in followers))
        async with asyncio.timeout(PATIENCE_S):
            while len(heard) < 3 or told(await run.dead_letters()) != places:
                await asyncio.sleep(0.1)
        stop.set()
        await following
        await run.task
    assert heard == [b"behind"] * 3
