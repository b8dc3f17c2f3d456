"""One Apache Kafka on this machine, broker and controller in one process, on loopback only.

A folder holds all of it: ``data`` (the log), ``server.properties``, ``server.log`` and ``broker.json`` (ports and
process id). Starting a folder again goes on with its data. Nothing listens beyond 127.0.0.1. After a crash the
controller lets the broker in once the session of the one before has run out, so that session is short: no other broker
takes over here.
"""

import json
import os
import signal
import socket
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.local_kafka.jars import KAFKA_VERSION, ensure_jars, find_java
from sluicegate.streams.local_kafka.security import LocalSecurity

Progress = Callable[[str], None]

_HOST = "127.0.0.1"
_STARTED = "Kafka Server started"
_POLL = 0.1
_FORMAT_TIMEOUT = 120.0

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners={listener}://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners={listener}://{host}:{port}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={host}:{controller_port}
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
group.min.session.timeout.ms=1000
log.cleaner.dedupe.buffer.size=16777216
log.index.size.max.bytes=2097152
"""

_LOGGING = """\
status=error
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=[%d] %p %m (%c)%n
rootLogger.level=info
rootLogger.appenderRef.console.ref=console
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBrokerStatus:
    """What there is. ``url`` is for ``streams.connect``; ``pid`` None where it does not run."""

    running: bool
    folder: str
    url: str | None = None
    port: int | None = None
    pid: int | None = None
    version: str = KAFKA_VERSION


class LocalBroker:
    """The broker of one folder. ``home``: where jars are kept. All calls block, within the bounds they name.

    ``users``: names; with any, it speaks TLS and SCRAM alone and obeys access rules
    (``sluicegate.streams.local_kafka.security``). They are those of the folder's first start.
    """

    def __init__(self, folder: Path, *, home: Path, heap_mb: int = 512, users: Sequence[str] = ()) -> None:
        self._folder = folder.absolute()
        self._home = home
        self._heap_mb = heap_mb
        self.security = LocalSecurity(self._folder, users) if users else None

    @property
    def log_file(self) -> Path:
        """What the server says."""
        return self._folder / "server.log"

    def status(self) -> LocalBrokerStatus:
        """Whether it runs, and where."""
        state = self._state()
        pid = state.get("pid")
        if not self._is_ours(pid):
            return LocalBrokerStatus(running=False, folder=str(self._folder), port=state.get("port"))
        port = state["port"]
        return LocalBrokerStatus(
            running=True, folder=str(self._folder), url=f"kafka://{_HOST}:{port}", port=port, pid=pid
        )

    def start(self, *, port: int = 0, within: float = 60.0, progress: Progress = lambda _: None) -> LocalBrokerStatus:
        """Start and wait until it serves. ``port`` 0: the folder's last one, else a free one. Running: as it is.

        Raises ConfigurationError in one line: java, mvn or jars missing, port taken, folder unwritable, no start.
        """
        running = self.status()
        if running.running:
            return running
        java = find_java()
        jars = ensure_jars(self._home, progress)
        self._prepare_folder()
        if self.security is not None:
            self.security.prepare()
        state = self._state()
        ports = self._choose_ports(port, state)
        self._configure(*ports)
        if not (self._folder / "data" / "meta.properties").exists():
            progress("formatting its storage")
            self._format(java, jars)
        progress("starting")
        pid = self._launch(java, jars)
        self._write_state({"port": ports[0], "controller_port": ports[1], "pid": pid})
        try:
            self._wait_until_started(pid, within)
        except BaseException:
            self._end(pid, within=5.0)
            self._write_state({"port": ports[0], "controller_port": ports[1]})
            raise
        return self.status()

    def stop(self, *, within: float = 20.0) -> bool:
        """Ask it to stop, end it after ``within`` seconds; whether it ran."""
        state = self._state()
        pid = state.pop("pid", None)
        ran = self._is_ours(pid)
        if ran:
            self._end(pid, within=within)
            self._write_state(state)
        return ran

    def _launch(self, java: str, jars: Path) -> int:
        command = [
            java, f"-Xmx{self._heap_mb}m", f"-Xms{min(128, self._heap_mb)}m", "-XX:+UseSerialGC",
            f"-Dlog4j2.configurationFile={self._folder / 'log4j2.properties'}",
            "-cp", f"{jars}/*", "kafka.Kafka", str(self._folder / "server.properties"),
        ]  # fmt: skip
        # Spawned, not a Popen: it outlives whoever starts it, which a Popen object would complain of.
        written = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(self.log_file), written, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        return os.posix_spawn(java, command, os.environ, file_actions=actions, setsid=True)

    def _wait_until_started(self, pid: int, within: float) -> None:
        until = time.monotonic() + within
        while time.monotonic() < until:
            if self.log_file.exists() and _STARTED.encode() in self.log_file.read_bytes():
                return
            if _has_ended(pid):
                raise ConfigurationError(f"Kafka ended at once: {self._last_error()} (see {self.log_file})")
            time.sleep(_POLL)
        raise ConfigurationError(f"Kafka did not start within {within:.0f} s: {self._last_error()}")

    def _last_error(self) -> str:
        lines = self.log_file.read_text(errors="replace").splitlines()
        wrong = [line for line in lines if " ERROR " in line or " FATAL " in line or "Exception" in line]
        return (wrong or lines or ["it said nothing"])[0][:300]

    def _end(self, pid: int, *, within: float) -> None:
        for kind, patience in ((signal.SIGTERM, within), (signal.SIGKILL, 5.0)):
            try:
                os.kill(pid, kind)
            except ProcessLookupError:
                return
            until = time.monotonic() + patience
            while time.monotonic() < until:
                if not self._is_ours(pid):
                    return
                time.sleep(_POLL / 2)

    def _is_ours(self, pid: Any) -> bool:
        """Whether ``pid`` is the server of this folder: a process id alone may be another's by now."""
        if not isinstance(pid, int) or pid <= 1:
            return False
        if _has_ended(pid):
            return False
        told = Path(f"/proc/{pid}/cmdline")
        try:
            return str(self._folder / "server.properties").encode() in told.read_bytes()
        except OSError:
            return False

    def _prepare_folder(self) -> None:
        try:
            (self._folder / "data").mkdir(parents=True, exist_ok=True)
            (self._folder / "log4j2.properties").write_text(_LOGGING)
        except OSError as error:
            raise ConfigurationError(f"{self._folder}: {error.strerror}; choose a writable folder") from error

    def _choose_ports(self, port: int, state: dict[str, Any]) -> tuple[int, int]:
        known = state.get("port", 0)
        if not port and known and _is_free(known):
            port = known
        elif port and not _is_free(port):
            raise ConfigurationError(f"port {port} is taken; stop what listens there or choose another")
        # The controller's address is written into the data: it stays that of the first start.
        controller = state.get("controller_port", 0)
        if controller and not _is_free(controller):
            raise ConfigurationError(
                f"port {controller}, this folder's controller's, is taken; stop what listens there"
            )
        free = _free_ports(2)
        return port or free[0], controller or free[1]

    def _configure(self, port: int, controller_port: int) -> None:
        text = _PROPERTIES.format(
            host=_HOST,
            port=port,
            controller_port=controller_port,
            data=_escaped(str(self._folder / "data")),
            listener="PLAINTEXT" if self.security is None else "SASL_SSL",
        )
        properties = self._folder / "server.properties"
        properties.touch(mode=0o600)
        properties.chmod(0o600)
        properties.write_text(text + (self.security.properties() if self.security is not None else ""))

    def _format(self, java: str, jars: Path) -> None:
        cluster = urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
        logging = f"-Dlog4j2.configurationFile={self._folder / 'log4j2.properties'}"
        tool = [java, "-Xmx128m", "-XX:TieredStopAtLevel=1", logging, "-cp", f"{jars}/*", "kafka.tools.StorageTool"]
        properties = str(self._folder / "server.properties")
        command = [*tool, "format", "--standalone", f"--cluster-id={cluster}", "-c", properties]
        if self.security is not None:
            command += self.security.format_arguments()
        ran = _run(command, _FORMAT_TIMEOUT)
        if ran.returncode:
            said = (ran.stderr or ran.stdout).strip().splitlines() or ["it said nothing"]
            raise ConfigurationError(f"Kafka's storage in {self._folder} cannot be formatted: {said[-1][:300]}")

    def _state(self) -> dict[str, Any]:
        try:
            state = json.loads((self._folder / "broker.json").read_text())
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def _write_state(self, state: dict[str, Any]) -> None:
        (self._folder / "broker.json").write_text(json.dumps(state))


def _run(command: Sequence[str], timeout: float) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def _has_ended(pid: int) -> bool:
    """Whether our child ``pid`` has ended, which lets it go. Of others' children nothing is known: False."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except (OSError, OverflowError):
            return False
    return True


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((_HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
