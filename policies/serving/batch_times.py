"""How long batches take on one slice: by profile, as measured, and at most before they are taken to hang."""

from dataclasses import dataclass

from sluicegate.domain.actions import Run
from sluicegate.domain.events import LatencyMeasured
from sluicegate.domain.fleet.device import Device, Slice, profile_type
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.profiles.catalogue.catalogue import Catalogue


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """How long a batch may run: ``factor`` times its profiled 95th percentile, ``floor`` seconds at least.

    The first batch of a size after a variant was loaded may take as long as loading did, beyond that: what was not
    warmed is made then. A variant without a profile may take ``factor`` times its app's SLO.
    """

    factor: float = 10.0
    floor: float = 2.0


class BatchTimes:
    """The batches of slice ``part``, between two heartbeats and in all."""

    def __init__(self, device: Device, part: Slice, catalogue: Catalogue, limits: RunLimits) -> None:
        self.kind = profile_type(device.type, part.profile)
        self._catalogue = catalogue
        self._limits = limits
        self._load_s: dict[str, float] = {}
        self._warm: dict[tuple[str, int], float | None] = {}
        """(variant, rows) that ran since the variant was loaded: its limit, None where that goes with the length."""
        self._curves: dict[str, LatencyCurve] = {}
        self._medians: dict[str, LatencyCurve] = {}
        self._measured: dict[tuple[str, int], tuple[int, float]] = {}
        self._busy_s = 0.0

    def registered(self) -> None:
        """Profiles may be others from now on."""
        self._curves.clear()
        self._medians.clear()
        self._warm = dict.fromkeys(self._warm)

    def loaded(self, variant: str, seconds: float) -> None:
        """It was loaded (again), which took so long."""
        self._load_s[variant] = seconds
        self._warm = {(name, rows): limit for (name, rows), limit in self._warm.items() if name != variant}

    def limit(self, run: Run) -> float:
        """Seconds after which ``run`` is taken to hang."""
        variant, rows = run.variant, run.rows
        limit = self._warm.get((variant, rows))
        if limit is not None:
            return limit
        curve = self._curve(variant)
        if curve is None:
            normal = self._catalogue.apps[run.queries[0].app].slo
        else:
            known = min(rows, curve.max_batch)
            normal = curve.at(known, run.length) * rows / known
        limit = max(self._limits.floor, self._limits.factor * normal)
        if (variant, rows) not in self._warm:
            return limit + self._load_s.get(variant, 0.0)
        if curve is None or curve.lengths is None:
            self._warm[variant, rows] = limit
        return limit

    def expected(self, run: Run) -> float:
        """Seconds that ``run`` takes by its profile, 0 where it has none."""
        curve = self._curve(run.variant)
        return 0.0 if curve is None else curve.at(min(run.rows, curve.max_batch), run.length)

    def normal(self, measured: LatencyMeasured) -> float:
        """Median seconds of such a batch by its profile, 0 where it has none."""
        curve = self._medians.get(measured.variant)
        if curve is None:
            profile = self._catalogue.profiles.get((measured.variant, self.kind))
            if profile is None:
                return 0.0
            curve = self._medians[measured.variant] = profile.curve("median")
        return curve(min(max(1, measured.rows), curve.max_batch))

    def ran(self, run: Run) -> None:
        """A batch of its size has run: the next one needs no warming."""
        self._warm.setdefault((run.variant, run.rows), None)

    def note(self, run: Run, seconds: float) -> None:
        """It took so long."""
        key = (run.variant, run.rows)
        if key not in self._warm:
            self._warm[key] = None
        curve = self._curves.get(run.variant)
        told = seconds if curve is None or curve.lengths is None else curve.as_of_longest(run.rows, run.length, seconds)
        count, total = self._measured.get(key, (0, 0.0))
        self._measured[key] = (count + 1, total + told)
        self._busy_s += seconds

    def take_measured(self) -> tuple[LatencyMeasured, ...]:
        """Batch latencies since the last call, one mean a variant and size."""
        measured = tuple(
            LatencyMeasured(variant, self.kind, rows, total / count, count)
            for (variant, rows), (count, total) in self._measured.items()
        )
        self._measured.clear()
        return measured

    def take_busy(self) -> float:
        """Seconds the executor ran since the last call."""
        busy, self._busy_s = self._busy_s, 0.0
        return busy

    def _curve(self, variant: str) -> LatencyCurve | None:
        curve = self._curves.get(variant)
        if curve is None:
            profile = self._catalogue.profiles.get((variant, self.kind))
            if profile is not None:
                curve = self._curves[variant] = profile.curve()
        return curve
