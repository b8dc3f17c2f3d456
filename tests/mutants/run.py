"""Mutants of the pure code against the fast tests that cover them: which changes does no test notice?

    python -m tests.mutants.run --n 60 --seed 7
    python -m tests.mutants.run --n 40 --seed 7 --files planner/control/fleet.py

Writes summary.json: ``decided, killed, equivalent`` and ``survivors`` (file, line, before, after). ``equivalent.json``
beside this module lists changes that were judged to change nothing, with the reason.
"""

import argparse
import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from random import Random

from coverage import CoverageData
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tests.mutants.sample import ROOMS, Mutant, drawn

ROOT = Path(__file__).resolve().parents[2]
FAST = ("tests/unit", "tests/property", "tests/simulation")
EQUIVALENT = Path(__file__).with_name("equivalent.json")
_TESTS = 80
"""Tests that a mutant is tried on at most: those first that cover least besides."""
_SECONDS = 240.0
"""A mutant that has not ended by then is noticed: none of the tests themselves takes as long."""


class Covering:
    """Which tests run a line."""

    def __init__(self, file: Path) -> None:
        self._data = CoverageData(str(file))
        self._data.read()
        self._breadth: dict[str, int] = {}
        self._lines: dict[str, dict[int, list[str]]] = {}
        for measured in self._data.measured_files():
            by_line = self._data.contexts_by_lineno(measured)
            self._lines[measured] = {line: [c for c in found if c] for line, found in by_line.items()}
            for found in self._lines[measured].values():
                for context in found:
                    self._breadth[context] = self._breadth.get(context, 0) + 1

    def tests(self, root: Path, mutant: Mutant) -> list[str]:
        """Those that run its line, or what is in its file where the line runs at import; the narrowest first."""
        lines = self._lines.get(str(root / mutant.file), {})
        found = set(lines.get(mutant.line, ())) or {context for contexts in lines.values() for context in contexts}
        names = {context: context.partition("|")[0] for context in found}
        ordered = sorted(found, key=lambda context: (self._breadth[context], context))
        return list(dict.fromkeys(names[context] for context in ordered))[:_TESTS]


def covered(folder: Path, console: Console) -> Covering:
    """What the fast tests cover, measured again where any file has changed."""
    digest = hashlib.sha256()
    for name in _tracked():
        if name.endswith(".py") and not name.startswith("tests/mutants/") and (ROOT / name).is_file():
            digest.update(name.encode() + (ROOT / name).read_bytes())
    file = folder / f"covered-{digest.hexdigest()[:16]}"
    if not file.exists():
        console.print("measuring which tests run which lines")
        folder.mkdir(parents=True, exist_ok=True)
        rooms = [f"--cov={room.partition('/')[0]}" for room in ROOMS]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "2",
            "--cov-context=test",
            "--cov-report=",
            *rooms,
            *FAST,
        ]
        environment = {**os.environ, "COVERAGE_FILE": str(file)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            file.unlink(missing_ok=True)
            raise SystemExit(f"the tests fail as they are:\n{done.stdout[-3000:]}")
    return Covering(file)


@contextmanager
def copies(count: int) -> Iterator["queue.Queue[Path]"]:
    """Copies of all tracked files, to be changed."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        free: queue.Queue[Path] = queue.Queue()
        for number in range(count):
            copy = Path(folder) / str(number)
            for name in _tracked():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
            free.put(copy)
        yield free


def _tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in sorted(listed.stdout.splitlines()) if (ROOT / name).exists()]


def noticed(mutant: Mutant, tests: Sequence[str], free: "queue.Queue[Path]") -> bool:
    """Whether one of ``tests`` fails."""
    if not tests:
        return False
    copy = free.get()
    file = copy / mutant.file
    original = file.read_text()
    try:
        file.write_text(mutant.source)
        status = _status(copy, tests)
        if status == 4:  # some id of theirs cannot be said on a command line
            status = _status(copy, list(dict.fromkeys(test.partition("[")[0] for test in tests)))
    except subprocess.TimeoutExpired:
        return True
    finally:
        file.write_text(original)
        free.put(copy)
    if status not in (0, 1, 2):  # neither passed, nor failed, nor could not be imported
        raise RuntimeError(f"{mutant.name}: pytest ended with {status}")
    return status != 0


def _status(copy: Path, tests: Sequence[str]) -> int:
    options = ["-q", "-x", "--no-header", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *options, *tests]
    return subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, timeout=_SECONDS, check=False
    ).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, try and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--n", type=int, default=60, help="mutants")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("reports/mutants"))
    parser.add_argument("--files", nargs="*", default=[], help="only of these")
    parser.add_argument("--at-least", type=float, default=0.0, metavar="SHARE", help="fail where fewer are noticed")
    chosen = parser.parse_args(arguments)
    console = Console()
    covering = covered(chosen.out, console)
    judged = {entry["mutant"] for entry in json.loads(EQUIVALENT.read_text())}
    mutants = drawn(ROOT, chosen.n, Random(chosen.seed), chosen.files)
    trying = [mutant for mutant in mutants if mutant.name not in judged]
    survivors: list[Mutant] = []
    columns = (
        TextColumn("mutants"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]} not noticed"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with (
        copies(chosen.processes) as free,
        ThreadPoolExecutor(chosen.processes) as pool,
        Progress(*columns, console=console) as progress,
    ):
        bar = progress.add_task("", total=len(trying), left=0)
        tasks = {pool.submit(noticed, mutant, covering.tests(ROOT, mutant), free): mutant for mutant in trying}
        for task in as_completed(tasks):
            if not task.result():
                survivors.append(tasks[task])
            progress.update(bar, advance=1, left=len(survivors))
    survivors.sort(key=lambda mutant: mutant.name)
    killed = len(trying) - len(survivors)
    score = killed / len(trying) if trying else 1.0
    summary = {
        "decided": len(trying),
        "killed": killed,
        "equivalent": len(mutants) - len(trying),
        "score": score,
        "seed": chosen.seed,
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
