"""The blocks of the guide and the README: which of them are run where, and which are not and why.

A block is run whole, in a shell, in a folder with the examples, against a home of its own.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "own-policy.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """One of a page's."""

    page: str
    language: str
    text: str

    @property
    def first(self) -> str:
        """Its first line."""
        return self.text.strip().splitlines()[0]


BLOCKS = [Block(page.name, language, text) for page in PAGES for language, text in _BLOCK.findall(page.read_text())]

NOT_RUN = {
    ("README.md", "queries ──> admission"): "a picture",
    ("README.md", "make demo"): "runs this suite",
    ("README.md", "source .venv/bin/activate"): "an environment is made by make; doctor and up are run by first-run.md",
    ("own-policy.md", ".venv/bin/python -m pytest"): "the policy is the reader's",
    ("architecture.md", "flowchart LR"): "a picture",
    ("architecture.md", "sequenceDiagram"): "a picture",
    ("architecture.md", "flowchart TB"): "a picture",
    ("compose.md", "docker compose -f compose/docker-compose.yml run"): "needs containers: make stack runs it",
    ("compose.md", "make secrets"): "needs containers: make stack runs it",
    ("compose.md", "make stack"): "needs containers",
    ("install.md", "git clone"): "installs: test_wheels.py does",
    ("install.md", "git pull"): "removes the installation",
    ("operations.md", "pip install -e '.[otel]'"): "installs",
    ("kafka.md", "pip install -e '.[rdkafka]'"): "installs",
    ("kafka.md", "pip install -e '.[faust]'"): "installs: test_demand_windows_live.py runs the stage",
    (
        "own-model.md",
        "sluice register --app clouds small.onnx",
    ): "tests/integration/registration/test_own_model.py runs it",
    ("own-model.md", "python3 -m venv"): "installs: test_wheels.py does, test_own_model.py runs the rest",
    ("tuning.md", "sluice policy size"): "test_own_model.py runs it",
    ("own-model.md", "from skl2onnx"): "model and X are the reader's: test_own_model.py runs it with some",
    ("own-model.md", "np.savez"): "X_test and y_test are the reader's",
    ("own-model.md", "$ sluice register --app clouds --retire"): "test_own_model.py runs it",
    ("own-model.md", "$ sluice variants"): "test_own_model.py runs it",
    ("own-model.md", "no variant of clouds"): "an answer",
    ("planning.md", "┃ pool"): "an answer",
    ("slices.md", "sluice profile --all --gpu 0"): "needs a GPU",
    ("slices.md", "sluice up worker --device gpu0"): "needs a GPU",
    ("slices.md", "SLUICE_METRICS__PORT=9464 sluice up"): "test_fake_gpus.py runs it",
    ("selection.md", "sluice policy generate"): "CATALOGUE is the reader's: test_policy_command.py runs it with one",
    ("kafka.md", "sluice broker start --dir secured"): "test_secured_kafka.py runs it",
    ("kafka.md", "sluice broker start --nodes 3"): "test_cluster.py starts such a one",
    ("kafka.md", "sluice topics --check"): "test_topics_command.py runs it on a broker",
}
"""(page, beginning of the block): why it is not run."""

OFFLINE = (
    ("planning.md", "sluice plan --problem examples/problems/gpu-slices"),
    ("tuning.md", "sluice sustain"),
    ("kafka.md", "sluice describe acls"),
)
"""Run as they stand; the rest of the offline ones takes a minute each."""
SLOW_OFFLINE = (
    ("planning.md", "sluice plan --problem examples/problems/two-apps"),
    ("scenarios.md", "sluice simulate"),
    ("tuning.md", "sluice compare"),
    ("slices.md", "sluice devices list"),
)
LIVE = (
    ("README.md", "sluice infer --app digits"),
    ("first-run.md", "sluice infer --app digits"),
    ("first-run.md", "sluice infer --app digits --accuracy"),
    ("first-run.md", "curl"),
    ("reports.md", "sluice audit"),
    ("kafka.md", "sluice dead-letters list"),
)
"""Asked of one running system."""
SYSTEMS = (
    ("first-run.md", "sluice up"),
    ("operations.md", "SLUICE_METRICS__PORT=9464 sluice up"),
    ("operations.md", "SLUICE_LOG__FORMAT=json"),
)
"""Systems to be started and ended."""
DEMOS = (("first-run.md", "sluice demo"), ("reports.md", "sluice demo"))
KAFKA = (
    ("README.md", "sluice broker start"),
    ("kafka.md", "sluice broker start --port"),
    ("kafka.md", "export SLUICE_BROKER"),
    ("kafka.md", "sluice topics --create"),
    ("operations.md", "sluice audit --broker"),
)
SHELL = (*OFFLINE, *SLOW_OFFLINE, *LIVE, *SYSTEMS, *DEMOS, *KAFKA)
PYTHON = (
    ("own-policy.md", '"""Runs what waits'),
    ("README.md", "from sluicegate_client"),
    ("own-model.md", "import numpy as np\n\nfrom sluicegate_client"),
    ("promises.md", "async with Client"),
    ("kafka.md", "import asyncio"),
)


def block(page: str, beginning: str) -> Block:
    """The last of those that begin so: what is longer is more exact."""
    return next(b for b in BLOCKS if b.page == page and b.text.strip().startswith(beginning))


def named_once(page: str, start: str) -> bool:
    return any(one.page == page and one.text.strip().startswith(start) for one in BLOCKS)


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A reader's folder and environment: the examples, a home of its own, ports that nobody has, 80 columns."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    script = bin_folder / "sluice"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m sluicegate.sluice.main "$@"\n')
    script.chmod(0o755)
    kept = {"SLUICE_DATA"}  # of the papers
    environment = {n: value for n, value in os.environ.items() if n in kept or not n.startswith("SLUICE_")}
    environment |= {
        "PATH": f"{bin_folder}:{environment['PATH']}",
        "SLUICE_HOME": str(tmp_path / "home"),
        "SLUICE_HTTP__PORT": str(free_port()),
        "SLUICE_WEB__PORT": str(free_port()),
        "COLUMNS": "80",
    }
    return tmp_path, environment


def run(text: str, place: tuple[Path, dict[str, str]], *, within: float = 400.0) -> subprocess.CompletedProcess[str]:
    """In a shell, to its end; what it started beside is ended with it."""
    folder, environment = place
    script = "set -e; set -m; trap 'kill -INT $(jobs -p) 2>/dev/null || true; wait || true' EXIT\n" + text
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=within, check=False
    )
    assert done.returncode == 0, f"{text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


def named_in(page: str, before: str, behind: str) -> str:
    """What a page says between these."""
    (path,) = (path for path in PAGES if path.name == page)
    return path.read_text().partition(before)[2].partition(behind)[0]
