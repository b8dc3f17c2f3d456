"""Which partitions a member of a group has read up to where they ended once they were its own.

What comes to it another way may then pass by its topic: nothing older waits there.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from sluicegate.domain.errors import SluiceError
from sluicegate.streams.ports import Consumer, TopicPartition

log = logging.getLogger(__name__)

_ANSWERS = 5.0
"""Seconds that a client has to say how far there is to read."""


class ReadUp:
    """The partitions of one consumer that are read up. ``every``: seconds between two looks, while some are not."""

    def __init__(self, every: float = 0.2) -> None:
        self._every = every
        self._ends: dict[TopicPartition, int] = {}
        self._partitions: set[TopicPartition] = set()
        self._round = 0

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._partitions

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These are another's, or come anew."""
        self._round += 1
        for partition in partitions:
            self._partitions.discard(partition)
            self._ends.pop(partition, None)

    async def watch(self, consumer: Callable[[], Awaitable[Consumer]]) -> None:
        """Look, until cancelled, by what ``consumer`` says that reads now."""
        while True:
            reads = await consumer()
            left = reads.assignment() - self._partitions
            if left:
                try:
                    async with asyncio.timeout(_ANSWERS):
                        await self._look(reads, left)
                except (
                    SluiceError,
                    TimeoutError,
                ) as error:  # a broker that is away, a partition that was given up: again later
                    log.debug("not known yet how far there is to read (%s)", error)
            await asyncio.sleep(self._every)

    async def _look(self, consumer: Consumer, partitions: frozenset[TopicPartition]) -> None:
        before = self._round
        unseen = partitions - self._ends.keys()
        ends = await consumer.end_offsets(unseen) if unseen else {}
        positions = {partition: await consumer.position(partition) for partition in sorted(partitions)}
        if before == self._round:
            self._ends.update(ends)
            self._partitions |= {p for p, at in positions.items() if p in self._ends and at >= self._ends[p]}
