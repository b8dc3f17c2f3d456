"""What the phase of the round robin is worth: how far a worker's turn is, told by the router or estimated.

    python bench/selection/phase.py [--json FILE]

At each number of workers and load (a share of what the fastest variant's best batch can do) tables that tell phases
apart are followed knowing the load and the time since the last query alone, or told the router's count, as it was some
milliseconds before. Executions take their p95; all of a row see the same arrivals, for as many queries at every place.
Needs the papers' data: set SLUICE_DATA.
"""

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from reproduce.ramsis.selection_study import World, by_tables
from sluicegate.planner.mdp.generate_table import generate
from sluicegate.planner.policy_tables.table_library import peak_rate
from sluicegate.profiles.formats.ramsis_json import DEVICE_TYPE, load_ramsis
from sluicegate.simulator.scenario.central_queue import poisson

WORKERS = (2, 4, 8, 20, 60)
SHARES = (0.3, 0.6, 0.85)
DELAYS_MS = (0.0, 5.0, 20.0)
PHASES = 8
QUERIES = 60_000


def row(world: World, workers: int, share: float) -> dict[str, Any]:
    """Accuracies at one place: without phases, estimated, and told after each delay."""
    qps = share * peak_rate(world.model(workers))
    arrivals = poisson(np.array([qps]), QUERIES / qps, np.random.default_rng([workers, int(1000 * share)]))
    phases = min(PHASES, workers)
    plain, phased = (generate(replace(world.model(workers, qps), phases=n)).table for n in (1, phases))

    def accuracy(table: Any, delay: float | None = None) -> tuple[float, float]:
        found = by_tables(world, arrivals, [table], np.random.default_rng(0), qps=qps, phase_delay=delay)
        return found.accuracy, found.violation

    told = {f"{ms:g} ms": accuracy(phased, ms / 1e3) for ms in DELAYS_MS}
    return {
        "workers": workers,
        "qps": qps,
        "phases": phases,
        "promised": (plain.expected.accuracy, phased.expected.accuracy),
        "without": accuracy(plain),
        "estimated": accuracy(phased),
        "told": told,
    }


def main() -> None:
    """Measure, print a row a place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    arguments = parser.parse_args()
    data = os.environ.get("SLUICE_DATA")
    if not data:
        sys.exit("SLUICE_DATA is not set; set it to the folder that holds the papers' data")
    catalogue = load_ramsis(Path(data) / "ramsis", tasks=("image",), table="artifact")
    world = World(catalogue, "image", DEVICE_TYPE, 0.15, "p95")
    heads = (f"told, {ms:g} ms old" for ms in DELAYS_MS)
    print(f"| workers | queries/s | without | estimated | {' | '.join(heads)} | most violations |")
    print("|---" * (5 + len(DELAYS_MS)) + "|", flush=True)
    rows = []
    for workers in WORKERS:
        for share in SHARES:
            found = row(world, workers, share)
            rows.append(found)
            each = [found["without"], found["estimated"], *found["told"].values()]
            shown = " | ".join(f"{a:.5f}" for a, _ in each)
            print(f"| {workers} | {found['qps']:.0f} | {shown} | {max(v for _, v in each):.2g} |", flush=True)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
