r"""Mutants of the pure code against the fast tests that cover them: which changes does no test notice?

    python -m tests.mutants.run --n 60 --seed 7
    python -m tests.mutants.run --n 40 --seed 7 --files planner/control/fleet.py
    python -m tests.mutants.run --again reports/mutants/summary.json --out reports/mutants/again
    python -m tests.mutants.run --n 24 --seed 11 --files policies/promises/*.py policies/placement/*.py \
        --tests tests/unit/policies tests/property/policies --out reports/mutants/sample --at-least 0.8

Writes summary.json: ``decided, killed, equivalent`` and ``survivors`` (file, line, before, after). ``equivalent.json``
beside this module lists changes that were judged to change nothing, with the reason.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tests.mutants.forked import JOBS
from tests.mutants.measured import FAST, Covering, measured
from tests.mutants.sample import Mutant, drawn, named

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.json")
_SECONDS = 1200.0
"""A mutant that has not ended by then is noticed: it waits for what never comes."""
_ELSEWHERE = 3
"""The answer of a fork that cannot take a mutant's change."""


def judged() -> set[str]:
    """Names of mutants that change nothing."""
    return {entry["mutant"] for entry in json.loads(EQUIVALENT.read_text())}


def survivors_of(summary: Path) -> list[tuple[str, str, str]]:
    """Files, lines before and lines after."""
    return [(one["file"], one["before"], one["after"]) for one in json.loads(summary.read_text())["survivors"]]


def noticed(
    mutants: Sequence[Mutant],
    covering: Covering,
    processes: int,
    patience: float,
    tell: Callable[[Mutant, bool], None],
) -> None:
    """Tell of each whether a test fails, of those that begin within ``patience`` seconds."""
    tests = {mutant: covering.tests(mutant) for mutant in mutants}
    elsewhere = [mutant for mutant in mutants if not tests[mutant]]
    files = sorted({test.partition("::")[0] for found in tests.values() for test in found})
    options = ["-q", "-s", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--timeout=0", *(files or FAST)]
    forked = [sys.executable, "-m", "pytest", "-p", "tests.mutants.forked", *options]
    for mutant, status in _answered(forked, [m for m in mutants if tests[m]], tests, processes, patience):
        if status == _ELSEWHERE or (status == 0 and covering.imported(mutant)):
            elsewhere.append(mutant)
        else:
            tell(mutant, status != 0)
    anew = [sys.executable, "-m", "tests.mutants.imported_anew"]
    for mutant, status in _answered(anew, elsewhere, tests, processes, patience):
        tell(mutant, status != 0)


def _answered(
    command: Sequence[str],
    mutants: Sequence[Mutant],
    tests: dict[Mutant, list[str]],
    processes: int,
    patience: float,
) -> Iterator[tuple[Mutant, int]]:
    """What ``command`` answers of each, as it comes."""
    if not mutants:
        return
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        jobs, answers = Path(folder) / "mutants.json", Path(folder) / "mutants.answers"
        listed = [
            {
                "number": number,
                "module": f"sluicegate.{mutant.module}",
                "before": (ROOT / mutant.file).read_text(),
                "after": mutant.source,
                "tests": tests[mutant],
                "patience": patience,
            }
            for number, mutant in enumerate(mutants)
        ]
        first = max(listed, key=lambda job: len(job["tests"]))
        listed.insert(0, first | {"number": -1, "after": first["before"]})  # nothing is changed
        jobs.write_text(json.dumps({"forks": processes, "seconds": _SECONDS, "jobs": listed}))
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, JOBS: str(jobs), "HYPOTHESIS_STORAGE_DIRECTORY": folder},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as runs:
            told = 0
            while True:
                ended = runs.poll() is not None
                lines = answers.read_text().splitlines() if answers.exists() else []
                for line in lines[told:]:
                    number, status = json.loads(line).values()
                    if number >= 0:
                        yield mutants[number], status
                    elif status not in (0, _ELSEWHERE):
                        raise SystemExit("the tests of a mutant fail without it")
                told = len(lines)
                if ended:
                    break
                try:
                    runs.wait(0.5)
                except subprocess.TimeoutExpired:
                    continue
        if told != len(listed):
            raise RuntimeError(f"{command[2]} tried {told} of {len(listed)} mutants and ended with {runs.returncode}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, try and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--n", type=int, default=60, help="mutants")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--patience", type=float, default=60.0, metavar="S", help="of the processor, for each mutant")
    parser.add_argument("--out", type=Path, default=Path("reports/mutants"))
    parser.add_argument("--files", nargs="*", default=[], help="only of these")
    parser.add_argument("--again", type=Path, metavar="SUMMARY", help="those that survived there, instead of drawing")
    parser.add_argument("--tests", nargs="*", default=list(FAST), help="tried, folders or files")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="SHARE", help="fail where fewer are noticed")
    chosen = parser.parse_args(arguments)
    console = Console()
    with console.status("measuring which tests run which lines"):
        covering = measured(ROOT, chosen.out, chosen.tests, chosen.processes)
    if chosen.again is not None:
        mutants = named(ROOT, survivors_of(chosen.again))
    else:
        mutants = drawn(ROOT, chosen.n, Random(chosen.seed), chosen.files)
    trying = [mutant for mutant in mutants if mutant.name not in judged()]
    survivors: list[Mutant] = []
    columns = (
        TextColumn("mutants"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]} not noticed"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=len(trying), left=0)

        def tell(mutant: Mutant, found: bool) -> None:
            if not found:
                survivors.append(mutant)
            progress.update(bar, advance=1, left=len(survivors))

        noticed(trying, covering, chosen.processes, chosen.patience, tell)
    survivors.sort(key=lambda mutant: mutant.name)
    killed = len(trying) - len(survivors)
    score = killed / len(trying) if trying else 1.0
    summary = {
        "decided": len(trying),
        "killed": killed,
        "equivalent": len(mutants) - len(trying),
        "score": score,
        "seed": chosen.seed,
        "patience_s": chosen.patience,
        "survivors": [{k: v for k, v in asdict(m).items() if k != "source"} for m in survivors],
    }
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    if survivors:
        table = Table("not noticed", "was", "became")
        for mutant in survivors:
            table.add_row(f"{mutant.file}:{mutant.line}", mutant.before, mutant.after)
        console.print(table)
    console.print(f"{killed} of {len(trying)} noticed ({score:.0%}); {summary['equivalent']} change nothing")
    return 0 if score >= chosen.at_least else 1


if __name__ == "__main__":
    raise SystemExit(main())
