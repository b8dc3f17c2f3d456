"""Reading result topics for people: following them, and finding what became of an id."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.query import QueryKey
from sluicegate.streams.ports import Broker, BrokerError, Consumer, Record, TopicPartition, UnreachableError, Unreadable
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics

_LOOK_EVERY = 1.0
"""Seconds after which who follows looks for topics that were not there before."""


def _nothing(_: Record) -> None: ...


async def result_topics(broker: Broker, topics: Topics, apps: Sequence[str] = ()) -> list[TopicPartition]:
    """Partitions of the result topics that exist, of ``apps`` only where named. Raises InvalidInputError where one of
    these has none."""
    names = {topics.app_of(n): n for n in await broker.admin().topics() if topics.is_results(n)}
    for app in apps:
        if app not in names:
            there = ", ".join(sorted(filter(None, names))) or "none"
            raise InvalidInputError("--app", f"{app!r:.80} has no results there; apps that have: {there}")
    counts = await broker.admin().partitions(sorted(n for app, n in names.items() if not apps or app in apps))
    return [TopicPartition(topic, i) for topic, count in sorted(counts.items()) for i in range(count)]


def nothing_there(broker: Broker, topics: Topics, what: str) -> ConfigurationError:
    """Where no topics of this prefix are."""
    return ConfigurationError(
        f"no {what} under {topics.prefix!r} at {broker.url}: start `sluice up`, or name its --prefix"
    )


async def read_results(
    broker: Broker,
    partitions: Sequence[TopicPartition],
    *,
    follow: bool,
    start_at: str = "beginning",
    damaged: Callable[[Unreadable], None] = _nothing,
) -> AsyncIterator[Record]:
    """Results from the beginning (or "end") on; without ``follow`` up to the end that was seen at the start.

    Records that cannot be read are passed over; ``damaged`` is told of them.
    """
    if not partitions:
        return
    consumer = broker.consumer(partitions=list(partitions), start_at=start_at)
    await consumer.start()
    try:
        ends = await consumer.end_offsets(partitions)
        unread = {p for p in partitions if await consumer.position(p) < ends[p]}
        while unread or follow:
            for record in await consumer.get_many(wait=0.5, max_records=1000):
                if isinstance(record, Unreadable):
                    damaged(record)
                    continue
                if follow or record.offset < ends[TopicPartition(record.topic, record.partition)]:
                    yield record
            unread = {p for p in unread if await consumer.position(p) < ends[p]}
    finally:
        await consumer.stop()


async def follow_results(
    broker: Broker, topics: Topics, apps: Sequence[str] = (), *, damaged: Callable[[Unreadable], None] = _nothing
) -> AsyncIterator[Record]:
    """Results of ``apps``, of all where none is named, from the beginning on: also on topics and partitions that come
    to be meanwhile. ``damaged``: as of ``read_results``."""
    time = asyncio.get_running_loop().time
    consumers: list[Consumer] = []
    known: set[TopicPartition] = set()
    try:
        while True:
            new = [p for p in await _there(broker, topics) if not apps or topics.app_of(p.topic) in apps]
            if added := [p for p in new if p not in known]:
                known.update(added)
                consumers.append(broker.consumer(partitions=added, start_at="beginning"))
                await consumers[-1].start()
            look_again = time() + _LOOK_EVERY
            while time() < look_again:
                if not consumers:
                    await asyncio.sleep(_LOOK_EVERY)
                for consumer in consumers:
                    for record in await consumer.get_many(wait=0.5 / len(consumers), max_records=1000):
                        if isinstance(record, Unreadable):
                            damaged(record)
                        else:
                            yield record
    finally:
        for consumer in consumers:
            await consumer.stop()


async def _there(broker: Broker, topics: Topics) -> list[TopicPartition]:
    try:
        return await result_topics(broker, topics)
    except (BrokerError, UnreachableError):
        return []  # away for a while, as brokers are: those who read wait for it


async def find_results(
    broker: Broker,
    topics: Topics,
    query_id: str,
    *,
    app: str | None = None,
    source: str | None = None,
    passed_over: Callable[[Record], None] = _nothing,
) -> dict[QueryKey, Record]:
    """The first outcome of every query with this id, of ``app`` and ``source`` only where given.

    ``passed_over`` is told of records that may have been meant as one: damaged ones, and what of this id, or of none,
    is no outcome.
    """
    partitions = await result_topics(broker, topics, () if app is None else (app,))
    found: dict[QueryKey, Record] = {}
    async for record in read_results(broker, partitions, follow=False, damaged=passed_over):
        named = codec.query_id_of(record)
        if named not in (None, query_id):
            continue
        key = QueryKey(topics.app_of(record.topic) or "", codec.query_source_of(record), query_id)
        if named is None or not _is_outcome(record):
            passed_over(record)
        elif source in (None, key.source):
            found.setdefault(key, record)
    return found


def _is_outcome(record: Record) -> bool:
    try:
        codec.decode_outcome(record)
    except InvalidInputError:
        return False
    return True
