"""What the results topics tell of streams that were promised something: read once, before a worker serves.

Rules. Only the end of each partition is read: enough for the promises' look back and what may have been in flight. A
record that cannot be understood is skipped and logged: the stream then has a gap, and its past counts as missed.
"""

import logging
from collections.abc import Mapping

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.policies.promises.stream_book import Recall
from sluicegate.streams.ports import Broker, TopicPartition
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)

_IN_FLIGHT = 5000
"""Outcomes read beyond the look back of the promises, a partition."""


async def recall(broker: Broker, topics: Topics, apps: Mapping[str, App]) -> Recall:
    """The last outcomes of each stream of those of ``apps`` that have a promise."""
    looks = {n: max(k for _, k in a.promise.constraints) for n, a in apps.items() if a.promise.constraints}
    remember = 4 * max(looks.values(), default=0) + 64
    found = Recall(remember)
    counts = await broker.admin().partitions([topics.results(name) for name in looks])
    partitions = [TopicPartition(topic, i) for topic, count in sorted(counts.items()) for i in range(count)]
    if not partitions:
        return found
    # From the beginning where retention has gone past what is sought: from the end nothing would be read.
    consumer = broker.consumer(partitions=partitions, start_at="beginning")
    try:
        await consumer.start()
        ends = await consumer.end_offsets(partitions)
        for partition in partitions:
            await consumer.seek(partition, max(0, ends[partition] - _IN_FLIGHT - remember))
        unread = {p for p in partitions if await consumer.position(p) < ends[p]}
        while unread:
            for record in await consumer.get_many(wait=0.2, max_records=2000):
                try:
                    found.add(codec.decode_outcome(record).outcome)
                except InvalidInputError as error:
                    log.warning("%s offset %d skipped: %s", record.topic, record.offset, error)
            unread = {p for p in unread if await consumer.position(p) < ends[p]}
    finally:
        await consumer.stop()
    return found
