"""Who asks: steady queries of each app, and bursts that leave work waiting, of two sources with the same ids."""

import asyncio
import struct
from random import Random

from sluicegate.domain.models.tensor import Tensor
from sluicegate.streams.ports import Letter
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics
from tests.explore.cluster import Cluster
from tests.explore.loop import BASE
from tests.explore.shape import PIXELS, SOURCES


class Traffic:
    """Writes queries straight to the log, which acknowledges them at once. ``sent``: how many."""

    def __init__(self, cluster: Cluster, topics: Topics, rng: Random) -> None:
        self._cluster = cluster
        self._topics = topics
        self._rng = rng
        self.sent = 0
        self._of: dict[tuple[str, str], int] = {}

    def ask(self, app: str, *, plain: bool = False, source: str = "", first: float | None = None) -> str:
        """One query, of either source, some of them best effort, some of two rows; its id. ``first``: of its values."""
        rng, now = self._rng, BASE + self._cluster.loop.time()
        source = source or rng.choice(SOURCES)
        number = self._of[app, source] = self._of.get((app, source), 0) + 1
        name = f"{app}-{number}"
        rows = 1 if plain else rng.choice((1, 1, 1, 2))
        drawn = [rng.random() for _ in range(PIXELS * rows)]
        if first is not None:
            drawn[0] = first
        values = struct.pack(f"<{PIXELS * rows}f", *drawn)
        parameters: dict[str, object] = {"class": "best_effort"} if not plain and rng.random() < 0.2 else {}
        if plain:  # whether it is answered at all, however slow the links of this world are
            parameters = {"latency_ms": 2000}
        message = codec.encode_query(
            name, (Tensor("image", "FP32", (rows, PIXELS), values),), app=app, now=now, source=source,
            parameters=parameters,
        )  # fmt: skip
        letter = Letter(self._topics.queries(app), message.value, message.key, message.headers, timestamp=now)
        self._cluster.append(letter, None)
        self.sent += 1
        return f"/{source} {name}"

    async def steady(self, app: str, rate: float, seconds: float) -> None:
        """Poisson arrivals."""
        rng = Random(self._rng.getrandbits(64))
        end = self._cluster.loop.time() + seconds
        while True:
            await asyncio.sleep(rng.expovariate(rate))
            if self._cluster.loop.time() >= end:
                return
            self.ask(app)

    async def burst(self, app: str) -> None:
        """More than is answered at once."""
        for _ in range(self._rng.randrange(8, 40)):
            self.ask(app)
            if self._rng.random() < 0.3:
                await asyncio.sleep(self._rng.uniform(0.0, 0.02))
