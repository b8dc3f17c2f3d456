"""Who says how GPUs should be cut: PROTEAN's rule GPU by GPU, or the joint program for the fleet.

From the past alone.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping

from reproduce.protean.geometry_demand import SliceDemand, SliceForecast, lasting, slack_left, slice_problem
from reproduce.protean.slices.world import World
from sluicegate.planner.geometry.geometry_search import GeometrySettings
from sluicegate.planner.geometry.gpu_pools import sliced
from sluicegate.planner.geometry.joint_plan import plan_geometry
from sluicegate.planner.geometry.mig_tables import Geometry, PlacementTable
from sluicegate.planner.geometry.protean_geometry import LARGE, SMALL, BestEffortForecast, desired_geometry
from sluicegate.planner.geometry.reconfigurator import Desired
from sluicegate.profiles.catalogue.slowdown import SlowdownTable


class ProteanControl:
    """Every ``period`` seconds each GPU's best-effort rate is averaged and a geometry wished for.

    ``window``: seconds of arrivals that are on a GPU at a time.
    """

    def __init__(
        self, *, period: float, window: float, alpha: float = 0.5, multiplier: float = 3.0, published: bool = False
    ) -> None:
        self.period = self.first = period
        self._window = window
        self._alpha = alpha
        self._multiplier = multiplier
        self._published = published
        self._forecasts: dict[str, BestEffortForecast] = {}
        self._seen: dict[str, int] = {}
        self._model: str | None = None

    def tick(self, world: World, now: float) -> list[Desired]:  # noqa: ARG002
        """A wish for each GPU that has seen best-effort queries."""
        wishes: list[Desired] = []
        strict = world.workload.strict
        for gpu in world.gpus:
            received = {v: n for v, n in gpu.received.items() if v != strict}
            gpu.received = {}
            forecast = self._forecasts.setdefault(gpu.name, BestEffortForecast(self._alpha))
            expected = forecast.update(sum(received.values()) / self.period) * self._window
            if received:
                self._model = max(received, key=lambda v: received[v])
            if self._model is None:
                continue
            if self._published:
                wanted = published_geometry(world.table, world.placements, best_effort=self._model, queries=expected)
            else:
                wanted = desired_geometry(
                    world.table,
                    world.placements,
                    strict=strict,
                    best_effort=self._model,
                    queries=expected,
                    multiplier=self._multiplier,
                )
            if wanted is not None:
                wishes.append(Desired(gpu.name, wanted))
        return wishes


class JointControl:
    """Every ``period`` seconds the joint geometry program plans the fleet for the forecast demand.

    ``registered``: best-effort variants that may come, known before any does.
    """

    def __init__(
        self,
        *,
        period: float,
        multiplier: float = 3.0,
        change_weight: float = 0.05,
        gpu_type: str = "a100",
        registered: Collection[str] = (),
    ) -> None:
        self.period = self.first = period
        self._multiplier = multiplier
        self._settings = GeometrySettings(change_weight=change_weight, quality=slack_left, shared=True)
        self._gpu_type = gpu_type
        self._registered = tuple(registered)
        self._placements: PlacementTable | None = None
        self._forecast: SliceForecast | None = None
        self._settled: object = None
        self._seen = 0

    def tick(self, world: World, now: float) -> list[Desired]:  # noqa: ARG002
        """A wish for each GPU that the plan cuts anew; none while a change is in flight."""
        demand = self._observe(world)
        if world.reconfigurator.in_flight:
            return []
        here = [g for g in world.gpus if g.here]
        known = (_rounded(demand), tuple((g.name, g.geometry) for g in here))
        if not here or known == self._settled:
            return []
        devices = tuple(sliced(g.name, self._gpu_type, g.geometry) for g in here)
        if self._placements is None:
            self._placements = lasting(
                world.placements, world.table, demand.strict, self._registered, multiplier=self._multiplier
            )
        problem = slice_problem(demand, world.table, self._placements, devices, multiplier=self._multiplier)
        plan = plan_geometry(problem, self._settings, {self._gpu_type: self._placements})
        changes = {**_left_behind(plan.geometries, self._placements.undominated), **plan.changes}
        self._settled = None if changes else known
        return [Desired(name, geometry) for name, geometry in changes.items()]

    def _observe(self, world: World) -> SliceDemand:
        """Batches that came since the last tick."""
        batches = world.workload.batches[self._seen : world.arrived]
        self._seen = world.arrived
        name = world.workload.strict
        if self._forecast is None:
            self._forecast = SliceForecast(name)
        received = Counter(b.variant for b in batches)
        return self._forecast.update(
            received.pop(name, 0) / self.period, {v: n / self.period for v, n in received.items()}
        )


def _left_behind(geometries: Mapping[str, Geometry], kept: Collection[Geometry]) -> dict[str, Geometry]:
    """GPUs whose geometry is none to plan with, and what most others have: turns give each GPU as much as any other."""
    lasting = {tuple(sorted(g)) for g in kept}
    stays = Counter(g for g in geometries.values() if tuple(sorted(g)) in lasting)
    to = stays.most_common(1)[0][0] if stays else None
    return {} if to is None else {n: to for n, g in geometries.items() if tuple(sorted(g)) not in lasting}


def _rounded(demand: SliceDemand) -> tuple[object, ...]:
    """What of a demand is worth a new plan: steps of about a tenth."""
    others = tuple((name, _step(rate)) for name, rate in demand.others.items())
    return demand.strict, _step(demand.strict_mean), others


def _step(rate: float) -> int:
    return round(10.0 * math.log(rate)) if rate > 0.0 else -1000


def published_geometry(
    table: SlowdownTable, placements: PlacementTable, *, best_effort: str, queries: float
) -> Geometry | None:
    """Algorithm 2 as printed: the sum of memories against the prediction, the second candidate equal to the fallback.

    None where that fallback, which its indentation never applies, leaves the geometry as it is.
    """
    demand = table.demands[best_effort]
    wanted = math.ceil(queries / demand.batch - 1e-9) * demand.memory_bytes
    for part, geometry in ((("1g", "2g"), SMALL), (("3g",), LARGE)):
        if sum(placements.profile(p).memory_bytes for p in part) >= wanted:
            return geometry
    return None
