"""Processes of ours that begin as forks of one that has imported everything: most of a short one's life is that.

``subprocess.Popen`` of ``begun_by_fork`` asks a host for what would be ``python -m sluicegate.sluice.main …`` or one of
the processes beside a stage (models, their variants, plans); what is started in any other way begins anew. Each process
of the suite has a host for each of these and each set of variables. A fork is a child of the asking process as any
other, with its own session, files, folder, variables and limits; what it runs is the main module, anew.
``--begin-anew`` (``make test-thorough``) has each import everything itself.
"""

import contextlib
import ctypes
import fcntl
import gc
import importlib
import inspect
import json
import os
import resource
import runpy
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_MAIN = "sluicegate.sluice.main"
_SOLVER = "sluicegate.stages.planner.solver_process"
_CHILD = "sluicegate.executors.onnx.child"
_VARIANTS = "sluicegate.executors.onnx.variant_child"
_ALSO = {
    _MAIN: ("sluicegate.sluice.system.process_stages", "sluicegate.sluice.system.process"),
    _SOLVER: (),
    _CHILD: ("sluicegate.executors.onnx.sessions",),
    _VARIANTS: (
        "sluicegate.executors.onnx.sessions",
        "sluicegate.profiles.registration.batch_axis",
        "sluicegate.profiles.registration.model_checks",
        "sluicegate.profiles.registration.recipes",
    ),
}
"""What runs, and what else it imports in the end."""
_ROOT = Path(__file__).resolve().parents[2]
_OWN = ("SLUICE_", "PYTEST_", "OTEL_")
_HARMLESS = {"HOME", "PATH", "PWD", "PYTHONPATH", "TESTS_SKIPPED", "TMPDIR"}
_SUBREAPER = 36
_STREAMS = 3
_MOST = 16
"""Files that a process is given, at most."""
_PREFIX = 8
_ONE_AT_A_TIME = threading.Lock()
"""Who adopts forks is said of the whole process."""
_ANEW = subprocess.Popen


def _command(arguments: object) -> tuple[str, list[str], tuple[int, int] | None] | None:
    """Which module runs, what it is told and how many files it may open; None: it is none of ours."""
    if not isinstance(arguments, list | tuple):
        return None
    words = [os.fsdecode(word) for word in arguments]
    limit = None
    if words[:1] == ["prlimit"] and words[1].startswith("--nofile="):
        soft, _, hard = words[1].removeprefix("--nofile=").partition(":")
        limit, words = (int(soft), int(hard)), words[2:]
    if words[:1] == [str(Path(sys.executable).with_name("sluice"))]:
        return _MAIN, words[1:], limit
    if words[:1] == [sys.executable]:
        words = words[2:] if words[1:2] == ["-P"] else words[1:]
        if words[:1] == ["-m"] and words[1] in _ALSO:
            return words[1], words[2:], limit
    return None


def _imported_in(environment: Mapping[str, str]) -> dict[str, str]:
    """Of ``environment`` what may change what is imported."""
    return {n: said for n, said in environment.items() if n not in _HARMLESS and not n.startswith(_OWN)}


class _Forked(subprocess.Popen[Any]):
    """As any, but where the host can begin it."""

    hosts: "_Hosts"

    def _execute_child(self, *given: Any) -> None:
        whole = super()._execute_child  # type: ignore[misc]  # private, and the only place where it can be said
        asked = inspect.signature(whole).bind(*given).arguments
        command = _command(asked["args"])
        environment = dict(os.environ if asked["env"] is None else asked["env"])
        plain = not (asked["shell"] or asked["preexec_fn"] or asked["executable"])
        host = None if command is None or not plain else self.hosts.of(command[0], environment)
        if command is None or host is None:
            whole(*given)
            return
        ends = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        _, words, limit = command
        kept = sorted(asked["pass_fds"])
        self.pid = host.begin(
            {
                "kept": kept,
                "words": words,
                "limit": limit,
                "folder": os.fsdecode(asked["cwd"] or Path.cwd()),
                "environment": environment,
                "session": asked["start_new_session"],
            },
            [*(number if end == -1 else end for number, end in enumerate(ends)), *kept],
        )
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in pipes))  # type: ignore[attr-defined]


@contextlib.contextmanager
def begun_anew() -> Iterator[None]:
    """Within it nothing is forked: for what counts on how long a process takes to begin, or on what it maps."""
    before, subprocess.Popen = subprocess.Popen, _ANEW  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = before  # type: ignore[misc]


class _Hosts:
    """The processes that fork, by what they imported in which variables."""

    def __init__(self) -> None:
        self._hosts: dict[tuple[str, frozenset[tuple[str, str]]], _Host] = {}

    def of(self, module: str, environment: Mapping[str, str]) -> "_Host | None":
        """The one that has imported ``module`` so, there from now on; None: ``sluice`` in variables of its own."""
        wanted = _imported_in(environment)
        if module == _MAIN and wanted != _imported_in(os.environ):
            return None
        key = module, frozenset(wanted.items())
        # Where this process imports from, a host does.
        paths = {n: said for n in ("PATH", "PYTHONPATH") if (said := os.environ.get(n)) is not None}
        return self._hosts.setdefault(key, _Host(module, {**wanted, **paths}))

    def close(self) -> None:
        """End them."""
        for host in self._hosts.values():
            host.close()


class _Host:
    """The process that forks, seen by who asks it."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._module = module
        self._environment = environment
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, asked: Mapping[str, Any], streams: Sequence[int]) -> int:
        """The id of a child of this process that does so."""
        with _ONE_AT_A_TIME:
            return self._begin(json.dumps(asked).encode(), streams)

    def _begin(self, said: bytes, streams: Sequence[int]) -> int:
        here = self._socket or self._start()
        libc = ctypes.CDLL(None)
        libc.prctl(_SUBREAPER, 1, 0, 0, 0)  # whose parent ends is ours from now on: a fork of a fork
        try:
            socket.send_fds(here, [len(said).to_bytes(_PREFIX, "big")], list(streams))
            here.sendall(said)
            return int.from_bytes(_exactly(here, _PREFIX), "big")
        finally:
            libc.prctl(_SUBREAPER, 0, 0, 0, 0)

    def close(self) -> None:
        """End it."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()
            self._socket = None

    def _start(self) -> socket.socket:
        self._socket, there = socket.socketpair()
        number = there.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, self._module, str(number)],
            cwd=_ROOT,
            env=self._environment,
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        there.close()
        return self._socket


@contextlib.contextmanager
def begun_by_fork() -> Iterator[None]:
    """Within it ``subprocess.Popen`` forks what it can."""
    hosts, before = _Hosts(), subprocess.Popen
    subprocess.Popen = type("Popen", (_Forked,), {"hosts": hosts})  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = before  # type: ignore[misc]
        hosts.close()


def _exactly(source: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = source.recv(count - len(found))
        if not part:
            raise EOFError
        found += part
    return found


def _serve(asking: socket.socket) -> None:
    """Fork for each that is asked for; returns in the fork, and where nobody asks any more ends."""
    while True:
        length, streams, _, _ = socket.recv_fds(asking, _PREFIX, _MOST)
        if not length:
            sys.exit(0)
        length += _exactly(asking, _PREFIX - len(length))
        asked = json.loads(_exactly(asking, int.from_bytes(length, "big")))
        told, tells = os.pipe()
        waits, lets_go = os.pipe()
        between = os.fork()
        if not between:
            os.close(lets_go)
            pid = os.fork()
            if not pid:
                os.read(waits, 1)
                _become(asked, streams)
                return
            os.write(tells, pid.to_bytes(_PREFIX, "big"))
            os._exit(0)
        os.waitpid(between, 0)  # from now on it is the child of who asks, and may look who that is
        os.close(lets_go)
        asking.sendall(os.read(told, _PREFIX))
        for number in (told, tells, waits, *streams):
            os.close(number)


def _become(asked: Mapping[str, Any], given: Sequence[int]) -> None:
    if asked["session"]:
        os.setsid()
    wanted = [*range(_STREAMS), *asked["kept"]]
    above = max(*wanted, *given) + 1
    aside = [fcntl.fcntl(number, fcntl.F_DUPFD, above) for number in given]
    for number, at in zip(aside, wanted, strict=True):
        os.dup2(number, at)
    following = [*wanted[_STREAMS:], resource.getrlimit(resource.RLIMIT_NOFILE)[0]]
    for before, after in zip([_STREAMS - 1, *wanted[_STREAMS:]], following, strict=True):
        os.closerange(before + 1, after)
    if asked["limit"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, asked["limit"])
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = [sys.argv[1], *asked["words"]]


def main() -> None:
    """Import everything, then be what is asked for."""
    module, number = sys.argv[1:]
    asking = socket.socket(fileno=int(number))
    names = [*_ALSO[module]]
    main_module = importlib.import_module(module)
    if module == _MAIN:
        names += [f"sluicegate.sluice.commands.{command}" for command in main_module.COMMANDS.values()]
    for name in names:
        importlib.import_module(name)
    del sys.modules[module], main_module
    gc.collect()
    gc.freeze()
    _serve(asking)
    asking.detach()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
