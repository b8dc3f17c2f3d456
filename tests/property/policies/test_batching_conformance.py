"""What every batching policy promises (policies/protocols.py), on arbitrary arrivals, curves, classes and timers."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reproduce.spread_drop.trial import TrialRun
from sluicegate.domain.actions import Drop, Expire, Run, StationAction, WakeAt
from sluicegate.domain.events import (
    Arrived,
    BatchingEvent,
    Finished,
    Hosted,
    HostingChanged,
    Offered,
    StationEvent,
    Woke,
)
from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.query import Query
from sluicegate.policies.batching.registry import BATCHING, batching
from sluicegate.policies.protocols import BatchingPolicy
from sluicegate.policies.serving.slice_scheduler import Station
from tests.property.examples import drawn

NAMES = sorted(BATCHING)
APPS = ("a", "b")


class Watched:
    """A batching policy with its contract checked at every event."""

    def __init__(self, policy: BatchingPolicy) -> None:
        self.policy = policy
        self.name = policy.name
        self.waiting: set[int] = set()
        self.limits: dict[str, int] = {}
        self.timer = inf
        self.running = False

    @property
    def queued(self) -> int:
        return self.policy.queued

    @property
    def head_deadline(self) -> float:
        return self.policy.head_deadline

    def drain(self) -> tuple[Query, ...]:
        self.waiting.clear()
        return self.policy.drain()

    def lend(self, rows: int, end: float) -> tuple[Query, ...]:
        lent = self.policy.lend(rows, end)
        assert sum(q.rows for q in lent) <= rows
        for query in lent:
            assert query.deadline >= end
            self.waiting.remove(id(query))
        return lent

    def handle(self, event: BatchingEvent, now: float) -> list[StationAction]:
        match event:
            case Arrived(query):
                self.waiting.add(id(query))
            case HostingChanged(_, hosted, _):
                self.limits = {h.variant: h.curve.max_batch for h in hosted}
            case Finished():
                self.running = False
            case Woke():
                self.timer = inf
            case Offered():
                assert not self.running
        actions = self.policy.handle(event, now)
        for action in actions:
            self._check(action, event, now)
        assert self.policy.queued == len(self.waiting)
        if self.waiting:
            assert self.timer <= self.policy.head_deadline
        else:
            assert self.policy.head_deadline == inf
        if isinstance(event, Woke):
            assert self.policy.head_deadline > now
        return actions

    def _check(self, action: StationAction, event: BatchingEvent, now: float) -> None:
        match action:
            case Run(variant, queries, rows):
                assert isinstance(event, Offered) and not self.running
                assert rows == sum(q.rows for q in queries) <= self.limits[variant]
                assert all(q.deadline > now for q in queries)
                for query in queries:
                    self.waiting.remove(id(query))
                self.running = True
            case Drop(query, _):
                self.waiting.remove(id(query))
            case Expire(query):
                assert query.deadline <= now
                self.waiting.remove(id(query))
            case WakeAt(at):
                self.timer = min(self.timer, at)


@dataclass
class Case:
    queries: list[Query]
    hosted: tuple[Hosted, ...]
    slo: float
    apps: int
    slowness: list[float]


@st.composite
def cases(draw: st.DrawFn, max_rows: int = 3) -> Case:
    milli = st.integers(1, 40).map(lambda n: n / 1000)
    variants = tuple(
        Hosted(f"v{i}", 0.9 - i / 10, LatencyCurve(tuple(draw(st.lists(milli, min_size=1, max_size=6)))))
        for i in range(draw(st.integers(1, 2)))
    )
    slo = draw(st.sampled_from((0.02, 0.05, 0.1)))
    mixed = draw(st.booleans())
    apps = draw(st.integers(1, 2))
    now = 0.0
    queries = []
    gaps = draw(st.lists(st.sampled_from((0.0, 0.001, 0.002, 0.005, 0.03)), max_size=40))
    for i, gap in enumerate(gaps):
        now += gap
        within = slo * draw(st.sampled_from((0.5, 1.0, 2.0))) if mixed else slo
        kind = draw(st.sampled_from(tuple(QueryClass))) if mixed else QueryClass.STRICT
        rows = draw(st.integers(1, max_rows)) if mixed else 1
        queries.append(Query(str(i), APPS[i % apps], now, now + within, rows, kind, sequence=i))
    slowness = draw(st.lists(st.sampled_from((0.3, 1.0, 1.0, 1.7)), min_size=1, max_size=5))
    return Case(queries, variants, slo, apps, slowness)


def drive(case: Case, make: Callable[[], BatchingPolicy]) -> list[tuple[StationEvent, float, list[StationAction]]]:
    log: list[tuple[StationEvent, float, list[StationAction]]] = []
    count = 0

    def execution(variant: str, rows: int) -> float:
        nonlocal count
        count += 1
        curve = next(h.curve for h in case.hosted if h.variant == variant)
        return curve(rows) * case.slowness[count % len(case.slowness)]

    run = TrialRun(Station(make), case.queries, execution=execution, record=lambda e, t, a: log.append((e, t, list(a))))
    for app in APPS[: case.apps]:
        run.host(app, case.hosted, case.slo)
    run.to_end()
    return log


@pytest.mark.parametrize("name", NAMES)
@drawn(60)
@given(case=cases())
def test_every_query_meets_one_fate_and_the_contract_holds_at_every_event(name: str, case: Case) -> None:
    make = batching(name)
    drive(case, lambda: Watched(make()))


@pytest.mark.parametrize("name", NAMES)
@drawn(20)
@given(case=cases())
def test_a_recorded_run_replayed_gives_the_same_actions(name: str, case: Case) -> None:
    log = drive(case, batching(name))
    again = Station(batching(name))
    for event, now, actions in log:
        assert again.handle(event, now) == actions


@pytest.mark.parametrize("name", NAMES)
@drawn(30)
@given(case=cases(), early=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6))
def test_timers_that_go_off_early_lose_no_query(name: str, case: Case, early: list[float]) -> None:
    """A shell with one timer that may go off at any moment before its time, once for each time asked for."""
    make = batching(name)
    station = Station(lambda: Watched(make()))
    fates = 0
    for app in APPS[: case.apps]:
        station.handle(HostingChanged(app, case.hosted, case.slo), 0.0)
    now, timer, spent = 0.0, inf, inf
    pending, running, ends = list(case.queries), None, inf
    while pending or running is not None or timer < inf:
        arrival = pending[0].arrival if pending else inf
        at = timer
        if timer not in (inf, spent):
            at = now + early[fates % len(early)] * max(0.0, timer - now)
        event: StationEvent
        if running is not None and ends <= min(arrival, at):
            now, event = max(now, ends), Finished(running.queries[0].app, running.variant, running.rows, 0.0)
            running, ends = None, inf
        elif arrival <= at:
            now, event = max(now, arrival), Arrived(pending.pop(0))
        else:
            now, event, spent, timer = max(now, at), Woke(), timer, inf
        for action in station.handle(event, now):
            match action:
                case Run(variant, queries, rows):
                    running = action
                    ends = now + next(h.curve for h in case.hosted if h.variant == variant)(rows)
                    fates += len(queries)
                case WakeAt(wake):
                    timer = min(timer, wake)
                case _:
                    fates += 1
    assert fates == len(case.queries)
    assert station.queued == 0


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_hosted_waits_and_expires_and_hosting_brings_it_back(name: str) -> None:
    curve = LatencyCurve((0.01, 0.012, 0.014, 0.016))
    policy = Watched(batching(name)())
    first = Query("1", "a", 0.0, 1.0, sequence=0)
    second = Query("2", "a", 0.5, 1.5, sequence=1)
    assert policy.handle(Arrived(first), 0.0) == [WakeAt(1.0)]
    assert policy.handle(Offered(), 0.0) == []
    policy.handle(Arrived(second), 0.5)
    assert policy.handle(Woke(), 1.0) == [Expire(first), WakeAt(1.5)]
    policy.handle(HostingChanged("a", (Hosted("v", 0.9, curve),), 1.0), 1.1)
    actions = policy.handle(Offered(), 1.1)
    if not any(isinstance(a, Run) for a in actions):
        at = policy.timer
        assert at < 1.5
        actions = policy.handle(Woke(), at) + policy.handle(Offered(), at)
    assert [a.queries for a in actions if isinstance(a, Run)] == [(second,)]


@pytest.mark.parametrize("name", NAMES)
def test_a_query_larger_than_the_largest_batch_is_given_up_not_stuck(name: str) -> None:
    policy = Watched(batching(name)())
    policy.handle(HostingChanged("a", (Hosted("v", 0.9, LatencyCurve((0.01, 0.01))),), 1.0), 0.0)
    big = Query("big", "a", 0.0, 1.0, rows=3, sequence=0)
    policy.handle(Arrived(big), 0.0)
    actions = policy.handle(Offered(), 0.0)
    assert [a.query for a in actions if isinstance(a, Drop)] == [big]
