"""Targets of the Makefile, on environments that are stubs: what is made anew, and what is said where it cannot be."""

import os
import subprocess
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
