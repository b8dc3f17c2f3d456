"""How far the simulator is from the live system, at several loads: two planners and batching rules, tables, cut GPUs.

    python bench/fidelity.py [--only tables,slices]

A wave of a scenario in ``examples/scenarios/`` within the duration: each load is run live on emulated devices, in real
time, and simulated five times with the same arrivals, where the trace begins 0 to 4/5 of a count of demand after one
(``missed_by_phase``): live that phase is nobody's to choose. Points and percent are live minus the mean of the five.
What ran live is read from the running stages and printed with it; where that is not what was asked, the run ends with
an error. ``load_average`` is the machine's when a load's live run began (``sent_late_ms``: how late it sent a query at
most): what else runs here makes the live side late.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sluicegate.simulator.figure_differences import difference
from sluicegate.simulator.scenario import catalogue_of, overridden, read_scenario, warm_up_of
from sluicegate.simulator.scenario.experiment import run_once
from sluicegate.sluice.offline.live_vs_simulated import at_load, fidelity

SCENARIOS = Path(__file__).resolve().parents[1] / "examples" / "scenarios"

FIGURES = ("violation_ratio", "effective_accuracy", "goodput_qps", "p99_ms")


@dataclass(frozen=True, slots=True)
class Case:
    """A scenario's file, what is changed of it, and what must have run: planner, batching, period."""

    file: str
    runs: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    wave: Mapping[str, float] = field(default_factory=lambda: {"spikes": 4, "spike_factor": 1.4})


CASES = {
    "allocation": Case("small.yaml", "allocation, adaptive, 10 s"),
    "greedy-fill": Case(
        "small.yaml",
        "greedy-fill, static, 3 s",
        {
            "planner.name": "greedy-fill",
            "planner.period_s": 3.0,
            "policies.batching": {"name": "static", "size": 4, "timeout_s": 0.02},
        },
    ),
    # Two fifths of the scenario's rates: one process sends, serves and is measured here.
    "tables": Case("tables-and-plans.yaml", "allocation, table, 5 s", {"traces.qps": [100, 400]}),
    "slices": Case("sliced-gpus.yaml", "allocation, adaptive, 5 s", wave={"noise": 0.03, "spikes": 0}),
}


def main() -> None:
    """Run them, print a line a load."""
    asking = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asking.add_argument("--loads", default="0.5,1,1.5")
    asking.add_argument("--duration", type=float, default=40.0)
    asking.add_argument("--only", default=",".join(CASES))
    asked = asking.parse_args()
    names = asked.only.split(",")
    if unknown := sorted(set(names) - {*CASES}):
        asking.error(f"--only {unknown[0]}: give some of {','.join(CASES)}")
    for name in names:
        case = CASES[name]
        wave = {"traces.generator": {"period_s": asked.duration, **case.wave}}
        document = overridden(read_scenario(SCENARIOS / case.file, {}), {"duration_s": asked.duration, **wave})
        for path, value in case.changes.items():
            section, inner = path.split(".")
            document[section] = {**document.get(section, {}), inner: value}
        for load in map(float, asked.loads.split(",")):
            before = os.getloadavg()[0]
            (found,) = asyncio.run(fidelity(document, [load], document["seed"])).values()
            ran, live, phases = found["ran_live"], found["live"], _by_phase(document, load)
            simulated = {figure: fmean(phase[figure] for phase in phases) for figure in FIGURES}
            really = f"{ran['planner']['name']}, {', '.join(ran['batching'])}, {ran['planner']['period_s']:g} s"
            if really != case.runs:
                raise SystemExit(f"{case.runs} was asked, and {really} ran")
            told = {
                "case": name,
                "ran_live": really,
                "load": load,
                "queries": live["queries"],
                "missed_percent": [round(100.0 * one["violation_ratio"], 2) for one in (live, simulated)],
                "accuracy_percent": [round(100.0 * one["effective_accuracy"], 2) for one in (live, simulated)],
                "p99_ms": [round(one["p99_ms"]) for one in (live, simulated)],
                "apart": {key: round(value, 2) for key, value in asdict(difference(live, simulated)).items()},
                "missed_by_phase": [round(100.0 * phase["violation_ratio"], 2) for phase in phases],
                "plans": ran["plans"]["published"],
                "stand_ins": ran["plans"]["stand_ins"],
                "recuts": ran["plans"]["recuts"],
                "sent_late_ms": round(1e3 * ran["sent_late_s"]),
                "load_average": round(before, 1),
            }
            print(json.dumps(told), flush=True)


def _by_phase(document: dict[str, Any], load: float) -> list[dict[str, float]]:
    scenario = at_load(document, load)
    found = []
    least = warm_up_of(scenario.simulation, catalogue_of(scenario))
    for phase in range(5):
        warm_up = least + phase * scenario.simulation.heartbeat_s / 5
        moved = at_load(overridden(document, {"simulation.warm_up_s": warm_up}), load)
        found.append(run_once(moved, document["seed"], time.perf_counter).figures())
    return found


if __name__ == "__main__":
    main()
