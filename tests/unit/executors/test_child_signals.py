"""Signals and the child that runs models: only the child itself leaves them to its parent."""

import signal
import subprocess
import sys


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
