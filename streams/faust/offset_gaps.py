"""What a consumer of another library passed over: each partition's offsets watched, and gaps read apart.

Rules.
- A partition is watched from the offset that its group had committed when it was assigned on, from its beginning where
  there was none: nothing that is committed later tells of a gap before it.
- A gap is read to its end before the record that showed it is used, so that records are used in order.
- Records that come again, as after a rebalance, are no gap.
- A gap at the end of a partition shows in no later record: ``unused`` tells of it, for the consumer to go back there.
"""

import logging
from collections.abc import Iterable, Mapping

from sluicegate.streams.ports import Broker, Record, TopicPartition

log = logging.getLogger(__name__)


class Gaps:
    """Of one topic, as ``group`` reads it."""

    def __init__(self, broker: Broker, topic: str, group: str) -> None:
        self._broker = broker
        self.topic = topic
        self._group = group
        self._next: dict[int, int] = {}
        self._unused: dict[int, tuple[int, float]] = {}

    async def assigned(self, partitions: Iterable[int]) -> None:
        """These, and no others, go on from what the group has committed.

        To be awaited before any of their records is used.
        """
        admin = self._broker.admin()
        self._next.clear()
        for number in partitions:
            self._next[number] = await admin.committed(self._group, TopicPartition(self.topic, number)) or 0

    async def before(self, partition: int, offset: int) -> list[Record]:
        """Records of ``partition`` that were passed over before the one at ``offset``, in order."""
        start = self._next.get(partition, offset)
        self._next[partition] = max(start, offset + 1)
        if start >= offset:
            return []
        place = TopicPartition(self.topic, partition)
        consumer = self._broker.consumer(partitions=[place], start_at="end")
        found: list[Record] = []
        await consumer.start()
        try:
            await consumer.seek(place, max(start, (await consumer.beginning_offsets([place]))[place]))
            while await consumer.position(place) < offset:
                found += await consumer.get_many(wait=0.5)
        finally:
            await consumer.stop()
        missed = [record for record in found if record.offset < offset]
        if missed:
            log.info("%s: %d records before offset %d were passed over; read apart", place, len(missed), offset)
        return missed

    def unused(self, kept: Mapping[int, range], now: float) -> dict[int, tuple[int, float]]:
        """Partitions that stand still though they hold records: the next offset, and for how many seconds.

        ``kept``: the offsets that every partition holds; of one that retention has emptied nothing waits. To be asked
        again and again.
        """
        waiting = {p: at for p, at in self._next.items() if (held := kept.get(p)) and at < held.stop}
        self._unused = {
            p: before if (before := self._unused.get(p, (offset, now)))[0] == offset else (offset, now)
            for p, offset in waiting.items()
        }
        return {p: (offset, now - since) for p, (offset, since) in self._unused.items()}
