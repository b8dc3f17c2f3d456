"""One suite for every broker: what the ports promise, on memory and on Apache Kafka."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, web

from domain.errors import ConfigurationError, InvalidInputError
from streams import connect, remote
from streams.ports import Broker, Consumer, LostPartitionError, Producer, Record, TopicPartition, TopicSpec
from streams.settings import KafkaSettings, MemorySettings, RemoteSettings

_numbers = itertools.count()


KAFKA = pytest.param("kafka", marks=pytest.mark.kafka)


@pytest.fixture(params=["memory", "remote", KAFKA])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    """A broker that is closed afterwards, leaving no task behind."""
    async with _open(request) as made:
        yield made


@pytest.fixture(params=["memory", KAFKA])
async def grouping(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    """A broker that has groups."""
    async with _open(request) as made:
        yield made


@asynccontextmanager
async def _open(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    match request.param:
        case "memory":
            made = connect("memory://", memory=MemorySettings(session_timeout=3.0))
            yield made
        case "kafka":
            made = connect(request.getfixturevalue("kafka_url"), kafka=KafkaSettings(session_timeout=3.0))
            yield made
        case _:
            behind = connect("memory://")
            async with serve(behind) as url:
                made = connect(url)
                yield made
                await made.close()
            made = behind
    await made.close()
    await asyncio.sleep(0)
    assert not asyncio.all_tasks() - {asyncio.current_task()}


@asynccontextmanager
async def serve(broker: Broker, token: str | None = None) -> AsyncIterator[str]:
    """The URL of a memory log that is served as ``sluice up`` does."""
    application = web.Application(client_max_size=64 << 20)
    application.add_routes(remote.routes(broker, token=token))
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"memory+http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def new_topic(broker: Broker, partitions: int = 1, **more: object) -> str:
    """A topic of its own for a test."""
    name = f"conformance.{time.time_ns()}.{next(_numbers)}"
    await broker.admin().create_topics([TopicSpec(name=name, partitions=partitions, **more)])  # type: ignore[arg-type]
    return name


async def started(broker: Broker) -> Producer:
    """A producer ready to send."""
    producer = broker.producer()
    await producer.start()
    return producer


async def write(producer: Producer, topic: str, values: Sequence[bytes], **more: object) -> None:
    """Write values and wait for all acknowledgements."""
    await asyncio.gather(*[await producer.send(topic, value, **more) for value in values])  # type: ignore[arg-type]


async def read(consumer: Consumer, count: int, within: float = 10.0) -> list[Record]:
    """At least ``count`` records."""
    records: list[Record] = []
    async with asyncio.timeout(within):
        while len(records) < count:
            records += await consumer.get_many(wait=0.5)
    return records


async def eventually(condition: Callable[[], Awaitable[bool]], within: float = 15.0) -> None:
    """Wait until ``condition`` holds."""
    async with asyncio.timeout(within):
        while not await condition():
            await asyncio.sleep(0.05)


async def test_what_is_written_is_read_back_in_order_with_key_headers_and_timestamp(broker: Broker) -> None:
    topic = await new_topic(broker)
    producer = await started(broker)
    headers = (("ce_id", b"1"), ("ce_id", b"2"), ("empty", b""))
    first = await (await producer.send(topic, b"a", key=b"k", headers=headers, timestamp=1234.5678))
    second = await (await producer.send(topic, None, key=b"k"))
    third = await (await producer.send(topic, b""))
    assert [first.offset, second.offset, third.offset] == [0, 1, 2]
    assert first.topic == topic and first.partition == 0
    consumer = broker.consumer(partitions=[TopicPartition(topic, 0)])
    await consumer.start()
    records = await read(consumer, 3)
    assert records[0] == Record(topic, 0, 0, b"k", b"a", headers, 1234.568)
    assert [(r.key, r.value) for r in records[1:]] == [(b"k", None), (None, b"")]
    assert abs(records[1].timestamp - time.time()) < 60


async def test_offsets_are_dense_per_partition_and_order_is_kept(broker: Broker) -> None:
    topic = await new_topic(broker, 3)
    producer = await started(broker)
    sent = [await producer.send(topic, str(i).encode(), partition=i % 3) for i in range(300)]
    written = await asyncio.gather(*sent)
    consumer = broker.consumer(partitions=[TopicPartition(topic, p) for p in range(3)])
    await consumer.start()
    records = await read(consumer, 300)
    for partition in range(3):
        mine = [r for r in records if r.partition == partition]
        assert [r.offset for r in mine] == list(range(100))
        assert [int(r.value or b"") for r in mine] == list(range(partition, 300, 3))
    assert {(w.partition, w.offset) for w in written} == {(r.partition, r.offset) for r in records}


async def test_a_key_goes_to_the_partition_of_its_murmur2_hash_on_every_broker(broker: Broker) -> None:
    topic = await new_topic(broker, 7)
    producer = await started(broker)
    keys = [b"", b"a", b"query-1", b"query-22", b"query-333", bytes(range(256))]
    written = [await (await producer.send(topic, b"x", key=key)) for key in keys]
    assert [w.partition for w in written] == [2, 5, 3, 2, 5, 3]


async def test_get_many_waits_for_the_first_record_and_no_longer(broker: Broker) -> None:
    topic = await new_topic(broker)
    producer = await started(broker)
    consumer = broker.consumer(partitions=[TopicPartition(topic, 0)])
    await consumer.start()
    began = time.monotonic()
    assert list(await consumer.get_many(wait=0.3)) == []
    assert 0.25 < time.monotonic() - began < 2.0
    reading = asyncio.create_task(read(consumer, 1))
    await asyncio.sleep(0.1)
    await producer.send(topic, b"wake")
    assert [r.value for r in await reading] == [b"wake"]


async def test_get_many_gives_no_more_than_asked_for(broker: Broker) -> None:
    topic = await new_topic(broker)
    await write(await started(broker), topic, [b"x"] * 50)
    consumer = broker.consumer(partitions=[TopicPartition(topic, 0)])
    await consumer.start()
    offsets: list[int] = []
    while len(offsets) < 50:
        records = await consumer.get_many(wait=1.0, max_records=7)
        assert len(records) <= 7
        offsets += [r.offset for r in records]
    assert offsets == list(range(50))


async def test_committed_offsets_are_where_the_group_goes_on(grouping: Broker) -> None:
    topic = await new_topic(grouping)
    tp = TopicPartition(topic, 0)
    await write(await started(grouping), topic, [b"x"] * 10)
    first = grouping.consumer(partitions=[tp], group=f"{topic}.g")
    await first.start()
    assert await first.committed(tp) is None
    await read(first, 10)
    await first.commit({tp: 4})
    await first.stop()
    assert await grouping.admin().committed(f"{topic}.g", tp) == 4
    assert await grouping.admin().committed(f"{topic}.other", tp) is None
    second = grouping.consumer(partitions=[tp], group=f"{topic}.g")
    await second.start()
    assert await second.position(tp) == 4
    assert [r.offset for r in await read(second, 6)] == list(range(4, 10))
    other = grouping.consumer(partitions=[tp], group=f"{topic}.other")
    await other.start()
    assert await other.position(tp) == 0


async def test_start_at_beginning_or_end_ignores_what_was_committed(grouping: Broker) -> None:
    topic = await new_topic(grouping)
    tp = TopicPartition(topic, 0)
    producer = await started(grouping)
    await write(producer, topic, [b"old"] * 5)
    committer = grouping.consumer(partitions=[tp], group=f"{topic}.g")
    await committer.start()
    await committer.commit({tp: 3})
    beginning = grouping.consumer(partitions=[tp], group=f"{topic}.g", start_at="beginning")
    await beginning.start()
    assert await beginning.position(tp) == 0
    end = grouping.consumer(partitions=[tp], group=f"{topic}.g", start_at="end")
    await end.start()
    await write(producer, topic, [b"new"])
    assert [r.value for r in await read(end, 1)] == [b"new"]


async def test_stopping_commits_nothing(grouping: Broker) -> None:
    topic = await new_topic(grouping)
    tp = TopicPartition(topic, 0)
    await write(await started(grouping), topic, [b"x"] * 3)
    consumer = grouping.consumer(partitions=[tp], group=f"{topic}.g")
    await consumer.start()
    await read(consumer, 3)
    await consumer.stop()
    assert await grouping.admin().committed(f"{topic}.g", tp) is None


async def test_seek_moves_the_position_both_ways(broker: Broker) -> None:
    topic = await new_topic(broker)
    tp = TopicPartition(topic, 0)
    await write(await started(broker), topic, [b"x"] * 20)
    consumer = broker.consumer(partitions=[tp])
    await consumer.start()
    await read(consumer, 20)
    await consumer.seek(tp, 17)
    assert await consumer.position(tp) == 17
    assert [r.offset for r in await read(consumer, 3)] == [17, 18, 19]
    await consumer.seek(tp, 2)
    assert (await read(consumer, 1))[0].offset == 2


async def test_paused_partitions_give_nothing_until_resumed(broker: Broker) -> None:
    topic = await new_topic(broker, 2)
    held, open_ = TopicPartition(topic, 0), TopicPartition(topic, 1)
    producer = await started(broker)
    consumer = broker.consumer(partitions=[held, open_])
    await consumer.start()
    consumer.pause([held])
    await write(producer, topic, [b"held"], partition=0)
    await write(producer, topic, [b"open"], partition=1)
    assert [r.value for r in await read(consumer, 1)] == [b"open"]
    assert list(await consumer.get_many(wait=0.3)) == []
    assert consumer.assignment() == {held, open_}
    consumer.resume([held])
    assert [r.value for r in await read(consumer, 1)] == [b"held"]


async def test_beginning_and_end_offsets_tell_what_is_kept(broker: Broker) -> None:
    topic = await new_topic(broker, 2)
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    await write(await started(broker), topic, [b"x"] * 4, partition=1)
    consumer = broker.consumer(partitions=both)
    await consumer.start()
    assert await consumer.beginning_offsets(both) == {both[0]: 0, both[1]: 0}
    assert await consumer.end_offsets(both) == {both[0]: 0, both[1]: 4}


async def test_offsets_of_partitions_that_are_not_read_can_be_asked_too(broker: Broker) -> None:
    mine, other = await new_topic(broker), await new_topic(broker)
    await write(await started(broker), other, [b"x"] * 2)
    consumer = broker.consumer(partitions=[TopicPartition(mine, 0)])
    await consumer.start()
    tp = TopicPartition(other, 0)
    assert await consumer.end_offsets([tp]) == {tp: 2}
    with pytest.raises(ConfigurationError, match="no partition 5"):
        await consumer.end_offsets([TopicPartition(other, 5)])


async def test_offsets_for_times_finds_the_first_record_at_or_after(broker: Broker) -> None:
    topic = await new_topic(broker)
    tp = TopicPartition(topic, 0)
    producer = await started(broker)
    for i in range(5):
        await (await producer.send(topic, b"x", timestamp=1000.0 + i))
    consumer = broker.consumer(partitions=[tp])
    await consumer.start()
    for asked, expected in ((0.0, 0), (1002.0, 2), (1002.0005, 3), (1002.5, 3), (1004.0, 4), (1004.001, None)):
        assert await consumer.offsets_for_times({tp: asked}) == {tp: expected}, asked


async def test_a_group_shares_partitions_and_each_record_goes_to_one_member(grouping: Broker) -> None:
    topic = await new_topic(grouping, 4)
    producer = await started(grouping)
    group = f"{topic}.g"
    members = [grouping.consumer(topics=[topic], group=group) for _ in range(2)]
    for member in members:
        await member.start()
    whole = {TopicPartition(topic, p) for p in range(4)}

    async def shared() -> bool:
        for member in members:
            await member.get_many(wait=0.0)
        held = [member.assignment() for member in members]
        return len(held[0]) == len(held[1]) == 2 and held[0] | held[1] == whole

    await eventually(shared)
    for partition in range(4):
        await write(producer, topic, [b"x"] * 5, partition=partition)
    records = await asyncio.gather(*(read(member, 10) for member in members))
    places = [(r.partition, r.offset) for part in records for r in part]
    assert len(places) == len(set(places)) == 20


class Told:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.log: list[tuple[str, frozenset[TopicPartition]]] = []
        self.consumer: Consumer | None = None
        self.commits: dict[TopicPartition, int] = {}

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Commit what was read, as a stage does."""
        self.log.append(("revoked", partitions))
        assert self.consumer is not None
        assert self.consumer.assignment() == partitions
        await self.consumer.commit({tp: at for tp, at in self.commits.items() if tp in partitions})

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Remember."""
        self.log.append(("assigned", partitions))


async def test_a_rebalance_tells_the_listener_who_may_still_commit(grouping: Broker) -> None:
    topic = await new_topic(grouping, 2)
    whole = frozenset({TopicPartition(topic, 0), TopicPartition(topic, 1)})
    producer = await started(grouping)
    for partition in (0, 1):
        await write(producer, topic, [b"x"] * 5, partition=partition)
    told = Told()
    first = grouping.consumer(topics=[topic], group=f"{topic}.g", listener=told)
    told.consumer = first
    await first.start()
    assert told.log == [("assigned", whole)]
    for record in await read(first, 10):
        told.commits[TopicPartition(record.topic, record.partition)] = record.offset + 1
    second = grouping.consumer(topics=[topic], group=f"{topic}.g")
    await second.start()

    async def split() -> bool:
        assert not await first.get_many(wait=0.0) and not await second.get_many(wait=0.0)
        return len(first.assignment()) == len(second.assignment()) == 1

    await eventually(split)
    assert ("revoked", whole) in told.log
    assert told.log[-1] == ("assigned", first.assignment())
    (gone,) = second.assignment()
    assert await second.position(gone) == 5
    with pytest.raises(LostPartitionError):
        await first.commit({gone: 5})
    with pytest.raises(LostPartitionError):
        await first.seek(gone, 0)
    await second.stop()

    async def whole_again() -> bool:
        await first.get_many(wait=0.0)
        return first.assignment() == whole

    await eventually(whole_again)


async def test_a_member_that_changes_its_topics_commits_before_and_goes_on_from_there(grouping: Broker) -> None:
    old, added = await new_topic(grouping, 2), await new_topic(grouping)
    producer = await started(grouping)
    await write(producer, old, [b"x"] * 5, partition=0)
    told = Told()
    told.consumer = member = grouping.consumer(topics=[old], group=f"{old}.g", listener=told)
    await member.start()
    for record in await read(member, 5):
        told.commits[TopicPartition(record.topic, record.partition)] = record.offset + 1
    reading = asyncio.create_task(read(member, 6, within=20.0))  # goes on while the topics change
    await member.subscribe([old, added])
    assert member.assignment() == {TopicPartition(old, 0), TopicPartition(old, 1), TopicPartition(added, 0)}
    await write(producer, added, [b"new"] * 3, partition=0)
    await write(producer, old, [b"more"] * 3, partition=0)
    assert sorted(r.value or b"" for r in await reading) == [b"more"] * 3 + [b"new"] * 3
    assert [what for what, _ in told.log] == ["assigned", "revoked", "assigned"]
    with pytest.raises(ConfigurationError, match="does not exist"):
        await member.subscribe([f"{old}.none"])
    alone = grouping.consumer(partitions=[TopicPartition(old, 0)])
    await alone.start()
    with pytest.raises(ConfigurationError, match="member of a group"):
        await alone.subscribe([old])


async def test_what_a_listener_raises_is_raised_by_the_next_read(grouping: Broker) -> None:
    class Faulty(Told):
        async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            raise ValueError("the listener failed")

    topic = await new_topic(grouping)
    consumer = grouping.consumer(topics=[topic], group=f"{topic}.g", listener=Faulty())
    with pytest.raises(ValueError, match="the listener failed"):
        await consumer.start()
        await consumer.get_many(wait=0.1)


async def test_what_comes_while_partitions_are_taken_up_is_read(grouping: Broker) -> None:
    taking, go = asyncio.Event(), asyncio.Event()

    class Slow(Told):
        async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            await super().on_assigned(partitions)
            if len(partitions) == 1:
                taking.set()
                await go.wait()

    topic = await new_topic(grouping, 2)
    told = Slow()
    first = grouping.consumer(topics=[topic], group=f"{topic}.g", listener=told)
    told.consumer = first
    second = grouping.consumer(topics=[topic], group=f"{topic}.g")
    producer = await started(grouping)
    await first.start()
    seen: set[bytes] = set()

    async def take(consumer: Consumer) -> None:
        while True:  # a fetch is under way whenever partitions change hands
            seen.update(r.value or b"" for r in await consumer.get_many(wait=5.0))

    reading = [asyncio.create_task(take(first))]
    joining = asyncio.create_task(second.start())
    async with asyncio.timeout(20.0):
        await taking.wait()
    for partition in (0, 1):
        await write(producer, topic, [b"%d-%d" % (partition, i) for i in range(10)], partition=partition)
    await asyncio.sleep(0.5)
    go.set()
    await joining
    reading.append(asyncio.create_task(take(second)))

    async def all_seen() -> bool:
        return len(seen) == 20

    try:
        await eventually(all_seen)
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def test_a_static_member_finds_its_partitions_as_it_left_them(grouping: Broker) -> None:
    topic = await new_topic(grouping, 2)
    group = f"{topic}.g"
    told = Told()
    stays = grouping.consumer(topics=[topic], group=group, member="stays", listener=told)
    told.consumer = stays
    leaves = grouping.consumer(topics=[topic], group=group, member="leaves")
    await stays.start()
    await leaves.start()

    async def split() -> bool:
        await stays.get_many(wait=0.0)
        return len(stays.assignment()) == len(leaves.assignment()) == 1

    await eventually(split)
    held, events = leaves.assignment(), len(told.log)
    await leaves.stop()
    back = grouping.consumer(topics=[topic], group=group, member="leaves")
    await back.start()
    assert back.assignment() == held
    await stays.get_many(wait=0.2)
    assert len(told.log) == events


async def test_a_static_member_that_stays_away_is_replaced_after_the_session_timeout(grouping: Broker) -> None:
    topic = await new_topic(grouping, 2)
    group = f"{topic}.g"
    stays = grouping.consumer(topics=[topic], group=group, member="stays")
    leaves = grouping.consumer(topics=[topic], group=group, member="leaves")
    await stays.start()
    await leaves.start()
    await leaves.stop()

    async def alone() -> bool:
        await stays.get_many(wait=0.0)
        return len(stays.assignment()) == 2

    await eventually(alone)


async def test_more_members_than_partitions_leaves_some_without(grouping: Broker) -> None:
    topic = await new_topic(grouping, 1)
    members = [grouping.consumer(topics=[topic], group=f"{topic}.g") for _ in range(2)]
    for member in members:
        await member.start()

    async def one_holds() -> bool:
        for member in members:
            await member.get_many(wait=0.0)
        return sorted(len(member.assignment()) for member in members) == [0, 1]

    await eventually(one_holds)


async def test_one_member_of_an_exclusive_group_reads_everything_and_another_takes_over(grouping: Broker) -> None:
    topic = await new_topic(grouping, 3)
    members = [grouping.consumer(topics=[topic], group=f"{topic}.g", exclusive=True) for _ in range(2)]
    for member in members:
        await member.start()

    async def one_holds_all() -> bool:
        for member in members:
            await member.get_many(wait=0.0)
        return sorted(len(member.assignment()) for member in members) == [0, 3]

    await eventually(one_holds_all)
    active = max(members, key=lambda m: len(m.assignment()))
    members.remove(active)
    await active.stop()

    async def the_other_does() -> bool:
        await members[0].get_many(wait=0.0)
        return len(members[0].assignment()) == 3

    await eventually(the_other_does)


async def test_topics_without_a_group_are_read_whole(broker: Broker) -> None:
    topic = await new_topic(broker, 3)
    producer = await started(broker)
    for partition in range(3):
        await write(producer, topic, [b"x"], partition=partition)
    consumer = broker.consumer(topics=[topic], start_at="beginning")
    await consumer.start()
    assert {r.partition for r in await read(consumer, 3)} == {0, 1, 2}
    with pytest.raises(ConfigurationError, match="group"):
        await consumer.commit({TopicPartition(topic, 0): 1})


async def test_creating_topics_again_changes_nothing(broker: Broker) -> None:
    topic = await new_topic(broker, 3)
    admin = broker.admin()
    await admin.create_topics([TopicSpec(name=topic, partitions=9), TopicSpec(name=f"{topic}.b", compacted=True)])
    assert await admin.partitions([topic, f"{topic}.b", f"{topic}.absent"]) == {topic: 3, f"{topic}.b": 1}
    assert {topic, f"{topic}.b"} <= await admin.topics()


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "x" * 250, "ä"])
async def test_names_that_are_no_topic_names_are_refused(broker: Broker, name: str) -> None:
    with pytest.raises(InvalidInputError, match="topic"):
        await broker.admin().create_topics([TopicSpec(name=name)])


async def test_writing_to_an_unknown_topic_or_partition_says_so(broker: Broker) -> None:
    topic = await new_topic(broker, 2)
    producer = await started(broker)
    with pytest.raises(ConfigurationError, match="does not exist"):
        await (await producer.send(f"{topic}.absent", b"x"))
    with pytest.raises(ConfigurationError, match="no partition 2"):
        await (await producer.send(topic, b"x", partition=2))
    with pytest.raises(InvalidInputError, match="neither key nor value"):
        await (await producer.send(topic, None))
    assert f"{topic}.absent" not in await broker.admin().topics()


async def test_reading_an_unknown_topic_or_partition_says_so(grouping: Broker) -> None:
    topic = await new_topic(grouping)
    for consumer, said in (
        (grouping.consumer(topics=[f"{topic}.absent"], group=f"{topic}.g"), "does not exist"),
        (grouping.consumer(partitions=[TopicPartition(f"{topic}.absent", 0)]), "does not exist"),
        (grouping.consumer(partitions=[TopicPartition(topic, 1)]), "no partition 1"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            await consumer.start()
        await consumer.stop()


async def test_consumers_that_cannot_be_are_refused_when_made(grouping: Broker) -> None:
    with pytest.raises(ConfigurationError, match="one of the two"):
        grouping.consumer()
    with pytest.raises(ConfigurationError, match="one of the two"):
        grouping.consumer(topics=["a"], partitions=[TopicPartition("a", 0)], group="g")
    with pytest.raises(ConfigurationError, match="start_at"):
        grouping.consumer(partitions=[TopicPartition("a", 0)], start_at="newest")


async def test_a_record_over_the_limit_is_refused_and_the_next_one_is_not(broker: Broker) -> None:
    topic = await new_topic(broker, max_message_bytes=400_000)
    producer = await started(broker)
    with pytest.raises(InvalidInputError, match="record"):
        await (await producer.send(topic, b"x" * 2_000_000))
    written = [await producer.send(topic, b"x" * size) for size in (100, 300_000, 100)]
    assert [w.offset for w in await asyncio.gather(*written)] == [0, 1, 2]


async def test_a_refused_record_takes_none_of_its_neighbours_along(broker: Broker) -> None:
    topic = await new_topic(broker, max_message_bytes=400_000)
    producer = await started(broker)
    fates = []
    for size in (10, 1_000_000, 10):
        try:
            fates.append(await producer.send(topic, b"x" * size))
        except InvalidInputError:  # memory knows at once, Kafka when the broker answers
            fates.append(None)
    outcomes = await asyncio.gather(*(f for f in fates if f is not None), return_exceptions=True)
    assert sum(isinstance(o, tuple) for o in outcomes) == 2
    consumer = broker.consumer(partitions=[TopicPartition(topic, 0)])
    await consumer.start()
    assert [len(r.value or b"") for r in await read(consumer, 2)] == [10, 10]


async def test_flush_waits_for_all_acknowledgements(broker: Broker) -> None:
    topic = await new_topic(broker)
    producer = await started(broker)
    sent = [await producer.send(topic, b"x") for _ in range(100)]
    await producer.flush()
    assert all(future.done() for future in sent)


async def test_a_stopped_producer_or_consumer_says_so(broker: Broker) -> None:
    topic = await new_topic(broker)
    producer = broker.producer()
    with pytest.raises(ConfigurationError, match="start"):
        await producer.send(topic, b"x")
    await producer.start()
    await producer.stop()
    with pytest.raises(ConfigurationError, match="start"):
        await producer.send(topic, b"x")
    consumer = broker.consumer(partitions=[TopicPartition(topic, 0)])
    with pytest.raises(ConfigurationError, match="start"):
        await consumer.get_many(wait=0.0)
    await consumer.start()
    await consumer.stop()
    await consumer.stop()
    with pytest.raises(ConfigurationError, match="start"):
        await consumer.get_many(wait=0.0)


async def test_many_records_reach_a_reader_that_reads_along(broker: Broker) -> None:
    topic = await new_topic(broker)
    producer = await started(broker)
    consumer = broker.consumer(partitions=[TopicPartition(topic, 0)])
    await consumer.start()
    reading = asyncio.create_task(read(consumer, 5000, within=30.0))
    for i in range(5000):
        await producer.send(topic, str(i).encode(), key=b"k")
    assert [int(r.value or b"") for r in await reading] == list(range(5000))


async def test_a_remote_log_asks_for_its_token_and_for_a_loopback_name() -> None:
    behind = connect("memory://")
    async with serve(behind, token="secret") as url, ClientSession() as session:
        for given in (None, "wrong"):
            stranger = connect(url, remote=RemoteSettings(token=given))
            with pytest.raises(ConfigurationError, match="token"):
                await stranger.admin().topics()
            await stranger.close()
        friend = connect(url, remote=RemoteSettings(token="secret"))
        assert await friend.admin().topics() == frozenset()
        await friend.close()
        plain = url.removeprefix("memory+")
        async with session.get(f"{plain}/log/topics") as answer:
            assert answer.status == 403
    async with serve(behind) as url, ClientSession() as session:
        plain = url.removeprefix("memory+")
        headers = {"Host": "rebound.example", "Sluice-Log": "1"}
        async with session.get(f"{plain}/log/topics", headers=headers) as answer:
            assert answer.status == 403


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("produce", b""),
        ("produce", b"\xff\xff\xff\xff"),
        ("produce", b"\x02\x00\x00\x00{}"),
        ("produce", b'\x17\x00\x00\x00{"blocks":[["t",0,999]]}'),
        ("fetch", b"not json"),
        ("fetch", b"[]"),
        ("fetch", b'{"positions":[]}'),
        ("fetch", b'{"positions":[["absent",0,0]]}'),
        ("fetch", b'{"positions":[["t",0,-4]]}'),
        ("fetch", b'{"positions":[["t","0"]],"wait":1}'),
        ("fetch", b'{"positions":[["t",0,0]],"wait":"long"}'),
        ("offsets", b'{"partitions":[["t",7]]}'),
        ("offsets", b'{"partitions":{}}'),
        ("committed", b'{"group":1,"partitions":[]}'),
        ("topics", b'{"topics":[{"name":"../x"}]}'),
        ("topics", b'{"topics":[{"name":"x","partitions":0}]}'),
        ("topics", b'{"topics":[{"name":"x","owner":0}]}'),
    ],
)
async def test_a_remote_log_refuses_malformed_calls_in_one_line(path: str, body: bytes) -> None:
    behind = connect("memory://")
    await behind.admin().create_topics([TopicSpec(name="t")])
    async with serve(behind) as url, ClientSession(headers={"Sluice-Log": "1"}) as session:
        answer = await session.post(f"{url.removeprefix('memory+')}/log/{path}", data=body)
        assert answer.status == 400
        assert (await answer.json())["problem"]
    assert await behind.admin().topics() == {"t"}


async def test_a_remote_log_that_is_not_there_says_so() -> None:
    absent = connect("memory+http://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="nothing answers"):
        await absent.admin().topics()
    with pytest.raises(ConfigurationError, match="groups only within"):
        absent.consumer(topics=["t"], group="g")
    await absent.close()
