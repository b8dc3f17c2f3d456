"""Which tests run which lines, and for how long: measured once, and again of what has changed since.

Tests are measured again where their file has changed. Where code has changed, a line of it is taken to be run by
whatever ran anything in its file.
"""

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from coverage import CoverageData

from tests.mutants.sample import ROOMS, Mutant, code_in

FAST = ("tests/unit", "tests/property", "tests/simulation")
SECONDS = "MUTANTS_SECONDS"
"""Variable that names the file which a run under this module, as a plugin of pytest, writes its tests' seconds to."""

_seconds: dict[str, float] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long it took."""
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write it down, once where there are several processes."""
    if SECONDS in os.environ and not hasattr(session.config, "workerinput"):
        Path(os.environ[SECONDS]).write_text(json.dumps(_seconds))


class Covering:
    """Which tests run a line. ``changed``: files whose lines are not what they were."""

    def __init__(self, folder: Path, root: Path, seconds: dict[str, float], changed: set[str]) -> None:
        self._root, self._seconds, self._changed = root, seconds, changed
        data = CoverageData(str(folder / "covered"))
        data.read()
        self._texts: dict[str, str] = {}
        self._breadth: dict[str, int] = {}
        self._lines: dict[str, dict[int, set[str]]] = {}
        self._outside: set[tuple[str, int]] = set()
        for measured in data.measured_files():
            by_line = data.contexts_by_lineno(measured)
            lines = {line: {c.partition("|")[0] for c in found if c} for line, found in by_line.items()}
            self._lines[measured] = lines
            self._outside |= {(measured, line) for line, found in by_line.items() if "" in found}
            for found in lines.values():
                for test in found:
                    self._breadth[test] = self._breadth.get(test, 0) + 1

    def tests(self, mutant: Mutant) -> list[str]:
        """Those that run its line, the narrow and quick ones first.

        Where it runs at import alone: those that run anything of its file, or a line anywhere that names what it
        belongs to or what is made of that at import, or that are in a file which names these or the module.
        """
        found = set() if mutant.file in self._changed else self._at(mutant.file, mutant.line)
        return sorted(found or self._at(mutant.file) | self._naming(mutant), key=self._cost)

    def imported(self, mutant: Mutant) -> bool:
        """Whether its line runs at import too, by what makes a constant: what that came to, no fork makes again."""
        return (str(self._root / mutant.file), mutant.line) in self._outside

    def _at(self, file: str, line: int | None = None) -> set[str]:
        lines = self._lines.get(str(self._root / file), {})
        if line is None or file in self._changed:
            return set().union(*lines.values())
        return lines.get(line, set())

    def _naming(self, mutant: Mutant) -> set[str]:
        names = _names_at((self._root / mutant.file).read_text(), mutant.line)
        names += [made for name in names for made in sorted(self._made_of(name))]
        named = re.compile(rf"\b({'|'.join([*names, re.escape(mutant.module)])})\b")
        found: set[str] = set()
        for measured in self._lines:
            file = str(Path(measured).relative_to(self._root))
            for number, text in enumerate(self._text(file).splitlines(), 1):
                if named.search(text):
                    found |= self._at(file, number)
        return found | {test for test in self._seconds if named.search(self._text(test.partition("::")[0]))}

    def _made_of(self, name: str) -> set[str]:
        """Classes and constants."""
        made: set[str] = set()
        for text in (self._text(str(Path(measured).relative_to(self._root))) for measured in self._lines):
            for node in ast.parse(text).body if name in text else ():
                match node:
                    case ast.ClassDef(bases=of):
                        pass
                    case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                        of = [value]
                    case _:
                        continue
                if any(isinstance(one, ast.Name) and one.id == name for part in of for one in ast.walk(part)):
                    made |= set(_names_at(text, node.lineno))
        return made

    def _text(self, file: str) -> str:
        if file not in self._texts:
            self._texts[file] = (self._root / file).read_text() if (self._root / file).exists() else ""
        return self._texts[file]

    def _cost(self, test: str) -> tuple[float, str]:
        return max(0.02, self._seconds.get(test, 0.0)) * self._breadth.get(test, 0), test


def measured(root: Path, folder: Path, parts: Sequence[str], processes: int = 2) -> Covering:
    """By the tests in ``parts``, as far as it is not known yet. Raises SystemExit where tests fail as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / "measured.json"
    known = json.loads(state.read_text()) if state.exists() else {"tests": {}, "code": {}, "seconds": {}}
    tests = {str(f.relative_to(root)): _digest(f) for part in parts for f in _within(root / part)}
    code = {name: _digest(root / name) for name in code_in(root)}
    if known["tests"].keys() - tests.keys():  # of tests that are gone nothing can be tried
        (folder / "covered").unlink(missing_ok=True)
        known = {"tests": {}, "code": {}, "seconds": {}}
    if again := [name for name, digest in tests.items() if known["tests"].get(name) != digest]:
        whole = not known["tests"]
        seconds = _measure(root, folder, parts if whole else again, processes)
        known["seconds"] = {n: s for n, s in known["seconds"].items() if n.partition("::")[0] not in again} | seconds
        known["tests"] = tests
        known["code"] = code if whole else known["code"]
        state.write_text(json.dumps(known))
    changed = {name for name, digest in code.items() if known["code"].get(name) != digest}
    return Covering(folder, root, known["seconds"], changed)


def _names_at(source: str, line: int) -> list[str]:
    """What the module's statement there defines."""
    for node in ast.parse(source).body:
        if node.end_lineno is None or not node.lineno <= line <= node.end_lineno:
            continue
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                return [name]
            case ast.Assign(targets=targets):
                return [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                return [name]
    return []


def _within(part: Path) -> list[Path]:
    return sorted(part.rglob("test_*.py")) if part.is_dir() else [part]


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _measure(root: Path, folder: Path, tests: Sequence[str], processes: int) -> dict[str, float]:
    kept = folder / "seconds.json"
    rooms = [f"--cov={room}" for room in sorted({room.partition("/")[0] for room in ROOMS})]
    options = [
        "-q",
        "-n",
        str(processes),
        "-p",
        "tests.mutants.measured",
        "--cov-context=test",
        "--cov-branch",
        "--cov-report=",
        "--cov-append",
        "-m",
        "not timing and not thorough",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *rooms, *tests],
        cwd=root,
        env={**os.environ, "COVERAGE_FILE": str((folder / "covered").absolute()), SECONDS: str(kept.absolute())},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"the tests fail as they are:\n{done.stdout[-3000:]}")
    found: dict[str, float] = json.loads(kept.read_text())
    return found
