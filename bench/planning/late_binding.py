"""What it would bring to bind queries to devices late: queues of devices beside one queue before all of them.

    python bench/planning/late_binding.py [--trace]

Queues of devices are the live cores in the simulator: queries are bound when they come, by the plan's shares (the
default), and batched there adaptively. The one queue is more than any message could give: it knows at once, and without
a hop, which device is free; the freest in capacity takes the first queries that its batch answers in time, giving up as
few as can be. It is tried with waiting for company and without; the better of the two counts. Loads take no time, so
that only the binding differs. ``--trace``: with what plans host for nine families on 40 devices at 1,000 queries/s in
Gamma arrivals (needs SLUICE_DATA), instead of one app on six equal devices at 0.8 of what they can do.
"""

import sys
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sluicegate.domain.plan import Plan
from sluicegate.simulator.arrivals import collect
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.engine.system_model import SystemModel
from sluicegate.simulator.scenario import Scenario, build, overridden, scenario_of
from sluicegate.simulator.scenario.experiment import arrivals_of

SEEDS = range(3)
SLO = 0.3
CURVES = {
    "setup 20 ms, 10 ms a row": {b: 20.0 + 10.0 * b for b in (1, 2, 4, 8)},
    "setup 80 ms, 2 ms a row": {b: 80.0 + 2.0 * b for b in (1, 2, 4, 8)},
}
STALLS = ((0.0, 1.0), (0.02, 5.0), (0.1, 3.0))
"""(share of batches, so many times as long)."""
GAMMA, POISSON = 0.05, 1.0
Seconds = Sequence[float]


@dataclass
class OneQueue:
    """Queries of one app before all devices that host it. ``hosting``: (from, (device, seconds by batch size)).

    ``company``: a free device waits for more queries as long as they save it, and the first may. ``stalls``: as above.
    """

    hosting: Sequence[tuple[float, Sequence[tuple[str, Seconds]]]]
    company: bool
    stalls: tuple[float, float]
    rng: np.random.Generator
    queue: deque[float] = field(default_factory=deque)
    busy: dict[str, float] = field(default_factory=dict)
    wakes: list[float] = field(default_factory=list)
    on_time: int = 0

    def serve(self, arrivals: Sequence[float]) -> float:
        """Share answered in time."""
        for at in [*arrivals, np.inf]:
            while self.wakes and self.wakes[0] <= at:
                self.offer(heappop(self.wakes))
            if at < np.inf:
                self.queue.append(at)
                self.offer(at)
        return self.on_time / len(arrivals)

    def offer(self, now: float) -> None:
        """Free devices take what they can; those that can do most first."""
        since = [at for at, _ in self.hosting]
        devices = self.hosting[max(0, bisect_right(since, now) - 1)][1]
        quickest = min((seconds[0] for _, seconds in devices), default=np.inf)
        while self.queue and now + quickest > self.queue[0] + SLO:
            self.queue.popleft()
        for device, seconds in sorted(devices, key=lambda one: -_throughput(one[1])):
            while self.queue and self.busy.get(device, -1.0) <= now:
                if not self._take(device, seconds, now):
                    break

    def _take(self, device: str, seconds: Seconds, now: float) -> bool:
        most = max(range(1, len(seconds) + 1), key=lambda b: b / seconds[b - 1])
        waiting = len(self.queue)
        choices = []
        for skip in range(min(waiting, most)):
            rows = min(waiting - skip, most)
            while rows and now + seconds[rows - 1] > self.queue[skip] + SLO:
                rows -= 1
            if rows:
                choices.append((rows - skip * (0.3 if waiting > most else 2.0), -skip, rows))
        if not choices:
            return False
        _, skip, rows = max(choices)
        if self.company and not skip and waiting < most:
            saved = seconds[0] + seconds[waiting - 1] - seconds[waiting]
            until = min(self.queue[0] + SLO - seconds[waiting], max(self.busy.get(device, -1.0), self.queue[0]) + saved)
            if now < until - 1e-9:
                heappush(self.wakes, until)
                return False
        for _ in range(-skip):
            self.queue.popleft()
        share, factor = self.stalls
        end = now + seconds[rows - 1] * (factor if self.rng.random() < share else 1.0)
        self.on_time += sum(end <= self.queue.popleft() + SLO for _ in range(rows))
        self.busy[device] = end
        heappush(self.wakes, end)
        return True


def _throughput(seconds: Seconds) -> float:
    return max(rows / took for rows, took in enumerate(seconds, 1))


def equal_devices(curve: dict[int, float], devices: int, load: float, shape: float, stalls: tuple[float, float]) -> Any:
    """One app whose only variant all devices host, at ``load`` of what they can do."""
    share, factor = stalls
    qps = load * devices * max(1e3 * b / ms for b, ms in curve.items()) / (1.0 + share * (factor - 1.0))
    return {
        "duration_s": 60,
        "catalogue": {
            "variants": [{"name": "v", "app": "a", "accuracy": 0.9, "load_s": 0.0, "latency_ms": {"d": curve}}]
        },
        "apps": {"a": {"slo_ms": 1e3 * SLO}},
        "devices": [{"type": "d", "count": devices}],
        "traces": {
            "format": "generator", "qps": [qps, qps], "generator": {"noise": 0, "spikes": 0},
            "process": "gamma", "shape": shape,
        },
        "planner": {"quantile": "median"},
        "simulation": {"slow_batches": {"probability": share, "factor": factor}},
    }  # fmt: skip


def planned(document: Any) -> tuple[Scenario, SystemModel, list[tuple[float, Plan]], float]:
    """A run with shares: its plans, and its violations in percent."""
    scenario = scenario_of(document)
    model = build(scenario, time.perf_counter)
    engine = Engine(model, np.random.default_rng([scenario.seed, 2]))
    plans: list[tuple[float, Plan]] = []
    publish = engine.publish

    def noted(plan: Plan, now: float) -> None:
        plans.append((now, plan))
        publish(plan, now)

    engine.publish = noted  # type: ignore[method-assign]
    summary = engine.run(arrivals_of(scenario, model.catalogue, scenario.seed)).summary
    return scenario, model, plans, 100.0 * summary.violation_ratio


def one_queue(
    scenario: Scenario, model: SystemModel, plans: list[tuple[float, Plan]], stalls: tuple[float, float]
) -> float:
    """Violations in percent with one queue an app, the plans being the same; the better of two ways."""
    kinds = {device.name: device.type for device in model.devices}
    arrivals = collect(arrivals_of(scenario, model.catalogue, scenario.seed))
    found = []
    for company in (True, False):
        missed = 0.0
        for app, times in arrivals.items():
            hosting = [(at, hosted(model, plan, app, kinds)) for at, plan in plans]
            queue = OneQueue(hosting, company, stalls, np.random.default_rng([scenario.seed, 5]))
            missed += times.size * (1.0 - queue.serve(times.tolist()))
        found.append(100.0 * missed / sum(times.size for times in arrivals.values()))
    return min(found)


def at_best(scenario: Scenario, model: SystemModel, plans: list[tuple[float, Plan]]) -> float:
    """Violations in percent that no binding and no batching goes below, the plans being the same.

    All devices that host an app are taken for one that serves its queries one by one at the rates of their best batches
    together, so that a query is in time if those before it leave room, and giving up the last is as good as any other.
    """
    kinds = {device.name: device.type for device in model.devices}
    arrivals = collect(arrivals_of(scenario, model.catalogue, scenario.seed))
    missed = 0
    for app, times in arrivals.items():
        since = [at for at, _ in plans]
        rates = [sum(_throughput(seconds) for _, seconds in hosted(model, plan, app, kinds)) for _, plan in plans]
        left = last = 0.0
        for at in times.tolist():
            rate = rates[max(0, bisect_right(since, at) - 1)]
            left = max(0.0, left - (at - last) * rate)
            last = at
            if left + 1.0 <= rate * SLO:
                left += 1.0
            else:
                missed += 1
    return 100.0 * missed / sum(times.size for times in arrivals.values())


def hosted(model: SystemModel, plan: Plan, app: str, kinds: Mapping[str, str]) -> list[tuple[str, Seconds]]:
    """(device, seconds by batch size) of what ``plan`` has for ``app``."""
    profiles = model.catalogue.profiles
    placed = [p for p in plan.of_app(app) if p.variants]
    return [(p.device, profiles[p.variants[0], kinds[p.device]].curve("median").seconds) for p in placed]


def compared(document: Any, stalls: tuple[float, float], seeds: Sequence[int] = SEEDS) -> str:
    """A row: means over seeds, and how the one queue stands to shares."""
    by_share, one, best = [], [], []
    for seed in seeds:
        scenario, model, plans, violations = planned(
            overridden(document, {"seed": seed, "policies.routing": "weighted"})
        )
        by_share.append(violations)
        one.append(one_queue(scenario, model, plans, stalls))
        best.append(at_best(scenario, model, plans))
    shares, queue, least = (float(np.mean(each)) for each in (by_share, one, best))
    ratio = f"{queue / shares:.2f}" if shares > 0.05 else "-"
    return f"{shares:.2f} % | {queue:.2f} % | {ratio} | {least:.2f} % |"


def main() -> None:
    """Print the table."""
    print("| world | by share | one queue | of by share | at best, no stalls |\n|---|---|---|---|---|")
    if "--trace" in sys.argv:
        from reproduce.proteus.workloads import drawn

        rates = [1000.0 * (second + 1) / 15 for second in range(15)] + [1000.0] * 45
        work = drawn("gamma", rates, process="gamma", shape=GAMMA)
        print(
            "| nine families |",
            compared(overridden(work.document, {"catalogue.options.load": 0.0}), STALLS[0], (0,)),
            flush=True,
        )
        return
    for title, curve in CURVES.items():
        for arrivals, shape, kinds in (("Gamma", GAMMA, STALLS), ("Poisson", POISSON, STALLS[1:2])):
            for stalls in kinds:
                row = compared(equal_devices(curve, 6, 0.8, shape, stalls), stalls)
                print(f"| {title}; {arrivals}; {stalls[0]:.0%} of batches x{stalls[1]:g} |", row, flush=True)


if __name__ == "__main__":
    main()
