"""Running a batch: what becomes of each of its queries, and how long it took.

A batch that fails is run again query by query, so that one that breaks the model fails alone. One that takes longer
than its profile lets expect (``RunLimits``) hangs: it is ended, and the executor's process with it.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from sluicegate.domain.actions import Run
from sluicegate.domain.clock import Clock
from sluicegate.domain.errors import ExecutionError
from sluicegate.domain.events import LatencyMeasured
from sluicegate.domain.executor import Executed, Executor
from sluicegate.domain.fleet.device import Device, Slice, profile_type
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.models.tensor import Tensor, split_rows
from sluicegate.domain.outcome import OutcomeKind, Reason
from sluicegate.domain.query import Query
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.telemetry.metrics import Meters

log = logging.getLogger(__name__)

Inputs = Callable[[Query], Sequence[Tensor] | None]
"""A query's tensors; None for one that was abandoned meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """How long a batch may run: ``factor`` times its profiled 95th percentile, ``floor`` seconds at least.

    The first batch of a size after a variant was loaded may take as long as loading did, beyond that: what was not
    warmed is made then. A variant without a profile may take ``factor`` times its app's SLO.
    """

    factor: float = 10.0
    floor: float = 2.0


@dataclass(slots=True)
class Ending:
    """How a query ended, at ``at``; ``run``, ``started`` and ``execution_s`` where a batch was run for it.

    Nobody changes it (not frozen: one is made for each query, which costs).
    """

    query: Query
    kind: OutcomeKind
    at: float
    reason: Reason | None = None
    detail: str | None = None
    run: Run | None = None
    started: float | None = None
    execution_s: float = 0.0
    outputs: Sequence[Tensor] = ()

    @property
    def on_time(self) -> bool:
        """Answered within its deadline."""
        return self.kind is OutcomeKind.ANSWERED and self.at <= self.query.deadline


@dataclass(frozen=True, slots=True)
class Ran:
    """A batch that has ended. ``execution_s``: of the model alone; 0 where it failed."""

    ends: Sequence[Ending]
    execution_s: float = 0.0
    failed: bool = False


class Batches:
    """One slice's executor at work. ``restart`` brings it back after its process died."""

    def __init__(
        self,
        device: Device,
        part: Slice,
        *,
        executor: Executor,
        catalogue: Catalogue,
        clock: Clock,
        meters: Meters,
        inputs: Inputs,
        restart: Callable[[], Awaitable[None]],
        limits: RunLimits | None = None,
    ) -> None:
        self._device = device
        self._slice = part
        self._executor = executor
        self._catalogue = catalogue
        self._clock = clock
        self._meters = meters
        self._inputs = inputs
        self._restart = restart
        self._limits = limits or RunLimits()
        self._load_s: dict[str, float] = {}
        self._warm: set[tuple[str, int]] = set()  # (variant, rows) that ran since the variant was loaded
        self._measured: dict[tuple[str, int], tuple[int, float]] = {}
        self._curves: dict[str, LatencyCurve] = {}
        self._busy_s = 0.0
        self._ends_at: float | None = None

    @property
    def kind(self) -> str:
        """What profiles call this slice."""
        return profile_type(self._device.type, self._slice.profile)

    @property
    def busy_for(self) -> float:
        """Seconds until the running batch is expected to end, 0 while idle."""
        return max(0.0, self._ends_at - self._clock.wall()) if self._ends_at is not None else 0.0

    def registered(self) -> None:
        """Profiles may be others from now on."""
        self._curves.clear()

    def loaded(self, variant: str, seconds: float) -> None:
        """It was loaded (again), which took so long."""
        self._load_s[variant] = seconds
        self._warm = {(name, rows) for name, rows in self._warm if name != variant}

    def take_measured(self) -> list[LatencyMeasured]:
        """Batch latencies since the last call, one mean a variant and size."""
        kind = self.kind
        measured = [
            LatencyMeasured(variant, kind, rows, total / count, count)
            for (variant, rows), (count, total) in self._measured.items()
        ]
        self._measured.clear()
        return measured

    def take_busy(self) -> float:
        """Seconds the executor ran since the last call."""
        busy, self._busy_s = self._busy_s, 0.0
        return busy

    async def run(self, run: Run) -> Ran:
        """Run it. Queries abandoned meanwhile have no ending."""
        started = self._clock.wall()
        kept = [(query, tensors) for query in run.queries if (tensors := self._inputs(query)) is not None]
        if not kept:
            return Ran(())
        began = self._clock.monotonic()  # the wall clock may be set while it runs
        self._ends_at = started + self._expected(run)
        try:
            executed = await self._execute(run, [tensors for _, tensors in kept], sum(query.rows for query, _ in kept))
        except ExecutionError as error:
            return Ran(await self._one_by_one(run, started, error), failed=True)
        finally:
            self._ends_at = None
        now = self._clock.wall()
        self._note(run, self._clock.monotonic() - began)
        return Ran(_answers([query for query, _ in kept], run, executed, started, now), executed.execution_s)

    async def _one_by_one(self, run: Run, started: float, error: ExecutionError) -> list[Ending]:
        ids = [query.id for query in run.queries]
        told = (run.variant, run.rows, self._device.name, error)
        log.warning("%s failed a batch of %d on %s: %s", *told, extra={"query_ids": ids})
        self._meters.add("sluice_batch_failures", self._device.name, run.variant)
        ends: list[Ending] = []
        if error.fatal:
            await self._restart()
        for query in run.queries:
            tensors = self._inputs(query)
            if tensors is None:
                continue
            now = self._clock.wall()
            if len(run.queries) > 1:
                if now >= query.deadline:
                    ends.append(Ending(query, OutcomeKind.EXPIRED, now, detail=f"its batch failed: {error}"))
                    continue
                try:
                    executed = await self._execute(run, [tensors], query.rows)
                except ExecutionError as alone:
                    error = alone
                    if alone.fatal:
                        await self._restart()
                else:
                    ends += _answers([query], run, executed, started, self._clock.wall())
                    continue
            at = self._clock.wall()
            ends.append(Ending(query, OutcomeKind.FAILED, at, Reason.MODEL_ERROR, str(error), run, started))
        return ends

    async def _execute(self, run: Run, inputs: Sequence[Sequence[Tensor]], rows: int) -> Executed:
        executed = await self._executor.run(run.variant, inputs, rows, within=self._limit(run, rows))
        self._warm.add((run.variant, rows))
        return executed

    def _limit(self, run: Run, rows: int) -> float:
        """Seconds after which a batch of ``rows`` of these queries is taken to hang."""
        curve = self._curve(run.variant)
        if curve is None:
            normal = self._catalogue.apps[run.queries[0].app].slo
        else:
            known = min(rows, curve.max_batch)
            normal = curve.at(known, run.length) * rows / known
        first = 0.0 if (run.variant, rows) in self._warm else self._load_s.get(run.variant, 0.0)
        return max(self._limits.floor, self._limits.factor * normal) + first

    def _expected(self, run: Run) -> float:
        """Seconds that a batch takes by its profile, 0 where it has none."""
        curve = self._curve(run.variant)
        return 0.0 if curve is None else curve.at(min(run.rows, curve.max_batch), run.length)

    def _curve(self, variant: str) -> LatencyCurve | None:
        curve = self._curves.get(variant)
        if curve is None:
            profile = self._catalogue.profiles.get((variant, self.kind))
            if profile is not None:
                curve = self._curves[variant] = profile.curve()
        return curve

    def _note(self, run: Run, seconds: float) -> None:
        variant, rows = run.variant, run.rows
        curve = self._curve(variant)
        told = seconds if curve is None else curve.as_of_longest(rows, run.length, seconds)
        count, total = self._measured.get((variant, rows), (0, 0.0))
        self._measured[variant, rows] = (count + 1, total + told)
        self._busy_s += seconds
        self._meters.add("sluice_device_busy_seconds", self._device.name, self._slice.name, by=seconds)
        self._meters.observe("sluice_batch_rows", rows, self._device.name, variant)
        self._meters.observe("sluice_batch_seconds", seconds, self._device.name, variant)


def _answers(queries: Sequence[Query], run: Run, executed: Executed, started: float, at: float) -> list[Ending]:
    parts = split_rows(executed.outputs, [query.rows for query in queries])
    return [
        Ending(query, OutcomeKind.ANSWERED, at, None, None, run, started, executed.execution_s, outputs)
        for query, outputs in zip(queries, parts, strict=True)
    ]
