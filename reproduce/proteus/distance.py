"""Distance to the clairvoyant bound: each trace of the artifact, bursts and Gamma arrivals, and what is left to gain.

Beside ours as the scenarios tune it stand the defaults of ``sluice up``, read from the settings themselves.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from reproduce.figure import Options, Result
from reproduce.proteus import systems
from reproduce.proteus.plots import bars
from reproduce.proteus.runs import by_seed, rows_of, run_all
from reproduce.proteus.systems import System
from reproduce.proteus.workloads import Workload, drawn, flats, trace
from sluicegate.policies.routing.registry import default_routing
from sluicegate.simulator.bound import Bound, clairvoyant_bound
from sluicegate.simulator.report.page import Table
from sluicegate.simulator.report_rows import HEADER, row_of
from sluicegate.simulator.scenario import build, scenario_of
from sluicegate.simulator.scenario.experiment import Run, arrivals_of, together, with_distances
from sluicegate.simulator.scenario.scenario_fields import PlannerSpec
from sluicegate.sluice.settings.settings import PlannerSettings, WorkerSettings

TRACES = ("zipf_exponential", "medium-normal_load", "normal_load", "low_load", "zipf_uniform", "zipf_flat_uniform")
COLUMNS = ("system", "violations", "at least", "right in time", "at most", "distance closed", "accuracy")


def as_up() -> dict[str, Any]:
    """Overrides that have a scenario run with the defaults of ``sluice up``."""
    live = PlannerSettings()
    shared = sorted(PlannerSpec.model_fields.keys() & PlannerSettings.model_fields.keys() - {"demand"})
    return {
        **{f"planner.{name}": getattr(live, name) for name in shared},
        "policies.routing": default_routing(WorkerSettings().batching, scales=live.scales),
        "policies.batching": WorkerSettings().batching,
    }


def compared() -> tuple[System, ...]:
    """Ours tuned and as it starts, and Proteus with and without what it can carry."""
    return (systems.OURS, System("defaults of sluice up", as_up()), systems.PROTEUS_MENDED, systems.PROTEUS_EXACT)


def workloads(options: Options) -> dict[str, Callable[[int], Workload]]:
    """By name; those that are drawn differ by seed."""
    lasting = options.lasting(60.0)
    found: dict[str, Callable[[int], Workload]] = {
        name: lambda seed, name=name: trace(name, seconds=lasting, seed=seed)  # type: ignore[misc]
        for name in TRACES
    }
    found["zipf_exponential x2.5"] = lambda seed: trace("zipf_exponential", scale=2.5, seconds=lasting, seed=seed)
    rates = flats(200.0, 1500.0, 30, 2 if options.quick else 8)
    found["bursts"] = lambda seed: drawn("200 and 1500 queries/s, 30 s each", rates, seed=seed)
    rising = [1000.0 * (second + 1) / 15 for second in range(15)]
    steady = rising + [1000.0] * int((lasting or 120.0) - 15)
    found["gamma"] = lambda seed: drawn(
        "1000 queries/s, Gamma of shape 0.05", steady, process="gamma", shape=0.05, seed=seed
    )
    return found


def bound_of(work: Workload, seed: int) -> Bound:
    """Of the arrivals of a run with this seed."""
    scenario = scenario_of(work.document)
    model = build(scenario, lambda: 0.0)
    return clairvoyant_bound(model, arrivals_of(scenario, model.catalogue, seed), np.random.default_rng([seed, 2]))


def measured(load: Callable[[int], Workload], seeds: Sequence[int], options: Options) -> dict[str, list[Run]]:
    """Runs of each system, each with the bound of its arrivals."""
    found: dict[str, list[Run]] = {}
    for seed in seeds:
        work = load(seed)
        bound = bound_of(work, seed)
        for name, run in run_all(compared(), work, replace(options, seed=seed)).items():
            found.setdefault(name, []).append(replace(run, bound=bound))
    return found


def table_of(name: str, runs: dict[str, list[Run]]) -> Table:
    """A row a system."""
    results = with_distances({system: together(of_system) for system, of_system in runs.items()})
    chosen = [HEADER.index(column) for column in COLUMNS]
    rows = [tuple(row_of(system, figures)[i] for i in chosen) for system, figures in results.items()]
    return Table(name, COLUMNS, rows)


def figure_bound(options: Options) -> Result:
    """What each leaves to gain."""
    tables, rows = [], []
    left: dict[str, dict[str, float]] = {}
    for name, load in workloads(options).items():
        seeds = options.each_seed(1 if name in TRACES else 3)
        runs = measured(load, seeds, options)
        tables.append(table_of(name, runs))
        rows += [row for of_seed in by_seed(runs) for row in rows_of(of_seed, workload=name)]
        for system, of_system in runs.items():
            gaps = [r.bound.right_in_time - r.summary.right_in_time for r in of_system if r.bound is not None]
            left.setdefault(system, {})[name] = 100.0 * float(np.mean(gaps))
    titles = {name: f"{name}: points below the bound" for name in next(iter(left.values()))}
    intro = "Right answers in time, of all queries: what each system has, and what none can exceed."
    return Result("distance to the bound", intro, [("Left to gain", bars(left, titles, columns=3))], tables, [], rows)
