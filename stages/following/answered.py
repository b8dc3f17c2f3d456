"""What a device has answered, looked up among results: at least once, its last commits may not tell of it.

A commit tells only of what no older record waits before, so that one query with a late deadline hides the answers of
all that came after it: results are searched from the time of the oldest record that is not committed.
"""

from collections.abc import Iterable, Sequence

from sluicegate.domain.query import QueryKey
from sluicegate.streams.ports import Broker, Consumer, Record, TopicPartition
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics

_CLOCKS = 30.0
"""Seconds of results, before the oldest record was written, that are searched too: clocks differ."""


async def answered_by(
    device: str, first: Sequence[Record], now: float, *, broker: Broker, topics: Topics, apps: Iterable[str]
) -> frozenset[QueryKey]:
    """Queries of ``apps`` that ``device`` has answered. ``first``: of what is not committed, the oldest records."""
    written = [record.timestamp for record in first if record.timestamp > 0.0]  # 0: cannot be read
    since = min([now, *written]) - _CLOCKS
    partitions: list[TopicPartition] = []
    counts = await broker.admin().partitions([topics.results(app) for app in apps])
    for topic, count in sorted(counts.items()):
        partitions += [TopicPartition(topic, i) for i in range(count)]
    if not partitions:
        return frozenset()
    consumer = broker.consumer(partitions=partitions, start_at="end")
    await consumer.start()
    try:
        return await _keys(consumer, partitions, device, since, topics)
    finally:
        await consumer.stop()


async def _keys(
    consumer: Consumer, partitions: list[TopicPartition], device: str, since: float, topics: Topics
) -> frozenset[QueryKey]:
    ends = await consumer.end_offsets(partitions)
    starts = await consumer.offsets_for_times(dict.fromkeys(partitions, since))
    open_partitions = set()
    for partition in partitions:
        start = starts[partition]
        if start is not None and start < ends[partition]:
            await consumer.seek(partition, start)
            open_partitions.add(partition)
    found = set()
    while open_partitions:
        for record in await consumer.get_many(wait=0.5):
            if codec.outcome_device(record) == device and record.key is not None:
                app = topics.app_of(record.topic) or ""
                found.add(QueryKey(app, codec.query_source_of(record), record.key.decode(errors="replace")))
        for partition in tuple(open_partitions):
            if await consumer.position(partition) >= ends[partition]:
                open_partitions.discard(partition)
    return frozenset(found)
