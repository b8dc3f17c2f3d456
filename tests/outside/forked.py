"""Processes of ``sluice`` that begin as forks of one that has imported everything: most of a short one's life is that.

``subprocess.Popen`` of ``begun_by_fork`` asks a host, one of each process of the suite, for what would be started as
``python -m sluicegate.sluice.main …``; what is started in any other way begins anew. A fork is a child of the asking
process as any other, with its own session, files, folder, variables and limits; what it runs is the main module, anew.
``--begin-anew`` (``make test-all``) has each import everything itself.
"""

import contextlib
import ctypes
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
_ALSO = ("sluicegate.sluice.system.process_stages", "sluicegate.sluice.system.process")
_ROOT = Path(__file__).resolve().parents[2]
_OWN = ("SLUICE_", "PYTEST_", "OTEL_")
_HARMLESS = {"HOME", "PATH", "PWD", "PYTHONPATH", "TESTS_SKIPPED"}
_SUBREAPER = 36
_STREAMS = 3
_PREFIX = 8


def _command(arguments: object) -> tuple[list[str], tuple[int, int] | None] | None:
    """What ``sluice`` is told, and how many files it may open; None: it is not ``sluice`` that is started."""
    if not isinstance(arguments, list | tuple):
        return None
    words = [os.fsdecode(word) for word in arguments]
    limit = None
    if words[:1] == ["prlimit"] and words[1].startswith("--nofile="):
        soft, _, hard = words[1].removeprefix("--nofile=").partition(":")
        limit, words = (int(soft), int(hard)), words[2:]
    if words[:1] == [str(Path(sys.executable).with_name("sluice"))]:
        return words[1:], limit
    if words[:1] == [sys.executable]:
        words = words[2:] if words[1:2] == ["-P"] else words[1:]
        if words[:2] == ["-m", _MAIN]:
            return words[2:], limit
    return None


def _is_alike(environment: Mapping[str, str]) -> bool:
    """Whether what was imported would be so in ``environment`` too."""
    return all(
        os.environ.get(name) == environment.get(name)
        for name in {*environment, *os.environ} - _HARMLESS
        if not name.startswith(_OWN)
    )


class _Forked(subprocess.Popen[Any]):
    """As any, but where the host can begin it."""

    host: "_Host"

    def _execute_child(self, *given: Any) -> None:
        whole = super()._execute_child  # type: ignore[misc]  # private, and the only place where it can be said
        asked = inspect.signature(whole).bind(*given).arguments
        command = _command(asked["args"])
        environment = dict(os.environ if asked["env"] is None else asked["env"])
        plain = not (asked["shell"] or asked["preexec_fn"] or asked["pass_fds"] or asked["executable"])
        if command is None or not plain or not _is_alike(environment):
            whole(*given)
            return
        ends = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        words, limit = command
        self.pid = self.host.begin(
            {
                "words": words,
                "limit": limit,
                "folder": os.fsdecode(asked["cwd"] or Path.cwd()),
                "environment": environment,
                "session": asked["start_new_session"],
            },
            [number if end == -1 else end for number, end in enumerate(ends)],
        )
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in pipes))  # type: ignore[attr-defined]


class _Host:
    """The process that forks, seen by who asks it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._one_at_a_time = threading.Lock()

    def begin(self, asked: Mapping[str, Any], streams: Sequence[int]) -> int:
        """The id of a child of this process that does so."""
        with self._one_at_a_time:
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
        command = [sys.executable, "-P", __file__, str(number)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
        self._process = subprocess.Popen(
            command, cwd=_ROOT, env=environment, pass_fds=[number], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        there.close()
        return self._socket


@contextlib.contextmanager
def begun_by_fork() -> Iterator[None]:
    """Within it ``subprocess.Popen`` forks what it can."""
    host, before = _Host(), subprocess.Popen
    subprocess.Popen = type("Popen", (_Forked,), {"host": host})  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = before  # type: ignore[misc]
        host.close()


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
        length, streams, _, _ = socket.recv_fds(asking, _PREFIX, _STREAMS)
        if not length:
            sys.exit(0)
        length += _exactly(asking, _PREFIX - len(length))
        asked = json.loads(_exactly(asking, int.from_bytes(length, "big")))
        told, tells = os.pipe()
        between = os.fork()
        if not between:
            pid = os.fork()
            if not pid:
                _become(asked, streams)
                return
            os.write(tells, pid.to_bytes(_PREFIX, "big"))
            os._exit(0)
        os.waitpid(between, 0)  # from now on it is the child of who asks
        asking.sendall(os.read(told, _PREFIX))
        for number in (told, tells, *streams):
            os.close(number)


def _become(asked: Mapping[str, Any], streams: Sequence[int]) -> None:
    if asked["session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(_STREAMS, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    if asked["limit"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, asked["limit"])
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = [_MAIN, *asked["words"]]


def main() -> None:
    """Import everything, then be what is asked for."""
    asking = socket.socket(fileno=int(sys.argv[1]))
    commands = importlib.import_module(_MAIN).COMMANDS.values()
    for name in (*(f"sluicegate.sluice.commands.{command}" for command in commands), *_ALSO):
        importlib.import_module(name)
    del sys.modules[_MAIN]
    gc.collect()
    gc.freeze()
    _serve(asking)
    asking.detach()
    runpy.run_module(_MAIN, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
