"""Model-less serving under bursty traffic: rules for instances and for workers against Poisson counts, by fine windows.

Rules. Counts come by window (a tenth of a second, say); rules decide once a second on the mean of the last two. In a
window the loaded instances of an app that keep its SLO answer as much as they can: at their profile's rate, and beyond
it, where a worker's instances share it in time (GPUs), with what others leave idle, up to a whole worker each. What has
to wait longer than the SLO leaves, less what an answer takes, violates it at once. Workers are paid from the moment
they are asked for and hold instances once they have started. Whoever scales workers gives one back after a minute in
which what runs would have left a fifth of the others free. Loading takes its time. Profiles are synthetic.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np
from numpy.typing import NDArray

from reproduce.infaas.fluid import Rule
from sluicegate.planner.capacity.worker_count import AddWorker, WorkerBeat, WorkerScaling, WorkerTick
from sluicegate.planner.model_less.scaling_problem import Asked, Fleet, ScalingVariant

SEEN_TICKS = 2
GIVEN_BACK_AFTER = 60
FREE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Workers of one hardware. ``each``: resources of one; ``price``: an hour of one; ``start``: seconds until up.

    ``shared``: instances on a worker use what others leave idle.
    """

    count: int
    each: float
    price: float
    most: int = 0
    start: float = 30.0
    shared: bool = False


@dataclass(slots=True, kw_only=True)
class TrafficResult:
    """What a run came to: ``answered`` in time of ``asked`` queries, in all and by tick; ``cost``: of workers.

    ``hosted``: share of all workers' resources that instances hold, ``busy``: that work; both means over ticks, by
    hardware. ``prices``: of an hour of all workers paid for, by tick.
    """

    asked: float = 0.0
    answered: float = 0.0
    cost: float = 0.0
    by_tick: list[tuple[float, float]] = field(default_factory=list)
    prices: list[float] = field(default_factory=list)
    hosted: dict[str, list[float]] = field(default_factory=dict)
    busy: dict[str, list[float]] = field(default_factory=dict)

    @property
    def violations(self) -> float:
        """Of all queries, 0..1."""
        return 1.0 - self.answered / self.asked if self.asked else 0.0


@dataclass(frozen=True, slots=True)
class _Able:
    """What an app's loaded instances can do. ``rate``: queries/s; ``patience``: seconds that a query may wait.

    ``held``: resources by hardware. ``spare``: by shared hardware, resources that they may use beyond, and queries/s
    that one is worth.
    """

    rate: float
    patience: float
    held: Mapping[str, float]
    spare: Mapping[str, tuple[float, float]]


class Traffic:
    """One run. ``counts``: app -> queries by window, ``windows`` of them a second; ``start``: loaded instances."""

    def __init__(
        self,
        rule: Rule,
        variants: Sequence[ScalingVariant],
        counts: Mapping[str, NDArray[np.int64]],
        slos: Mapping[str, float],
        pools: Mapping[str, Pool],
        *,
        start: Mapping[str, int],
        windows: int = 10,
        scale_workers: bool = False,
    ) -> None:
        self._rule = rule
        self._variants = tuple(variants)
        self._counts = counts
        self._slos = slos
        self._pools = pools
        self._windows = windows
        self._scaling = WorkerScaling() if scale_workers else None
        self._running = {v.name: start.get(v.name, 0) for v in variants}
        self._loading: dict[str, deque[float]] = {v.name: deque() for v in variants}
        self._workers = {hardware: pool.count for hardware, pool in pools.items()}
        self._starting: dict[str, deque[float]] = {hardware: deque() for hardware in pools}
        self._calm = dict.fromkeys(pools, 0)
        self._waiting = dict.fromkeys(counts, 0.0)
        self.result = TrafficResult(hosted={h: [] for h in pools}, busy={h: [] for h in pools})

    def run(self) -> TrafficResult:
        """All of it."""
        ticks = len(next(iter(self._counts.values()))) // self._windows
        for tick in range(ticks):
            self._workers_come(float(tick))
            self._scale(tick)
            self._serve(tick)
            self._scale_workers(float(tick))
        return self.result

    def _fleet(self, asked: Mapping[str, Asked], running: Mapping[str, int]) -> Fleet:
        resources = {h: self._workers[h] * pool.each for h, pool in self._pools.items()}
        return Fleet(variants=self._variants, asked=asked, running=running, resources=resources)

    def _scale(self, tick: int) -> None:
        first, last = max(0, tick - SEEN_TICKS) * self._windows, tick * self._windows
        if not last:
            return
        asked = {
            app: Asked(load=float(counts[first:last].mean()) * self._windows, slo=self._slos[app])
            for app, counts in self._counts.items()
        }
        for name, more in self._rule(self._fleet(asked, self._running)).items():
            self._running[name] += more
            load = next(v.load for v in self._variants if v.name == name)
            self._loading[name].extend([tick + ceil(load)] * max(0, more))
            for _ in range(min(max(0, -more), len(self._loading[name]))):
                self._loading[name].pop()
        for ready in self._loading.values():
            while ready and ready[0] <= tick:
                ready.popleft()

    def _serve(self, tick: int) -> None:
        result = self.result
        able = {app: self._able(app) for app in self._counts}
        busy = dict.fromkeys(self._pools, 0.0)
        asked_now = answered_now = 0.0
        for window in range(tick * self._windows, (tick + 1) * self._windows):
            for app, counts in self._counts.items():
                self._waiting[app] += float(counts[window])
                asked_now += float(counts[window])
            answered_now += self._answer(able, busy)
        result.asked += asked_now
        result.answered += answered_now
        result.by_tick.append((asked_now, answered_now))
        for hardware, pool in self._pools.items():
            whole = self._workers[hardware] * pool.each
            held = sum(v.resources * self._running[v.name] for v in self._variants if v.hardware == hardware)
            result.hosted[hardware].append(held / whole if whole else 0.0)
            result.busy[hardware].append(busy[hardware] / whole if whole else 0.0)

    def _able(self, app: str) -> "_Able":
        loaded = [
            (v, n)
            for v in self._variants
            if v.app == app and v.latency <= self._slos[app]
            and (n := self._running[v.name] - len(self._loading[v.name])) > 0
        ]  # fmt: skip
        rate = sum(v.capacity * n for v, n in loaded)
        takes = sum(v.latency * v.capacity * n for v, n in loaded) / rate if rate else 0.0
        held = dict.fromkeys(self._pools, 0.0)
        spare: dict[str, tuple[float, float]] = {}
        for v, n in loaded:
            held[v.hardware] += v.resources * n
            pool = self._pools[v.hardware]
            if pool.shared:
                more, _ = spare.get(v.hardware, (0.0, 0.0))
                more += n * (pool.each - v.resources)
                spare[v.hardware] = (more, v.capacity / v.resources)
        return _Able(rate, max(0.0, self._slos[app] - takes), held, spare)

    def _answer(self, able: Mapping[str, "_Able"], busy: dict[str, float]) -> float:
        """Queries of a window answered in time; adds the resources used, as a mean over the tick, to ``busy``."""
        answered = 0.0
        idle = {h: self._workers[h] * pool.each for h, pool in self._pools.items()}
        for app, mine in able.items():
            served = min(self._waiting[app], mine.rate / self._windows)
            self._waiting[app] -= served
            answered += served
            part = served * self._windows / mine.rate if mine.rate else 0.0
            for hardware, held in mine.held.items():
                idle[hardware] -= part * held
                busy[hardware] += part * held / self._windows
        for app in sorted(able, key=lambda a: -self._waiting[a]):
            mine = able[app]
            for hardware, (more, rate) in mine.spare.items():
                used = max(0.0, min(more, idle[hardware], self._waiting[app] * self._windows / rate))
                idle[hardware] -= used
                busy[hardware] += used / self._windows
                answered += used * rate / self._windows
                self._waiting[app] -= used * rate / self._windows
            self._waiting[app] = min(self._waiting[app], mine.rate * mine.patience)
        return answered

    def _workers_come(self, now: float) -> None:
        for hardware, starting in self._starting.items():
            while starting and starting[0] <= now:
                starting.popleft()
                self._workers[hardware] += 1

    def _scale_workers(self, now: float) -> None:
        paid = {h: n + len(self._starting[h]) for h, n in self._workers.items()}
        self.result.prices.append(sum(paid[h] * pool.price for h, pool in self._pools.items()))
        self.result.cost += self.result.prices[-1] / 3600.0
        if self._scaling is None:
            return
        for hardware in self._pools:
            hosted = self.result.hosted[hardware][-1]
            for i in range(self._workers[hardware]):
                self._scaling.handle(WorkerBeat(f"{hardware}{i}", hardware, hosted, {}), now)
            self._give_back(hardware, hosted)
        for action in self._scaling.handle(WorkerTick(), now):
            if isinstance(action, AddWorker) and paid[action.hardware] < self._pools[action.hardware].most:
                self._starting[action.hardware].append(now + self._pools[action.hardware].start)

    def _give_back(self, hardware: str, hosted: float) -> None:
        count = self._workers[hardware]
        spare = count > 1 and not self._starting[hardware] and hosted * count <= (1.0 - FREE) * (count - 1)
        self._calm[hardware] = self._calm[hardware] + 1 if spare else 0
        if self._calm[hardware] >= GIVEN_BACK_AFTER:
            self._workers[hardware] -= 1
            self._calm[hardware] = 0


def poisson_counts(
    rates: NDArray[np.float64], shares: Mapping[str, float], rng: np.random.Generator, windows: int = 10
) -> dict[str, NDArray[np.int64]]:
    """Queries by app and window. ``rates``: queries/s of all apps by second; ``shares``: of each app, 1 in all."""
    fine = np.repeat(rates / windows, windows)
    return {app: rng.poisson(share * fine) for app, share in shares.items()}
