"""What the kernel knows of processes, and does for them."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

GLANCES = 0.1
"""Seconds between looks at what a process takes that may hang."""
_PR_SET_PDEATHSIG = 1
_SPARED = 1.5


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its ``parent`` dies. Elsewhere than on Linux its connection must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def pin(cores: Iterable[int]) -> None:
    """Keep all threads of this process, and those that they make from now on, to ``cores``."""
    cores = tuple(cores)
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped it (SIGSTOP, a debugger): it is there, and does nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):  # it is gone, or this is no Linux
        return False


def processor_s(pid: int) -> float:
    """Seconds that the first thread of a process has had the processor; 0 where that is not told."""
    try:
        told = Path(f"/proc/{pid}/task/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    user, system = told.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def hangs_after(within: float) -> float:
    """Seconds of the processor after which what may take ``within`` by the clock is taken to hang.

    The clock goes on while a busy machine has no time for it, the processor's time does not.
    """
    return max(within / 4, within - _SPARED)
