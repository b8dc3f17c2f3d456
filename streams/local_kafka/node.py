"""One server process of a local broker, and the folder that is its own.

The folder holds ``data`` (the log), ``server.properties``, ``server.log`` and ``broker.json`` (ports and process id).
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.local_kafka.programs import ran
from sluicegate.streams.local_kafka.server_properties import LOGGING, NodePorts

_STARTED = "Kafka Server started"
_POLL = 0.1
_FORMAT_TIMEOUT = 120.0
_LEAST_MIB = 32
"""Free on its disk: with less a server begins its first segments and indices nowhere."""


class LocalNode:
    """The server of one folder. ``name``: what errors call it, "Kafka" or "node 2"."""

    def __init__(self, number: int, folder: Path, name: str) -> None:
        self.number = number
        self.folder = folder
        self._name = name

    @property
    def log_file(self) -> Path:
        """What the server says."""
        return self.folder / "server.log"

    @property
    def data(self) -> Path:
        """Its log."""
        return self.folder / "data"

    @property
    def formatted(self) -> bool:
        """Whether its data was begun."""
        return (self.data / "meta.properties").exists()

    @property
    def pid(self) -> int | None:
        """Process id; None where it does not run."""
        pid = self._state().get("pid")
        return pid if isinstance(pid, int) and self._is_ours(pid) else None

    @property
    def ports(self) -> NodePorts | None:
        """Those of its last start."""
        match self._state():
            case {"port": int(clients), "controller_port": int(controllers)}:
                return NodePorts(clients=clients, controllers=controllers)
            case _:
                return None

    def prepare(self, properties: str, ports: NodePorts) -> None:
        """Write what the server reads. Raises ConfigurationError where the folder cannot be written."""
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            (self.folder / "log4j2.properties").write_text(LOGGING)
            file = self._properties
            file.touch(mode=0o600)
            file.chmod(0o600)
            file.write_text(properties)
        except OSError as error:
            raise ConfigurationError(f"{self.folder}: {error.strerror}; choose a writable folder") from error
        self._remember(ports, None)

    def format(self, java: str, jars: Path, arguments: Sequence[str], options: Sequence[str] = ()) -> None:
        """Begin its data. ``arguments``: for Kafka's storage tool. Raises ConfigurationError where that fails."""
        tool = [java, "-Xmx128m", "-XX:TieredStopAtLevel=1", *options, self._logging, "-cp", f"{jars}/*"]
        command = [*tool, "kafka.tools.StorageTool", "format", "-c", str(self._properties), *arguments]
        done = ran(command, f"Kafka's storage in {self.folder} was not formatted", within=_FORMAT_TIMEOUT)
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
            raise ConfigurationError(f"Kafka's storage in {self.folder} cannot be formatted: {said[-1][:300]}")

    def launch(self, java: str, jars: Path, heap_mb: int, options: Sequence[str] = ()) -> None:
        """Start it, and do not wait. ``options``: of Java."""
        command = [
            java, f"-Xmx{heap_mb}m", f"-Xms{min(128, heap_mb)}m", "-XX:+UseSerialGC", *options, self._logging,
            "-cp", f"{jars}/*", "kafka.Kafka", str(self._properties),
        ]  # fmt: skip
        # Spawned, not a Popen: it outlives whoever starts it, which a Popen object would complain of.
        written = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.log_file), written, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        pid = os.posix_spawn(java, command, os.environ, file_actions=actions, setsid=True)
        ports = self.ports
        assert ports is not None, "prepared first"
        self._remember(ports, pid)

    def wait_until_started(self, until: float) -> None:
        """Until it serves, or ``until`` on the monotonic clock. Raises ConfigurationError where it does not."""
        pid = self._state().get("pid", 0)
        began = time.monotonic()
        while time.monotonic() < until:
            if self.log_file.exists() and _STARTED.encode() in self.log_file.read_bytes():
                return
            if _has_ended(pid):
                raise ConfigurationError(f"{self._name} ended at once: {self._last_error()} (see {self.log_file})")
            time.sleep(_POLL)
        waited = max(0.0, until - began)
        raise ConfigurationError(
            f"{self._name} did not start within {waited:.0f} s: {self._last_error()} (see {self.log_file})"
        )

    def end(self, *, within: float) -> None:
        """Ask it to stop, end it after ``within`` seconds."""
        state = self._state()
        if (pid := self.pid) is not None:
            self._end(pid, within)
        if state.pop("pid", None) is not None:
            self._write_state(state)

    def ask_to_stop(self) -> bool:
        """Ask it, and do not wait; whether it ran."""
        pid = self.pid
        return pid is not None and _signal(pid, signal.SIGTERM)

    def _end(self, pid: int, within: float) -> None:
        for kind, patience in ((signal.SIGTERM, within), (signal.SIGKILL, 5.0)):
            if not _signal(pid, kind):
                return
            until = time.monotonic() + patience
            while time.monotonic() < until:
                if not self._is_ours(pid):
                    return
                time.sleep(_POLL / 2)

    def _is_ours(self, pid: int) -> bool:
        """Whether ``pid`` is the server of this folder: a process id alone may be another's by now."""
        if pid <= 1 or _has_ended(pid):
            return False
        try:
            return str(self._properties).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    @property
    def _logging(self) -> str:
        return f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"

    def _last_error(self) -> str:
        lines = self.log_file.read_text(errors="replace").splitlines() if self.log_file.exists() else []
        wrong = [line for line in lines if " ERROR " in line or " FATAL " in line or "Exception" in line]
        free = shutil.disk_usage(self.folder).free >> 20
        if not wrong and free < _LEAST_MIB:  # the log could not be written either
            return f"{free} MiB are free on the disk of {self.folder}; make room, or choose another --dir"
        return (wrong or lines[-1:] or ["it said nothing"])[0][:300]

    def _remember(self, ports: NodePorts, pid: int | None) -> None:
        state = {"port": ports.clients, "controller_port": ports.controllers}
        self._write_state(state if pid is None else {**state, "pid": pid})

    def _state(self) -> dict[str, Any]:
        try:
            state = json.loads((self.folder / "broker.json").read_text())
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def _write_state(self, state: dict[str, Any]) -> None:
        (self.folder / "broker.json").write_text(json.dumps(state))


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _has_ended(pid: int) -> bool:
    """Whether our child ``pid`` has ended, which lets it go. Of others' children nothing is known: False."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False
