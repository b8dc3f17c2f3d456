"""Reads of a broker that may lead no more.

A broker that is cut off from the others, but not from us, goes on answering. For it, what was written since is not
there: a position behind that is out of range, of which the client makes the beginning of the partition, and everything
would be read again. So nobody's word for that is taken at once. For ``DOUBT_S`` seconds the client is told instead that
this broker does not lead the partition, which makes it ask the cluster who does. A position that is out of range all
the while is so indeed: what it points at was deleted, or lost.
"""

import time
from collections.abc import Callable
from typing import Any

from aiokafka.errors import NotLeaderForPartitionError, OffsetOutOfRangeError
from aiokafka.protocol.fetch import FetchRequest

DOUBT_S = 5.0


def doubt_stale_leaders(inner: Any, clock: Callable[[], float] = time.monotonic) -> None:
    """Have a started consumer ask again before it believes that its position is out of range."""
    if not isinstance(inner._fetcher._client, _Doubting):
        inner._fetcher._client = _Doubting(inner._fetcher._client, clock)


class _Doubting:
    """The client of a fetcher."""

    def __init__(self, client: Any, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._since: dict[tuple[str, int], float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def send(self, node: int, request: Any, **options: Any) -> Any:
        """What ``node`` answers."""
        response = await self._client.send(node, request, **options)
        if isinstance(request, FetchRequest):
            for topic, partitions in response.topics or ():
                for place, (number, code, *rest) in enumerate(partitions):
                    if code == OffsetOutOfRangeError.errno and self._doubted((topic, number)):
                        partitions[place] = (number, NotLeaderForPartitionError.errno, *rest)
                    elif code == 0:
                        self._since.pop((topic, number), None)
        return response

    def _doubted(self, partition: tuple[str, int]) -> bool:
        now = self._clock()
        if now < self._since.setdefault(partition, now) + DOUBT_S:
            return True
        del self._since[partition]
        return False
