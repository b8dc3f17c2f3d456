"""A process that is told to end does end, and says what it left behind: solver, event loop, executor, broker hang."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluicegate.sluice.registration.register import register
from sluicegate.streams.local_kafka.broker import LocalBroker
from tests.harness import free_port
from tests.models.registration_models import labelled_rows, looping, request_of, write_model, write_rows
from tests.models.slow_solver import FOLDER
from tests.outside.processes import Process, processes, settings_file

JSON = {"Content-Type": "application/json"}
BOUND = 20.0
"""Seconds: what hangs here does so for ever."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    with processes(tmp_path) as make:
        yield make


def abandoned(log: str) -> str:
    """The one line that says what was."""
    (line,) = re.findall(r"ended [\d.]+ s after.*?; abandoned: .*", re.sub(r"\s*\n\s+", " ", log))
    return str(line)


def test_a_solver_that_hangs_does_not_keep_the_process(
    broker_url: str, tmp_path: Path, start: Callable[..., Process]
) -> None:
    process = start("hang-solver", *settings_file(broker_url, tmp_path), SLUICE_LOG__FORMAT="json")
    process.until(lambda: "the solver hangs" in process.log)
    assert process.terminated(BOUND) == 1
    told = abandoned(process.log)
    assert re.search(r"thread \w+ in sluicegate\.stages\.planner\.solver\._solved", told)
    assert "after all else had ended" in told  # what could be done in order was


def test_a_process_that_solves_and_hangs_is_ended_and_all_ends_in_order(
    tmp_path: Path, start: Callable[..., Process]
) -> None:
    (tmp_path / "hangs").touch()
    arguments = settings_file("memory://", tmp_path, planner={"period_s": 1.0})
    process = start("hang-solver-process", *arguments, **{FOLDER: str(tmp_path)})
    (asked,) = process.until(lambda: list(tmp_path.glob("asked-*")))
    assert process.terminated(20.0) == 0, process.log
    with pytest.raises(ProcessLookupError):
        os.kill(int(asked.name.removeprefix("asked-")), 0)


def test_a_process_that_solves_does_not_outlive_its_parent(tmp_path: Path, start: Callable[..., Process]) -> None:
    (tmp_path / "hangs").touch()
    arguments = settings_file("memory://", tmp_path, planner={"period_s": 1.0})
    process = start("hang-solver-process", *arguments, **{FOLDER: str(tmp_path)})
    (asked,) = process.until(lambda: list(tmp_path.glob("asked-*")))
    process.process.kill()
    process.process.wait()
    end = time.monotonic() + BOUND
    while Path(f"/proc/{asked.name.removeprefix('asked-')}").exists():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_an_event_loop_that_hangs_does_not_keep_the_process(tmp_path: Path, start: Callable[..., Process]) -> None:
    process = start("hang-loop", *settings_file("memory://", tmp_path), SLUICE_LOG__FORMAT="json")
    process.until(lambda: "the loop hangs" in process.log)
    assert process.terminated(BOUND) == 1
    told = abandoned(process.log)
    assert "thread MainThread in " in told
    assert "stage worker d1" in told


def executors(pid: int) -> list[int]:
    """Its children that run models."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [one for one in children if b"onnx.child" in Path(f"/proc/{one}/cmdline").read_bytes()]


def test_an_executor_that_stands_still_with_a_batch_does_not_keep_the_process(
    tmp_path: Path, start: Callable[..., Process]
) -> None:
    home = tmp_path / "home"
    register(request_of(write_model(tmp_path, looping()), write_rows(tmp_path), slo=5.0), home)
    port = free_port()
    process = start(
        "", "--app", "mine", SLUICE_HOME=str(home), SLUICE_HTTP__PORT=str(port), SLUICE_WEB__PORT="0",
        SLUICE_RUNS=str(tmp_path / "runs"), SLUICE_WORKER__RUN_TIMEOUT_FLOOR_S="600",
        SLUICE_DEVICES='[{"name": "only"}]',
    )  # fmt: skip
    body = json.dumps(
        {
            "inputs": [
                {"name": "x", "shape": [1, 8], "datatype": "FP32", "data": labelled_rows(1)[0].reshape(-1).tolist()}
            ],
            "parameters": {"latency_ms": 60000},
        }
    ).encode()
    ask = urllib.request.Request(f"http://127.0.0.1:{port}/v2/models/mine/infer", body, JSON)

    def answered() -> bool:
        try:
            with urllib.request.urlopen(ask, timeout=30) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    process.until(answered)
    (child,) = executors(process.process.pid)
    os.kill(child, signal.SIGSTOP)
    with subprocess.Popen([sys.executable, "-c", _ASK, ask.full_url], stdin=subprocess.PIPE) as asking:
        assert asking.stdin is not None
        asking.stdin.write(body)
        asking.stdin.close()
        time.sleep(1.0)  # it is on its way to a batch that never ends
        code = process.terminated(BOUND)
        asking.kill()
    assert code == 0, process.log
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


_ASK = """
import sys, urllib.request
try:
    kind = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(sys.argv[1], sys.stdin.buffer.read(), kind))
except OSError:
    pass
"""


@pytest.mark.kafka
def test_a_broker_that_stands_still_does_not_keep_the_process(
    kafka_url: str, tmp_path: Path, sluice_home: Path, start: Callable[..., Process]
) -> None:
    del kafka_url  # where the session's cannot be had, this one cannot either
    server = LocalBroker(tmp_path / "kafka", home=sluice_home)
    status = server.start(within=120.0)
    assert status.pid is not None and status.url is not None
    try:
        process = start("", *settings_file(status.url, tmp_path), SLUICE_LOG__FORMAT="json")
        process.until(lambda: "Ctrl-C stops" in process.log)
        time.sleep(2.0)
        os.kill(status.pid, signal.SIGSTOP)
        time.sleep(1.0)
        process.terminated(BOUND)
    finally:
        os.kill(status.pid, signal.SIGCONT)
        server.stop(within=1.0)
