"""The compose file: valid by the specification, and each service's exact command works against a real broker."""

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from compose_spec import PyCompose

from profiles.folder import save_catalogue
from sluice.client import Client
from streams import connect
from streams.topics import Topics
from tests.harness import PIXELS, toy_catalogue

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "compose" / "docker-compose.yml"


def composed() -> dict[str, Any]:
    """The file with its anchors resolved and without extension keys."""
    whole = yaml.safe_load(FILE.read_text())
    return {key: value for key, value in whole.items() if not key.startswith("x-")}


def test_the_file_keeps_to_the_specification() -> None:
    services = set(PyCompose.from_yaml(yaml.safe_dump(composed())).service_names())
    assert {"kafka", "models", "admission", "planner", "sink"} <= services


def test_a_misspelt_key_would_be_noticed() -> None:
    broken = composed()
    broken["services"]["admission"]["imagee"] = "x"
    with pytest.raises(ValueError, match="imagee"):
        PyCompose.from_yaml(yaml.safe_dump(broken))


def test_no_service_is_published_beyond_loopback() -> None:
    for name, service in composed()["services"].items():
        for port in service.get("ports", []):
            assert str(port).startswith("127.0.0.1:"), name


@pytest.mark.kafka
async def test_the_services_commands_serve_queries_together(kafka_url: str, tmp_path: Path) -> None:
    save_catalogue(tmp_path / "catalogue", toy_catalogue(apps=("digits", "signals"), slo=2.0), {})
    services = composed()["services"]
    stages = {name: s for name, s in services.items() if s.get("command", [""])[:2] == ["sluice", "up"]}
    assert len(stages) == 7
    changed = {
        "SLUICE_BROKER": kafka_url,
        "SLUICE_PREFIX": "composed",
        "SLUICE_HOME": str(tmp_path),
        "SLUICE_RUNS": str(tmp_path / "runs"),
        "SLUICE_CATALOGUE": str(tmp_path / "catalogue"),
        "SLUICE_WORKER__EXECUTOR": "emulated",
    }
    sluice = shutil.which("sluice", path=str(Path(sys.executable).parent))
    assert sluice is not None
    log = (tmp_path / "log").open("wb")
    processes = [
        await asyncio.create_subprocess_exec(
            sluice,
            *service["command"][1:],
            env={**os.environ, **service["environment"], **changed},
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        )
        for service in stages.values()
    ]
    try:
        await topics_exist(kafka_url)
        async with Client(kafka_url, prefix="composed") as client:
            answers = []
            async with asyncio.timeout(90.0):
                while not (answers and answers[-1].outcome.on_time):
                    image = {"image": np.zeros((1, PIXELS), np.float32)}
                    answers.append(await client.infer("digits", image, latency_ms=5000))
        assert all(p.returncode is None for p in processes)
    finally:
        for process in processes:
            if process.returncode is None:
                process.terminate()
        codes = await asyncio.gather(*(p.wait() for p in processes))
        log.close()
    assert codes == [0] * len(processes), (tmp_path / "log").read_text()


async def topics_exist(url: str) -> None:
    broker = connect(url)
    async with asyncio.timeout(60.0):
        while Topics("composed").results("digits") not in await broker.admin().topics():
            await asyncio.sleep(0.3)
    await broker.close()
