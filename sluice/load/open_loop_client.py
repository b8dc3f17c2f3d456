"""Producing queries on time: an open loop that sends each query at its arrival time, whatever becomes of the others."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluicegate.domain.clock import Clock
from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import BYTES, Tensor, TensorSpec, joined
from sluicegate.simulator.arrivals.sampling import ArrivalSource
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.streams.ports import Producer
from sluicegate.streams.records import codec
from sluicegate.streams.records.oip import DTYPES
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)

_RANDOM_SAMPLES = 64
_PATIENCE = 30.0
"""Seconds past the last arrival that the broker has to acknowledge what was sent."""
_MOST_UNACKNOWLEDGED = 256 << 20
"""Bytes. Behind a broker that takes less than is asked a replay falls behind, and says so, before memory runs out."""
_SLICE = 0.002
"""Seconds that arrivals are gathered for before they are sent together."""
_LOOK_EVERY = 0.25
"""Seconds for which who tells it to stop may have to wait while nothing is due."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Inputs of one app: query i carries ``inputs[i % len]``; ``labels[i % len]`` its rows' true labels if known."""

    app: str
    inputs: Sequence[tuple[Tensor, ...]]
    labels: NDArray[np.int64] | None = None


def samples_of(
    app: App, inputs: NDArray[np.generic] | None, labels: NDArray[np.int64] | None, *, rows: int = 1, seed: int = 0
) -> Samples:
    """Samples for ``app``, ``rows`` a query: of held-out ``inputs`` (n, *row_shape) where given, else random ones."""
    if not 1 <= rows <= app.max_rows:
        raise InvalidInputError("rows", f"{rows}; {app.name} takes 1 to {app.max_rows} rows a query")
    if inputs is not None:
        spec = app.inputs[0]
        queries = len(inputs) // rows
        values = np.ascontiguousarray(inputs[: queries * rows], dtype=DTYPES[spec.datatype])
        shape = (rows, *spec.row_shape)
        tensors = [(Tensor(spec.name, spec.datatype, shape, part.tobytes()),) for part in np.split(values, queries)]
        return Samples(app.name, tensors, None if labels is None else labels[: queries * rows].reshape(queries, rows))
    rng = np.random.default_rng(seed)
    return Samples(app.name, [tuple(_random(spec, rows, rng) for spec in app.inputs) for _ in range(_RANDOM_SAMPLES)])


def _random(spec: TensorSpec, rows: int, rng: np.random.Generator) -> Tensor:
    if spec.datatype == BYTES:
        words = joined(f"word {number}".encode() for number in rng.integers(0, 1000, rows * spec.row_elements))
        return Tensor(spec.name, BYTES, (rows, *spec.row_shape), words)
    top = 1.0 if spec.datatype.startswith("FP") else 2.0 if spec.datatype == "BOOL" else 100.0
    values = (rng.random(rows * spec.row_elements) * top).astype(DTYPES[spec.datatype])
    return Tensor(spec.name, spec.datatype, (rows, *spec.row_shape), values.tobytes())


@dataclass(slots=True)
class Sent:
    """Progress of a replay."""

    queries: int = 0
    acknowledged: int = 0
    behind: float = 0.0

    @property
    def lost(self) -> int:
        """Queries that the broker has not acknowledged; while a replay runs: not yet."""
        return self.queries - self.acknowledged


class Sender:
    """Sends the arrivals of a trace. Query ids are ``<run>-<app>-<number>``, so that ``labels_of`` knows them."""

    def __init__(
        self,
        producer: Producer,
        topics: Topics,
        clock: Clock,
        samples: Sequence[Samples],
        *,
        run: str,
        latency_ms: float | None = None,
        on_sent: Callable[[float, int], None] | None = None,
    ) -> None:
        self._outbox = Outbox(producer)
        self._topics = topics
        self._clock = clock
        self._samples = {s.app: s for s in samples}
        self._run = run
        self._parameters = {"latency_ms": latency_ms} if latency_ms is not None else None
        self._on_sent = on_sent
        self._numbers = dict.fromkeys(self._samples, 0)
        self._largest = 0
        self.sent = Sent()

    def labels_of(self, app: str, query_id: str) -> NDArray[np.int64] | None:
        """The true labels of the rows of a query of this run, None where they are not known."""
        samples = self._samples.get(app)
        if samples is None or samples.labels is None or not query_id.startswith(f"{self._run}-{app}-"):
            return None
        number = int(query_id.rsplit("-", 1)[1])
        found: NDArray[np.int64] = samples.labels[number % len(samples.inputs)]
        return found

    async def replay(self, arrivals: ArrivalSource, *, stop: asyncio.Event | None = None) -> Sent:
        """Send every arrival at its time from now on; returns once all are acknowledged."""
        await self._outbox.start()
        start = self._clock.monotonic()
        try:
            for until, batch in _batches(arrivals):
                if not await self._room() or await self._stopped_before(start + until, stop):
                    break
                for app in batch:
                    self._send(app)
                if self._on_sent is not None:
                    self._on_sent(self._clock.wall(), len(batch))
        finally:
            await self._outbox.stop(within=_PATIENCE)
        return self.sent

    async def _stopped_before(self, due: float, stop: asyncio.Event | None) -> bool:
        """Wait for ``due``, or for less where ``stop`` is set; whether it is. One that is past is told as behind."""
        wait = due - self._clock.monotonic()
        self.sent.behind = max(self.sent.behind, -wait)
        await asyncio.sleep(min(max(wait, 0.0), _LOOK_EVERY))
        while not (stopped := stop is not None and stop.is_set()) and (wait := due - self._clock.monotonic()) > 0.0:
            await asyncio.sleep(min(wait, _LOOK_EVERY))
        return stopped

    async def _room(self) -> bool:
        """Wait while too much is not acknowledged; False where nothing of it is for too long."""
        progress, since = self.sent.acknowledged, self._clock.monotonic()
        while self._outbox.unacknowledged * self._largest > _MOST_UNACKNOWLEDGED:
            await asyncio.sleep(_SLICE)
            if self.sent.acknowledged != progress:
                progress, since = self.sent.acknowledged, self._clock.monotonic()
            elif self._clock.monotonic() - since > _PATIENCE:
                log.error("the broker has acknowledged nothing for %.0f s: the rest is not sent", _PATIENCE)
                return False
        return True

    def _send(self, app: str) -> None:
        samples = self._samples[app]
        number = self._numbers[app]
        self._numbers[app] = number + 1
        query_id = f"{self._run}-{app}-{number}"
        now = self._clock.wall()
        message = codec.encode_query(
            query_id,
            samples.inputs[number % len(samples.inputs)],
            app=app,
            now=now,
            source="replay",
            parameters=self._parameters,
        )
        self._largest = max(self._largest, len(message.value or b""))
        self._outbox.post(
            self._topics.queries(app),
            message.value,
            key=message.key,
            headers=message.headers,
            timestamp=now,
            done=self._acknowledged,
            refused=lambda error: log.error("%s: query %s can never be sent: %s", app, query_id, error),
        )
        self.sent.queries += 1

    def _acknowledged(self) -> None:
        self.sent.acknowledged += 1


def _batches(arrivals: ArrivalSource) -> Iterator[tuple[float, list[str]]]:
    """(time of the last, apps) of arrivals that fall within a few milliseconds of each other."""
    names = arrivals.apps
    for times, which in arrivals.chunks():
        edges = np.flatnonzero(np.diff(np.floor(times / _SLICE))) + 1
        for part in np.split(np.arange(times.size), edges):
            if part.size:
                yield float(times[part[-1]]), [names[i] for i in which[part]]
