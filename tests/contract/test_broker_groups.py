"""What the ports promise to members of a group, on memory and on Apache Kafka."""

import asyncio

import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams import connect
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.ports import Broker, Consumer, LostPartitionError, MemberTakenError, TopicPartition
from tests.contract.brokers import MEMORY, RDKAFKA, eventually, need_rdkafka, new_topic, read, started, write
from tests.harness import PATIENCE_S


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
        assert self.consumer.assignment() >= partitions
        await self.consumer.commit({tp: at for tp, at in self.commits.items() if tp in partitions})

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Remember."""
        self.log.append(("assigned", partitions))

    @property
    def held(self) -> frozenset[TopicPartition]:
        """By what it was told: all is taken and given anew, or only what changes hands."""
        held: frozenset[TopicPartition] = frozenset()
        for what, partitions in self.log:
            assert held.isdisjoint(partitions) if what == "assigned" else held >= partitions
            held = held | partitions if what == "assigned" else held - partitions
        return held


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
    (gone,) = second.assignment()
    assert told.held == first.assignment() == whole - {gone}
    assert [gone in partitions for what, partitions in told.log if what == "revoked"] == [True]
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
    reading = asyncio.create_task(read(member, 6))  # goes on while the topics change
    await member.subscribe([old, added])
    assert member.assignment() == {TopicPartition(old, 0), TopicPartition(old, 1), TopicPartition(added, 0)}
    await write(producer, added, [b"new"] * 3, partition=0)
    await write(producer, old, [b"more"] * 3, partition=0)
    assert sorted(r.value or b"" for r in await reading) == [b"more"] * 3 + [b"new"] * 3
    assert [what for what, _ in told.log] in (["assigned", "revoked", "assigned"], ["assigned", "assigned"])
    assert told.held == member.assignment()
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
    other = Slow()
    second = grouping.consumer(topics=[topic], group=f"{topic}.g", listener=other)
    other.consumer = second
    producer = await started(grouping)
    await first.start()
    seen: set[bytes] = set()

    async def take(consumer: Consumer) -> None:
        while True:  # a fetch is under way whenever partitions change hands
            seen.update(r.value or b"" for r in await consumer.get_many(wait=5.0))

    reading = [asyncio.create_task(take(first))]
    joining = asyncio.create_task(second.start())
    async with asyncio.timeout(PATIENCE_S):
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


@pytest.mark.parametrize("grouping", [MEMORY, RDKAFKA], indirect=True)  # aiokafka does not say so, and joins again
async def test_who_finds_another_in_its_place_as_a_static_member_is_told_so(grouping: Broker) -> None:
    topic = await new_topic(grouping, 2)
    group = f"{topic}.g"
    first, second = (grouping.consumer(topics=[topic], group=group, member="one") for _ in range(2))
    other = grouping.consumer(topics=[topic], group=group, member="other")
    await first.start()
    starting = asyncio.create_task(second.start())

    async def reads_on() -> None:
        while True:
            await first.get_many(wait=0.1)

    with pytest.raises(MemberTakenError, match=f"member 'one' of group '{group}' was taken by another consumer"):
        async with asyncio.timeout(PATIENCE_S):
            await reads_on()
    await starting
    await other.start()

    async def split() -> bool:
        await second.get_many(wait=0.0)
        await other.get_many(wait=0.0)
        return len(second.assignment()) == len(other.assignment()) == 1

    await eventually(split)


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


@pytest.mark.kafka
@pytest.mark.thorough
async def test_members_share_partitions_and_who_has_none_takes_over_by_the_new_protocol(kafka_url: str) -> None:
    """KIP-848: the broker gives and takes partitions one by one."""
    need_rdkafka()
    broker = connect(kafka_url, kafka=KafkaSettings(library="rdkafka", group_protocol="consumer"))
    topic = await new_topic(broker, 2)
    members = [broker.consumer(topics=[topic], group=f"{topic}.g") for _ in range(3)]
    for member in members:
        await member.start()

    async def shared() -> bool:
        for member in members:
            await member.get_many(wait=0.0)
        held = [tp for member in members for tp in member.assignment()]
        return len(held) == len(set(held)) == 2 and max(len(member.assignment()) for member in members) == 1

    await eventually(shared)
    producer = await started(broker)
    for partition in range(2):
        await write(producer, topic, [b"x"] * 5, partition=partition)
    holding = [member for member in members if member.assignment()]
    for member in holding:
        (held,) = member.assignment()
        assert [r.offset for r in await read(member, 5)] == list(range(5))
        await member.commit({held: 5})
    (gone,) = holding[0].assignment()
    members.remove(holding[0])
    await holding[0].stop()
    await eventually(shared)
    (heir,) = [member for member in members if gone in member.assignment()]
    assert await heir.position(gone) == 5
    assert {tp for member in members for tp in member.assignment()} == {TopicPartition(topic, p) for p in range(2)}
    await broker.close()
