"""Who follows a control topic, or results, outlasts a broker that is away, and any record."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.stages.following import control_follower, results_reader, topic_reader
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.following.results_reader import ResultsReader
from sluicegate.stages.following.skipped_records import Skipping
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.memory.consumer import MemoryConsumer
from sluicegate.streams.ports import BrokerError, Record, TopicPartition, TopicSpec
from sluicegate.streams.topics import Topics

pytestmark = pytest.mark.virtual


def failing_first(method: Callable[..., Awaitable[Any]], times: int) -> Callable[..., Awaitable[Any]]:
    left = [times]

    async def called(*args: Any, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise BrokerError("away")
        return await method(*args, **options)

    return called


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> MemoryBroker:
    for module in (control_follower, topic_reader):
        monkeypatch.setattr(module, "_RETRY", 0.01)
    made = MemoryBroker()
    await made.admin().create_topics([TopicSpec(name="plan")])
    return made


async def told(broker: MemoryBroker, *values: bytes, topic: str = "plan") -> None:
    producer = broker.producer()
    await producer.start()
    for value in values:
        await (await producer.send(topic, value))
    await producer.stop()


@pytest.mark.parametrize("what", ["end_offsets", "position"])
async def test_catching_up_waits_for_a_broker_that_is_away(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    seen: list[Record] = []
    follower = Follower(broker, "plan", seen.append)
    following = asyncio.create_task(follower.run(asyncio.Event()))
    await follower.ready.wait()
    await told(broker, b"1", b"2")
    monkeypatch.setattr(MemoryConsumer, what, failing_first(getattr(MemoryConsumer, what), 2))
    async with asyncio.timeout(5.0):
        await follower.catch_up()
    assert [record.value for record in seen] == [b"1", b"2"]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


@pytest.mark.parametrize("what", ["stop", "start"])
async def test_catching_up_waits_while_a_reader_that_hangs_is_replaced(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Between the two, the old one has been stopped, or is being, and the new one has not started."""
    seen: list[Record] = []
    follower = Follower(broker, "plan", seen.append)
    stop, between, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
    following = asyncio.create_task(follower.run(stop))
    await follower.ready.wait()
    method, hangs, stopped = getattr(MemoryConsumer, what), [True], MemoryConsumer.get_many

    async def slowly(self: MemoryConsumer) -> None:
        await method(self)
        between.set()
        await go_on.wait()

    async def hanging(*args: Any, **options: Any) -> Any:
        if hangs.pop():
            await asyncio.Event().wait()
        return await stopped(*args, **options)

    await told(broker, b"1")
    monkeypatch.setattr(MemoryConsumer, what, slowly)
    monkeypatch.setattr(MemoryConsumer, "get_many", hanging)
    async with asyncio.timeout(30.0):
        await between.wait()
        monkeypatch.setattr(MemoryConsumer, "get_many", stopped)
        catching_up = asyncio.create_task(follower.catch_up())
        await asyncio.sleep(1.0)
        assert not catching_up.done()
        go_on.set()
        await catching_up
        assert [record.value for record in seen] == [b"1"]
        stop.set()
        await following
        with pytest.raises(BrokerError, match="plan is followed no more"):
            await follower.catch_up()


async def test_caught_up_is_who_has_handled_what_came_not_whose_client_has_it(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client moves its position as it takes records up, and gives them later."""
    seen: list[Record] = []
    follower = Follower(broker, "plan", seen.append)
    following = asyncio.create_task(follower.run(asyncio.Event()))
    await follower.ready.wait()
    get_many = MemoryConsumer.get_many

    asked = asyncio.Event()

    async def slowly(*args: Any, **options: Any) -> Any:
        asked.set()
        records = await get_many(*args, **options)
        await asyncio.sleep(0.05 if records else 0.0)
        return records

    monkeypatch.setattr(MemoryConsumer, "get_many", slowly)
    await asked.wait()
    await told(broker, b"1")
    async with asyncio.timeout(5.0):
        await follower.catch_up()
    assert [record.value for record in seen] == [b"1"]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_reading_goes_on_once_the_broker_is_back(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Record] = []
    follower = Follower(broker, "plan", seen.append)
    following = asyncio.create_task(follower.run(asyncio.Event()))
    await follower.ready.wait()
    monkeypatch.setattr(MemoryConsumer, "get_many", failing_first(MemoryConsumer.get_many, 2))
    await told(broker, b"1")
    async with asyncio.timeout(5.0):
        while not seen:
            await asyncio.sleep(0.01)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_results_are_read_on_once_the_broker_is_back(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_reader, "_RETRY", 0.01)
    topics = Topics("sluice")
    await broker.admin().create_topics([TopicSpec(name=topics.results("toy"))])
    seen: list[Record] = []
    reader = ResultsReader(broker, topics, seen.append)
    monkeypatch.setattr(MemoryConsumer, "get_many", failing_first(MemoryConsumer.get_many, 2))
    await reader.add(["toy"])
    await told(broker, b"1", topic=topics.results("toy"))
    async with asyncio.timeout(5.0):
        while not seen:
            await asyncio.sleep(0.01)
    await reader.close()


@pytest.mark.parametrize("what", ["start", "position"])
async def test_a_broker_that_is_away_when_results_are_first_read_is_waited_for(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(results_reader, "_RETRY", 0.01)
    topics = Topics("sluice")
    await broker.admin().create_topics([TopicSpec(name=topics.results("toy"), partitions=2)])
    seen: list[Record] = []
    stopped = []
    reader = ResultsReader(broker, topics, seen.append)
    stop = MemoryConsumer.stop

    async def noted(self: MemoryConsumer) -> None:
        stopped.append(self)
        await stop(self)

    monkeypatch.setattr(MemoryConsumer, what, failing_first(getattr(MemoryConsumer, what), 2))
    monkeypatch.setattr(MemoryConsumer, "stop", noted)
    await reader.add(["toy"])
    assert reader.ready
    assert len(stopped) == 2
    await told(broker, b"1", topic=topics.results("toy"))
    async with asyncio.timeout(5.0):
        while not seen:
            await asyncio.sleep(0.01)
    await reader.close()
    assert [record.value for record in seen] == [b"1"]


async def test_results_whose_topic_comes_later_are_read_and_the_others_before(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_reader, "_RETRY", 0.01)
    topics = Topics("sluice")
    await broker.admin().create_topics([TopicSpec(name=topics.results("toy"))])
    seen: list[bytes | None] = []
    reader = ResultsReader(broker, topics, lambda record: seen.append(record.value))
    adding = asyncio.create_task(reader.add(["toy", "late"]))
    await asyncio.sleep(1.0)
    await told(broker, b"1", topic=topics.results("toy"))
    await asyncio.sleep(1.0)
    assert (seen, adding.done(), reader.ready) == ([b"1"], False, False)
    await broker.admin().create_topics([TopicSpec(name=topics.results("late"))])
    async with asyncio.timeout(5.0):
        await adding
    assert reader.ready
    await told(broker, b"2", topic=topics.results("late"))
    await asyncio.sleep(1.0)
    assert seen == [b"1", b"2"]
    await reader.close()


async def test_results_of_apps_that_are_served_no_more_are_read_no_more_until_they_are_again(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = Topics("sluice")
    await broker.admin().create_topics([TopicSpec(name=topics.results(app)) for app in ("a", "b", "c")])
    seen: list[bytes | None] = []
    reader = ResultsReader(broker, topics, lambda record: seen.append(record.value))
    await reader.add(["a", "b"])
    await reader.add(["a", "b", "c"])

    async def written(value: bytes, *apps: str) -> list[bytes | None]:
        seen.clear()
        for app in apps:
            await told(broker, app.encode() + value, topic=topics.results(app))
        await asyncio.sleep(1.0)
        return sorted(seen, key=str)

    assert await written(b"1", "a", "b", "c") == [b"a1", b"b1", b"c1"]
    reader.keep(["b"])
    assert await written(b"2", "a", "b", "c") == [b"b2"]
    assert len(reader._tasks) == 1, "who read nothing else has ended"
    broken = breaks_by("stands", monkeypatch)
    await asyncio.sleep(0.5)
    assert broken, "another reads on"
    await written(b"3", "a", "b", "c")
    await asyncio.sleep(5.0)
    assert seen == [b"b3"]
    await reader.add(["a", "b"])
    assert await written(b"4", "a", "b", "c") == [b"a4", b"b4"]
    assert reader.ready
    reader.keep([])
    await asyncio.sleep(1.0)
    assert not reader._tasks and reader.ready
    await reader.close()


def fragile(seen: list[bytes | None]) -> Callable[[Record], None]:
    def take(record: Record) -> None:
        if record.value == b"odd":
            raise OverflowError("int too large to convert to float")
        seen.append(record.value)

    return take


async def test_a_record_at_which_its_reader_fails_is_skipped_alone(
    broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes | None] = []
    follower = Follower(broker, "plan", fragile(seen))
    await told(broker, b"odd", b"1")
    following = asyncio.create_task(follower.run(asyncio.Event()))
    await follower.ready.wait()
    await told(broker, b"odd", b"2")
    async with asyncio.timeout(5.0):
        await follower.catch_up()
    assert seen == [b"1", b"2"]
    assert not following.done()
    assert "plan offset 0 skipped: OverflowError: int too large" in caplog.text
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_a_result_at_which_its_reader_fails_is_skipped_alone(broker: MemoryBroker) -> None:
    topics = Topics("sluice")
    await broker.admin().create_topics([TopicSpec(name=topics.results("toy"))])
    seen: list[bytes | None] = []
    reader = ResultsReader(broker, topics, fragile(seen))
    await reader.add(["toy"])
    await told(broker, b"odd", b"1", topic=topics.results("toy"))
    async with asyncio.timeout(5.0):
        while not seen:
            await asyncio.sleep(0.01)
    await reader.close()


def test_a_flood_of_records_that_are_skipped_is_a_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    skipping = Skipping(logging.getLogger("flood"), lambda: now[0])
    for offset in range(30):
        skipping.skipped(Record("t", 0, offset, None, b"", (), 0.0), InvalidInputError("term", "is too large"))
    now[0] += 1.0
    skipping.skipped(Record("t", 0, 30, None, b"", (), 0.0), InvalidInputError("term", "is too large"))
    assert [r.getMessage() for r in caplog.records] == [
        "t offset 0 skipped: term: is too large",
        "t offset 30 skipped: term: is too large (29 more since the last such line)",
    ]


@pytest.mark.parametrize("what", ["start", "end_offsets"])
async def test_a_broker_that_is_away_when_following_begins_is_waited_for(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    seen: list[Record] = []
    await told(broker, b"1", b"2")
    monkeypatch.setattr(MemoryConsumer, what, failing_first(getattr(MemoryConsumer, what), 2))
    follower = Follower(broker, "plan", seen.append)
    following = asyncio.create_task(follower.run(asyncio.Event()))
    async with asyncio.timeout(5.0):
        await follower.catch_up()
    assert [record.value for record in seen] == [b"1", b"2"]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_a_reader_of_results_outlasts_whatever_a_client_raises_and_is_not_ready_meanwhile() -> None:
    broker = MemoryBroker()
    topics = Topics("t")
    await broker.admin().create_topics(topics.specs(["a"]))
    producer = broker.producer()
    await producer.start()
    read: list[bytes | None] = []
    reader = ResultsReader(broker, topics, lambda record: read.append(record.value))
    assert not reader.ready
    await reader.add(["a"])
    assert reader.ready
    plain, broken = MemoryConsumer.get_many, [True]

    async def breaking(self: MemoryConsumer, *, wait: float, max_records: int = 500) -> Sequence[Record]:
        if broken[0]:
            raise RuntimeError("a client's own defect")
        return await plain(self, wait=wait, max_records=max_records)

    MemoryConsumer.get_many = breaking  # type: ignore[method-assign]
    try:
        async with asyncio.timeout(10.0):
            while reader.ready:
                await asyncio.sleep(0.01)
        await (await producer.send(topics.results("a"), b"an outcome", key=b"q"))
        broken[0] = False
        async with asyncio.timeout(10.0):
            while not read:
                await asyncio.sleep(0.01)
        assert reader.ready
    finally:
        MemoryConsumer.get_many = plain  # type: ignore[method-assign]
        await reader.close()
    assert read == [b"an outcome"]


def breaks_by(fault: str, monkeypatch: pytest.MonkeyPatch) -> list[MemoryConsumer]:
    """The first client that is asked from now on, once it is."""
    get_many, position, stop = MemoryConsumer.get_many, MemoryConsumer.position, MemoryConsumer.stop
    broken: list[MemoryConsumer] = []

    async def faulty(self: MemoryConsumer, **options: Any) -> Sequence[Record]:
        if not broken:
            broken.append(self)
        if self is not broken[0]:
            return await get_many(self, **options)
        if fault == "raises":
            raise RuntimeError("a defect of the client")
        if fault == "does not say where it is":
            return []
        await asyncio.Event().wait()
        raise AssertionError

    async def lost(self: MemoryConsumer, partition: TopicPartition) -> int:
        if fault == "does not say where it is" and self in broken:
            await asyncio.Event().wait()
        return await position(self, partition)

    async def stays(self: MemoryConsumer) -> None:
        if fault == "stands and does not stop" and self in broken:
            await asyncio.Event().wait()
        await stop(self)

    monkeypatch.setattr(MemoryConsumer, "position", lost)
    monkeypatch.setattr(MemoryConsumer, "stop", stays)
    monkeypatch.setattr(MemoryConsumer, "get_many", faulty)
    return broken


@pytest.mark.parametrize("fault", ["raises", "stands", "does not say where it is", "stands and does not stop"])
async def test_a_reader_whose_client_fails_is_replaced_within_three_seconds_by_one_that_reads_on(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, fault: str, measured: Callable[[str, str], None]
) -> None:
    seen: list[bytes | None] = []
    follower = Follower(broker, "plan", lambda record: seen.append(record.value), start_at="end")
    following = asyncio.create_task(follower.run(asyncio.Event()))
    await follower.ready.wait()
    await told(broker, b"1", b"2")
    while len(seen) < 2:
        await asyncio.sleep(0.01)
    broken = breaks_by(fault, monkeypatch)
    while not broken:
        await asyncio.sleep(0.01)
    await told(broker, b"3")
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(5.0):
        while len(seen) < 3:
            await asyncio.sleep(0.01)
        await follower.catch_up()
    took = asyncio.get_running_loop().time() - began
    measured(f"the client of a reader {fault}", f"another has read on after {took:.2f} s")
    assert took <= 3.0
    assert seen == [b"1", b"2", b"3"]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_a_reader_of_results_whose_client_stands_is_replaced_by_one_that_reads_on(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch, measured: Callable[[str, str], None]
) -> None:
    topics = Topics("sluice")
    await broker.admin().create_topics([TopicSpec(name=topics.results("toy"), partitions=2)])
    await told(broker, b"before", topic=topics.results("toy"))
    seen: list[bytes | None] = []
    reader = ResultsReader(broker, topics, lambda record: seen.append(record.value))
    await reader.add(["toy"])
    await told(broker, b"1", b"2", topic=topics.results("toy"))
    while len(seen) < 2:
        await asyncio.sleep(0.01)
    get_many, broken = MemoryConsumer.get_many, []

    async def standing(self: MemoryConsumer, **options: Any) -> Sequence[Record]:
        if not broken:
            broken.append(self)
        if self is not broken[0]:
            return await get_many(self, **options)
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(MemoryConsumer, "get_many", standing)
    while not broken:
        await asyncio.sleep(0.01)
    await told(broker, b"3", topic=topics.results("toy"))
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(5.0):
        while len(seen) < 3:
            await asyncio.sleep(0.01)
    took = asyncio.get_running_loop().time() - began
    measured("the client of a reader of results stands", f"another has read on after {took:.2f} s")
    assert took <= 3.0
    assert sorted(seen) == [b"1", b"2", b"3"]
    await asyncio.sleep(0.3)
    assert reader.ready
    await reader.close()
