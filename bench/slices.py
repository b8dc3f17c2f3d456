"""GPU slices: what decisions cost, and the figures of PROTEAN (Middleware 2024) on our models beside the paper's.

Usage: python bench/slices.py [costs] [figures] [fbr] [bill]     (all by default; results in reports/bench/slices.json)
"""

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

from domain.app import QueryClass
from planner.geometry.demand import SliceDemand, slack_left, slice_problem
from planner.geometry.fleets import sliced
from planner.geometry.joint import plan_geometry
from planner.geometry.search import GeometrySettings
from planner.geometry.tables import GB, parse_geometry, table_of
from planner.procurement import PER_GPU
from policies.placement.bandwidth import Colocation, estimate_fbr
from policies.placement.choice import SliceLoad, ascending, choose_best_effort, choose_strict, strict_first
from simulator.slices.costs import savings
from simulator.slices.experiment import run_once, together
from simulator.slices.spec import SliceScenario, slice_scenario

SCENARIOS = Path(__file__).parents[1] / "examples" / "scenarios"
TARGET = Path("reports/bench/slices.json")


def document(name: str, **changes: Any) -> dict[str, Any]:
    """A shipped scenario with some sections merged or replaced."""
    found: dict[str, Any] = yaml.safe_load((SCENARIOS / f"{name}.yaml").read_text())
    for key, value in changes.items():
        found[key] = {**found[key], **value} if isinstance(found.get(key), dict) and key != "systems" else value
    return found


def costs() -> dict[str, float]:
    """CPU time of single decisions: microseconds or milliseconds as the names say."""
    table = scenario("protean-wiki").table()
    memory = {"1g": 5, "2g": 10, "3g": 20, "4g": 20}
    slices = ascending([SliceLoad(p, p, m * GB, m * GB // 2, 0.3) for p, m in memory.items() if p != "3g"])
    queue = [(i, QueryClass.STRICT if i % 2 else QueryClass.BEST_EFFORT) for i in range(10_000)]
    seven = ascending([SliceLoad(f"1g{i}", "1g", 5 * GB, 5 * GB, 0.0) for i in range(7)])
    strict = lambda: choose_strict(table, "resnet50", slices, best_effort="mobilenet", waiting_bytes=7 * GB)  # noqa: E731
    found = {
        "strict_choice_us": 1e6 * cpu(strict, 20_000),
        "strict_choice_7_slices_us": 1e6 * cpu(lambda: choose_strict(table, "mobilenet", seven), 20_000),
        "best_effort_choice_us": 1e6 * cpu(lambda: choose_best_effort(table, "mobilenet", slices), 20_000),
        "reorder_10000_ms": 1e3 * cpu(lambda: strict_first(queue, lambda x: x[1]), 50),
    }
    others = {"mobilenet": 400.0, "googlenet": 300.0, "efficientnet-b0": 300.0}
    for gpus in (8, 100, 1000):
        devices = tuple(sliced(f"g{i:04}", "a100", parse_geometry("4g+2g+1g")) for i in range(gpus))
        demand = SliceDemand("vgg19", 2.5 * gpus, {n: q * gpus / 400 for n, q in others.items()})
        problem = slice_problem(demand, table, table_of("a100"), devices, multiplier=3.0)
        chosen = GeometrySettings(quality=slack_left, shared=True, change_weight=0.05)
        found[f"geometry_plan_{gpus}_gpus_s"] = cpu(lambda p=problem, c=chosen: plan_geometry(p, c), 1)  # type: ignore[misc]
    return found


def figures(seeds: int = 1) -> dict[str, Any]:
    """Systems side by side where the paper has a figure: by figure, then system."""
    systems = ("protean", "joint", "infless", "molecule", "naive", "mig-only", "mps-mig", "smart", "gpulet")
    found: dict[str, Any] = {}
    for strict in ("vgg19", "resnet50", "shufflenetv2", "dpn92"):
        found[f"fig 5/6 {strict}"] = compared(scenario("protean-wiki", workload={"strict": strict}), systems, seeds)
    found["fig 11 twitter"] = compared(scenario("protean-twitter"), systems, seeds)
    language = {"traces": {"scale": 0.0256}, "workload": {"strict": "bert"}}
    found["fig 12/13 bert, 128 rps"] = compared(scenario("protean-wiki", **language), systems, seeds)
    for share in (0.25, 0.75, 1.0, 0.0):
        one = scenario("protean-wiki", workload={"strict": "resnet50", "strict_share": share})
        name = {1.0: "table 4, all strict", 0.0: "table 5, all best effort"}.get(
            share, f"fig 14 {100 * share:.0f} % strict"
        )
        found[name] = compared(one, systems[:5], seeds)
    tight = scenario("protean-wiki", workload={"slo_multiplier": 2.0, "strict": "resnet50"})
    found["fig 15 SLO 2x, resnet50"] = compared(tight, systems[:5], seeds)
    return found


def compared(one: SliceScenario, systems: tuple[str, ...], seeds: int) -> dict[str, Any]:
    """Means over seeds, 90 s each."""
    keys = ("slo_compliance_strict", "p99_strict_ms", "p50_best_effort_ms", "p99_best_effort_ms", "strict_qps_per_gpu")
    result: dict[str, Any] = {}
    for label in systems:
        runs = [run_once(one, label, seed, time.perf_counter) for seed in range(seeds)]
        merged = together(runs)
        parts = {k: round(v, 1) for k, v in merged["p99_strict_parts_ms"].items()}
        result[label] = {k: round(merged[k], 4) for k in keys} | {"p99_parts_ms": parts}
    return result


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


def scenario(name: str, **changes: Any) -> SliceScenario:
    """A shipped scenario, 90 s of it."""
    return slice_scenario(document(name, **{"duration_s": 90, **changes}))


def cpu(call: Callable[[], Any], times: int) -> float:
    """CPU seconds of one call, the best of three rounds."""
    rounds = []
    for _ in range(3):
        began = time.process_time()
        for _ in range(times):
            call()
        rounds.append((time.process_time() - began) / times)
    return min(rounds)


PARTS: Mapping[str, Callable[[], Any]] = {"costs": costs, "fbr": fbr, "bill": bill, "figures": figures}


def main() -> None:
    """Run the parts asked for and write them down."""
    asked = sys.argv[1:] or list(PARTS)
    found: dict[str, Any] = json.loads(TARGET.read_text()) if TARGET.exists() else {}
    found["machine"] = (
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {platform.python_version()}"
    )
    for name in asked:
        found[name] = PARTS[name]()
        print(json.dumps({name: found[name]}, indent=1))
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
