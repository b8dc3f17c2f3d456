"""Selection tables against the published criterion and first come, first served, load by load, by ``sluice compare``.

    python bench/selection/loads.py                                  # image task, 150 ms, 60 workers, 400 to 4000
    python bench/selection/loads.py --set workers=70 --loads 2000
    python bench/selection/loads.py --scenario examples/scenarios/ramsis-text.yaml

At each load the tables hold where accuracy per query on time is at least the published policy's, and violations are no
more than 1.5 times its, or below 1e-4; and where they are no more than those of first come, first served. All systems
of a row see the same arrivals. Needs the papers' data: set SLUICE_DATA. Exits with 1 where a load does not hold.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OURS, PUBLISHED, FIRST_COME = "per-query", "published", "first-come"
MORE_VIOLATIONS = 1.5
FEW_VIOLATIONS = 1e-4
ROUNDING = 1e-9
"""Accuracies are means of equal numbers added in different orders."""


@dataclass(frozen=True)
class Row:
    """One load: means over the seeds, half-widths of 95 % confidence (NaN of one seed). Ratios in 0..1."""

    qps: float
    accuracy: float
    accuracy_ci: float
    violation: float
    published_accuracy: float
    published_violation: float
    first_come_accuracy: float
    first_come_violation: float

    @property
    def holds(self) -> bool:
        """Whether the tables are no worse than what they are compared with."""
        within = self.violation <= max(MORE_VIOLATIONS * self.published_violation, FEW_VIOLATIONS)
        accurate = self.accuracy >= self.published_accuracy - ROUNDING
        return accurate and within and self.violation <= max(self.first_come_violation, FEW_VIOLATIONS)


def compare(scenario: Path, qps: float, settings: Sequence[str], seeds: int, jobs: int) -> dict[str, Any]:
    """What ``sluice compare --json`` says. Ends the program with its error where it fails."""
    with TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "sluicegate.sluice.main",
            "compare",
            str(scenario),
            "--json",
            "--seeds",
            str(seeds),
        ]
        command += ["--policies", ",".join((OURS, PUBLISHED, FIRST_COME)), "--jobs", str(jobs)]
        command += ["--report", f"{folder}/index.html", "--set", f"load_qps={qps:g}"]
        for setting in settings:
            command += ["--set", setting]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr or done.stdout)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def row(qps: float, found: dict[str, Any]) -> Row:
    """Of one comparison."""
    ours, published, first = found[OURS], found[PUBLISHED], found[FIRST_COME]
    return Row(
        qps,
        ours["effective_accuracy"],
        math.nan if (ci95 := ours["ci95"]["effective_accuracy"]) is None else ci95,
        ours["violation_ratio"],
        published["effective_accuracy"],
        published["violation_ratio"],
        first["effective_accuracy"],
        first["violation_ratio"],
    )


def main() -> None:
    """Measure, print a row a load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", type=Path, default=ROOT / "examples/scenarios/ramsis-image.yaml")
    parser.add_argument("--loads", default=",".join(str(q) for q in range(400, 4001, 400)), metavar="X,Y")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    arguments = parser.parse_args()
    if not os.environ.get("SLUICE_DATA"):
        sys.exit("SLUICE_DATA is not set; set it to the folder that holds the papers' data")
    print("| queries/s | table | violation | published | violation | first come | violation | holds |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    rows = []
    for qps in map(float, arguments.loads.split(",")):
        found = compare(arguments.scenario, qps, arguments.settings, arguments.seeds, arguments.jobs)
        r = row(qps, found)
        rows.append(r)
        print(
            f"| {r.qps:g} | {r.accuracy:.5f} +- {r.accuracy_ci:.5f} | {r.violation:.2g} | {r.published_accuracy:.5f} "
            f"| {r.published_violation:.2g} | {r.first_come_accuracy:.5f} | {r.first_come_violation:.2g} "
            f"| {'yes' if r.holds else 'NO'} |",
            flush=True,
        )
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps([asdict(r) | {"holds": r.holds} for r in rows], indent=1))
    sys.exit(0 if all(r.holds for r in rows) else 1)


if __name__ == "__main__":
    main()
