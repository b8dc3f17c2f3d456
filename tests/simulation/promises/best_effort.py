"""What a promise costs best effort: its goodput beside strict queries that were promised something, and the same ones
at the same times without a promise, where batches are as long as the SLOs of their own apps allow.

    python -m tests.simulation.promises.best_effort

One slice; both apps take 8 + b ms a batch; strict queries at a fifth of their announced bound, best effort above
capacity. Prints a line a world: rows/s with and without, and windows of the promise that broke with and without.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from sluicegate.domain.models.app import Promise, WeaklyHard
from sluicegate.domain.outcome import Outcome
from sluicegate.simulator.arrivals.lists import ListedArrivals
from sluicegate.simulator.arrivals.sampling import ArrivalSource
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.scenario import build, read_scenario, scenario_of
from sluicegate.simulator.scenario.experiment import arrivals_of
from tests.simulation.promises.campaign import SCENARIO

MK = (2, 10)
SHARE = 0.2
ASKED = 1000.0
"""Rows of best effort a second: a batch of 64 rows in 72 ms is 889."""


@dataclass(frozen=True, slots=True)
class World:
    """``slo_ms``: of strict queries; ``spread``: p95 over median of batches; ``rows``: of a query of best effort."""

    slo_ms: float
    spread: float
    rows: int

    def document(self, queries: int) -> dict[str, Any]:
        """The scenario."""
        latency = {"cpu": {1: [9.0, 9.0 * self.spread], 64: [72.0, 72.0 * self.spread]}}
        document = read_scenario(SCENARIO, os.environ)
        document["apps"] = {
            "control": {"slo_ms": self.slo_ms},
            "bulk": {
                "slo_ms": 600,
                "class": "best_effort",
                "queries": [{"share": 1.0, "rows": self.rows, "class": "best_effort"}],
            },
        }
        document["catalogue"]["variants"] = [
            {"name": f"{app}-v", "app": app, "accuracy": accuracy, "load_s": 0.5, "latency_ms": latency}
            for app, accuracy in (("control", 0.9), ("bulk", 0.7))
        ]
        document["traces"] |= {"qps": [ASKED / self.rows] * 2, "shares": {"control": 0.0, "bulk": 1.0}}
        document["promise"] |= {"mk": "{},{}".format(*MK), "share_of_bound": SHARE, "queries": queries}
        document["simulation"]["service"] = "median" if self.spread == 1.0 else "sampled"
        return document


class _Seen:
    """Arrivals by app; the fates of strict queries, by their number; rows of best effort that came in time."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {"control": [], "bulk": []}
        self.fates: dict[int, bool] = {}
        self.answered = 0

    def add(self, outcome: Outcome) -> None:
        self.times[outcome.app].append(outcome.arrival)
        on_time = outcome.kind == "answered" and outcome.at <= outcome.deadline
        if outcome.app == "control":
            self.fates[int(outcome.query_id.rpartition("-")[2])] = not on_time
        elif on_time:
            self.answered += 1

    def broken(self) -> int:
        """Windows with more misses than the promise bears."""
        fates = [self.fates[i] for i in sorted(self.fates)]
        each = Promise(weakly_hard=(WeaklyHard(*MK),)).constraints
        return sum(sum(fates[i : i + k]) > m for m, k in each for i in range(len(fates) - k + 1))


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of best effort a second, and broken windows, with and without the promise."""

    goodput: float
    without: float
    broken: int
    broken_without: int


def compared(world: World, queries: int = 1500, seed: int = 1) -> Found:
    """Simulate ``world`` with the promise, then the same arrivals without."""
    document = world.document(queries)
    promised = _run(document, None, seed)
    again = ListedArrivals({app: np.sort(np.array(promised.times[app])) for app in document["apps"]})
    del document["promise"]
    free = _run(document, again, seed)
    rate = world.rows / again.duration
    return Found(rate * promised.answered, rate * free.answered, promised.broken(), free.broken())


def _run(document: Mapping[str, Any], source: ArrivalSource | None, seed: int) -> _Seen:
    scenario = scenario_of(dict(document))
    system = build(scenario, lambda: 0.0)
    seen = _Seen()
    engine = Engine(system, np.random.default_rng([seed, 2]), [seen])
    engine.run(source or arrivals_of(scenario, system.catalogue, seed))
    return seen


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=1500, help="strict ones")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    say = sys.stdout.write
    say("| SLO | p95 over median | rows a query | rows/s | without a promise | windows broken | without |\n")
    say("|---|---|---|---|---|---|---|\n")
    for world in (World(*each) for each in product((100.0, 200.0), (1.0, 1.3), (1, 16))):
        found = compared(world, options.queries, options.seed)
        say(
            f"| {world.slo_ms:.0f} ms | {world.spread} | {world.rows} | {found.goodput:.0f} | {found.without:.0f} "
            f"| {found.broken} | {found.broken_without} |\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
