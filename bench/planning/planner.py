"""What a plan costs to make: the literal per-device program beside ours, and ours from 40 devices to a million.

One process, one thread, CPU seconds. "first plan": pruning, LP chain, rounding: what can be published at once. "plan":
with the search that follows. "map": from counts to named devices. Gap: bound less accuracy, in points.
The published cluster needs SLUICE_DATA; the fleets of any size are drawn with a seed.

`python bench/planning/planner.py [--literal-s 600] [--no-literal] [--stream 500] [--largest 1000000]`
writes reports/bench/planner.{json,png}.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Placement
from sluicegate.planner.allocation import goal_chain
from sluicegate.planner.allocation.assignment import assign
from sluicegate.planner.allocation.columns import build
from sluicegate.planner.allocation.linear import Matrix
from sluicegate.planner.allocation.pipeline import AllocationPlanner
from sluicegate.planner.allocation.program import PoolKey
from sluicegate.planner.allocation.solver_types import Limits
from sluicegate.planner.allocation.units import group_units
from sluicegate.planner.baselines.per_device import PerDevicePlanner
from sluicegate.planner.problems.problem import Allocation, AppDemand, Problem
from sluicegate.planner.problems.throughput import throughput
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.formats.proteus_csv import load_proteus

CLUSTER = (("cpu", 20), ("ampere", 10), ("pascal", 10))
ORACLE = Path("proteus") / "milp_oracle.json"
"""In SLUICE_DATA: windows of the published demand."""
BATCHES = (1, 2, 4, 8, 16)
T = TypeVar("T")


def cpu(work: Callable[[], T]) -> tuple[T, float]:
    """The answer and the CPU seconds it took."""
    started = time.process_time()
    answer = work()
    return answer, time.process_time() - started


def published(data: Path, devices: int, window: list[int], scale: float) -> Problem:
    """The published cluster (or a multiple of it) at a window of the published demand."""
    oracle = json.loads((data / ORACLE).read_text())
    case = next(c for c in oracle["cases"] if c["window_s"] == window and c["scale"] == 1 and c["slo"] == "flat300")
    factor = devices / 40
    fleet = [Device(name=f"{t}-{i:05d}", type=t) for t, n in CLUSTER for i in range(int(n * factor))]
    demands = [AppDemand(app=a, qps=scale * factor * q, slo=0.3) for a, q in case["demand_qps"].items()]
    return Problem(demands=tuple(demands), devices=tuple(fleet), catalogue=load_proteus(data / "proteus"))


def more_variants(problem: Problem, total: int, *, seed: int = 5) -> Problem:
    """The same apps with ``total`` variants: copies, slower ones more accurate, with scatter."""
    rng = np.random.default_rng(seed)
    catalogue = problem.catalogue
    base = list(catalogue.variants.values())
    variants, profiles = list(base), list(catalogue.profiles.values())
    for k in range(total - len(base)):
        model = base[k % len(base)]
        slower = float(rng.uniform(0.7, 1.4))
        accuracy = float(np.clip(model.accuracy + 0.08 * np.log(slower) + rng.normal(0, 0.01), 0, 1))
        variants.append(replace(model, name=f"{model.name}~{k}", accuracy=accuracy))
        profiles.extend(copied(catalogue, model.name, f"{model.name}~{k}", slower))
    return replace(problem, catalogue=Catalogue.of(catalogue.apps.values(), variants, profiles))


def more_apps(problem: Problem, total: int, *, seed: int = 5) -> Problem:
    """``total`` apps: copies that take part of an app's demand, with variants of their own."""
    rng = np.random.default_rng(seed)
    catalogue = problem.catalogue
    base = list(catalogue.apps.values())
    apps, variants, profiles = list(base), list(catalogue.variants.values()), list(catalogue.profiles.values())
    demands = {d.app: d for d in problem.demands}
    for k in range(total - len(base)):
        app = base[k % len(base)]
        slower, part, name = float(rng.uniform(0.7, 1.4)), float(rng.uniform(0.2, 0.8)), f"{app.name}~{k}"
        whole = demands[app.name]
        demands[name] = replace(whole, app=name, qps=part * whole.qps)
        demands[app.name] = replace(whole, qps=(1 - part) * whole.qps)
        apps.append(replace(app, name=name))
        for variant in catalogue.of_app(app.name):
            variants.append(replace(variant, name=f"{variant.name}~{k}", app=name))
            profiles.extend(copied(catalogue, variant.name, f"{variant.name}~{k}", slower))
    return replace(problem, demands=tuple(demands.values()), catalogue=Catalogue.of(apps, variants, profiles))


def copied(catalogue: Catalogue, variant: str, name: str, slower: float) -> list[Profile]:
    """Profiles of ``variant`` under another name, all latencies times ``slower``."""
    return [
        replace(
            p, variant=name, points=tuple(replace(b, median=b.median * slower, p95=b.p95 * slower) for b in p.points)
        )
        for (model, _), p in catalogue.profiles.items()
        if model == variant
    ]


def drawn(apps: int, variants: int, types: int, *, seed: int = 7) -> tuple[Catalogue, list[str]]:
    """A catalogue of the given size: slower variants are more accurate, with scatter; types differ in speed."""
    rng = np.random.default_rng(seed)
    names = [f"type{t:02d}" for t in range(types)]
    speed = 2.0 ** rng.uniform(0, 5, types)
    parts, profiles = [], []
    for v in range(variants):
        app = f"app{v % apps:02d}"
        size = rng.uniform(0, 1)
        parts.append(Variant(name=f"v{v:04d}", app=app, accuracy=float(np.clip(0.6 + 0.38 * size**0.6, 0, 1))))
        base = 0.004 * 60**size
        for t, name in enumerate(names):
            first = base * 32 / speed[t] * rng.uniform(0.7, 1.4) / 8
            growth = rng.uniform(0.15, 0.9)
            points = tuple(
                BatchLatency(b, first * (1 + growth * (b - 1)), first * (1 + growth * (b - 1))) for b in BATCHES
            )
            profiles.append(Profile(variant=parts[-1].name, device_type=name, points=points))
    return Catalogue.of([App(name=f"app{a:02d}", slo=0.3) for a in range(apps)], parts, profiles), names


def loaded(catalogue: Catalogue, types: list[str], devices: int, load: float) -> tuple[Problem, dict[PoolKey, int]]:
    """Zipf demand that asks ``load`` of what the fleet serves with everybody's fastest variants; units by type."""
    counts = {PoolKey(t): devices // len(types) + (i < devices % len(types)) for i, t in enumerate(types)}
    apps = sorted(catalogue.apps)
    shares = 1.0 / np.arange(1, len(apps) + 1)
    shares /= shares.sum()
    unit = tuple(AppDemand(app=a, qps=float(s), slo=0.3) for a, s in zip(apps, shares, strict=True))
    program = build(Problem(demands=unit, devices=(), catalogue=catalogue), counts, {})
    best = np.zeros((len(apps), len(types)))
    for serve in program.serves:
        host = program.hosts[serve.host]
        best[serve.demand, host.pool] = max(best[serve.demand, host.pool], serve.qps)
    # Each type spread over apps by demand: a fleet's capacity for this mix is at least this.
    reach = sum(
        n / max(float((shares / np.maximum(best[:, p], 1e-9)).sum()), 1e-9) for p, n in enumerate(counts.values())
    )
    demands = tuple(replace(d, qps=d.qps * reach * load) for d in unit)
    return Problem(demands=demands, devices=(), catalogue=catalogue), counts


def row(name: str, problem: Problem, counts: dict[PoolKey, int], *, polish: bool = True) -> dict[str, Any]:
    """Costs of one size, over counts alone."""
    program, building = cpu(lambda: build(problem, counts, {}))
    first, rounding = cpu(lambda: AllocationPlanner(polish=False).solve(program))
    found: dict[str, Any] = {
        "case": name,
        "devices": sum(counts.values()),
        "first_plan_s": building + rounding,
        "gap_first_points": 100 * first.gap,
        "served_first": float(program.weight @ first.whole.served),
    }
    if polish:
        full, searching = cpu(lambda: AllocationPlanner().solve(program))
        found |= {
            "plan_s": building + searching,
            "gap_points": 100 * full.gap,
            "served": float(program.weight @ full.whole.served),
            "accuracy": full.whole.accuracy / max(1e-9, float(program.weight @ full.whole.served)),
            "nondeterministic": full.nondeterministic,
        }
    return found


def mapped(problem: Problem, counts: dict[PoolKey, int]) -> float:
    """CPU seconds from counts to named devices, grouping included."""
    devices = [Device(name=f"{k.type}-{i:07d}", type=k.type) for k, n in counts.items() for i in range(n)]
    program = build(problem, counts, {})
    whole = AllocationPlanner(polish=False).solve(program).whole
    return cpu(lambda: assign(program, whole, group_units(devices, ())))[1]


def counts_of(problem: Problem) -> dict[PoolKey, int]:
    """Units by pool of a problem with named devices."""
    return {k: len(u) for k, u in group_units(problem.devices, ()).items()}


def literal(problem: Problem, seconds: float) -> dict[str, Any]:
    """The program with a variable for each device and variant, same solver, one thread."""
    planner = PerDevicePlanner(limits=Limits(gap=5e-4, nodes=100_000_000, seconds=seconds))
    answer, took = cpu(lambda: planner.allocate(problem))
    return {
        "case": "literal per-device program",
        "devices": len(problem.devices),
        "plan_s": took,
        "gap_points": 100 * answer.gap,
        "accuracy": answer.objective,
        "served": min(answer.served.values()),
        "stopped": answer.nondeterministic,
    }


def main(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows."""
    rows: list[dict[str, Any]] = []

    def add(found: dict[str, Any]) -> None:
        rows.append(found)
        print(json.dumps(found), flush=True)

    data = os.environ.get("SLUICE_DATA")
    if data and (Path(data) / ORACLE).exists():
        small = published(Path(data), 40, [90, 100], 3.0)
        add(row("published cluster, window 90-100, scale 3", small, counts_of(small)) | {"published": True})
        if not arguments.no_literal:
            add(literal(small, arguments.literal_s))
            rows[-1]["times_ours"] = rows[-1]["plan_s"] / rows[0]["plan_s"]
        large = published(Path(data), 160, [90, 100], 3.0)
        for name, problem in (
            ("published cluster times 4", large),
            ("published cluster, 450 variants", more_variants(small, 450)),
            ("published cluster, 17 apps", more_apps(small, 17)),
        ):
            add(row(name, problem, counts_of(problem)) | {"published": problem is large})
        add(stream(Path(data), arguments.stream))
    else:
        missing = f"{data} has no {ORACLE}" if data else "set SLUICE_DATA to its folder"
        print(f"without the published cluster: {missing}", file=sys.stderr)
    catalogue, types = drawn(9, 51, 17)
    add(row("17 device types", *loaded(catalogue, types, 68, 0.6)))
    catalogue, types = drawn(17, 450, 10)
    devices = 1000
    while devices <= arguments.largest:
        problem, counts = loaded(catalogue, types, devices, 0.6)
        add(row("10 types, 450 variants, 17 apps", problem, counts))
        rows[-1]["map_s"] = mapped(problem, counts)
        devices *= 10
    return rows


def stream(data: Path, steps: int, *, seed: int = 11) -> dict[str, Any]:
    """Plans for ``steps`` changing demands on the published cluster, each from the one before, and what was wrong."""
    rng = np.random.default_rng(seed)
    base = published(data, 40, [90, 100], 1.0)
    usual = 2.8  # times the published demand: the cluster carries about 3.5 times
    level = np.full(len(base.demands), usual)
    previous: tuple[Placement, ...] = ()
    times, worse, moved, least, over, short = [], 0, 0, 0, 0, 0
    for _ in range(steps):
        level = usual**0.2 * level**0.8 * rng.lognormal(0, 0.3, len(level))
        demands = tuple(replace(d, qps=d.qps * float(x)) for d, x in zip(base.demands, level, strict=True))
        problem = replace(base, demands=demands, previous=previous)
        first, took = cpu(partial(AllocationPlanner(polish=False).allocate, problem))
        times.append(took)
        answer = AllocationPlanner().allocate(problem)
        short += min(answer.served.values()) < 1.0
        worse += _serves_less(problem, answer) or _serves_less(problem, first)
        over += _overloaded(problem, answer) or _overloaded(problem, first)
        old, new = _held(problem, previous), _held(problem, answer.placements)
        moved += answer.loads
        least += sum((new - old).values())
        previous = answer.placements
    return {
        "case": f"stream of {steps} demands",
        "devices": len(base.devices),
        "first_plan_s": float(np.median(times)),
        "first_plan_p95_s": float(np.quantile(times, 0.95)),
        "plans_with_an_overloaded_device": over,
        "plans_that_serve_less_than_the_relaxed_one_with_a_device_less_for_each_variant": worse,
        "demands_beyond_the_cluster": short,
        "loads": moved,
        "loads_lower_bound": least,
    }


def _held(problem: Problem, placements: tuple[Placement, ...]) -> Counter[tuple[str, tuple[str, ...]]]:
    types = {d.name: d.type for d in problem.devices}
    return Counter((types[p.device], p.variants) for p in placements)


def _overloaded(problem: Problem, answer: Allocation) -> bool:
    demand = {d.app: d for d in problem.demands}
    types = {d.name: d.type for d in problem.devices}
    for p in answer.placements:
        profile = problem.catalogue.profiles[p.variants[0], types[p.device]]
        rate = throughput(profile, demand[p.app].slo / 2).qps
        if p.share * demand[p.app].qps * demand[p.app].headroom > rate * (1 + 1e-6):
            return True
    return False


def _serves_less(problem: Problem, answer: Allocation) -> bool:
    """Whether it serves less than the relaxed program with one device less for each variant that a pool hosts."""
    program = build(problem, counts_of(problem), {})
    hosted = Counter(kind for kind, _ in _held(problem, answer.placements))
    left = np.array([max(0, n - hosted[k.type]) for k, n in zip(program.pools, program.counts, strict=True)])
    relaxed = goal_chain.run(Matrix(program, counts=left), program).solved
    least = float(relaxed.served[program.served_somewhere].min())
    return min(answer.served.values()) < least - 1e-3


def show(rows: list[dict[str, Any]]) -> None:
    """The table."""
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, CPU seconds")
    head = ("first plan", "gap pts", "plan", "gap pts", "accuracy", "map")
    print(f"{'case':44} {'devices':>9}" + "".join(f"{h:>11}" for h in head))
    keys = ("first_plan_s", "gap_first_points", "plan_s", "gap_points", "accuracy", "map_s")
    for r in rows:
        cells = "".join(f"{r[k]:11.4f}" if k in r else f"{'':11}" for k in keys)
        print(f"{r['case']:44} {r['devices']:9d}{cells}")


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Cost against size; the dotted line is at 0.2 s."""
    figure, axes = plt.subplots(figsize=(7, 4.5))
    fleet = [r for r in rows if "map_s" in r]
    sizes = [r["devices"] for r in fleet]
    for key, label in (("first_plan_s", "first plan"), ("plan_s", "with search"), ("map_s", "map to named devices")):
        axes.plot(sizes, [r[key] for r in fleet], marker="o", label=label)
    for r in rows:
        if r["case"].startswith("literal"):
            axes.plot([r["devices"]], [r["plan_s"]], "x", color="black", label="literal per-device program")
    small = [r for r in rows if r.get("published")]
    if small:
        sizes = [r["devices"] for r in small]
        axes.plot(sizes, [r["first_plan_s"] for r in small], "s", color="C0", label="published cluster, first plan")
        axes.plot(sizes, [r["plan_s"] for r in small], "s", color="C1", label="published cluster, with search")
    axes.axhline(0.2, color="grey", linestyle=":", linewidth=1)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="devices",
        ylabel="CPU seconds",
        title="Cost of a plan against the size of the fleet",
    )
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--literal-s", type=float, default=600.0, help="where the literal program is stopped")
    parser.add_argument("--no-literal", action="store_true")
    parser.add_argument("--stream", type=int, default=500, help="demands planned for one after the other")
    parser.add_argument("--largest", type=int, default=1_000_000)
    given = parser.parse_args()
    results = main(given)
    show(results)
    target = Path("reports/bench/planner.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(results, indent=2))
    plot(results, target.with_suffix(".png"))
