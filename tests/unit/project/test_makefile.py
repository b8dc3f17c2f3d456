"""Targets of the Makefile, on environments that are stubs: what is made anew, and what is said where it cannot be."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PYTHON = """#!/bin/sh
echo "$@" >>"$0.log"
case "$*" in *{failing}*) exit 1 ;; esac
"""


def make(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """As asked for by hand, though these tests be run by make themselves."""
    environment = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}
    }
    command = ["make", "--no-print-directory", "-C", str(ROOT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """An environment with all of ``dev`` whose Python only notes what it is asked, and fails where it is told to."""

    def environment(failing: str = "nothing") -> Path:
        venv = tmp_path / "venv"
        python = venv / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(PYTHON.format(failing=failing))
        python.chmod(0o755)
        for command in ("coverage", "mkdocs"):
            (venv / "bin" / command).symlink_to("/bin/true")
        for stamp in (".demo", ".dev"):
            (venv / stamp).touch()
        return venv

    return environment


def test_a_benchmark_that_fails_stops_no_other_and_is_named_at_the_end(made: Any) -> None:
    venv = made(failing="bench/records/codec.py")
    ran = make("bench", f"VENV={venv}")
    files = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "bench").rglob("*.py"))
    assert sorted((venv / "bin" / "python.log").read_text().split()) == files
    assert ran.returncode == 2
    assert ran.stdout.splitlines()[-1] == "failed: bench/records/codec.py"


def test_what_mutants_coverage_and_the_site_need_is_installed_once(made: Any, tmp_path: Path) -> None:
    venv = made()
    for target in ("mutants", "mutants-sample", "coverage", "site", "mutants", "coverage", "site"):
        ran = make(target, f"VENV={venv}", f"COVERAGE_FILE={tmp_path / 'covered'}")
        assert ran.returncode == 0, ran.stderr
    asked = (venv / "bin" / "python.log").read_text().splitlines()
    assert [line.rsplit(" ", 1)[1] for line in asked if " install " in line] == [".[mutants]", ".[docs]"]
    assert sum("tests.mutants.run" in line for line in asked) == 3


NAMED = """#!/bin/sh
if [ "$1" = -c ]; then exec {real} -c "import sys; sys.version_info = {version}
$2"; fi
mkdir -p "$3/bin" && touch "$3/bin/python"
exit 1
"""


@pytest.mark.parametrize(
    ("version", "said"),
    [((3, 10, 14), "{} is not Python 3.11, 3.12 or 3.13: make PYTHON=/path/to/one"), ((3, 12, 1), "")],
    ids=["one that is not supported", "one that breaks off"],
)
def test_no_environment_is_left_of_a_python_that_cannot_make_one(
    version: tuple[int, ...], said: str, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(NAMED.format(real=sys.executable, version=version))
    python.chmod(0o755)
    ran = make("demo", f"VENV={tmp_path / 'venv'}", f"PYTHON={python}")
    assert ran.returncode == 2
    assert ran.stdout.strip() == said.format(python)
    assert not (tmp_path / "venv").exists()


def test_what_was_there_before_a_python_broke_off_stays(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(NAMED.format(real=sys.executable, version=(3, 12, 1)))
    python.chmod(0o755)
    (tmp_path / "venv").mkdir()
    assert make("demo", f"VENV={tmp_path / 'venv'}", f"PYTHON={python}").returncode == 2
    assert (tmp_path / "venv").exists()
