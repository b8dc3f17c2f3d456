"""The compose file: valid by the specification, and each service's exact command works against a real broker."""

import asyncio
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from compose_spec import PyCompose

from profiles.catalogue import Catalogue
from profiles.demo import digits, signals
from profiles.folder import save_catalogue
from sluice.client import Client
from streams import connect
from streams.topics import Topics
from tests.harness import toy_catalogue

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "compose" / "docker-compose.yml"
GPU = ROOT / "compose" / "docker-compose.gpu.yml"


def composed(file: Path = FILE) -> dict[str, Any]:
    """The file with its anchors resolved and without extension keys."""
    whole = yaml.safe_load(file.read_text())
    return {key: value for key, value in whole.items() if not key.startswith("x-")}


def stages_of(services: dict[str, Any]) -> dict[str, Any]:
    return {name: s for name, s in services.items() if s.get("command", [""])[:2] == ["sluice", "up"]}


def test_the_file_keeps_to_the_specification() -> None:
    services = set(PyCompose.from_yaml(yaml.safe_dump(composed())).service_names())
    assert {
        "kafka",
        "models",
        "admission",
        "planner",
        "sink",
        "http",
        "web",
        "prometheus",
        "grafana",
        "load",
    } <= services


def test_the_gpu_override_names_services_that_exist_and_one_of_its_own() -> None:
    base, override = composed()["services"], composed(GPU)["services"]
    assert set(PyCompose.from_yaml(yaml.safe_dump(composed(GPU))).service_names()) == set(override)
    assert set(override) - set(base) == {"worker-gpu0"}
    assert set(stages_of(base)) <= set(override)
    gpu = override["worker-gpu0"]
    assert gpu["extends"]["service"] in base
    assert gpu["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    known = {d["name"] for d in json.loads(gpu["environment"]["SLUICE_DEVICES"])}
    assert gpu["command"][-1] in known


def test_images_are_pinned_and_what_runs_is_not_root() -> None:
    for name, service in composed()["services"].items():
        tag = service["image"].rsplit(":", 1)[1]
        assert tag[0].isdigit() or tag[0] == "v", f"{name}: {tag}"
    steps = (ROOT / "compose" / "Dockerfile").read_text().split("\nFROM ")[-1].splitlines()
    users = [line.split()[1] for line in steps if line.startswith("USER ")]
    assert users == ["10001"]
    assert any(line.startswith("HEALTHCHECK ") for line in steps)


def test_every_service_tells_its_health_and_stages_have_no_privileges() -> None:
    services = composed()["services"]
    for name, service in services.items():
        assert "healthcheck" in service or service["image"].startswith("sluicegate:"), name
    for name, stage in stages_of(services).items():
        assert stage["read_only"] and stage["cap_drop"] == ["ALL"], name
        assert stage["environment"]["SLUICE_METRICS__PORT"] == "9464", name


def test_no_secret_is_written_down() -> None:
    whole = composed()
    assert all(set(secret) == {"environment"} for secret in whole["secrets"].values())
    for name, service in whole["services"].items():
        for variable, value in service.get("environment", {}).items():
            secret = any(word in variable for word in ("TOKEN", "PASSWORD"))
            assert not secret or str(value).startswith("/run/secrets/"), f"{name}: {variable}"
    lines = (ROOT / "compose" / ".env.example").read_text().splitlines()
    assert {line.split("=")[0] for line in lines if "=" in line} == {
        s["environment"] for s in whole["secrets"].values()
    }
    assert all(line.endswith("=") for line in lines if "=" in line)


def test_what_is_mounted_exists() -> None:
    for service in composed()["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (FILE.parent / source).exists(), volume


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
    save_catalogue(tmp_path / "catalogue", served(), {})
    (tmp_path / "token").write_text("open sesame\n")
    services = composed()["services"]
    stages = stages_of(services)
    assert len(stages) == 9
    changed = {
        "SLUICE_BROKER": kafka_url,
        "SLUICE_PREFIX": "composed",
        "SLUICE_HOME": str(tmp_path),
        "SLUICE_RUNS": str(tmp_path / "runs"),
        "SLUICE_CATALOGUE": str(tmp_path / "catalogue"),
        "SLUICE_WORKER__EXECUTOR": "emulated",
        **{f"SLUICE_{part}__TOKEN_FILE": str(tmp_path / "token") for part in ("METRICS", "HTTP", "WEB")},
        # One network for all, here: any free port, on loopback.
        **{f"SLUICE_{part}__PORT": "0" for part in ("METRICS", "HTTP", "WEB")},
        **{f"SLUICE_{part}__HOST": "127.0.0.1" for part in ("METRICS", "HTTP", "WEB")},
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
                    image = {"image": np.zeros((1, 28, 28), np.uint8)}
                    answers.append(await client.infer("digits", image, latency_ms=5000))
        await load_is_generated(sluice, services["load"], changed, tmp_path)
        assert all(p.returncode is None for p in processes)
    finally:
        for process in processes:
            if process.returncode is None:
                process.terminate()
        codes = await asyncio.gather(*(p.wait() for p in processes))
        log.close()
    assert codes == [0] * len(processes), (tmp_path / "log").read_text()


def served() -> Catalogue:
    """The demo's apps on emulated variants."""
    toy = toy_catalogue(apps=("digits", "signals"))
    apps = [replace(app, slo=2.0) for app in (digits.APP, signals.APP)]
    return Catalogue.of(apps, list(toy.variants.values()), list(toy.profiles.values()))


async def load_is_generated(sluice: str, service: dict[str, Any], changed: dict[str, str], folder: Path) -> None:
    """The load generator's own command, for three seconds."""
    command = service["command"][1:]
    command[command.index("--duration") + 1] = "3"
    environment = {**os.environ, **service["environment"], **changed}
    process = await asyncio.create_subprocess_exec(
        sluice, *command, "--json", env=environment, cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    sent = json.loads(said)
    assert process.returncode == 0 and sent["queries"] == sent["acknowledged"] > 50


async def topics_exist(url: str) -> None:
    broker = connect(url)
    async with asyncio.timeout(60.0):
        while Topics("composed").results("digits") not in await broker.admin().topics():
            await asyncio.sleep(0.3)
    await broker.close()
