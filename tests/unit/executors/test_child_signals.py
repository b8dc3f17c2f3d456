"""The child that runs models: it leaves signals to its parent, runs its parent's code, and knows what it takes."""

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sluicegate
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
