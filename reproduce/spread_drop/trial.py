"""One station alone under a virtual clock: how a batching rule is tried on an arrival sequence.

Rules. Execution takes what the curve says and timers go off when asked, unless told otherwise. Of events at one time
the end of a batch comes first, then arrivals, then wakes. A station's wakes are kept as one timer, the earliest asked
for. All is pure: the same arrivals give the same trial.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, nan

from sluicegate.domain.actions import Drop, Expire, Run, StationAction, WakeAt
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import Arrived, Finished, Hosted, HostingChanged, StationEvent, Woke
from sluicegate.domain.query import Query
from sluicegate.policies.protocols import StationPolicy

ON_TIME, LATE, DROPPED, EXPIRED = range(4)
"""Codes of ``Trial.fates``."""


@dataclass(slots=True)
class Trial:
    """What became of each query, in arrival order, and of the device.

    ``fates``: a code a query. ``batches``: (start, rows, seconds) of each. ``busy_s``: seconds of execution;
    ``wasted_s``: the part of it spent on rows that came late. ``ended``: time of the last event. ``accuracy``: sum over
    queries answered on time.
    """

    fates: bytearray
    batches: list[tuple[float, int, float]] = field(default_factory=list)
    busy_s: float = 0.0
    wasted_s: float = 0.0
    ended: float = 0.0
    accuracy: float = 0.0
    decisions: int = 0

    @property
    def misses(self) -> int:
        """Queries not answered within their deadline."""
        return len(self.fates) - self.fates.count(ON_TIME)

    @property
    def violation_ratio(self) -> float:
        """Misses over queries, 0..1; NaN where there were none."""
        return self.misses / len(self.fates) if self.fates else nan

    @property
    def mean_batch(self) -> float:
        """Mean rows a batch; NaN where none ran."""
        return sum(rows for _, rows, _ in self.batches) / len(self.batches) if self.batches else nan


class TrialRun:
    """Drives ``station`` through ``queries`` (ascending in arrival).

    ``execution``: (variant, rows) -> seconds, from when a batch is started to when its end is known. ``lag``: seconds
    by which a timer asked for goes off late.
    """

    def __init__(
        self,
        station: StationPolicy,
        queries: Sequence[Query],
        *,
        execution: Callable[[str, int], float] | None = None,
        lag: Callable[[], float] | None = None,
        record: Callable[[StationEvent, float, list[StationAction]], None] | None = None,
    ) -> None:
        self._station = station
        self._queries = queries
        self._execution = execution
        self._lag = lag
        self._record = record
        self._index = {id(q): i for i, q in enumerate(queries)}
        self._curves: dict[str, Hosted] = {}
        self._timer = inf
        self._ends = inf
        self._running: Run | None = None
        self._took = 0.0
        self.trial = Trial(bytearray(b"\xff" * len(queries)))

    def host(self, app: str, hosted: tuple[Hosted, ...], slo: float, now: float = 0.0) -> None:
        """Change what is hosted for ``app``."""
        for each in hosted:
            self._curves[each.variant] = each
        self._tell(HostingChanged(app, hosted, slo), now)

    def to_end(self) -> Trial:
        """Run until nothing is left to happen. Raises IllegalEventError where a query is left without a fate."""
        queries = self._queries
        coming, count = 0, len(queries)
        while True:
            arrival = queries[coming].arrival if coming < count else inf
            now = min(self._ends, arrival, self._timer)
            if now == inf:
                break
            if self._ends <= now:
                self._finish(now)
            elif arrival <= now:
                self._tell(Arrived(queries[coming]), now)
                coming += 1
            else:
                self._timer = inf
                self._tell(Woke(), now)
            self.trial.ended = now
        if 0xFF in self.trial.fates:
            raise IllegalEventError(f"query {queries[self.trial.fates.index(0xFF)]} was left without a fate")
        return self.trial

    def _finish(self, now: float) -> None:
        run = self._running
        assert run is not None
        trial = self.trial
        accuracy = self._curves[run.variant].accuracy
        late = 0
        for query in run.queries:
            if now <= query.deadline:
                self._settle(query, ON_TIME)
                trial.accuracy += accuracy
            else:
                self._settle(query, LATE)
                late += query.rows
        trial.busy_s += self._took
        trial.wasted_s += self._took * late / run.rows
        self._running = None
        self._ends = inf
        self._tell(Finished(run.queries[0].app, run.variant, run.rows, self._took), now)

    def _settle(self, query: Query, fate: int) -> None:
        index = self._index[id(query)]
        if self.trial.fates[index] != 0xFF:
            raise IllegalEventError(f"query {query} met two fates")
        self.trial.fates[index] = fate

    def _tell(self, event: StationEvent, now: float) -> None:
        actions = self._station.handle(event, now)
        self.trial.decisions += 1
        if self._record is not None:
            self._record(event, now, actions)
        for action in actions:
            if isinstance(action, Run):
                self._start(action, now)
            elif isinstance(action, WakeAt):
                self._timer = min(self._timer, action.at + self._lag() if self._lag else action.at)
            elif isinstance(action, Drop):
                self._settle(action.query, DROPPED)
            elif isinstance(action, Expire):
                self._settle(action.query, EXPIRED)

    def _start(self, run: Run, now: float) -> None:
        if self._running is not None:
            raise IllegalEventError(f"{run} at {now} while {self._running} runs")
        curve = self._curves[run.variant].curve
        self._took = self._execution(run.variant, run.rows) if self._execution else curve.at(run.rows, run.length)
        self._running = run
        self._ends = now + self._took
        self.trial.batches.append((now, run.rows, self._took))


def try_alone(
    station: StationPolicy,
    queries: Sequence[Query],
    hosted: tuple[Hosted, ...],
    slo: float,
    *,
    execution: Callable[[str, int], float] | None = None,
    lag: Callable[[], float] | None = None,
) -> Trial:
    """Serve ``queries`` (of one app, ascending in arrival) on one slice that hosts ``hosted`` from the start."""
    run = TrialRun(station, queries, execution=execution, lag=lag)
    if queries:
        run.host(queries[0].app, hosted, slo, queries[0].arrival)
    return run.to_end()
