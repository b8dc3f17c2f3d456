"""Every block of the guide and the README is run: settings are read, Python and commands executed, as the reader would.

What cannot be run here is named with the reason, and each such name must still be met. A block is run whole, in a
shell, in a folder with the examples, against a home of its own; what takes minutes or Apache Kafka is ``thorough``.
"""

import ast
import inspect
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from sluicegate.executors.demo_catalogue import ensure_demo_catalogue
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.sluice.settings.settings import load
from tests.harness import free_port, toy_catalogue

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
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
    ("architecture.md", "flowchart LR"): "a picture",
    ("architecture.md", "sequenceDiagram"): "a picture",
    ("architecture.md", "flowchart TB"): "a picture",
    ("compose.md", "make secrets"): "needs containers: make stack runs it",
    ("compose.md", "make stack"): "needs containers",
    ("install.md", "git clone"): "installs: test_wheels.py does",
    ("install.md", "git pull"): "removes the installation",
    ("operations.md", "pip install -e '.[otel]'"): "installs",
    ("kafka.md", "pip install -e '.[rdkafka]'"): "installs",
    (
        "own-model.md",
        "sluice register --app clouds small.onnx",
    ): "tests/integration/registration/test_own_model.py runs it",
    ("own-model.md", "python3 -m venv"): "installs: test_wheels.py does, test_own_model.py runs the rest",
    ("own-model.md", "from skl2onnx"): "model and X are the reader's: test_own_model.py runs it with some",
    ("own-model.md", "np.savez"): "X_test and y_test are the reader's",
    ("own-model.md", "$ sluice register --app clouds --retire"): "test_own_model.py runs it",
    ("own-model.md", "$ sluice variants"): "test_own_model.py runs it",
    ("own-model.md", "no variant of clouds"): "an answer",
    ("planning.md", "┃ pool"): "an answer",
    ("slices.md", "sluice up worker --device gpu0"): "needs a GPU",
    ("slices.md", "SLUICE_METRICS__PORT=9464 sluice up"): "test_fake_gpus.py runs it",
    ("selection.md", "sluice policy generate"): "CATALOGUE is the reader's: test_policy_command.py runs it with one",
    ("kafka.md", "sluice broker start --dir secured"): "test_secured_kafka.py runs it",
    ("kafka.md", "sluice broker start --nodes 3"): "test_cluster.py starts such a one",
    ("kafka.md", "sluice topics --check"): "test_topics_command.py runs it on a broker",
}
"""(page, beginning of the block): why it is not run here."""

OFFLINE = (
    ("planning.md", "sluice plan --problem examples/problems/two-apps"),
    ("planning.md", "sluice plan --problem examples/problems/gpu-slices"),
    ("tuning.md", "sluice sustain"),
    ("kafka.md", "sluice describe acls"),
)
"""Run as they stand; the rest of the offline ones takes a minute each."""
SLOW_OFFLINE = (
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
    ("README.md", "from sluicegate_client"),
    ("own-model.md", "from sluicegate_client"),
    ("promises.md", "async with Client"),
    ("kafka.md", "import asyncio"),
)


def block(page: str, beginning: str) -> Block:
    """The last of those that begin so: what is longer is more exact."""
    return next(b for b in BLOCKS if b.page == page and b.text.strip().startswith(beginning))


def test_every_block_is_run_or_it_is_said_why_not() -> None:
    def named(one: Block, names: Any) -> bool:
        return any(one.page == page and one.text.strip().startswith(start) for page, start in names)

    for one in BLOCKS:
        if one.language == "yaml":
            continue
        among = PYTHON if one.language == "python" else SHELL
        assert named(one, NOT_RUN) or named(one, among), f"{one.page}: nothing runs the block that begins {one.first!r}"
    for page, start in (*NOT_RUN, *SHELL, *PYTHON):
        assert named_once(page, start), f"{page}: no block begins with {start!r}"


def named_once(page: str, start: str) -> bool:
    return any(one.page == page and one.text.strip().startswith(start) for one in BLOCKS)


@pytest.mark.parametrize("one", [b for b in BLOCKS if b.language == "yaml"], ids=lambda b: f"{b.page}-{b.first[:30]}")
def test_settings_of_the_guide_are_taken(one: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "settings.yaml"
    file.write_text(one.text)
    document = yaml.safe_load(one.text)
    read = load(file)
    assert document and all(hasattr(read, section) for section in document)


@pytest.mark.parametrize(("page", "start"), PYTHON, ids=lambda part: part[:20])
def test_python_of_the_guide_is_python(page: str, start: str) -> None:
    code = compile(block(page, start).text, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert code.co_code
    if "await" in block(page, start).text.replace("async def", ""):
        assert bool(code.co_flags & inspect.CO_COROUTINE) or "asyncio.run" in block(page, start).text


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


@pytest.mark.parametrize(("page", "start"), OFFLINE, ids=lambda part: part[:40])
def test_offline_commands_of_the_guide_run(page: str, start: str, place: tuple[Path, dict[str, str]]) -> None:
    assert run(block(page, start).text, place).stdout


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("page", "start"), SLOW_OFFLINE, ids=lambda part: part[:40])
def test_slow_offline_commands_of_the_guide_run(page: str, start: str, place: tuple[Path, dict[str, str]]) -> None:
    if "protean" in block(page, start).text and "SLUICE_DATA" not in os.environ:
        pytest.skip("the papers' data: set SLUICE_DATA")
    # How near live comes to simulated is the machine's matter here: tests/simulation/test_fidelity.py holds it.
    text = re.sub(r"^(.*--live.*?)( +#.*)?$", r"\1 || [ $? -eq 1 ]", block(page, start).text, flags=re.MULTILINE)
    assert run(text, place, within=1700.0).stdout


@pytest.fixture(scope="module")
def demo_catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's models, made once for all readers: it takes most of a minute."""
    home = tmp_path_factory.mktemp("made")
    ensure_demo_catalogue(home)
    return home / "catalogue"


@pytest.fixture
def serving(place: tuple[Path, dict[str, str]], demo_catalogue: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """The demo's models served: ``sluice up`` as the guide has it, until it listens."""
    folder, environment = place
    shutil.copytree(demo_catalogue, folder / "home" / "catalogue")
    process = subprocess.Popen(
        ["sluice", "up"], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "live:" in line:
                break
        assert process.poll() is None
        yield place
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


@pytest.mark.thorough
def test_what_is_asked_of_a_running_system_is_answered(serving: tuple[Path, dict[str, str]]) -> None:
    _, environment = serving
    run("sluice infer --app digits", serving)  # whose id is asked for
    for page, start in LIVE:
        text = block(page, start).text.replace("127.0.0.1:8080", f"127.0.0.1:{environment['SLUICE_HTTP__PORT']}")
        asked = "sluice infer --app digits > /dev/null || true; sluice results --limit 1 --json | head -1"
        known = run(asked, serving).stdout if "QUERY_ID" in text else ""
        found = re.search(r'"id":\s*"([^"]+)"', known)
        run(
            text.replace("QUERY_ID", found[1] if found else "none").replace("--latency-ms 5", "--latency-ms 5 || true"),
            serving,
        )


@pytest.mark.thorough
@pytest.mark.parametrize(("page", "start"), SYSTEMS, ids=lambda part: part[:30])
def test_systems_of_the_guide_start(page: str, start: str, place: tuple[Path, dict[str, str]]) -> None:
    folder, environment = place
    save_catalogue(folder / "catalogue", toy_catalogue(), {})
    environment |= {"SLUICE_CATALOGUE": str(folder / "catalogue"), "SLUICE_WORKER__EXECUTOR": "emulated"}
    port = str(free_port())
    lines = block(page, start).text.replace("9464", port).splitlines()
    up = next(line for line in lines if "sluice up" in line).partition("#")[0].strip()
    asked = "\n".join(line for line in lines if "sluice up" not in line)
    wait = f"until curl -sf http://127.0.0.1:{environment['SLUICE_WEB__PORT']}/ >/dev/null; do sleep 0.2; done"
    infer = "sluice infer --app toy --latency-ms 60000"  # what is counted is told once there is some
    run(f"{up} &\n{wait}\n{infer}\n{asked}", place, within=120.0)


@pytest.mark.thorough
def test_the_demo_of_the_guide_runs(place: tuple[Path, dict[str, str]], demo_catalogue: Path) -> None:
    shutil.copytree(demo_catalogue, place[0] / "home" / "catalogue")
    for page, start in DEMOS[:1]:
        assert "On the same arrivals" in run(block(page, start).text, place).stdout


@pytest.mark.kafka
@pytest.mark.thorough
def test_the_recipes_on_kafka_run_in_their_order(
    place: tuple[Path, dict[str, str]], demo_catalogue: Path, kafka_url: str
) -> None:
    folder, environment = place
    shutil.copytree(demo_catalogue, folder / "home" / "catalogue")
    (folder / "incident.json").write_text(named_in("operations.md", "`incident.json` is a list such as `", "`"))
    address = kafka_url.removeprefix("kafka://")
    environment["SLUICE_PREFIX"] = f"guide-{free_port()}"
    stages = block("kafka.md", "export SLUICE_BROKER").text
    text = (
        stages + block("kafka.md", "sluice topics --create").text + block("operations.md", "sluice audit --broker").text
    )
    text = text.replace("infer --app digits ", "infer --app digits --latency-ms 60000 ")  # the machine may be busy
    done = run(text.replace("127.0.0.1:9092", address), place)
    assert (folder / "asyncapi.yaml").exists()
    assert "answered" in done.stdout
    assert "switch" in done.stdout  # of the named window, in a narrow column


def named_in(page: str, before: str, behind: str) -> str:
    """What a page says between these."""
    (path,) = (path for path in PAGES if path.name == page)
    return path.read_text().partition(before)[2].partition(behind)[0]


@pytest.fixture
def with_jars(place: tuple[Path, dict[str, str]]) -> tuple[Path, dict[str, str]]:
    """A reader's folder and environment, with Apache Kafka's jars in the home."""
    jars = Path(os.environ.get("SLUICE_HOME", Path.home() / ".sluicegate")) / "kafka"
    if not jars.exists() or shutil.which("java") is None:
        pytest.skip("no Apache Kafka here: sluice broker start fetches it once")
    home = place[0] / "home"
    home.mkdir()
    (home / "kafka").symlink_to(jars)
    return place


@pytest.mark.kafka
@pytest.mark.thorough
def test_a_broker_is_started_and_stopped_as_the_guide_says(with_jars: tuple[Path, dict[str, str]]) -> None:
    text = block("kafka.md", "sluice broker start --port").text
    run(text.replace("9092", str(free_port())), with_jars, within=120.0)


@pytest.mark.kafka
@pytest.mark.thorough
def test_the_demo_runs_on_the_broker_that_the_readme_starts(
    with_jars: tuple[Path, dict[str, str]], demo_catalogue: Path
) -> None:
    shutil.copytree(demo_catalogue, with_jars[0] / "home" / "catalogue")
    text = block("README.md", "sluice broker start").text
    assert "On the same arrivals" in run(text.replace("9092", str(free_port())), with_jars).stdout


@pytest.mark.thorough
async def test_python_of_the_guide_asks_a_running_system(serving: tuple[Path, dict[str, str]]) -> None:
    _, environment = serving
    run("until sluice infer --app digits --latency-ms 60000 | grep -q ^answered; do sleep 0.5; done", serving)
    url = f"http://127.0.0.1:{environment['SLUICE_HTTP__PORT']}"
    text = block("README.md", "from sluicegate_client").text.replace("kafka://127.0.0.1:9092", url)
    text = text.replace("latency_ms=100", "latency_ms=60_000")  # the machine may be busy
    names: dict[str, Any] = {"image": np.zeros((1, 28, 28), np.uint8)}
    code = compile(text, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(code, names)
    assert names["answer"].outputs["label"].shape[0] == 1
