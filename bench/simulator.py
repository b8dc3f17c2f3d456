"""Simulated queries per second of CPU, and memory against the length of the trace.

Weighted routing and eager batching; the planner runs as live. Besides, Proteus's trace as its scenario has it
(slack-blend, adaptive batching, 40 devices), where SLUICE_DATA is set. Each case is a process of its own, so that its
memory is its own. Run: ``python bench/simulator.py [--json] [--quick]``.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SCENARIOS = ROOT / "examples" / "scenarios"

CASES: dict[str, tuple[float, float]] = {
    "a tenth of the trace": (80_000, 400.0),
    "the whole trace": (800_000, 400.0),
    "twice the rate": (800_000, 800.0),
}
"""Name -> (queries, queries/s). Rate is the mean; the wave goes from a fifth to nine fifths of it."""
PROTEUS = "Proteus's trace"
PROTEUS_S = 291.72
"""Seconds of it."""


def small(scale: float, queries: float, qps: float) -> dict[str, Any]:
    """Our own example with as many queries."""
    from sluicegate.simulator.scenario import overridden, read_scenario

    return overridden(
        read_scenario(SCENARIOS / "small.yaml", {}),
        {
            "duration_s": scale * queries / qps,
            "traces.qps": [0.2 * qps, 1.8 * qps],
            "traces.generator": {"period_s": 150, "spikes": 0},
            "policies.batching": "eager",
            "devices": [{"type": "cpu", "count": 8}, {"type": "gpu", "count": 4}],
        },
    )


def proteus(scale: float) -> dict[str, Any]:
    """The trace of Proteus's evaluation, from its start."""
    from sluicegate.simulator.scenario import overridden, read_scenario

    document = read_scenario(SCENARIOS / "proteus-medium-normal.yaml", os.environ)
    return overridden(document, {"duration_s": scale * PROTEUS_S})


def case(document: dict[str, Any]) -> dict[str, Any]:
    """Simulate one case here and now."""
    from sluicegate.simulator.scenario import scenario_of
    from sluicegate.simulator.scenario.experiment import run_once

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, cpu = time.perf_counter(), time.process_time()
    run = run_once(scenario_of(document), 0, time.process_time)
    cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    planning = sum(run.solve_s)
    return {
        "queries": run.summary.queries,
        "violation_ratio": run.summary.violation_ratio,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "planning_s": planning,
        "queries_per_cpu_s": run.summary.queries / (cpu_s - planning),
        "queries_per_cpu_s_with_planning": run.summary.queries / cpu_s,
        "memory_grew_mb": (after - before) / 1024,
    }


def main() -> None:
    """Print a line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="A tenth of the queries.")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    scale = 0.1 if options.quick else 1.0
    if options.case:
        sys.path.insert(0, str(ROOT))
        document = proteus(scale) if options.case == PROTEUS else small(scale, *CASES[options.case])
        print(json.dumps(case(document)))
        return
    results, failed = {}, []
    names = [*CASES]
    if "SLUICE_DATA" in os.environ:
        names.append(PROTEUS)
    else:
        print(f"{PROTEUS} is left out: set SLUICE_DATA to the folder of the papers' data", file=sys.stderr)
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    if not options.json:
        print(machine, flush=True)
    for name in names:
        arguments = [sys.executable, __file__, "--case", name, *(["--quick"] if options.quick else [])]
        done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            failed.append(name)
            continue
        results[name] = json.loads(done.stdout)
        if not options.json:
            show(name, results[name])
    if options.json:
        print(json.dumps({"machine": machine, "cases": results}))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def show(name: str, r: dict[str, Any]) -> None:
    """A line of the table."""
    print(
        f"{name:22} {r['queries']:8d} queries in {r['wall_s']:5.1f} s;"
        f" {r['queries_per_cpu_s']:8.0f} queries per CPU second"
        f" ({r['queries_per_cpu_s_with_planning']:.0f} with {r['planning_s']:.1f} s of planning);"
        f" memory grew by {r['memory_grew_mb']:.1f} MB",
        flush=True,
    )


if __name__ == "__main__":
    main()
