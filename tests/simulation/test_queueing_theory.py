"""The engine against queues whose answer is known."""

from collections import deque
from dataclasses import replace
from math import factorial

import pytest

from sluicegate.domain.actions import Run, Send
from sluicegate.domain.events import Arrived, Finished, HostingChanged, PlanActivated
from sluicegate.domain.query import Query
from sluicegate.policies.serving.router import RouterRules
from sluicegate.profiles.catalogue.slice_profiles import shared
from sluicegate.simulator.engine.slice_model import SharingModel
from tests.simulation.worlds import Waits, interval, one_app, poisson, simulate, world

_RUNS = range(8)


@pytest.mark.thorough
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_a_single_server_with_fixed_service_waits_as_m_d_1(load: float) -> None:
    service = 0.01
    expected = load * service / (2.0 * (1.0 - load))
    means = []
    for seed in _RUNS:
        waits = Waits(after=20.0)
        simulate(world(one_app([service])), poisson(load / service, 220.0, seed), seed, waits)
        means.append(waits.mean_wait)
    low, high = interval(means)
    assert low < expected < high
    assert high - low < 0.4 * expected


def erlang_c(servers: int, offered: float) -> float:
    """Probability that an arrival of M/M/c waits."""
    last = offered**servers / factorial(servers) * servers / (servers - offered)
    return last / (sum(offered**k / factorial(k) for k in range(servers)) + last)


class _Pool:
    """One queue for c servers: what M/M/c assumes, and no policy of the house does."""

    def __init__(self) -> None:
        self.queue: deque[Query] = deque()
        self.idle: list[tuple[str, str]] = []
        self.places: tuple[tuple[str, str], ...] = ()


class _CentralRouting:
    """Sends a query to an idle server, else to any: the queue is shared."""

    name = "central"

    def __init__(self, pool: _Pool, free: set[str]) -> None:
        self._pool = pool
        self._free = free
        self._slices: list[str] = []

    def handle(self, event: object, now: float) -> list[Send]:
        if isinstance(event, PlanActivated):
            self._slices = [p.slice for p in event.plan.placements]
        if not isinstance(event, Arrived):
            return []
        target = next((s for s in self._slices if s in self._free), self._slices[0])
        return [Send(event.query, "d0", target)]


class _PooledStation:
    """A server that takes the next query of the shared queue whenever it is free."""

    def __init__(self, pool: _Pool, free: set[str], name: str) -> None:
        self._pool = pool
        self._free = free
        self._name = name
        free.add(name)

    busy = False
    away = 0
    queued = rows = 0
    margins = ()

    def handle(self, event: object, now: float) -> list[Run]:
        if isinstance(event, Arrived):
            self._pool.queue.append(event.query)
        elif isinstance(event, Finished):
            self._free.add(self._name)
        elif not isinstance(event, HostingChanged):
            raise TypeError(event)
        if self._name not in self._free or not self._pool.queue:
            return []
        self._free.discard(self._name)
        return [Run("v", (self._pool.queue.popleft(),), 1)]

    def drain(self, app: str) -> tuple[Query, ...]:
        return ()

    def queued_of(self, app: str) -> int:
        return 0

    def take_observed(self, now: float) -> tuple[()]:
        return ()


@pytest.mark.parametrize(
    ("servers", "load"), [(1, 0.7), *(pytest.param(*one, marks=pytest.mark.thorough) for one in ((3, 0.8), (5, 0.85)))]
)
def test_servers_with_one_queue_wait_as_m_m_c(servers: int, load: float) -> None:
    service = 0.04
    offered = servers * load
    expected = erlang_c(servers, offered) * service / (servers * (1.0 - load))
    means = []
    for seed in _RUNS:
        pool, free = _Pool(), set[str]()
        names = iter(f"s{i}" for i in range(servers)) if servers > 1 else iter(["whole"])
        system = replace(
            world(one_app([service]), slices=servers),
            routers=RouterRules(make_policy=lambda app, pool=pool, free=free: _CentralRouting(pool, free)),
            make_station=lambda pool=pool, free=free, names=names: _PooledStation(pool, free, next(names)),
            service="exponential",
        )
        waits = Waits(after=30.0)
        simulate(system, poisson(offered / service, 230.0, seed), seed, waits)
        means.append(waits.mean_wait)
    low, high = interval(means)
    assert low < expected < high
    assert high - low < 0.8 * expected


@pytest.mark.thorough
@pytest.mark.parametrize(("executors", "load"), [(2, 0.7), (3, 0.8)])
def test_executors_that_are_not_in_each_others_way_wait_as_m_m_c(executors: int, load: float) -> None:
    """The cores' own queue and offers: each takes a third of the slice at most."""
    service = 0.04
    offered = executors * load
    expected = erlang_c(executors, offered) * service / (executors * (1.0 - load))
    means = []
    for seed in _RUNS:
        known = one_app([service])
        known = replace(known, profiles={k: replace(p, fbr=0.3) for k, p in known.profiles.items()})
        system = replace(
            world(shared(known, {"cpu": executors})),
            sharing=SharingModel(executors={"cpu": executors}, parts={"v": 0.3}),
            service="exponential",
        )
        waits = Waits(after=30.0)
        simulate(system, poisson(offered / service, 230.0, seed), seed, waits)
        means.append(waits.mean_wait)
    low, high = interval(means)
    assert low < expected < high
    assert high - low < 0.8 * expected


@pytest.mark.parametrize(
    ("fbr", "times"),
    [(0.25, 4.0), *(pytest.param(*one, marks=pytest.mark.thorough) for one in ((0.5, 2.0), (1.0, 1.0)))],
)
def test_executors_end_together_what_the_bandwidth_allows(fbr: float, times: float) -> None:
    seconds, executors = [0.010, 0.012, 0.014, 0.016], 4
    known = one_app(seconds)
    known = replace(known, profiles={k: replace(p, fbr=fbr) for k, p in known.profiles.items()})
    sharing = SharingModel(executors={"cpu": executors}, parts={"v": fbr})
    system = replace(world(shared(known, {"cpu": executors})), sharing=sharing)
    last = _Last()
    queries = simulate(system, poisson(1500.0, 40.0, 0), 0, last).summary.queries
    assert queries / last.at == pytest.approx(times * 4 / 0.016, rel=0.02)


@pytest.mark.thorough
def test_a_shared_processor_serves_as_m_g_1_ps() -> None:
    """Time in the system is E[S]/(1 - rho), whatever the distribution of S (here: fixed)."""
    service, load = 0.01, 0.6
    means = []
    for seed in _RUNS:
        waits = Waits(after=20.0)
        system = world(one_app([service]), slices=24)
        free = {p.name for p in system.devices[0].slices}
        sharing = SharingModel(instances={("d0", part): "all" for part in free})
        system = replace(
            system, sharing=sharing, routers=RouterRules(make_policy=lambda app, free=free: _AnyFree(free))
        )
        simulate(system, poisson(load / service, 150.0, seed), seed, waits, _Frees(free))
        means.append(waits.mean_time)
    low, high = interval(means)
    assert low < service / (1.0 - load) < high
    assert high - low < 0.2 * service / (1.0 - load)


class _AnyFree:
    """Sends each query to a slice of its own, so that nothing queues and all share."""

    name = "any-free"

    def __init__(self, free: set[str]) -> None:
        self._free = free

    def handle(self, event: object, now: float) -> list[Send]:
        if not isinstance(event, Arrived):
            return []
        part = min(self._free) if self._free else "s0"
        self._free.discard(part)
        return [Send(event.query, "d0", part)]


class _Frees:
    def __init__(self, free: set[str]) -> None:
        self._free = free

    def add(self, outcome: object) -> None:
        self._free.add(outcome.slice)  # type: ignore[attr-defined]


def test_batches_of_a_saturated_server_reach_the_profiles_throughput() -> None:
    seconds = [0.010, 0.012, 0.014, 0.016]
    last = _Last()
    queries = simulate(world(one_app(seconds)), poisson(600.0, 60.0, 0), 0, last).summary.queries
    assert queries / last.at == pytest.approx(4 / 0.016, rel=0.02)


class _Last:
    at = 0.0

    def add(self, outcome: object) -> None:
        self.at = max(self.at, outcome.at)  # type: ignore[attr-defined]
