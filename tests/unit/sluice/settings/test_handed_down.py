"""Child processes have the settings that their parent resolved, whatever its environment says otherwise."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from sluicegate.sluice.load.demo_run import start_processes
from sluicegate.sluice.settings.handed_down import child_environment, write_down
from sluicegate.sluice.settings.settings import MetricsSettings, Settings, WebSettings, load
from sluicegate.sluice.system.system import System
from sluicegate.streams import connect
from tests.harness import toy_catalogue

ELSEWHERE = {
    "SLUICE_BROKER": "kafka://prod:9092",
    "sluice_prefix": "prod",
    "SLUICE_APPS": '["toy"]',
    "SLUICE_METRICS": '{"port": 9464}',
    "SLUICE_WEB__PORT": "8081",
    "SLUICE_KAFKA": '{"protocol": "SASL_SSL", "username": "u", "password": "swordfish"}',
    "SLUICE_SIGNING__KEY": "0123456789abcdef",
    "SLUICE_TOPICS": '{"queries": {"retention_s": null}}',
    "SLUICE_DATA": "/papers",
}


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """Started with options, in a shell that is set up for another system."""
    for name, said in ELSEWHERE.items():
        monkeypatch.setenv(name, said)
    return load(broker="kafka://127.0.0.1:9", prefix="staging", home=tmp_path)


def read_by_child(file: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(os, "environ", environment)
    return load(file)


def test_what_a_child_reads_is_what_its_parent_resolved(
    parent: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run" / "settings.yaml"
    write_down(parent, file)
    assert "swordfish" not in file.read_text() and "0123456789abcdef" not in file.read_text()
    environment = child_environment(parent)
    assert {environment[name] for name in ("SLUICE_DATA", "SLUICE_SIGNING__KEY")} == {"/papers", "0123456789abcdef"}
    read = read_by_child(file, environment, monkeypatch)
    assert read == parent.model_copy(update={"metrics": MetricsSettings(), "web": WebSettings()})
    assert read.kafka.password == "swordfish" and read.topics.queries.retention_s is None


async def test_the_demos_processes_are_of_its_broker_and_prefix(
    parent: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[tuple[str, ...], dict[str, str]]] = []

    async def begin(*command: str, env: dict[str, str], **_: Any) -> None:
        begun.append((command, env))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", begin)
    broker = connect("memory://")
    await start_processes(System(parent, toy_catalogue(), tmp_path, broker, broker.producer(), tmp_path / "run"))
    assert {command[4] for command, _ in begun} == {"admission", "planner", "sink", "router", "worker"}
    for command, environment in begun:
        read = read_by_child(Path(command[-1]), environment, monkeypatch)
        assert (read.broker, read.prefix, read.metrics.port) == ("kafka://127.0.0.1:9", "staging", None)
