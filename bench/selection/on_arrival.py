"""Time to decide on a query that asks something of its own, as live: at the door, at the router, and both.

The door (``GoalAdmission``) holds goals against every variant of the app; the router (``GoalRouting``) finds, of the
slices of 40 workers that host one variant each, the one that meets them and would be done first, or names the variant
to be loaded. Four cases, after INFaaS' table 7: the query names a model that is hosted; goals that some slice meets;
it names one that is not hosted; goals with a limit of cost that nothing meets (a suggestion is
found). ``staircase``: no variant is better than another in everything, the worst case of the index at the door. What
the door says is compared with the same rule as a loop. Each query is timed three times and counts with the median, so
that p99 is of the rule and not of the machine.

    python bench/selection/on_arrival.py [--json]
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np

from sluicegate.domain.actions import Accept, Drop, Send
from sluicegate.domain.events import Arrived, Hosted, HostedOn, PlanActivated
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.plan import Epoch, Plan
from sluicegate.domain.query import Goal, Query
from sluicegate.policies.admission.deadline_feasibility import DeadlineAdmission
from sluicegate.policies.admission.known_goals import GoalAdmission
from sluicegate.policies.model_less.goal_variants import GoalVariant
from sluicegate.policies.routing.goal_filter import GoalRouting

CASES = ("named", "hosted", "not hosted", "infeasible")
SIZES = (10, 166, 1_000, 10_000)
WORKERS = 40
APP = "app"


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


def queries(known: tuple[GoalVariant, ...], hosted: list[GoalVariant], case: str, count: int) -> list[Query]:
    """Of one case."""
    rng = np.random.default_rng(len(known) + 1)
    here = {v.name for v in hosted}
    others = [v for v in known if v.name not in here] or list(known)
    drawn = hosted if case in ("named", "hosted") else others if case == "not hosted" else list(known)
    found = []
    for number, i in enumerate(rng.integers(0, len(drawn), count).tolist()):
        v = drawn[i]
        goal, latency = Goal(accuracy=v.accuracy), 1.2 * v.latency
        if case in ("named", "not hosted"):
            goal = Goal(model=v.name)
        elif case == "infeasible":
            goal = Goal(accuracy=min(1.0, v.accuracy + 0.5), cost=0.9 * v.cost)
        found.append(Query(str(number), APP, 0.0, latency, goal=goal))
    return found


def timed(decide: Callable[[Query], object], asked: list[Query]) -> tuple[float, float]:
    """Median and 99th percentile of a call, microseconds."""
    taken = []
    for query in asked:
        three = []
        for _ in range(3):
            begun = time.perf_counter_ns()
            decide(query)
            three.append((time.perf_counter_ns() - begun) / 1e3)
        taken.append(statistics.median(three))
    return statistics.median(taken), float(np.quantile(taken, 0.99))


def feasible(known: tuple[GoalVariant, ...], query: Query) -> bool:
    """The rule of the door, as a loop."""
    goal, time_ = query.goal or Goal(), query.deadline - query.arrival
    if goal.model is not None:
        return any(v.name == goal.model and v.accuracy >= (goal.accuracy or 0.0) for v in known)
    return any(
        v.accuracy >= (goal.accuracy or 0.0) and v.latency <= time_ and (goal.cost is None or v.cost <= goal.cost)
        for v in known
    )


def lines(count: int, *, staircase: bool) -> list[dict[str, float | str | int]]:
    """All cases at one number of variants. Raises AssertionError where a decision is not that of its case."""
    known = variants(count, np.random.default_rng(count), staircase=staircase)
    hosted = [known[i] for i in np.linspace(0, count - 1, min(WORKERS, max(1, count // 2))).astype(int).tolist()]
    door = GoalAdmission(DeadlineAdmission(), {APP: known})
    router = GoalRouting({v.name: v.cost for v in known}, known)
    places = []
    for worker in range(WORKERS):
        v = hosted[worker % len(hosted)]
        curve = LatencyCurve((v.latency, 1.5 * v.latency))
        places.append(HostedOn(f"w{worker}", "whole", (Hosted(v.name, v.accuracy, curve),)))
    router.handle(PlanActivated(Plan(epoch=Epoch(1, 1), created=0.0, placements=()), tuple(places)), 0.0)

    def at_door(query: Query) -> object:
        return door.handle(Arrived(query), 0.0)[0]

    def at_router(query: Query) -> object:
        (action,) = router.handle(Arrived(query), 0.0)
        return router.wanted(query) if isinstance(action, Drop) else action

    rows: list[dict[str, float | str | int]] = []
    for case in CASES:
        asked = queries(known, hosted, case, 1000)
        for query in asked[:50]:
            let_in = isinstance(at_door(query), Accept)
            assert let_in == feasible(known, query) == (case != "infeasible"), (case, query)
            if let_in:
                assert isinstance(at_router(query), str if case == "not hosted" else Send), (case, query)
        few = asked[: max(20, 100_000 // count)]
        there, there99 = timed(at_door, asked)
        row: dict[str, float | str | int] = {
            "variants": count,
            "case": case,
            "shape": "staircase" if staircase else "scattered",
            "door_us": round(there, 2),
            "door_p99_us": round(there99, 2),
            "loop_us": round(timed(lambda query: feasible(known, query), few)[0], 1),
        }
        if case != "infeasible":
            on, on99 = timed(at_router, few)
            row |= {"router_us": round(on, 2), "router_p99_us": round(on99, 2)}
        rows.append(row)
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    rows = sorted(
        (row for staircase in (False, True) for count in SIZES for row in lines(count, staircase=staircase)),
        key=lambda row: (row["shape"] == "staircase", CASES.index(str(row["case"]))),
    )
    if as_json:
        print(json.dumps({"machine": platform.processor() or platform.machine(), "rows": rows}, indent=2))
        return
    print(
        f"{'variants':>9} {'case':>11} {'shape':>10} {'door us':>9} {'p99':>7} {'loop':>8} {'router us':>10} {'p99':>8}"
    )
    for row in rows:
        on, on99 = row.get("router_us", "-"), row.get("router_p99_us", "-")
        print(
            f"{row['variants']:>9} {row['case']:>11} {row['shape']:>10} {row['door_us']:>9} {row['door_p99_us']:>7} "
            f"{row['loop_us']:>8} {on:>10} {on99:>8}"
        )


if __name__ == "__main__":
    main()
