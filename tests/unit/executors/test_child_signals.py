"""The child that runs models: it leaves signals to its parent, runs its parent's code, knows what it takes, and
outlives a copy that it may not make."""

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import sluicegate
from sluicegate.executors.onnx.child import Child
from sluicegate.executors.onnx.framing import (
    PREFIX,
    Header,
    lengths,
    pack,
    parse_header,
    receive_blocking,
    send_blocking,
)
from sluicegate.executors.onnx.sessions import resident_bytes


def test_importing_the_childs_module_ignores_no_signal() -> None:
    asked = (
        "import signal; before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]; "
        "import sluicegate.executors.onnx.child; "
        "print(before == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)])"
    )

    def usual() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, preexec_fn=usual)
    assert told.stdout.strip() == "True"


def test_a_childs_code_is_that_of_whoever_starts_it() -> None:
    child = [sys.executable, "-P", "-m", "sluicegate.executors.onnx.child", "no number"]
    ended = subprocess.run(child, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert f'File "{Path(sluicegate.__file__).parent / "executors/onnx/child.py"}"' in ended.stderr


def test_resident_memory_is_counted_in_pages_of_whatever_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_: "100 7 3 1 0 50 0")
    for size in (4096, 65536):
        monkeypatch.setattr(resource, "getpagesize", lambda size=size: size)
        assert resident_bytes() == 7 * size


def received(sock: socket.socket) -> Header:
    prefix = memoryview(bytearray(PREFIX.size))
    assert receive_blocking(sock, prefix)
    head = memoryview(bytearray(lengths(prefix)[0]))
    receive_blocking(sock, head)
    return parse_header(head)


@pytest.mark.parametrize(("call", "code"), [("fork", errno.EAGAIN), ("fork", errno.ENOMEM), ("pipe", errno.EMFILE)])
def test_a_copy_that_cannot_be_made_is_no_fault_of_what_was_to_run_in_it(
    monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    def refused() -> int:
        raise OSError(code, os.strerror(code))

    class Empty:
        def run(self, *_: object) -> tuple[dict[str, object], float, float]:
            return {}, 0.0, 0.0

    child = Child()
    child._copies, child._sessions = True, Empty()
    run: Header = {"op": "run", "variant": "m", "rows": 1}
    parent, served = socket.socketpair()
    with parent, served:
        send_blocking(parent, [*pack({"id": 1, "apart": 2.0} | run), *pack({"id": 2} | run)])
        parent.shutdown(socket.SHUT_WR)
        held = len(list(Path("/proc/self/fd").iterdir()))
        with monkeypatch.context() as patched:
            patched.setattr(os, call, refused)
            child.serve(served)
        assert len(list(Path("/proc/self/fd").iterdir())) == held
        told = f"m: its process could not be copied: {os.strerror(code)}"
        assert received(parent) == {"id": 1, "ok": False, "error": told, "apart": True, "blameless": True}
        answered = received(parent)
        assert (answered["id"], answered["ok"]) == (2, True)
    assert child._loading.acquire(blocking=False)
