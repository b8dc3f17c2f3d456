"""Runs of a scenario of sliced GPUs: one system once, or several on the same batches for several seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reproduce.protean.slice_bound import most_on_time
from reproduce.protean.slices.figures import PARTS, latencies, usage
from reproduce.protean.slices.oracle import OracleControl
from reproduce.protean.slices.slices_fields import BOUND, SliceScenario
from reproduce.protean.slices.spot import BoughtNodes
from reproduce.protean.slices.systems import world_of
from reproduce.protean.slices.workload import BEST_EFFORT, STRICT, Bursts, Workload, gather, redraws
from reproduce.protean.slices.world import World
from sluicegate.planner.geometry.mig_tables import TABLES
from sluicegate.simulator.arrivals.lists import ListedArrivals
from sluicegate.simulator.arrivals.sampling import collect
from sluicegate.simulator.scenario.experiment import mean_and_half_width

MEASURES = (
    "slo_compliance_strict",
    "p50_strict_ms",
    "p99_strict_ms",
    "p50_best_effort_ms",
    "p99_best_effort_ms",
    "strict_qps_per_gpu",
    "gpu_use",
    "memory_use",
    "cost_usd",
)
COUNTS = ("queries_strict", "queries_best_effort", "reconfigurations", "evictions", "cold_starts")
GRID = tuple(np.concatenate((np.linspace(0.0, 0.98, 50), np.linspace(0.982, 1.0, 10))).tolist())
"""Quantiles that a run keeps of its latencies."""
_ARRIVALS, _REDRAWS, _BURSTS = 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRun:
    """One run. ``figures``: by the names of MEASURES and COUNTS; ``tail_ms``: parts of the strict P99.

    ``strict_quantiles_ms``: strict latency at GRID. ``chosen``: what an Oracle took, and how often.
    """

    figures: Mapping[str, float]
    tail_ms: Mapping[str, float]
    strict_quantiles_ms: tuple[float, ...]
    wall_s: float
    seed: int
    chosen: Mapping[str, int]


def workload_of(scenario: SliceScenario, seed: int) -> Workload:
    """The batches of every system with this seed. Raises InvalidInputError where the trace cannot be read."""
    asked = scenario.workload
    traces = scenario.traces.model_copy(
        update={"shares": {STRICT: asked.strict_share, BEST_EFFORT: 1.0 - asked.strict_share}}
    )
    source = traces.open((STRICT, BEST_EFFORT), np.random.default_rng([seed, _ARRIVALS]), scenario.duration_s)
    if asked.bursts is not None:
        bursts = Bursts(asked.bursts.gap_s, asked.bursts.width_ms / 1e3, asked.bursts.shape)
        moved = {
            app: bursts.moved(times, scenario.duration_s, np.random.default_rng([seed, _BURSTS]))
            for app, times in collect(source).items()
        }
        source = ListedArrivals(moved, scenario.duration_s)
    others = redraws(scenario.opposite(), scenario.duration_s, asked.redraw_s, np.random.default_rng([seed, _REDRAWS]))
    return gather(
        source,
        strict=asked.strict,
        redraws=others,
        sizes={name: m.batch for name, m in scenario.models.items()},
        max_wait=asked.max_wait_ms / 1e3,
    )


def run_once(scenario: SliceScenario, label: str, seed: int, timer: Callable[[], float]) -> SliceRun:
    """Simulate the system called ``label``. ``timer``: wall seconds. Raises SluiceError."""
    started = timer()
    workload = workload_of(scenario, seed)
    if label == BOUND:
        return _bounded(scenario, workload, seed, lambda: timer() - started)
    world = world_of(scenario, label, workload, seed)
    world.run_until(scenario.warm_up_s)
    cold_before = world.containers.cold_starts
    world.run()
    return _measured(scenario, world, cold_before, seed, timer() - started)


def _bounded(scenario: SliceScenario, workload: Workload, seed: int, wall_s: Callable[[], float]) -> SliceRun:
    """What no system exceeds; of all but strict queries on time it says nothing (NaN)."""
    counted = [b for b in workload.batches if b.strict and b.formed >= scenario.warm_up_s]
    found = most_on_time(
        counted,
        scenario.table(),
        TABLES[scenario.gpus.type],
        gpus=scenario.gpus.count,
        multiplier=scenario.workload.slo_multiplier,
    )
    unknown = float("nan")
    return SliceRun(
        figures={**dict.fromkeys((*MEASURES, *COUNTS), unknown), "slo_compliance_strict": found},
        tail_ms=dict.fromkeys(PARTS, unknown),
        strict_quantiles_ms=(),
        wall_s=wall_s(),
        seed=seed,
        chosen={},
    )


def _measured(scenario: SliceScenario, world: World, cold_before: int, seed: int, wall_s: float) -> SliceRun:
    batches = world.workload.batches
    if len(world.ended) != len(batches) or len({e.batch.key for e in world.ended}) != len(batches):
        raise AssertionError(f"{len(batches)} batches came and {len(world.ended)} ended")
    strict = latencies(world.ended, world.table, strict=True, warm_up=scenario.warm_up_s)
    others = latencies(world.ended, world.table, strict=False, warm_up=scenario.warm_up_s)
    slo = scenario.workload.slo_multiplier * world.table.demands[world.workload.strict].solo
    nodes = world.nodes
    assert isinstance(nodes, BoughtNodes)
    on_time = strict.within(slo)
    seconds = scenario.duration_s - scenario.warm_up_s
    memory = max(p.memory_bytes for p in world.placements.profiles.values())
    used = usage(
        world.ended, world.table, gpus=scenario.gpus.count, memory_bytes=memory, seconds=max(world.now, seconds)
    )
    figures = {
        "slo_compliance_strict": on_time,
        "p50_strict_ms": 1e3 * strict.quantile(0.5),
        "p99_strict_ms": 1e3 * strict.quantile(0.99),
        "p50_best_effort_ms": 1e3 * others.quantile(0.5),
        "p99_best_effort_ms": 1e3 * others.quantile(0.99),
        "strict_qps_per_gpu": on_time * strict.seconds.size / seconds / scenario.gpus.count,
        "gpu_use": used.gpu,
        "memory_use": used.memory,
        "cost_usd": nodes.meter.total(scenario.duration_s),
        "queries_strict": strict.seconds.size,
        "queries_best_effort": others.seconds.size,
        "reconfigurations": world.reconfigurations,
        "evictions": nodes.evictions,
        "cold_starts": world.containers.cold_starts - cold_before,
    }
    control = world.control
    return SliceRun(
        figures=figures,
        tail_ms={name: 1e3 * value for name, value in strict.tail().items()},
        strict_quantiles_ms=tuple((1e3 * np.quantile(strict.seconds, GRID)).tolist()) if strict.seconds.size else (),
        wall_s=wall_s,
        seed=seed,
        chosen=dict(control.chosen) if isinstance(control, OracleControl) else {},
    )


def together(runs: Sequence[SliceRun]) -> dict[str, Any]:
    """Means over seeds, ``ci95`` (half widths), the breakdown of the strict P99, and each seed's own figures."""
    result: dict[str, Any] = {}
    half: dict[str, float] = {}
    for name in (*MEASURES, *COUNTS):
        result[name], half[name] = mean_and_half_width([run.figures[name] for run in runs])
    result["p99_strict_parts_ms"] = {
        part: mean_and_half_width([run.tail_ms[part] for run in runs])[0] for part in PARTS
    }
    known = [run.strict_quantiles_ms for run in runs if run.strict_quantiles_ms]
    result["strict_quantiles_ms"] = np.mean(known, axis=0).tolist() if known else []
    result["by_seed"] = [{"seed": run.seed, **{m: run.figures[m] for m in (*MEASURES, *COUNTS)}} for run in runs]
    result["wall_s"] = sum(run.wall_s for run in runs)
    return {**result, "seeds": [run.seed for run in runs], "ci95": half}
