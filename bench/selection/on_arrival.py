"""Time to decide on a query that asks something of its own, as live: at the door, at the router, and both.

The door (``GoalAdmission``) holds goals against every variant of the app; the router (``RouterCore``, all of it) finds,
of the slices that host one variant each, the one that meets them and would be done first, or names the variant to be
loaded. Four cases, after INFaaS' table 7: the query names a model that is hosted; goals that some slice meets; it names
one that is not hosted; goals with a limit of cost that nothing meets (a suggestion is found). ``staircase``: no variant
is better than another in everything, the worst case of the index at the door. What the door says is compared with the
same rule as a loop. A decision changes what the router knows, so each is timed once, as CPU time of the thread, with
what a query meets on the way: a twentieth of them come behind a heartbeat.

    python bench/selection/on_arrival.py [--json]
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np

from sluicegate.domain.actions import Accept, Send
from sluicegate.domain.events import Arrived, DeviceReported, PlanAcknowledged, PlanPublished
from sluicegate.domain.fleet.device import WHOLE, Device
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.domain.query import Goal, Query
from sluicegate.policies.admission.deadline_feasibility import DeadlineAdmission
from sluicegate.policies.admission.known_goals import GoalAdmission
from sluicegate.policies.model_less.goal_variants import GoalVariant
from sluicegate.policies.routing.registry import routing
from sluicegate.policies.serving.router import LookedUp, RouterCore, RouterRules
from sluicegate.profiles.catalogue.catalogue import Catalogue

CASES = ("named", "hosted", "not hosted", "infeasible")
SIZES = (10, 166, 1_000, 10_000)
SLICES = (40, 1_000)
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
    """Median and 99th percentile of a call, microseconds of CPU time."""
    taken = []
    for query in asked:
        begun = time.thread_time_ns()
        decide(query)
        taken.append((time.thread_time_ns() - begun - _CLOCK_NS) / 1e3)
    return statistics.median(taken), float(np.quantile(taken, 0.99))


def _clock_ns() -> int:
    """What reading the clock takes of the time between two readings."""
    return int(statistics.median(-(time.thread_time_ns() - time.thread_time_ns()) for _ in range(10_000)))


_CLOCK_NS = _clock_ns()


def feasible(known: tuple[GoalVariant, ...], query: Query) -> bool:
    """The rule of the door, as a loop."""
    goal, time_ = query.goal or Goal(), query.deadline - query.arrival
    if goal.model is not None:
        return any(v.name == goal.model and v.accuracy >= (goal.accuracy or 0.0) for v in known)
    return any(
        v.accuracy >= (goal.accuracy or 0.0) and v.latency <= time_ and (goal.cost is None or v.cost <= goal.cost)
        for v in known
    )


def router_of(known: tuple[GoalVariant, ...], hosted: list[GoalVariant], slices: int) -> RouterCore:
    """A router that follows a plan of ``slices`` slices, each with one of ``hosted``."""
    app = App(name=APP, slo=10.0)
    profiles = [
        Profile(
            variant=v.name,
            device_type="cpu",
            points=(BatchLatency(1, v.latency, v.latency), BatchLatency(2, 1.5 * v.latency, 1.5 * v.latency)),
            load=v.load,
        )
        for v in known
    ]
    catalogue = Catalogue.of([app], [Variant(name=v.name, app=APP, accuracy=v.accuracy) for v in known], profiles)
    devices = [Device(name=f"w{i}", type="cpu") for i in range(slices)]
    core = RouterCore(
        app, catalogue=catalogue, devices=devices, rules=RouterRules(make_policy=routing("weighted"), on_demand=True)
    )
    core.handle(LookedUp(tuple(d.name for d in devices)), 0.0)
    placements = tuple(
        Placement(d.name, APP, (hosted[i % len(hosted)].name,), 1.0 / slices, 2) for i, d in enumerate(devices)
    )
    plan = Plan(epoch=Epoch(1, 1), created=0.0, placements=placements, demand={APP: 1.0})
    core.handle(PlanPublished(plan), 0.0)
    for placement in placements:
        core.handle(PlanAcknowledged(placement.device, plan.epoch, placement.variants), 0.0)
    return core


def lines(count: int, slices: int, *, staircase: bool) -> list[dict[str, float | str | int]]:
    """All cases at one number of variants. Raises AssertionError where a decision is not that of its case."""
    known = variants(count, np.random.default_rng(count), staircase=staircase)
    hosted = [known[i] for i in np.linspace(0, count - 1, min(slices, max(1, count // 2))).astype(int).tolist()]
    door = GoalAdmission(DeadlineAdmission(), {APP: known})
    router = router_of(known, hosted, slices)
    clock = 0.0

    def at_door(query: Query) -> object:
        return door.handle(Arrived(query), 0.0)[0]

    rows: list[dict[str, float | str | int]] = []
    for case in CASES:
        asked = queries(known, hosted, case, 2000)
        for query in asked[:50]:
            let_in = isinstance(at_door(query), Accept)
            assert let_in == feasible(known, query) == (case != "infeasible"), (case, query)
        few = asked[: max(20, 100_000 // count)]
        there, there99 = timed(at_door, asked)
        row: dict[str, float | str | int] = {
            "variants": count,
            "slices": slices,
            "case": case,
            "shape": "staircase" if staircase else "scattered",
            "door_us": round(there, 2),
            "door_p99_us": round(there99, 2),
            "loop_us": round(timed(lambda query: feasible(known, query), few)[0], 1),
        }
        if case != "infeasible":
            taken = []
            for number, query in enumerate(asked):
                clock += 0.001
                fresh = Query(f"{case}{number}", APP, clock, clock + 10.0, goal=query.goal)
                if number % 20 == 0:
                    report = DeviceReported(f"w{number % slices}", WHOLE, number % 3, 0.01)
                    begun = time.thread_time_ns()
                    router.handle(report, clock)
                else:
                    begun = time.thread_time_ns()
                said = router.handle(Arrived(fresh), clock)
                taken.append((time.thread_time_ns() - begun - _CLOCK_NS) / 1e3)
                assert any(isinstance(action, Send) for action in said) == (case != "not hosted"), (case, said)
            row |= {
                "router_us": round(statistics.median(taken), 2),
                "router_p99_us": round(float(np.quantile(taken, 0.99)), 2),
            }
        rows.append(row)
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    rows = [
        row
        for staircase in (False, True)
        for count in SIZES
        for slices in SLICES
        for row in lines(count, slices, staircase=staircase)
    ]
    rows.sort(key=lambda row: (row["shape"] == "staircase", CASES.index(str(row["case"]))))
    if as_json:
        print(json.dumps({"machine": platform.processor() or platform.machine(), "rows": rows}, indent=2))
        return
    shown = ("variants", "slices", "case", "shape", "door_us", "door_p99_us", "loop_us", "router_us", "router_p99_us")
    print(" ".join(f"{name:>13}" for name in shown))
    for row in rows:
        print(" ".join(f"{row.get(name, '-'):>13}" for name in shown))


if __name__ == "__main__":
    main()
