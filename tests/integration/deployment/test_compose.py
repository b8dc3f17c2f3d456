"""The compose file: valid by the specification, and each service's exact command works against a real broker."""

import asyncio
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from compose_spec import PyCompose

from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.profiles.demo import digits, signals
from sluicegate.sluice.commands.gpu_option import CUDA_TYPE
from sluicegate.streams import connect
from sluicegate.streams.topics import Topics
from sluicegate_client import Client
from tests.harness import PATIENCE_S, toy_catalogue

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "compose" / "docker-compose.yml"
GPU = ROOT / "compose" / "docker-compose.gpu.yml"
SECRETS = ROOT / "compose" / "make-secrets.sh"
_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def composed(file: Path = FILE) -> dict[str, Any]:
    """The file with its anchors resolved, its variables at their defaults, and without extension keys."""
    whole = yaml.safe_load(_VARIABLE.sub(r"\2", file.read_text()))
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


def test_the_gpu_override_names_services_that_exist_and_two_of_its_own() -> None:
    base, override = composed()["services"], composed(GPU)["services"]
    assert set(PyCompose.from_yaml(yaml.safe_dump(composed(GPU))).service_names()) == set(override)
    assert set(override) - set(base) == {"worker-gpu0", "models-gpu"}
    assert set(stages_of(base)) <= set(override)
    worker, models = override["worker-gpu0"], override["models-gpu"]
    for one in (worker, models):
        assert one["extends"]["service"] in base
        assert one["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    known = {d["name"]: d for d in json.loads(worker["environment"]["SLUICE_DEVICES"])}
    device = known[worker["command"][-1]]
    assert device["gpu"] == 0, "else its models run on the processor"
    assert device["type"] == CUDA_TYPE and models["command"] == ["sluice", "profile", "--all", "--gpu", "0"]
    waiting = {name for name, service in override.items() if "models-gpu" in service.get("depends_on", ())}
    assert waiting == {"worker-gpu0", *stages_of(base)}, "what starts before does not know what the GPU can do"


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
    for name, service in whole["services"].items():
        for variable, value in service.get("environment", {}).items():
            secret = any(word in variable for word in ("TOKEN", "PASSWORD"))
            assert not secret or str(value).startswith("/run/secrets/"), f"{name}: {variable}"
            assert not secret or Path(value).name in service["secrets"], f"{name}: {variable} is not handed in"


def test_secrets_are_files_that_one_command_makes_once_for_every_reader_behind_its_owners_door(tmp_path: Path) -> None:
    """Secrets of the environment cannot be put into a container whose root is read-only."""
    secrets = composed()["secrets"]
    assert all(set(secret) == {"file"} for secret in secrets.values())
    folder = tmp_path / "not there yet" / "secrets"
    for attempt in range(2):
        subprocess.run(["sh", SECRETS, folder], check=True, capture_output=True)
        made = {path.name: path.read_text() for path in folder.iterdir()}
        assert set(made) == {Path(secret["file"]).name for secret in secrets.values()}
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o644 for path in folder.iterdir())
        assert len(set(made.values())) == len(made) and all(len(value) >= 32 for value in made.values())
        if attempt == 0:
            kept = made
            folder.chmod(0o755)
            (folder / "token").chmod(0o600)
    assert made == kept
    assert {(FILE.parent / secret["file"]).parent for secret in secrets.values()} == {FILE.parent / "secrets"}


def test_git_ignores_secrets_and_what_a_machine_says() -> None:
    for path in ("compose/.env", ".env", "compose/secrets/token", "compose/secrets/grafana"):
        ignored = subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT)
        assert ignored.returncode == 0, path
    shown = subprocess.run(["git", "check-ignore", "-q", "compose/.env.example"], cwd=ROOT)
    assert shown.returncode == 1


def test_the_example_lists_every_variable_with_its_default() -> None:
    lines = (ROOT / "compose" / ".env.example").read_text().splitlines()
    listed = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    named = _VARIABLE.findall(FILE.read_text())
    assert listed == dict(named) and len(set(named)) == len(listed)
    assert FILE.read_text().count("${") == len(named), "a variable without a default"


def test_ports_are_variables_of_loopback() -> None:
    for name, service in yaml.safe_load(FILE.read_text())["services"].items():
        for port in service.get("ports", []):
            inside = str(port).rsplit(":", 1)[1]
            assert _VARIABLE.sub(r"\2", port) == f"127.0.0.1:{inside}:{inside}", name
            assert _VARIABLE.search(port), name


def test_kafkas_data_is_on_its_volume() -> None:
    kafka = composed()["services"]["kafka"]
    mounted = [volume.split(":")[1] for volume in kafka["volumes"] if not volume.startswith(".")]
    assert kafka["environment"]["KAFKA_LOG_DIRS"] in mounted


def test_no_health_check_starts_a_java_or_a_python() -> None:
    checks = {name: " ".join(s.get("healthcheck", {}).get("test", [])) for name, s in composed()["services"].items()}
    image = next(part for part in (ROOT / "compose" / "Dockerfile").read_text().split("\n\n") if "HEALTHCHECK" in part)
    checks["image"] = image[image.index("CMD") : image.index("]\n")]
    assert all(not any(word in check for word in ("java", "python", ".sh")) for check in checks.values()), checks
    assert "/dev/tcp/" in checks["kafka"] and "/healthz" in checks["image"]


async def test_the_images_health_check_tells_a_stage_that_serves_from_one_that_does_not() -> None:
    image = (ROOT / "compose" / "Dockerfile").read_text()
    command = json.loads(image[image.index('["bash", "-c", "exec 3<>') :].splitlines()[0])
    told = {"status": b"200 OK"}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readline()).startswith(b"GET /healthz ")
        writer.write(b"HTTP/1.0 " + told["status"] + b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = str(server.sockets[0].getsockname()[1])

    async def asked() -> int:
        environment = {"PATH": os.environ["PATH"], "SLUICE_METRICS__PORT": port}
        process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.DEVNULL)
        return await process.wait()

    assert await asked() == 0
    told["status"] = b"503 Service Unavailable"
    assert await asked() != 0
    server.close()
    await server.wait_closed()
    assert await asked() != 0


def test_everything_that_runs_has_time_to_end_and_limits() -> None:
    for name, service in composed()["services"].items():
        grace = int(str(service.get("stop_grace_period", "0s")).rstrip("s"))
        assert name == "models" or grace >= (60 if name == "kafka" else 30), name
        limits = service["deploy"]["resources"]["limits"]
        assert set(limits) == {"cpus", "memory", "pids"}, name


def test_one_build_makes_the_image_for_all() -> None:
    """Ten builds of one tag were ten images, and every `up --build` recreated everything."""
    services = composed()["services"]
    ours = {name for name, service in services.items() if service["image"].startswith("sluicegate:")}
    assert [name for name in services if "build" in services[name]] == ["models"]
    assert ours == {"models", "load", *stages_of(services)}
    assert len({services[name]["image"] for name in ours}) == 1


@pytest.mark.parametrize("files", [[FILE], [FILE, GPU]], ids=["base", "gpu"])
def test_compose_itself_takes_the_files(files: list[Path]) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("no Compose here")
    named = [word for file in files for word in ("-f", str(file))]
    checked = subprocess.run([docker, "compose", *named, "config", "-q"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


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


QUERY_PATH = frozenset({"up planner", "up admission", "up router", "up worker --device cpu0"})


@pytest.mark.kafka
@pytest.mark.thorough
@pytest.mark.parametrize("every", [False, True])
async def test_the_services_commands_serve_queries_together(kafka_url: str, tmp_path: Path, every: bool) -> None:
    save_catalogue(tmp_path / "catalogue", served(), {})
    (tmp_path / "token").write_text("open sesame\n")
    services = composed()["services"]
    stages = stages_of(services)
    assert len(stages) == 8
    if not every:
        stages = {name: s for name, s in stages.items() if " ".join(s["command"][1:]) in QUERY_PATH}
        assert len(stages) == len(QUERY_PATH)
    prefix = f"composed{int(every)}"
    changed = {
        "SLUICE_BROKER": kafka_url,
        "SLUICE_PREFIX": prefix,
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
        await topics_exist(kafka_url, prefix)
        async with Client(kafka_url, prefix=prefix) as client:
            answers = []
            async with asyncio.timeout(PATIENCE_S):
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


async def topics_exist(url: str, prefix: str) -> None:
    broker = connect(url)
    async with asyncio.timeout(PATIENCE_S):
        while Topics(prefix).results("digits") not in await broker.admin().topics():
            await asyncio.sleep(0.3)
    await broker.close()
