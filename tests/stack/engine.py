"""Docker as the test of the stack uses it: a compose project of its own, its images, pulled or standing in."""

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sluicegate.executors.demo_catalogue import home_folder
from sluicegate.streams.local_kafka.jars import ensure_jars

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "compose" / "docker-compose.yml"
PORTS = ("HTTP", "WEB", "PROMETHEUS", "GRAFANA")
_STAND_IN = "sluicegate-stand-in"


class StackError(Exception):
    """What is not as it must be, in one line."""


def ran(command: Sequence[str], *, within: float = 600.0, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run, both outputs captured. Raises StackError past ``within`` seconds."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=within, check=False, **options)
    except subprocess.TimeoutExpired as error:
        raise StackError(f"`{' '.join(command)}` took longer than {within:.0f} s") from error


def told(command: Sequence[str], *, within: float = 600.0, **options: Any) -> str:
    """What a command that must succeed prints. Raises StackError with the last lines of its complaint."""
    ended = ran(command, within=within, **options)
    if ended.returncode:
        complaint = " | ".join((ended.stderr or ended.stdout).strip().splitlines()[-4:])
        raise StackError(f"`{' '.join(command)[:200]}` ended with {ended.returncode}: {complaint}")
    return ended.stdout


def require_engine() -> str:
    """The engine's version. Raises StackError, saying what to do, where none answers or Compose is missing."""
    remedy = "start one, or set DOCKER_HOST; without one, test_compose.py checks what compose says"
    if shutil.which("docker") is None:
        raise StackError(f"no Docker Engine here: install one; {remedy}")
    asked = ran(["docker", "info", "--format", "{{.ServerVersion}}"], within=60.0)
    if asked.returncode or not asked.stdout.strip():
        raise StackError(f"no Docker Engine answers: {remedy}")
    compose = ran(["docker", "compose", "version", "--short"], within=60.0)
    if compose.returncode:
        raise StackError("`docker compose` is missing: install Compose 2 beside the engine")
    return f"Docker Engine {asked.stdout.strip()}, Compose {compose.stdout.strip()}"


@dataclass(frozen=True, slots=True)
class Images:
    """What compose names, and what stands in for what could not be pulled: service (or ``python``) -> tag."""

    stand_ins: Mapping[str, str]
    host_network: bool

    def override(self) -> dict[str, Any]:
        """A compose file to lay over the project's."""
        services: dict[str, Any] = {n: {"image": tag} for n, tag in self.stand_ins.items() if n != "python"}
        build: dict[str, Any] = {"network": "host"} if self.host_network else {}
        if "python" in self.stand_ins:
            build["args"] = {"PYTHON": self.stand_ins["python"]}
        if build:
            services["models"] = {"build": build}
        return {"services": services}


def images() -> Images:
    """Pull what is not here; build stand-ins for all of it where something cannot be pulled."""
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    wanted = {name: services[name]["image"] for name in ("kafka", "prometheus", "grafana")}
    found = re.search(r"^ARG PYTHON=(\S+)", (COMPOSE.parent / "Dockerfile").read_text(), re.MULTILINE)
    if found is None:
        raise StackError("compose/Dockerfile: no line `ARG PYTHON=…`")
    wanted = {"python": found[1], **wanted}
    host_network = ran(["docker", "network", "inspect", "bridge"]).returncode != 0
    if all(_here(tag) or ran(["docker", "pull", "--quiet", tag]).returncode == 0 for tag in wanted.values()):
        return Images({}, host_network)
    tags = {name: f"{_STAND_IN}/{tag.rsplit('/', 1)[-1]}" for name, tag in wanted.items()}
    home = home_folder().resolve()
    script = str(ROOT / "tests" / "stack" / "stand_ins.sh")
    pairs = [f"{name}={tag}" for name, tag in tags.items()]
    told([script, str(home / "stand-ins"), str(ensure_jars(home)), *pairs], within=1800.0)
    return Images(tags, host_network)


def _here(tag: str) -> bool:
    return ran(["docker", "image", "inspect", tag]).returncode == 0


class Project:
    """One compose project with ports, secrets and volumes of its own: it meets no other that runs here."""

    def __init__(self, folder: Path, found: Images, *, name: str = "sluicegate-stack") -> None:
        self.name = name
        self.services: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
        self.ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
        override = folder / "override.yml"
        override.write_text(yaml.safe_dump(found.override()))
        self._command = ["docker", "compose", "-p", name, "-f", str(COMPOSE), "-f", str(override)]
        self._environment = {
            **os.environ,
            "SLUICEGATE_SECRETS": str(folder / "secrets"),
            **{f"SLUICEGATE_{port}_PORT": str(number) for port, number in self.ports.items()},
        }

    def __call__(self, *arguments: str, within: float = 900.0) -> str:
        """``docker compose …`` that must succeed; what it prints."""
        return told([*self._command, *arguments], within=within, env=self._environment)

    def tried(self, *arguments: str, within: float = 300.0) -> "subprocess.CompletedProcess[str]":
        """``docker compose …`` that may fail."""
        return ran([*self._command, *arguments], within=within, env=self._environment)

    def states(self) -> dict[str, dict[str, Any]]:
        """Service -> its container: ``ID``, ``State``, ``Health``, ``ExitCode``; what never ran is not there."""
        lines = self("ps", "--all", "--format", "json").splitlines()
        listed = [one for line in lines if line.strip() for one in _listed(json.loads(line))]
        return {one["Service"]: one for one in listed if one["Service"] != "load"}

    def inspected(self, service: str) -> dict[str, Any]:
        """The engine's word on a service's container."""
        container = self.states().get(service)
        if container is None:
            raise StackError(f"{service} has no container")
        found: dict[str, Any] = json.loads(told(["docker", "inspect", container["ID"]]))[0]
        return found


def _listed(value: Any) -> list[dict[str, Any]]:
    return value if isinstance(value, list) else [value]


def _free_ports(count: int) -> list[int]:
    """Different ones, held together until all are known."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()
