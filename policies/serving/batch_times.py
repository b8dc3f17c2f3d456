"""How long batches take on one slice: by profile, as measured, and at most before they, or loads, are taken to hang."""

from dataclasses import dataclass

from sluicegate.domain.actions import Run
from sluicegate.domain.events import LatencyMeasured
from sluicegate.domain.fleet.device import Device, Slice, profile_type
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.slowdown import crowded


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """How long a batch may run: ``factor`` times its profiled 95th percentile, ``floor`` seconds at least.

    The first batch of a size after a variant was loaded may take as long as loading did, beyond that: what was not
    warmed is made then. A variant without a profile may take ``factor`` times its app's SLO. A load may take
    ``factor`` times what it took when it was profiled, ``load_floor`` seconds at least.
    """

    factor: float = 10.0
    floor: float = 2.0
    load_floor: float = 20.0


_OVERDUE = 3.0
"""Times its profiled 95th percentile after which a batch is overdue, and ``_PATIENT`` seconds at least."""
_PATIENT = 0.25


class _Size:
    """Batches of ``rows`` of ``variant``: their ``limit`` (None: to be reckoned), and what was measured of them.

    ``warm``: whether one ran since the variant was loaded; ``batches`` took ``seconds`` in all since they were told.
    """

    __slots__ = ("batches", "limit", "rows", "seconds", "variant", "warm")

    def __init__(self, variant: str, rows: int) -> None:
        self.variant = variant
        self.rows = rows
        self.limit: float | None = None
        self.warm = False
        self.batches = 0
        self.seconds = 0.0


class BatchTimes:
    """The batches of slice ``part``, between two heartbeats and in all."""

    def __init__(self, device: Device, part: Slice, catalogue: Catalogue, limits: RunLimits) -> None:
        self.kind = profile_type(device.type, part.profile)
        self._catalogue = catalogue
        self._limits = limits
        self._load_s: dict[str, float] = {}
        self._sizes: dict[tuple[str, int], _Size] = {}
        self._curves: dict[str, LatencyCurve] = {}
        self._medians: dict[str, LatencyCurve] = {}
        self._measured: list[_Size] = []
        self._busy_s = 0.0

    def registered(self) -> None:
        """Profiles may be others from now on."""
        self._curves.clear()
        self._medians.clear()
        for size in self._sizes.values():
            size.limit = None

    def loaded(self, variant: str, seconds: float) -> None:
        """It was loaded (again), which took so long."""
        self._load_s[variant] = seconds
        for size in self._sizes.values():
            if size.variant == variant:
                size.warm, size.limit = False, None

    def limit(self, run: Run) -> float:
        """Seconds after which ``run`` is taken to hang."""
        size = self._sizes.get((run.variant, run.rows)) or self._size(run.variant, run.rows)
        return size.limit if size.limit is not None else self._reckoned(run, size)

    def load_limit(self, variant: str) -> float | None:
        """Seconds after which loading ``variant`` is taken to hang; None where it has no profile here."""
        profile = self._catalogue.profiles.get((variant, self.kind))
        return None if profile is None else max(self._limits.load_floor, self._limits.factor * profile.load)

    def is_only(self, variant: str) -> bool:
        """Whether its app has no other."""
        return len(self._catalogue.of_app(self._catalogue.variants[variant].app)) <= 1

    def patience(self, run: Run) -> float:
        """Seconds after which ``run`` is overdue: long before it is taken to hang."""
        size = self._sizes.get((run.variant, run.rows)) or self._size(run.variant, run.rows)
        slack = 0.0 if size.warm else self._load_s.get(run.variant, 0.0)
        normal = self.expected(run) or self._catalogue.apps[run.queries[0].app].slo
        return slack + max(_PATIENT, _OVERDUE * normal)

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

    def ran(self, variant: str, rows: int) -> None:
        """A batch of that size has run: the next one needs no warming."""
        self._size(variant, rows).warm = True

    def ran_beside_a_load(self, run: Run, seconds: float) -> None:
        """It took so long while something was loaded, which it may have waited for: its profile is none the wiser."""
        self.ran(run.variant, run.rows)
        self._busy_s += seconds

    def note(self, run: Run, seconds: float, together: int = 0) -> None:
        """It took so long. ``together``: so many ran at a time at most, where several executors share the slice; their
        profiles say what it takes while all of them run."""
        size = self._sizes.get((run.variant, run.rows)) or self._size(run.variant, run.rows)
        size.warm = True
        curve = self._curves.get(run.variant)
        if not size.batches:
            self._measured.append(size)
        size.batches += 1
        self._busy_s += seconds
        if together:
            seconds *= self._crowded(run.variant, together)
        size.seconds += (
            seconds if curve is None or curve.lengths is None else curve.as_of_longest(run.rows, run.length, seconds)
        )

    def _crowded(self, variant: str, together: int) -> float:
        """How much longer a batch takes while all executors run than while ``together`` do, by the slowdown model."""
        profile = self._catalogue.profiles.get((variant, self.kind))
        if profile is None or profile.executors <= together:
            return 1.0
        return crowded(profile.fbr, profile.executors) / crowded(profile.fbr, together)

    def take_measured(self) -> tuple[LatencyMeasured, ...]:
        """Batch latencies since the last call, one mean a variant and size."""
        sizes, self._measured = self._measured, []
        measured = tuple(
            [LatencyMeasured(s.variant, self.kind, s.rows, s.seconds / s.batches, s.batches) for s in sizes]
        )
        for size in sizes:
            size.batches, size.seconds = 0, 0.0
        return measured

    def take_busy(self) -> float:
        """Seconds the executor ran since the last call."""
        busy, self._busy_s = self._busy_s, 0.0
        return busy

    def _size(self, variant: str, rows: int) -> _Size:
        key = (variant, rows)
        return self._sizes.get(key) or self._sizes.setdefault(key, _Size(variant, rows))

    def _reckoned(self, run: Run, size: _Size) -> float:
        curve = self._curve(run.variant)
        if curve is None:
            normal = self._catalogue.apps[run.queries[0].app].slo
        else:
            known = min(run.rows, curve.max_batch)
            normal = curve.at(known, run.length) * run.rows / known
        limit = max(self._limits.floor, self._limits.factor * normal)
        if not size.warm:
            return limit + self._load_s.get(run.variant, 0.0)
        if curve is None or curve.lengths is None:  # else it goes with the length
            size.limit = limit
        return limit

    def _curve(self, variant: str) -> LatencyCurve | None:
        curve = self._curves.get(variant)
        if curve is None:
            profile = self._catalogue.profiles.get((variant, self.kind))
            if profile is not None:
                curve = self._curves[variant] = profile.curve()
        return curve
