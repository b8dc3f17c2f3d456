"""A system in a process of its own with its fronts and page, seen by who asks it, and by who attacks it."""

import json
import resource
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness import PIXELS, free_port
from tests.outside.processes import ROOT, Process, processes, settings_file

BODY = json.dumps(
    {
        "inputs": [{"name": "image", "shape": [1, PIXELS], "datatype": "FP32", "data": [0.0] * PIXELS}],
        "parameters": {"latency_ms": 9000},  # a busy machine is no fault of the front's
    }
).encode()
INFER = b"POST /v2/models/toy/infer HTTP/1.1\r\nHost: localhost\r\n"


@dataclass
class Front:
    """A process with the stages, its fronts and its page."""

    process: Process
    http: int
    web: int
    settings: list[str]
    grpc: int = 0

    def ask(self, timeout: float = 10.0) -> int:
        """Status of an honest query."""
        url = f"http://127.0.0.1:{self.http}/v2/models/toy/infer"
        honest = urllib.request.Request(url, BODY, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(honest, timeout=timeout) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def ready(self) -> bool:
        try:
            return self.ask() == 200
        except OSError:
            return False

    def said(self) -> str:
        """What it has logged since it was ready."""
        return self.process.log[self._before :]

    def settled(self) -> None:
        self._before, self._ready = len(self.process.log), time.monotonic()
        self._idle = self.resident()
        Path(f"/proc/{self.process.process.pid}/clear_refs").write_text("5")  # its most is told anew

    def asked_until_served(self) -> list[int]:
        """What was told, until it was answered: 200 comes last. 0: the connection was cut off."""
        end = time.monotonic() + 300.0
        statuses: list[int] = []
        while statuses[-1:] != [200]:
            try:
                statuses.append(self.ask())
            except (urllib.error.URLError, ConnectionError):
                statuses.append(0)
            assert time.monotonic() < end, statuses
            time.sleep(0.1)
        return statuses

    def resident(self) -> int:
        """Bytes."""
        return self._held("VmRSS")

    def cost(self) -> str:
        """What it took at most since it was ready, beside what it took then, and what it logged: within its bars."""
        most, idle = self._held("VmHWM"), self._idle
        logged = len(self.said()) / max(1.0, time.monotonic() - self._ready) * 60
        assert most <= 2 * idle, (idle, most)
        assert logged <= 1e6, self.said()[-2000:]
        return f"memory {most / idle:.2f} times idle ({idle >> 20} to {most >> 20} MiB), log {logged / 1e3:.1f} kB/min"

    def audited(self) -> str:
        """What the audit says once it was told to end, and has: nothing is wrong."""
        assert self.process.terminated(20.0) == 0, self.process.log
        command = [sys.executable, "-m", "sluicegate.sluice.main", "audit", "--json", *self.settings]
        told = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert told.returncode == 0, told.stdout + told.stderr
        report = json.loads(told.stdout)
        assert report["balanced"] and report["queries"] > 0, report
        return f"audit of {report['queries']} queries: lost {report['lost']}, duplicates {report['duplicates']}"

    def _held(self, what: str) -> int:
        lines = Path(f"/proc/{self.process.process.pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what))

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.process.pid}/fd").iterdir()))

    def connect(self, port: int | None = None) -> socket.socket:
        return socket.create_connection(("127.0.0.1", port or self.http), timeout=60.0)


@contextmanager
def _more_descriptors() -> Iterator[None]:
    """The attackers live in this process, and need some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def front(
    folder: Path, url: str = "memory://", *, descriptors: int = 0, by_grpc: bool = False, **limits: float
) -> Iterator[Front]:
    ports = {"http": free_port(), "web": free_port(), **({"grpc": free_port()} if by_grpc else {})}
    environment = {"DESCRIPTORS": str(descriptors)} if descriptors else {}
    arguments = settings_file(url, folder, **{name: {"port": port, **limits} for name, port in ports.items()})
    with processes(folder) as start, _more_descriptors():
        found = Front(start("", *arguments, **environment), settings=arguments, **ports)
        found.process.until(found.ready)
        found.settled()
        yield found


def received(sock: socket.socket, within: float) -> bytes:
    """All that comes until the other side closes. Fails where it does not within as many seconds."""
    sock.settimeout(within)
    parts = []
    try:
        while part := sock.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def all_closed(socks: list[socket.socket], within: float) -> None:
    end = time.monotonic() + within
    for sock in socks:
        received(sock, max(0.1, end - time.monotonic()))
