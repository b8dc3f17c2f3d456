"""Exploring itself: a seed is one log, what the stages promise holds in a few of them, and an old fault is found."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.explore.planted import PLANTED

ROOT = Path(__file__).resolve().parents[2]
FIXED = {**os.environ, "PYTHONHASHSEED": "0"}
"""With which a run need not begin itself anew."""


def explored(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and ``summary.json`` of a run."""
    command = [sys.executable, "-m", "tests.explore.run", *arguments, "--parallel", "1", "--out", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=FIXED, capture_output=True, text=True, timeout=580, check=False)
    assert (folder / "summary.json").exists(), done.stderr[-2000:]
    return done.returncode, json.loads((folder / "summary.json").read_text())


def test_nothing_is_lost_whatever_the_seed_breaks_and_a_seed_is_one_log_in_whatever_company(tmp_path: Path) -> None:
    code, found = explored(tmp_path / "many", "--seeds", "4", "--first-seed", "19")
    assert (code, found["failed"]) == (0, [])
    assert found["seeds"] == 4
    assert found["queries"] > 4 * 100
    assert (found["lost"], found["duplicates"], found["promises_broken_unannounced"]) == (0, 0, 0)
    assert len(found["faults"]) >= 4
    _, few = explored(tmp_path / "few", "--seeds", "2", "--first-seed", "20")
    assert found["digests"][2:] == few["digests"]  # each seed is played under both deliveries
    assert len(set(found["digests"])) == 4


@pytest.mark.thorough
def test_a_fault_that_is_put_back_is_found_and_its_seed_is_seen_again_as_it_was(tmp_path: Path) -> None:
    """Of two clients that count their queries alike, one is answered what the other asked."""
    code, found = explored(tmp_path, "--seeds", "12", "--planted", "dedupe-by-id-alone", "--until-found")
    assert code == 1
    (failed,) = found["failed"]
    assert "lost" in failed["why"]
    module, *arguments = failed["again"].removeprefix("python -m ").split()
    told = subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=580, check=False
    )
    assert f'"digest": "{failed["digest"]}"' in told.stdout


@pytest.mark.parametrize(
    "planted",
    [
        "commit-what-was-read",
        pytest.param("dead-device-not-swept", marks=pytest.mark.thorough),
        pytest.param("position-past-a-revoked-fetch", marks=pytest.mark.thorough),
    ],
)
def test_old_faults_are_found(tmp_path: Path, planted: str) -> None:
    code, found = explored(tmp_path, "--seeds", "120", "--planted", planted, "--until-found")
    assert code == 1
    assert {"lost", "committed too far", "not stored"} & set(found["failed"][0]["why"])


def test_every_fault_can_be_put_back() -> None:
    for plant in PLANTED.values():
        with plant():
            pass
