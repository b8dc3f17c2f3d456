"""A worker's instances on their topic: looked at every second, written when there is something to say.

What stands there of the worker at its start is read first, so that what it no longer holds is ended.
"""

import asyncio
from collections.abc import Iterable, Sequence

from sluicegate.domain.clock import Clock
from sluicegate.domain.events import LatencyMeasured
from sluicegate.policies.model_less.instance_states import Held, InstanceRecord
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.streams.ports import Broker, Record
from sluicegate.streams.records.instances import decode_instance, encode_instance
from sluicegate.streams.topics import Topics

PERIOD = 1.0
"""Seconds between looks."""
_UNKNOWN = 1e12
"""Rows/s of what has no profile here: never overloaded."""


class InstanceWriter:
    """Of the worker ``device``."""

    def __init__(
        self,
        device: str,
        *,
        broker: Broker,
        topics: Topics,
        clock: Clock,
        catalogue: Catalogue,
        outbox: Outbox,
    ) -> None:
        self._device = device
        self._topic = topics.instances
        self._clock = clock
        self._catalogue = catalogue
        self._outbox = outbox
        self._record = InstanceRecord(device)
        self._measured: dict[tuple[str, str], list[tuple[float, float]]] = {}
        self._rows: dict[tuple[str, str], int] = {}
        self._looked = clock.monotonic()
        self._follower = Follower(broker, topics.instances, self._found)

    async def read(self) -> None:
        """Read what stands on the topic, once."""
        stop = asyncio.Event()
        reading = asyncio.create_task(self._follower.run(stop))
        try:
            await self._follower.ready.wait()
        finally:
            stop.set()
            await reading

    def measured(self, part: str, measured: Iterable[LatencyMeasured]) -> None:
        """Batches of a slice were timed since the last heartbeat."""
        for one in measured:
            place = (part, one.variant)
            self._rows[place] = self._rows.get(place, 0) + one.rows * one.batches
            expected = self._expected(one)
            if expected > 0.0:
                self._measured.setdefault(place, []).append((one.execution_s / expected, float(one.batches)))

    def look(self, loaded: Sequence[tuple[str, str, str]]) -> None:
        """(slice, its kind, variant) of all that is held: after a period, what there is to say of it is written."""
        now = self._clock.monotonic()
        window = now - self._looked
        if window >= PERIOD and self._follower.ready.is_set():
            self._looked = now
            self._say(loaded, window)

    def ended(self) -> None:
        """The worker goes in good order: nothing is held any more."""
        self._say((), PERIOD)

    def _say(self, loaded: Sequence[tuple[str, str, str]], window: float) -> None:
        held = [
            self._held(part, kind, variant) for part, kind, variant in loaded if variant in self._catalogue.variants
        ]
        self._measured.clear()
        self._rows.clear()
        for said in self._record.looked(held, window, self._clock.wall()):
            value = encode_instance(said.instance) if said.instance is not None else None
            self._outbox.post(self._topic, value, key=said.key.encode())

    def _held(self, part: str, kind: str, variant: str) -> Held:
        seen = self._measured.get((part, variant), ())
        batches = sum(n for _, n in seen)
        slowdown = sum(ratio * n for ratio, n in seen) / batches if batches else 0.0
        known = self._catalogue.variants[variant]
        return Held(
            known.app, variant, part, self._peak(kind, known.app, variant), self._rows.get((part, variant), 0), slowdown
        )

    def _expected(self, one: LatencyMeasured) -> float:
        profile = self._catalogue.profiles.get((one.variant, one.device_type))
        if profile is None:
            return 0.0
        curve = profile.curve("median")
        return curve(min(max(1, one.rows), curve.max_batch))

    def _peak(self, kind: str, app: str, variant: str) -> float:
        """Rows/s of the best batch within the app's SLO, at the least of batches of one."""
        profile = self._catalogue.profiles.get((variant, kind))
        if profile is None:
            return _UNKNOWN
        slo = self._catalogue.apps[app].slo
        fits = [p for p in profile.points if p.median <= slo] or [profile.points[0]]
        return max(p.batch / p.median for p in fits)

    def _found(self, record: Record) -> None:
        if record.value is not None and not self._follower.ready.is_set():
            self._record.found(decode_instance(record.key, record.value))
