"""What the kernel knows of processes, and does for them."""

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its ``parent`` dies. Elsewhere than on Linux its connection must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped it (SIGSTOP, a debugger): it is there, and does nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):  # it is gone, or this is no Linux
        return False
