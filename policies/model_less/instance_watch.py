"""What a worker records of its instances: each is looked at once a second, and written when there is something to say.

What stands on the topic of the worker at its start is told first, so that what it no longer holds is ended; before,
nothing is written.
"""

from collections.abc import Callable, Iterable, Sequence

from sluicegate.domain.events import LatencyMeasured
from sluicegate.domain.fleet.instance import Instance
from sluicegate.policies.model_less.instance_states import Held, InstanceRecord, Recorded
from sluicegate.policies.serving.device_actions import SliceReport
from sluicegate.profiles.catalogue.catalogue import Catalogue

PERIOD = 1.0
"""Seconds between looks."""
_UNKNOWN = 1e12
"""Rows/s of what has no profile here: never overloaded."""


Normal = Callable[[str, LatencyMeasured], float]
"""Of a batch on a slice: median seconds by its profile, 0 where it has none."""


class InstanceWatch:
    """Of the worker ``device``. ``catalogue``: everything that is known; ``normal``: what a batch should have taken."""

    __slots__ = ("_catalogue", "_device", "_looked", "_measured", "_normal", "_record", "_rows")

    def __init__(self, device: str, catalogue: Catalogue, normal: Normal) -> None:
        self._device = device
        self._catalogue = catalogue
        self._normal = normal
        self._record: InstanceRecord | None = None
        self._measured: dict[tuple[str, str], list[tuple[float, float]]] = {}
        self._rows: dict[tuple[str, str], int] = {}
        self._looked = 0.0

    def found(self, instances: Iterable[Instance], now: float) -> None:
        """These stood on the topic at the start."""
        self._record = InstanceRecord(self._device)
        self._looked = now
        for instance in instances:
            self._record.found(instance)

    def reported(self, slices: Sequence[SliceReport], now: float) -> list[Recorded]:
        """A heartbeat; what is to be written."""
        for part in slices:
            for one in part.measured:
                self._timed((part.slice, one.variant), one)
        window = now - self._looked
        if self._record is None or 0.0 <= window < PERIOD:  # below 0: the clock was set back
            return []
        self._looked = now
        return self._say(self._record, slices, max(window, PERIOD), now)

    def ended(self, now: float) -> list[Recorded]:
        """The worker goes in good order: nothing is held any more."""
        return self._say(self._record, (), PERIOD, now) if self._record is not None else []

    def _timed(self, place: tuple[str, str], one: LatencyMeasured) -> None:
        self._rows[place] = self._rows.get(place, 0) + one.rows * one.batches
        normal = self._normal(place[0], one)
        if normal > 0.0:
            self._measured.setdefault(place, []).append((one.execution_s / normal, float(one.batches)))

    def _say(self, record: InstanceRecord, slices: Sequence[SliceReport], window: float, now: float) -> list[Recorded]:
        known = self._catalogue.variants
        held = [self._held(part, variant) for part in slices for variant in part.loaded if variant in known]
        self._measured.clear()
        self._rows.clear()
        return record.looked(held, window, now)

    def _held(self, part: SliceReport, variant: str) -> Held:
        seen = self._measured.get((part.slice, variant), ())
        batches = sum(n for _, n in seen)
        slowdown = sum(ratio * n for ratio, n in seen) / batches if batches else 0.0
        app = self._catalogue.variants[variant].app
        rows = self._rows.get((part.slice, variant), 0)
        return Held(app, variant, part.slice, self._peak(part.kind, app, variant), rows, slowdown)

    def _peak(self, kind: str, app: str, variant: str) -> float:
        """Rows/s of the best batch within the app's SLO, at the least of batches of one."""
        profile = self._catalogue.profiles.get((variant, kind))
        if profile is None:
            return _UNKNOWN
        slo = self._catalogue.apps[app].slo
        fits = [p for p in profile.points if p.median <= slo] or [profile.points[0]]
        return profile.executors * max(p.batch / p.median for p in fits)
