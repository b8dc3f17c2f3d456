"""Time to choose a variant for a query when it comes, by number of variants, against brute force.

Three cases as in INFaaS' table 7: the query names its model; a variant that meets its goals is loaded; none is. In a
fourth none is and queries have a limit of cost as well. Half the variants are loaded on some of 40 workers; some
queries of all but the first case are infeasible (finding the suggestion counts). ``staircase``: no variant is better
than another in everything, the worst case of the index. Brute force is the same rule as a loop, and as NumPy masks.
Each query is timed three times and counts with the median, so that p99 is of the rule and not of the machine.

    python bench/selection/on_arrival.py [--json]
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from math import inf

import numpy as np

from sluicegate.domain.query import Goal
from sluicegate.policies.model_less.infaas_selection import (
    Chosen,
    GoalSelection,
    GoalVariant,
    Infeasible,
    InstanceReported,
    VariantsRegistered,
    WorkerReported,
)

CASES = ("named", "loaded", "not loaded", "priced")
LOADED = ("named", "loaded")
SIZES = (10, 166, 1_000, 10_000)
WORKERS = [f"w{i}" for i in range(40)]
APP = "app"
Ask = tuple[float, Goal]


def variants(count: int, rng: np.random.Generator, *, staircase: bool) -> tuple[GoalVariant, ...]:
    """Synthetic ones: the more accurate the slower and dearer, more or less (exactly, in the staircase)."""
    position = np.sort(rng.random(count))
    noise = np.zeros(count) if staircase else rng.normal(0.0, 0.15, count)
    speed = np.clip(position + noise, 0.0, 1.0)
    return tuple(
        GoalVariant(
            name=f"v{i}",
            app=APP,
            accuracy=0.5 + 0.49 * position[i],
            latency=0.001 * 10.0 ** (2.5 * speed[i]) * (1.0 + 1e-6 * i),
            cost=float(1.0 + 9.0 * speed[i]),
            load=float(0.1 + 5.0 * rng.random()),
        )
        for i in range(count)
    )


def selection(known: tuple[GoalVariant, ...], *, loaded: bool) -> GoalSelection:
    """Every other variant loaded on three workers, or none."""
    built = GoalSelection()
    built.handle(VariantsRegistered(APP, known), 0.0)
    for worker in WORKERS:
        built.handle(WorkerReported(worker, "cpu", 0.5), 0.0)
    for i, v in enumerate(known):
        if loaded and i % 2 == 0:
            for j in range(3):
                report = InstanceReported(APP, v.name, WORKERS[(i + 7 * j) % len(WORKERS)], True, float(j), v.latency)
                built.handle(report, 0.0)
    return built


def asks(known: tuple[GoalVariant, ...], rng: np.random.Generator, count: int, case: str) -> list[Ask]:
    """Queries: a model by name; or goals near what some variant has, feasible or not."""
    drawn = [known[i] for i in rng.integers(0, len(known), count)]
    if case == "named":
        return [(v.latency, Goal(model=v.name)) for v in drawn]
    priced = case == "priced"
    return [
        (
            v.latency * rng.uniform(0.9, 2.0),
            Goal(
                accuracy=v.accuracy * rng.uniform(0.9, 1.02), cost=v.cost * rng.uniform(0.95, 1.2) if priced else None
            ),
        )
        for v in drawn
    ]


def loop(known: tuple[GoalVariant, ...], active: set[str]) -> Callable[[float, Goal], str | None]:
    """Brute force, variant by variant."""

    def choose(latency: float, goal: Goal) -> str | None:
        if goal.model is not None:
            return goal.model
        least = goal.accuracy or 0.0
        most = inf if goal.cost is None else goal.cost
        fit = [v for v in known if v.accuracy >= least and v.latency <= latency and v.cost <= most]
        ready = [v for v in fit if v.name in active]
        if ready:
            return min(ready, key=lambda v: (v.cost, v.latency, v.name)).name
        if fit:
            return min(fit, key=lambda v: (v.load + v.latency, v.name)).name
        return min(
            known,
            key=lambda v: (
                max(0.0, (least - v.accuracy) / least)
                + max(0.0, (v.latency - latency) / latency)
                + (max(0.0, (v.cost - most) / most) if most < inf else 0.0)
            ),
        ).name

    return choose


def masks(known: tuple[GoalVariant, ...], active: set[str]) -> Callable[[float, Goal], str | None]:
    """Brute force, on arrays."""
    accuracy, latency_of, cost, load = (
        np.array([getattr(v, name) for v in known]) for name in ("accuracy", "latency", "cost", "load")
    )
    ready = np.array([v.name in active for v in known])

    def choose(latency: float, goal: Goal) -> str | None:
        if goal.model is not None:
            return goal.model
        least = goal.accuracy or 0.0
        most = inf if goal.cost is None else goal.cost
        fit = (accuracy >= least) & (latency_of <= latency) & (cost <= most)
        now = fit & ready
        if now.any():
            return known[int(np.argmin(np.where(now, cost, inf)))].name
        if fit.any():
            return known[int(np.argmin(np.where(fit, load + latency_of, inf)))].name
        short = np.maximum(0.0, least - accuracy) / least + np.maximum(0.0, latency_of / latency - 1.0)
        if most < inf:
            short += np.maximum(0.0, cost / most - 1.0)
        return known[int(np.argmin(short))].name

    return choose


def timed(choose: Callable[[float, Goal], object], queries: list[Ask]) -> tuple[float, float]:
    """Median and 99th percentile of a call, microseconds."""
    taken = []
    for latency, goal in queries:
        three = []
        for _ in range(3):
            begun = time.perf_counter_ns()
            choose(latency, goal)
            three.append((time.perf_counter_ns() - begun) / 1e3)
        taken.append(statistics.median(three))
    return statistics.median(taken), float(np.quantile(taken, 0.99))


def measure(
    known: tuple[GoalVariant, ...], built: GoalSelection, active: set[str], case: str, *, staircase: bool
) -> dict[str, float | str | int]:
    """One line of the table. Raises AssertionError where the index and the loop differ."""
    count = len(known)
    queries = asks(known, np.random.default_rng(count + 1), 2000, case)
    few = queries[: max(20, 50_000 // count)]
    by_loop, by_masks = loop(known, active), masks(known, active)

    def choose(latency: float, goal: Goal) -> Chosen | Infeasible:
        return built.get_variant(APP, latency, goal)

    for latency, goal in few[:100]:
        found = choose(latency, goal)
        name = found.variant if isinstance(found, Chosen) else found.suggestion and found.suggestion.name
        assert name == by_loop(latency, goal), (latency, goal, found)
    median, p99 = timed(choose, queries)
    return {
        "variants": count,
        "case": case,
        "shape": "staircase" if staircase else "scattered",
        "median_us": round(median, 2),
        "p99_us": round(p99, 2),
        "loop_us": round(timed(by_loop, few)[0], 1),
        "masks_us": round(timed(by_masks, queries)[0], 1),
    }


def cases(count: int, *, staircase: bool) -> list[dict[str, float | str | int]]:
    """The lines of all cases at one number of variants."""
    known = variants(count, np.random.default_rng(count), staircase=staircase)
    some, none = selection(known, loaded=True), selection(known, loaded=False)
    active = {v.name for i, v in enumerate(known) if i % 2 == 0}
    return [
        measure(known, some if case in LOADED else none, active if case in LOADED else set(), case, staircase=staircase)
        for case in CASES
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    rows = sorted(
        (row for staircase in (False, True) for count in SIZES for row in cases(count, staircase=staircase)),
        key=lambda row: (row["shape"] == "staircase", CASES.index(str(row["case"]))),
    )
    if as_json:
        print(json.dumps({"machine": platform.processor() or platform.machine(), "rows": rows}, indent=2))
        return
    print(f"{'variants':>9} {'case':>11} {'shape':>10} {'median us':>10} {'p99':>8} {'loop':>10} {'masks':>8}")
    for row in rows:
        print(
            f"{row['variants']:>9} {row['case']:>11} {row['shape']:>10} {row['median_us']:>10} {row['p99_us']:>8} "
            f"{row['loop_us']:>10} {row['masks_us']:>8}"
        )


if __name__ == "__main__":
    main()
