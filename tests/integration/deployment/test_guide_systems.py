"""The systems of the guide and the README are started, asked and ended as the reader would, on Apache Kafka too.

All of it takes minutes: ``thorough``.
"""

import ast
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluicegate.executors.demo_catalogue import ensure_demo_catalogue
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from tests.harness import free_port, toy_catalogue
from tests.outside.guide import DEMOS, LIVE, SYSTEMS, block, named_in, place, run

__all__ = ["place"]


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
