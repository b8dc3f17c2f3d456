"""What a geometry must serve, from what arrived: mean load of both classes, and the strict bursts above it.

Rules:
- The unit is a batch. Where several variants share slices, a batch takes a share of one, of its bandwidth or its
  memory, whichever is more, for as long as it runs alone; what it leaves is for others.
- A strict variant without best-effort ones has nobody to fill what it leaves: c batches at a time, c at most what the
  memory holds, take seconds * max(c * FBR, 1) each. A slice is then a device whose "batch sizes" are batches at a time.
- The mean demand of strict and best-effort batches, with headroom, is hard. On top comes a reserve: strict batches in
  bursts, as many as slices can be found for. What the mean leaves over is thereby cut so that it takes the largest
  burst.
- Batches are gathered before they reach a GPU, so a slice may use nearly the whole SLO, not half of it.
- Quality is the share of the SLO that is left: among geometries that serve the same, the quickest is taken.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from typing_extensions import override

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App, QueryClass
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.allocation.program import Program, Serve
from sluicegate.planner.geometry.mig_tables import Geometry, PlacementTable
from sluicegate.planner.problems.problem import AppDemand, Problem
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.slowdown import Footprint, SlowdownTable

_RESERVE = 1.5
_BUDGET = 0.9
"""Share of the SLO that service may take: the rest is gathering and hops."""
_FORGOTTEN = 0.03
_LASTING = 2 / 3
"""Part of the best worst case that a geometry must reach to be planned with."""
_BURST = 0.8
"""Part of the largest strict burst that a geometry must take to be planned with."""
_MOST_AT_A_TIME = 16


@dataclass(frozen=True, slots=True)
class SliceDemand:
    """Mean batches/s: of the strict variant, and by best-effort variant."""

    strict: str
    strict_mean: float
    others: Mapping[str, float]


class SliceForecast:
    """Exponentially weighted means; best-effort variants come and go, so theirs are remembered for longer.

    ``alpha``, ``others_alpha``: weight of the newest interval.
    """

    def __init__(self, strict: str, *, alpha: float = 0.3, others_alpha: float = 0.1) -> None:
        self._strict = strict
        self._alpha = alpha
        self._others_alpha = others_alpha
        self._mean: float | None = None
        self._others: dict[str, float] = {}

    def update(self, strict: float, others: Mapping[str, float]) -> SliceDemand:
        """An interval ended with these rates (batches/s); the forecast for the next."""
        self._mean = strict if self._mean is None else self._mean + self._alpha * (strict - self._mean)
        if not self._others:
            self._others = dict(others)
        for name in {*self._others, *others}:
            old = self._others.get(name, 0.0)
            self._others[name] = old + self._others_alpha * (others.get(name, 0.0) - old)
        total = sum(self._others.values())
        self._others = {n: r for n, r in sorted(self._others.items()) if r > _FORGOTTEN * total}
        return SliceDemand(self._strict, self._mean, dict(self._others))


def slice_problem(
    demand: SliceDemand,
    table: SlowdownTable,
    placements: PlacementTable,
    devices: tuple[Device, ...],
    *,
    multiplier: float,
    headroom: float = 1.2,
) -> Problem:
    """The problem that ``plan_geometry`` answers. ``multiplier``: SLO over the time alone on the whole GPU."""
    means = {demand.strict: demand.strict_mean, **demand.others}
    catalogue = _catalogue(tuple(means), table, placements, multiplier)
    slo = {name: 2 * _BUDGET * app.slo for name, app in catalogue.apps.items()}
    demands = [AppDemand(app=n, qps=qps, slo=slo[n], headroom=headroom) for n, qps in means.items()]
    # The reserve is a second demand of each app, in the class that is served last. It exceeds what any cut can take, so
    # that what is left over always counts, and keeps the proportions of the load: bursts are of both classes.
    gpus = sum(qps / _capacity(catalogue, placements, n) for n, qps in means.items())
    times = _RESERVE * len(devices) / max(gpus, 1e-9)
    reserve = [
        AppDemand(app=n, qps=times * qps, slo=slo[n], headroom=1.0, query_class=QueryClass.BEST_EFFORT)
        for n, qps in means.items()
        if qps > 0
    ]
    return Problem(demands=(*demands, *reserve), devices=devices, catalogue=catalogue)


def _capacity(catalogue: Catalogue, placements: PlacementTable, variant: str) -> float:
    """Most batches/s of one variant that a GPU can take, whatever its geometry."""
    best: dict[str, float] = {}
    for (_, kind), profile in catalogue.profiles.items():
        if profile.variant == variant:
            best[kind] = max(p.batch / p.median for p in profile.points)
    most = max(sum(best.get(f"{placements.gpu}:{p}", 0.0) for p in g) for g in placements.undominated)
    return max(most, 1e-9)


@dataclass(frozen=True)
class NarrowedTable(PlacementTable):
    """A placement table of which only ``kept`` geometries are planned with."""

    kept: tuple[Geometry, ...] = ()

    @property
    @override
    def undominated(self) -> tuple[Geometry, ...]:
        """Those that were kept."""
        return self.kept


def lasting(
    placements: PlacementTable, table: SlowdownTable, strict: str, registered: Collection[str], *, multiplier: float
) -> NarrowedTable:
    """Without the geometries that take much smaller bursts of ``strict`` batches than others, and of the rest without
    those that the next best-effort variant may find no room on.

    A burst is what an empty GPU ends within the SLO: means and reserve are fluids, in which half a batch has its use.

    Which of the ``registered`` comes next is not known, and cutting GPUs anew takes capacity away just when it is
    needed. For each geometry: the least share, over the variants, of what the best geometry for the variant can take of
    it. Kept are those within two thirds of the best such share: on an A100 3g+2g+2g is as good as 4g+3g for most
    models, and takes 45 % of what 4g+3g takes of batches of 13.7 GB, which fit on its 3g alone.
    """
    worst: dict[Geometry, float] = {}
    bursts = {g: sum(_burst(table, placements, strict, p, multiplier) for p in g) for g in placements.undominated}
    taking = [g for g in placements.undominated if bursts[g] >= _BURST * max(bursts.values())]
    capacities = {
        v: {g: sum(_rate(table, placements, v, p, multiplier) for p in g) for g in taking} for v in sorted(registered)
    }
    for geometry in taking:
        shares = [c[geometry] / max(c.values()) for c in capacities.values() if max(c.values()) > 0.0]
        worst[geometry] = min(shares, default=1.0)
    bar = _LASTING * max(worst.values())
    kept = tuple(g for g in taking if worst[g] >= bar)
    return NarrowedTable(
        placements.gpu, placements.memory_slots, placements.compute_slices, placements.profiles, kept=kept
    )


def first_cut(placements: NarrowedTable, table: SlowdownTable, strict: str, *, multiplier: float) -> Geometry:
    """Of the geometries to plan with, that of the largest strict burst, and most of these batches a second: how GPUs
    are cut before any demand is known."""

    def worth(geometry: Geometry) -> tuple[int, float]:
        burst = sum(_burst(table, placements, strict, p, multiplier) for p in geometry)
        return burst, sum(_rate(table, placements, strict, p, multiplier) for p in geometry)

    return max(placements.undominated, key=worth)


def _burst(table: SlowdownTable, placements: PlacementTable, variant: str, profile: str, multiplier: float) -> int:
    """Batches that a slice ends within the SLO where they come at once, so many at a time as is best."""
    part = placements.profile(profile)
    if not table.runs(variant, profile):
        return 0
    mine = table.of(variant, profile)
    budget = _BUDGET * multiplier * table.demands[variant].solo
    waves = enumerate(_copies(mine, part.memory_bytes), start=1)
    return max((copies * int(budget / seconds) for copies, seconds in waves), default=0)


def _rate(table: SlowdownTable, placements: PlacementTable, variant: str, profile: str, multiplier: float) -> float:
    """Batches/s of a variant that a slice takes when it has nothing else."""
    part = placements.profile(profile)
    if not table.runs(variant, profile) or table.of(variant, profile).memory_bytes > part.memory_bytes:
        return 0.0
    seconds = _beside(table.of(variant, profile), part.memory_bytes, _BUDGET * multiplier * table.demands[variant].solo)
    return 1.0 / seconds[0] if seconds else 0.0


def slack_left(program: Program, serve: Serve) -> float:
    """Share of the budget that a serve leaves: the quality of an answer there."""
    budget = program.demands[serve.demand].slo / 2
    return max(0.0, 1.0 - (serve.batch / serve.qps) / budget)


def _catalogue(
    names: tuple[str, ...], table: SlowdownTable, placements: PlacementTable, multiplier: float
) -> Catalogue:
    """``names``: the strict variant first."""
    alone = len(names) == 1
    profiles = []
    for name in names:
        known = table.demands[name]
        budget = _BUDGET * multiplier * known.solo
        if name == names[0]:
            budget = min(budget, max(budget / _crowding(multiplier), _on_the_second(table, placements, name)))
        for profile, part in placements.profiles.items():
            if not table.runs(name, profile) or known.memory_bytes > part.memory_bytes:
                continue
            mine = table.of(name, profile)
            seconds = _copies(mine, part.memory_bytes) if alone else _beside(mine, part.memory_bytes, budget)
            if seconds:
                points = tuple(BatchLatency(c, s, s) for c, s in enumerate(seconds, start=1))
                kind = f"{placements.gpu}:{profile}"
                profiles.append(Profile(variant=name, device_type=kind, points=points, memory_bytes=mine.memory_bytes))
    return Catalogue.of(
        [App(name=n, slo=multiplier * table.demands[n].solo, max_rows=1) for n in names],
        [Variant(name=n, app=n, accuracy=1.0, nominal=True) for n in names],
        profiles,
    )


def _on_the_second(table: SlowdownTable, placements: PlacementTable, variant: str) -> float:
    """Seconds on the second best part of a GPU: 0 where it runs on one at most.

    No GPU has two of the best: a strict variant that is barred from the others has half of each at most.
    """
    known = [p for p in placements.profiles.values() if table.runs(variant, p.name)]
    parts = [p for p in known if p.compute < placements.compute_slices]
    seconds = sorted(
        table.of(variant, p.name).seconds for p in parts if table.demands[variant].memory_bytes <= p.memory_bytes
    )
    return seconds[1] if len(seconds) > 1 else 0.0


def _crowding(multiplier: float) -> float:
    """Slowdown by neighbours that strict batches must be able to bear on a slice that is meant for them.

    A half at the usual multiplier of 3, an eighth at 2: a tight SLO leaves no slice at all otherwise.
    """
    return 1.0 + max(0.0, multiplier - 1.0) ** 2 / 8.0


def _copies(mine: Footprint, memory_bytes: int) -> list[float]:
    """Seconds of 1, 2, ... copies at a time, as many as the memory holds."""
    most = memory_bytes // mine.memory_bytes if mine.memory_bytes else _MOST_AT_A_TIME
    return [mine.seconds * max(1.0, c * mine.fbr) for c in range(1, min(most, _MOST_AT_A_TIME) + 1)]


def _beside(mine: Footprint, memory_bytes: int, budget: float) -> list[float]:
    """Seconds of the slice that one batch takes away from the others there; [] where it would be too slow itself."""
    if mine.seconds > budget:
        return []
    return [mine.seconds * max(mine.fbr, mine.memory_bytes / memory_bytes, 1e-3)]
