"""What somebody meets on the first day, as they meet it: the program in a process of its own, from any folder."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.simulator.report.page import Table, page
from sluicegate.sluice.load.demo_report import _plan_row
from tests.harness import free_port, toy_catalogue
from tests.outside.browser import browser

ROOT = Path(__file__).parents[3]
SLUICE = (sys.executable, "-m", "sluicegate.sluice.main")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a newcomer: a home, ports that nobody has, a catalogue of emulated variants."""
    save_catalogue(tmp_path / "catalogue", toy_catalogue(), {})
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")},
        "SLUICE_HOME": str(tmp_path / "home"),
        "SLUICE_CATALOGUE": str(tmp_path / "catalogue"),
        "SLUICE_WORKER__EXECUTOR": "emulated",
        "SLUICE_HTTP__PORT": str(free_port()),
        "SLUICE_WEB__PORT": "0",
    }


def done(*command: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SLUICE, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False
    )


@contextmanager
def up(folder: Path, environment: dict[str, str]) -> Iterator[list[str]]:
    """A running system; what it said until it listened, and at last also what it said at the end."""
    said: list[str] = []
    process = subprocess.Popen([*SLUICE, "up"], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            said.append(line)
            if "live:" in line:
                break
        assert process.poll() is None, said
        yield said
    finally:
        process.send_signal(signal.SIGINT)
        said.append(process.communicate(timeout=500)[1])
    assert process.returncode == 0, said


def folder_of(place: Path, name: str) -> Path:
    (place / name).mkdir()
    return place / name


def test_runs_are_found_from_any_folder_and_no_start_that_failed_hides_them(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    here, there = folder_of(tmp_path, "here"), folder_of(tmp_path, "there")
    with up(here, environment) as said:
        assert "Ctrl-C stops" in said[0]
        assert re.search(r"http://127\.0\.0\.1:\d+/v2/models", said[1])
        for app in ("toy", "toy"):
            asked = done(
                "infer", "--app", app, "--latency-ms", "60000", "--json", folder=there, environment=environment
            )
            assert asked.returncode == 0, asked.stderr
        second = done("up", folder=there, environment=environment)
        assert second.returncode == 2
        assert "SLUICE_HTTP__PORT" in second.stderr
        assert "Ctrl-C stops" not in second.stderr, "it does not run"
        assert "kept in" not in second.stderr
    assert "kept in" in said[-1]
    kept = list((tmp_path / "home" / "runs").iterdir())
    assert len(kept) == 1
    written = [kept[0].parent, *kept[0].parent.rglob("*")]
    assert [path for path in written if path.stat().st_mode & 0o077] == [], "queries are nobody else's to read"
    with up(there, environment):
        pass  # nobody asks
    assert list((tmp_path / "home" / "runs").iterdir()) == kept
    audit = done("audit", "--json", folder=there, environment=environment)
    assert json.loads(audit.stdout)["outcomes"] == 2
    assert not any(here.iterdir())
    assert not any(there.iterdir())

    def results(*options: str) -> list[dict[str, Any]]:
        shown = done("results", "--json", *options, folder=here, environment=environment)
        return [json.loads(line) for line in shown.stdout.splitlines()]

    by_time = sorted(results(), key=lambda one: float(one["parameters"]["at"]))
    assert len(by_time) == 2
    assert results("--limit", "1") == by_time[-1:]


def test_a_port_that_is_taken_is_said_before_anything_is_said_to_run(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        environment["SLUICE_WEB__PORT"] = str(taken.getsockname()[1])
        refused = done("up", folder=tmp_path, environment=environment)
    assert refused.returncode == 2
    assert "set SLUICE_WEB__PORT" in refused.stderr
    assert "Ctrl-C stops" not in refused.stderr
    assert "Open Inference Protocol on" not in refused.stderr


def test_a_variable_that_sets_nothing_stops_the_start(tmp_path: Path, environment: dict[str, str]) -> None:
    refused = done("up", folder=tmp_path, environment={**environment, "SLUICE_PLANER__PERIOD_S": "3"})
    assert refused.returncode == 2
    assert "did you mean SLUICE_PLANNER__PERIOD_S?" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("script", "app"),
    [("numpy_model.py", "clouds"), pytest.param("images_model.py", "handwriting", marks=pytest.mark.thorough)],
)
def test_examples_write_nothing_where_they_are_called(
    script: str, app: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    here = folder_of(tmp_path, "here")
    made = subprocess.run(
        [sys.executable, str(ROOT / "examples" / script)],
        cwd=here, env=environment, capture_output=True, text=True, timeout=500, check=True,
    )  # fmt: skip
    place = tmp_path / "home" / "examples" / app
    command = made.stdout.split()
    assert command[:2] == ["sluice", "register"]
    assert all(Path(word).exists() for word in command if word.startswith(str(place)))
    assert len(list(place.rglob("*.onnx"))) == 3
    named = [word for word in command if word.endswith(".onnx")]
    assert named in ([], [str(model) for model in models_of(place)]), "each by its name, or the folder of them"
    assert not any(here.iterdir())


def models_of(place: Path) -> list[Path]:
    """By size."""
    return sorted(place.glob("*.onnx"), key=lambda model: model.stat().st_size)


async def test_no_column_of_a_report_is_out_of_sight_at_1200_pixels(tmp_path: Path) -> None:
    placements = tuple(
        Placement(device=f"cpu{i}", app="digits", variants=("digits-conv2048",) * 2, share=0.125, max_batch=8)
        for i in range(8)
    )
    plan = Plan(
        epoch=Epoch(1, 2), created=12.0, placements=placements, demand={"digits": 1234.0, "signals": 987.0},
        reason="digits asks for 1,234 rows/s where 800 are served; allocation is late, greedy-fill stands in",
        solve_s=0.25,
    )  # fmt: skip
    header = ("epoch", "at", "because", "demand", "placements", "solved in")
    file = tmp_path / "page.html"
    file.write_text(page("Sluicegate demo", tables=[Table("Plans", header, [_plan_row(plan, 0.0)])]))
    async with browser() as chrome:
        shown = await chrome.new_page(viewport={"width": 1200, "height": 900})
        await shown.goto(file.as_uri())
        last = await shown.locator("td").last.bounding_box()
        frame = await shown.locator(".table").bounding_box()
        assert last["x"] + last["width"] <= frame["x"] + frame["width"]
        assert await shown.locator("td").last.inner_text() == "250 ms"
