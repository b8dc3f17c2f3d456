"""From nothing to answers in three commands, as docs/guide/own-model.md says, and the examples it names."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluicegate.profiles.catalogue.profiler import Effort
from sluicegate.sluice.registration.register import register
from tests.harness import free_port
from tests.models.registration_models import request_of
from tests.outside.guide import block

ROOT = Path(__file__).resolve().parents[3]
SLUICE = [sys.executable, "-P", "-m", "sluicegate.sluice.main"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """An empty folder and an environment in which nothing was ever done."""
    folder = tmp_path_factory.mktemp("user")
    environment = {
        **os.environ,
        "SLUICE_HOME": str(folder / "home"),
        "SLUICE_HTTP__PORT": str(free_port()),
        "SLUICE_WEB__PORT": "0",
    }
    return folder, environment


@pytest.fixture(scope="module")
def made(place: tuple[Path, dict[str, str]]) -> dict[str, Any]:
    """What was said of clouds, which is registered there."""
    folder, environment = place
    run(sys.executable, str(ROOT / "examples/numpy_model.py"), "my-model", folder=folder, environment=environment)
    models = [f"my-model/{size}.onnx" for size in ("small", "medium", "large")]
    answer: dict[str, Any] = told(
        "register", *models, "--app", "clouds", "--validation", "my-model/rows.npz", "--repeats", "7",
        folder=folder, environment=environment,
    )  # fmt: skip
    return answer


def run(*command: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def told(*command: str, folder: Path, environment: dict[str, str]) -> Any:
    return json.loads(run(*SLUICE, *command, "--json", folder=folder, environment=environment))


def asked_by_example(front: str, folder: Path, environment: dict[str, str]) -> str:
    """What examples/ask.py prints; asked again while the front says that this host, which is busy, is behind."""
    command = (sys.executable, str(ROOT / "examples/ask.py"), "clouds", front)
    end = time.monotonic() + 150
    while True:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=150)
        if "does not keep up" not in done.stderr or time.monotonic() > end:
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout
        time.sleep(1.0)


@contextmanager
def up(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen([*SLUICE, "up"], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    address = f"http://127.0.0.1:{environment['SLUICE_HTTP__PORT']}/v2/health/ready"
    end = time.monotonic() + 300
    try:
        while True:
            try:
                with urllib.request.urlopen(address, timeout=1):
                    break
            except OSError:
                assert process.poll() is None, process.stderr.read() if process.stderr else ""
                assert time.monotonic() < end
                time.sleep(0.1)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=500)
        assert process.returncode == 0, errors


@pytest.mark.thorough
def test_register_up_infer_is_all_it_takes_and_versions_come_and_go_meanwhile(
    place: tuple[Path, dict[str, str]], made: dict[str, Any]
) -> None:
    folder, environment = place
    assert len(made["variants"]) >= 12
    served = {v["recipe"].split(".")[0] for v in made["variants"] if v["served"]}
    assert "large" in served
    asked = [*SLUICE, "infer", "--app", "clouds", "--latency-ms", "60000", "--json"]
    early = subprocess.Popen(asked, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    with up(folder, environment):
        assert json.loads(early.communicate(timeout=150)[0])["outcome"]["kind"] == "answered", "it was started with it"
        # On a busy machine the first plan may take longer than an answer may.
        answer = told("infer", "--app", "clouds", "--latency-ms", "60000", folder=folder, environment=environment)
        assert answer["outcome"]["kind"] == "answered"
        assert answer["outcome"]["variant"] in {v["name"] for v in made["variants"] if v["served"]}
        assert len(answer["outputs"]["scores"][0]) == 4
        assert answer["label"] in range(4)
        refused = [*SLUICE, "infer", "--app", "clouds", "--accuracy", "1"]
        for more in ((), ("--json",)):
            done = subprocess.run([*refused, *more], cwd=folder, env=environment, capture_output=True, text=True)
            assert (done.returncode, "infeasible" in done.stdout) == (1, True), done
            assert "true label" not in done.stdout and '"label": ' not in done.stdout.replace('"label": null', "")
        front = f"http://127.0.0.1:{environment['SLUICE_HTTP__PORT']}"
        shown = asked_by_example(front, folder, environment)
        assert "100 of 100 in time" in shown
        assert "rejected (infeasible)" in shown
        assert "nearest:" in shown

        wait = ("--wait", "60")
        gone = told("register", "--app", "clouds", "--retire", *wait, folder=folder, environment=environment)
        assert gone["versions"] == [1]
        assert gone["plan"] is not None
        address = f"http://127.0.0.1:{environment['SLUICE_HTTP__PORT']}/v2/models/clouds"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address, timeout=60)
        again = told("register", "--app", "clouds", "--version", "1", *wait, folder=folder, environment=environment)
        assert again["served_version"] == 1
        assert again["plan"] > gone["plan"]
        answer = told("infer", "--app", "clouds", "--latency-ms", "60000", folder=folder, environment=environment)
        assert answer["outcome"]["kind"] == "answered"
    audit = told("audit", folder=folder, environment=environment)
    assert (audit["lost"], audit["duplicates"]) == (0, 0)


@pytest.mark.usefixtures("made")
def test_variants_lists_what_is_served_and_what_is_not_with_the_reason(place: tuple[Path, dict[str, str]]) -> None:
    folder, environment = place
    rows = told("variants", "--app", "clouds", folder=folder, environment=environment)["apps"]["clouds"]
    assert len(rows) >= 4
    for row in rows:
        assert 0.0 < row["accuracy"] < 1.0
        assert row["accuracy_se"] > 0.0
        assert {"1", "64"} <= set(row["latency_ms"])
        assert row["load_ms"] > 0.0
        assert row["memory_bytes"] > 0
        assert row["device_type"] == "cpu"
        assert row["served"] == (row["reason"] == "")
    assert {row["served"] for row in rows} == {True, False}


@pytest.mark.usefixtures("made")
def test_how_many_devices_it_takes_is_told_by_the_guides_commands(place: tuple[Path, dict[str, str]]) -> None:
    folder, environment = place
    text = block("tuning.md", "sluice policy size").text.replace("~/.sluicegate", environment["SLUICE_HOME"])
    size, simulate = (shlex.split(line) for line in text.strip().splitlines())
    workers = told(*size[1:], folder=folder, environment=environment)
    assert workers["workers"] == workers["tried"][-1]["workers"] and workers["tried"][-1]["accuracy"] >= 0.75
    assert simulate[1:3] == ["sluice", "simulate"]
    simulate[3] = str(ROOT / simulate[3])
    run_once = told(*simulate[2:], "--set", "duration_s=2", folder=folder, environment=environment)
    assert run_once["queries"] > 100 and run_once["violation_ratio"] <= 1.0 and run_once["bound"]["certain"]


@pytest.mark.parametrize(
    ("script", "rows", "varying"),
    [
        pytest.param("images_model.py", "rows", (), marks=pytest.mark.thorough),
        pytest.param("text_model.py", "rows.npz", ("line",), marks=pytest.mark.thorough),
        pytest.param("strings_model.py", "rows.npz", (), marks=pytest.mark.thorough),
    ],
)
def test_the_other_examples_are_taken_as_well(script: str, rows: str, varying: tuple[str, ...], tmp_path: Path) -> None:
    run(sys.executable, str(ROOT / "examples" / script), "made", folder=tmp_path, environment=dict(os.environ))
    models = [tmp_path / "made" / "models" / f"{name}.onnx" for name in ("small", "large")]
    request = request_of(models[0], tmp_path / "made" / rows, others=(models[1],), varying=varying)
    record = register(request, tmp_path / "home").record
    assert len(record.candidates) >= 4
    assert max(c.variant.accuracy for c in record.candidates) > record.chance + 0.2
    assert bool(record.candidates[0].profiles[0].shorter) == bool(varying)


@pytest.mark.timing
@pytest.mark.parametrize(
    ("script", "sizes", "varying"),
    [
        ("numpy_model.py", ("small", "medium", "large"), ()),
        pytest.param("numpy_model.py", ("large",), (), marks=pytest.mark.thorough),  # and a family that is made of it
        pytest.param("images_model.py", ("small", "medium", "large"), (), marks=pytest.mark.thorough),
        pytest.param("text_model.py", ("small", "medium", "large"), ("line",), marks=pytest.mark.thorough),
        pytest.param("strings_model.py", ("small", "medium", "large"), (), marks=pytest.mark.thorough),
    ],
)
def test_each_example_ends_with_three_variants_at_least(
    script: str, sizes: tuple[str, ...], varying: tuple[str, ...], tmp_path: Path
) -> None:
    run(sys.executable, str(ROOT / "examples" / script), "made", folder=tmp_path, environment=dict(os.environ))
    models = [next((tmp_path / "made").rglob(f"{size}.onnx")) for size in sizes]
    (rows,) = (tmp_path / "made").glob("rows*")
    request = request_of(
        models[0], rows, others=tuple(models[1:]), varying=varying, make_family=len(sizes) == 1,
        batches=(1, 16, 64), effort=Effort(),
    )  # fmt: skip
    record = register(request, tmp_path / "home").record
    served = [c.recipe for c in record.candidates if c.served]
    assert len(served) >= 3, {c.recipe: c.reason for c in record.candidates}
    if len(sizes) > 1:
        assert {recipe.split(".")[0] for recipe in served} == set(sizes)


@pytest.mark.kafka
@pytest.mark.thorough
@pytest.mark.usefixtures("made")
def test_a_plain_producer_and_a_faust_agent_work_on_kafka(place: tuple[Path, dict[str, str]], kafka_url: str) -> None:
    folder, environment = place
    prefix = "own-model-test"
    there = {**environment, "SLUICE_BROKER": kafka_url, "SLUICE_PREFIX": prefix, "SLUICE_APPS": '["clouds"]'}
    agent = {**there, "SLUICE_APP": "clouds", "PYTHONWARNINGS": "ignore"}
    with up(folder, there):
        told("infer", "--app", "clouds", "--latency-ms", "60000", "--broker", kafka_url, "--prefix", prefix,
             folder=folder, environment=there)  # fmt: skip
        servers = kafka_url.removeprefix("kafka://")
        producer = ("examples/kafka_producer.py", servers, "clouds", "point", "16", prefix)
        shown = run(sys.executable, *producer, folder=ROOT, environment=there)
        assert shown.count("answered") == 20, shown
        tally = subprocess.Popen(
            [sys.executable, "-m", "faust", "--datadir", str(folder / "faust"), "-A", "examples.faust_consumer",
             "worker", "-l", "warn"],
            cwd=ROOT, env=agent, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert tally.stderr is not None
            # What an agent prints goes to its log; the test's own time limit ends a wait for nothing.
            heard: list[str] = []
            for line in tally.stderr:
                heard.append(line)
                if "answered': 20}" in line:
                    break
            assert heard and "answered': 20}" in heard[-1], heard
            assert not any("Crashed" in line for line in heard), heard  # the first outcome has raw tensors
        finally:
            tally.kill()
            tally.communicate()
