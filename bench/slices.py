"""GPU slices: what decisions cost, how well bandwidth is estimated, and what spot capacity saves.

    python bench/slices.py [costs] [fbr] [bill]              results in reports/bench/slices.json

PROTEAN's figures are those of ``python -m reproduce protean``. Needs no data.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reproduce.protean.geometry_demand import SliceDemand, slack_left, slice_problem
from reproduce.protean.slices.costs import savings
from reproduce.protean.slices.slices_fields import slice_scenario
from sluicegate.planner.capacity.procurement import PER_GPU
from sluicegate.planner.geometry.geometry_search import GeometrySettings
from sluicegate.planner.geometry.gpu_pools import sliced
from sluicegate.planner.geometry.joint_plan import plan_geometry
from sluicegate.planner.geometry.mig_tables import GB, parse_geometry, table_of
from sluicegate.policies.placement.bandwidth import Colocation, estimate_fbr
from sluicegate.policies.placement.slice_choice import (
    SliceLoad,
    ascending,
    choose_best_effort,
    choose_strict,
)

SCENARIO = Path(__file__).parents[1] / "examples" / "scenarios" / "protean-wiki.yaml"
TARGET = Path("reports/bench/slices.json")


def costs() -> dict[str, float]:
    """CPU time of single decisions: microseconds or milliseconds as the names say."""
    table = slice_scenario(yaml.safe_load(SCENARIO.read_text())).table()
    memory = {"1g": 5, "2g": 10, "3g": 20, "4g": 20}
    slices = ascending([SliceLoad(p, p, m * GB, m * GB // 2, 0.3) for p, m in memory.items() if p != "3g"])
    seven = ascending([SliceLoad(f"1g{i}", "1g", 5 * GB, 5 * GB, 0.0) for i in range(7)])
    strict = lambda: choose_strict(table, "resnet50", slices, best_effort="mobilenet", waiting_bytes=7 * GB)  # noqa: E731
    found = {
        "strict_choice_us": 1e6 * cpu(strict, 20_000),
        "strict_choice_7_slices_us": 1e6 * cpu(lambda: choose_strict(table, "mobilenet", seven), 20_000),
        "best_effort_choice_us": 1e6 * cpu(lambda: choose_best_effort(table, "mobilenet", slices), 20_000),
    }
    others = {"mobilenet": 400.0, "googlenet": 300.0, "efficientnet-b0": 300.0}
    for gpus in (8, 100, 1000):
        devices = tuple(sliced(f"g{i:04}", "a100", parse_geometry("4g+2g+1g")) for i in range(gpus))
        demand = SliceDemand("vgg19", 2.5 * gpus, {n: q * gpus / 400 for n, q in others.items()})
        problem = slice_problem(demand, table, table_of("a100"), devices, multiplier=3.0)
        chosen = GeometrySettings(quality=slack_left, shared=True, change_weight=0.05)
        found[f"geometry_plan_{gpus}_gpus_s"] = cpu(lambda p=problem, c=chosen: plan_geometry(p, c), 1)  # type: ignore[misc]
    return found


def fbr() -> dict[str, float]:
    """Relative errors of estimated FBR with 2 % noise on every measured slowdown."""
    rng = np.random.default_rng(0)
    errors: list[float] = []
    for _ in range(40):
        truth = {f"v{i}": float(rng.uniform(0.15, 0.95)) for i in range(8)}
        rows = [(n,) * k for n in truth for k in range(2, 8)] + [(a, b) for a in truth for b in truth if a < b]
        measured = [
            Colocation(row, max(1.0, sum(truth[v] for v in row)) * float(rng.normal(1.0, 0.02))) for row in rows
        ]
        found = estimate_fbr(measured, saturation=0.06)
        errors += [abs(found.fbr[n] / truth[n] - 1.0) for n in found.identifiable]
    return {"median_error": float(np.median(errors)), "p99_error": float(np.quantile(errors, 0.99))}


def bill() -> dict[str, Any]:
    """Shares saved by spot capacity, by cloud and probability of a revocation."""
    return {cloud: {str(p): dict(s) for p, s in savings(prices).items()} for cloud, prices in PER_GPU.items()}


def cpu(call: Callable[[], Any], times: int) -> float:
    """CPU seconds of one call, the best of three rounds."""
    rounds = []
    for _ in range(3):
        began = time.process_time()
        for _ in range(times):
            call()
        rounds.append((time.process_time() - began) / times)
    return min(rounds)


PARTS: Mapping[str, Callable[[], Any]] = {"costs": costs, "fbr": fbr, "bill": bill}


def parts(asked: list[str]) -> None:
    """Run the parts asked for and write them down; of each its machine, as those that are kept may be of another."""
    found: dict[str, Any] = json.loads(TARGET.read_text()) if TARGET.exists() else {}
    found.pop("machine", None)  # of an earlier version, of whatever was run last
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {platform.python_version()}"
    for name in asked:
        found[name] = PARTS[name]()
        found.setdefault("machines", {})[name] = machine
        print(json.dumps({name: found[name]}, indent=1))
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(json.dumps(found, indent=1))


def main() -> None:
    """The parts asked for; all where none is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parts(parser.parse_args().parts or list(PARTS))


if __name__ == "__main__":
    main()
