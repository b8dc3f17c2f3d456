"""Reading result topics for people: following them, and finding one query's outcome."""

from collections.abc import AsyncIterator, Sequence

from streams import codec
from streams.ports import Broker, Record, TopicPartition
from streams.topics import Topics


async def result_topics(broker: Broker, topics: Topics, apps: Sequence[str] = ()) -> list[TopicPartition]:
    """Partitions of the result topics that exist, of ``apps`` only where named."""
    names = [n for n in await broker.admin().topics() if topics.is_results(n)]
    if apps:
        names = [n for n in names if topics.app_of(n) in apps]
    counts = await broker.admin().partitions(sorted(names))
    return [TopicPartition(topic, i) for topic, count in sorted(counts.items()) for i in range(count)]


async def read_results(
    broker: Broker, partitions: Sequence[TopicPartition], *, follow: bool, start_at: str = "beginning"
) -> AsyncIterator[Record]:
    """Results from the beginning (or "end") on; without ``follow`` up to the end that was seen at the start."""
    if not partitions:
        return
    consumer = broker.consumer(partitions=list(partitions), start_at=start_at)
    await consumer.start()
    try:
        ends = await consumer.end_offsets(partitions)
        unread = {p for p in partitions if await consumer.position(p) < ends[p]}
        while unread or follow:
            for record in await consumer.get_many(wait=0.5, max_records=1000):
                if follow or record.offset < ends[TopicPartition(record.topic, record.partition)]:
                    yield record
            unread = {p for p in unread if await consumer.position(p) < ends[p]}
    finally:
        await consumer.stop()


async def find_result(broker: Broker, topics: Topics, query_id: str) -> Record | None:
    """The outcome of one query, None where it has none yet."""
    partitions = await result_topics(broker, topics)
    found = None
    async for record in read_results(broker, partitions, follow=False):
        if found is None and codec.query_id_of(record) == query_id:
            found = record
    return found
