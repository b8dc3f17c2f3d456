"""Signed control records: what its holder wrote there counts, and nothing else."""

from collections.abc import Sequence

import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.sluice.settings.endpoint_settings import SigningSettings
from sluicegate.streams import connect
from sluicegate.streams.ports import Record, TopicPartition, TopicSpec, Unreadable
from sluicegate.streams.signing import FRESH, HEADER, SignedBroker, Signing, unsigned

KEY = b"a key of the system"
PLAN, BEATS, QUERIES = "sys.control.plan", "sys.metrics.devices", "sys.app.a.queries"
NOW = 1.7e9


class Wall:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class Logs:
    """One log, with whoever holds a key and whoever holds none."""

    def __init__(self, **changes: bool | str | bytes) -> None:
        self.inner = connect("memory://")
        self.wall = Wall()
        values = {"prefix": "sys", "key": KEY, **changes}
        self.signed = SignedBroker(self.inner, Signing(**values), self.wall)  # type: ignore[arg-type]

    async def begin(self) -> None:
        await self.inner.admin().create_topics(TopicSpec(name=n) for n in (PLAN, BEATS, QUERIES))
        self.ours, self.theirs = self.signed.producer(), self.inner.producer()
        await self.ours.start()
        await self.theirs.start()

    async def read(self, topic: str, *, signed: bool = True) -> Sequence[Record]:
        broker = self.signed if signed else self.inner
        consumer = broker.consumer(partitions=[TopicPartition(topic, 0)], start_at="beginning")
        await consumer.start()
        try:
            return [r for r in await consumer.get_many(wait=0.0) if not isinstance(r, Unreadable)]
        finally:
            await consumer.stop()

    async def values(self, topic: str) -> list[bytes | None]:
        return [record.value for record in await self.read(topic)]


async def logs(**changes: bool | str | bytes) -> Logs:
    made = Logs(**changes)
    await made.begin()
    return made


@pytest.mark.parametrize("value", [b"a plan", b"", None])
async def test_what_a_holder_of_the_key_wrote_counts_and_what_a_stranger_wrote_does_not(value: bytes | None) -> None:
    log = await logs()
    await (await log.theirs.send(PLAN, b"forged", key=b"k"))
    await (await log.ours.send(PLAN, value, key=b"k"))
    assert log.ours.try_send(PLAN, b"at once", key=b"k") is not None
    assert await log.values(PLAN) == [value, b"at once"]


@pytest.mark.parametrize("begins", [NOW, 2_155_000_000.0, 4_000_000_000.0])
def test_a_signature_holds_in_each_millisecond_of_this_century(begins: float) -> None:
    signing = Signing(prefix="sys", key=KEY)
    for number in range(2_000):
        at = begins + number / 1e3
        record = Record(PLAN, 0, 0, b"k", b"a plan", ((HEADER, signing.signature(PLAN, b"k", b"a plan", at)),), at)
        assert not signing.flaw(record, at), at


async def test_a_signature_holds_for_one_topic_key_and_value() -> None:
    log = await logs()
    await (await log.ours.send(PLAN, b"ab", key=b"c"))
    ((record),) = await log.read(PLAN, signed=False)
    for topic, key, value in (
        (PLAN, b"c", b"ac"),
        (PLAN, b"d", b"ab"),
        (PLAN, b"ca", b"b"),
        (PLAN, None, b"ab"),
        (PLAN, b"c", None),
        (BEATS, b"c", b"ab"),
    ):
        await (await log.theirs.send(topic, value, key=key, headers=record.headers))
    assert [r.value for r in await log.read(PLAN)] == [b"ab"]
    assert await log.read(BEATS) == []


@pytest.mark.parametrize("held", [b"", b"x" * 40, b"y" * 41, b"z" * 4000])
async def test_what_is_no_signature_is_none(held: bytes) -> None:
    log = await logs()
    await (await log.theirs.send(PLAN, b"forged", key=b"k", headers=((HEADER, held),)))
    assert await log.values(PLAN) == []


async def test_two_signatures_are_none_though_one_is_right() -> None:
    log = await logs()
    await (await log.ours.send(PLAN, b"a plan", key=b"k", headers=((HEADER, b"x" * 40),)))
    assert await log.values(PLAN) == []


async def test_another_system_s_key_is_a_stranger_s() -> None:
    log = await logs()
    other = SignedBroker(log.inner, Signing(prefix="sys", key=b"another"), log.wall).producer()
    await other.start()
    await (await other.send(PLAN, b"forged", key=b"k"))
    assert await log.values(PLAN) == []


async def test_a_heartbeat_that_is_written_once_more_later_counts_for_nothing_and_an_old_plan_stays() -> None:
    log = await logs()
    for topic in (BEATS, PLAN):
        await (await log.ours.send(topic, b"said", key=b"k"))
    log.wall.now += FRESH - 1.0
    assert (await log.values(BEATS), await log.values(PLAN)) == ([b"said"], [b"said"])
    log.wall.now += 2.0
    assert (await log.values(BEATS), await log.values(PLAN)) == ([], [b"said"])
    log.wall.now = NOW - FRESH - 1.0  # nor does one of a time that is to come
    assert await log.values(BEATS) == []


async def test_a_heartbeat_that_is_written_once_more_at_once_counts_once_and_so_it_does_when_it_is_read_again() -> None:
    log = await logs()
    for value in (b"beat 1", b"beat 2"):
        await (await log.ours.send(BEATS, value, key=b"d0"))
    for record in await log.read(BEATS, signed=False):
        await (await log.theirs.send(BEATS, record.value, key=record.key, headers=record.headers))
    await (await log.ours.send(BEATS, b"beat 3", key=b"d0"))
    assert await log.values(BEATS) == [b"beat 1", b"beat 2", b"beat 3"]
    consumer = log.signed.consumer(partitions=[TopicPartition(BEATS, 0)], start_at="beginning")
    await consumer.start()
    for _ in range(2):
        await consumer.seek(TopicPartition(BEATS, 0), 0)
        read = await consumer.get_many(wait=0.0)
        assert [isinstance(record, Unreadable) for record in read] == [False, False, True, True, False]
    await consumer.stop()
    log.wall.now += 4 * FRESH  # nothing is remembered for ever
    await (await log.ours.send(BEATS, b"beat 4", key=b"d0"))
    assert await log.values(BEATS) == [b"beat 4"]


async def test_a_heartbeat_that_is_written_once_more_to_another_partition_counts_once() -> None:
    log = await logs()
    turns = "sys.metrics.turns"
    await log.inner.admin().create_topics([TopicSpec(name=turns, partitions=2)])
    await (await log.ours.send(turns, b"told", key=b"a", partition=1))
    consumer = log.signed.consumer(topics=[turns], start_at="beginning")
    await consumer.start()
    assert [record.value for record in await consumer.get_many(wait=0.0)] == [b"told"]
    inner = log.inner.consumer(partitions=[TopicPartition(turns, 1)], start_at="beginning")
    await inner.start()
    (record,) = await inner.get_many(wait=0.0)
    await (await log.theirs.send(turns, record.value, key=record.key, headers=record.headers, partition=0))
    (again,) = await consumer.get_many(wait=0.0)
    assert isinstance(again, Unreadable) and again.partition == 0


async def test_queries_are_anybody_s() -> None:
    log = await logs()
    await (await log.theirs.send(QUERIES, b"asked"))
    await (await log.ours.send(QUERIES, b"asked too"))
    records = await log.read(QUERIES)
    assert [record.value for record in records] == [b"asked", b"asked too"]
    assert all(not record.headers for record in records)


async def test_while_processes_go_over_to_a_key_what_is_unsigned_counts_and_what_is_forged_does_not() -> None:
    log = await logs(required=False)
    await (await log.theirs.send(PLAN, b"of yesterday", key=b"k"))
    await (await log.theirs.send(PLAN, b"forged", key=b"k", headers=((HEADER, b"x" * 40),)))
    await (await log.ours.send(PLAN, b"signed", key=b"k"))
    assert await log.values(PLAN) == [b"of yesterday", b"signed"]
    assert HEADER in dict((await log.read(PLAN, signed=False))[-1].headers)


async def test_a_reader_is_past_what_it_passes_over() -> None:
    log = await logs()
    for _ in range(3):
        await (await log.theirs.send(PLAN, b"forged", key=b"k"))
    consumer = log.signed.consumer(partitions=[TopicPartition(PLAN, 0)], start_at="beginning")
    await consumer.start()
    passed = await consumer.get_many(wait=0.0)
    assert [(type(record), record.offset, record.value) for record in passed] == [
        (Unreadable, n, None) for n in range(3)
    ]
    assert await consumer.position(TopicPartition(PLAN, 0)) == 3
    await consumer.stop()
    assert unsigned(log.signed) is log.inner is unsigned(log.inner)


@pytest.mark.parametrize(
    ("given", "shared", "required"),
    [
        ({"key": "k" * 16}, True, True),
        ({"key": "k" * 16}, False, None),
        ({"key": "k" * 16, "required": True}, False, True),
        ({"key": "k" * 16, "required": False}, True, False),
        ({}, True, None),
    ],
)
def test_it_is_on_where_there_is_a_key_and_the_broker_is_shared(
    given: dict[str, object], shared: bool, required: bool | None
) -> None:
    made = SigningSettings(**given).signing("sys", shared=shared)  # type: ignore[arg-type]
    assert (None if made is None else made.required) is required
    assert "k" * 16 not in repr(made) + repr(SigningSettings(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize(("given", "told"), [({"required": True}, "needs a key"), ({"key": "short"}, "at least 16")])
def test_a_key_that_is_none_is_told(given: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        SigningSettings(**given).signing("sys", shared=True)  # type: ignore[arg-type]
