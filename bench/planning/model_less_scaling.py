"""Model-less scaling: the paper's example, and the greedy beside the integer program on random fleets (synthetic).

Costs are those of the fleet after one decision from nothing; the greedy is repeated until it rests. Variables of the
program: two a variant. The paper's solver took 23 s for 50 architectures and 50 s for 100.

    python bench/planning/model_less_scaling.py [--json]
"""

import argparse
import json
import platform
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from reproduce.infaas.worlds import TABLE_2
from sluicegate.planner.model_less.greedy_scaling import GreedyScaling
from sluicegate.planner.model_less.integer_program import scale_exactly
from sluicegate.planner.model_less.scaling_problem import Asked, Fleet, ScalingVariant

INSTANCES = 200


def table_3() -> list[dict[str, object]]:
    """The three rows of the paper, at its slack of 1 and at ours."""
    rows = []
    for load, slo in ((10.0, 0.3), (10.0, 0.05), (1000.0, 0.3)):
        fleet = Fleet(variants=TABLE_2, asked={"a": Asked(load=load, slo=slo)})
        exact, slack = scale_exactly(fleet, slack=1.0), scale_exactly(fleet)
        assert exact is not None
        assert slack is not None
        greedy = settled(fleet, GreedyScaling(slack=1.0)).cost()
        rows.append({"load": load, "slo_s": slo, "chosen": exact.changes, "cost": exact.cost, "greedy": greedy,
                     "cost_with_slack": slack.cost})  # fmt: skip
    return rows


def settled(fleet: Fleet, greedy: GreedyScaling) -> Fleet:
    """After the greedy has come to rest."""
    calm = 0
    while calm < 12:
        changes = greedy.step(fleet)
        fleet = fleet.after(changes)
        calm = 0 if changes else calm + 1
    return fleet


def random_fleet(apps: int, variants: int, rng: np.random.Generator) -> Fleet:
    """Architectures of ``variants`` each: hardware that is faster is dearer, about in proportion."""
    made = []
    for a in range(apps):
        base = rng.uniform(2.0, 50.0)
        for i in range(variants):
            speed = 10.0 ** rng.uniform(0.0, 2.0)
            made.append(
                ScalingVariant(
                    name=f"a{a}v{i}", app=f"a{a}", latency=1.0 / (base * speed), capacity=base * speed,
                    cost=float(speed**0.75 * rng.uniform(0.7, 1.3)), load=rng.uniform(0.1, 8.0),
                )
            )  # fmt: skip
    asked = {
        f"a{a}": Asked(load=10.0 ** rng.uniform(0.0, 3.5), slo=10.0 ** rng.uniform(-2.0, -0.3)) for a in range(apps)
    }
    able = {a for a in asked if any(v.app == a and v.latency <= asked[a].slo for v in made)}
    return Fleet(variants=tuple(made), asked={a: asked[a] for a in sorted(able)})


def side_by_side() -> dict[str, float]:
    """Cost of the greedy over that of the program, one app of eight variants at a time."""
    rng = np.random.default_rng(0)
    ratios: list[float] = []
    while len(ratios) < INSTANCES:
        fleet = random_fleet(1, 8, rng)
        exact = scale_exactly(fleet)
        if fleet.asked and exact is not None and exact.cost > 0.0:
            ratios.append(settled(fleet, GreedyScaling()).cost() / exact.cost)
    return {
        "instances": INSTANCES,
        "median": round(float(np.median(ratios)), 3),
        "p95": round(float(np.quantile(ratios, 0.95)), 3),
        "worst": round(max(ratios), 3),
    }


def times() -> list[dict[str, float]]:
    """Seconds of one decision, by number of variables."""
    rows = []
    for apps in (25, 50, 100):
        fleet = random_fleet(apps, 8, np.random.default_rng(apps))
        begun = time.perf_counter()
        exact = scale_exactly(fleet)
        took = time.perf_counter() - begun
        greedy = GreedyScaling()
        begun = time.perf_counter()
        greedy.step(fleet)
        quick = time.perf_counter() - begun
        assert exact is not None
        cost = settled(fleet, GreedyScaling()).cost()
        rows.append({"variables": 2 * len(fleet.variants), "program_s": round(took, 3), "greedy_s": round(quick, 4),
                     "cost_ratio": round(cost / exact.cost, 3)})  # fmt: skip
    return rows


def main() -> None:
    """Print all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    found = {
        "machine": platform.processor() or platform.machine(),
        "table_3": table_3(),
        "greedy_over_program": side_by_side(),
        "times": times(),
    }
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for row in found["table_3"]:
        print(row)
    print("greedy over program:", found["greedy_over_program"])
    for row in found["times"]:
        print(row)


if __name__ == "__main__":
    main()
