"""A run in a copy of the process: what would end the process ends the copy alone.

Rules. The copy shares what is loaded and answers over a pipe; it dies with the process it was made of. A copy has the
thread that made it and no other: what runs in it must need no other, nor a lock that one may hold. Linux and CPUs only:
CUDA does not outlive a copy.
"""

import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sluicegate.executors.linux_processes import GLANCES, hangs_after, processor_s


@dataclass(frozen=True, slots=True)
class Apart:
    """What became of it: ``answer`` in bytes, or None and ``why``; ``blameless`` where somebody else ended it."""

    answer: bytes | None
    why: str = ""
    blameless: bool = False


def run_apart(answer: Callable[[], Iterable[memoryview]], begin: Callable[[], None], within: float) -> Apart:
    """``begin`` and then ``answer`` in a copy of this process, which is ended after ``within`` seconds, or sooner where
    it has been at work for all of them (``hangs_after``)."""
    try:
        reading, writing, pid = _copied()
    except OSError as error:  # nothing ran
        return Apart(None, f"its process could not be copied: {error.strerror}", blameless=True)
    if pid == 0:
        try:
            os.close(reading)
            begin()
            with os.fdopen(writing, "wb") as pipe:
                pipe.writelines(answer())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    try:
        found = _read(reading, pid, within)
    finally:
        os.close(reading)
    if found is None:
        changed, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        stopped = os.WIFSTOPPED(status)
        if stopped or not changed:  # else it has just ended by itself
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        long = f"run took more than {within:.3g} s, or {hangs_after(within):.3g} s of the processor"
        return Apart(None, "stood still" if stopped else long, blameless=stopped)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 0:
        return Apart(found)
    told = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return Apart(None, f"its process {told}", blameless=code == -signal.SIGKILL)


def _copied() -> tuple[int, int, int]:
    """Both ends of a pipe that is there in the copy too, and the copy's process id: 0 in the copy. Raises OSError."""
    reading, writing = os.pipe()
    try:
        return reading, writing, os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        raise


def _read(file: int, pid: int, within: float) -> bytes | None:
    """All of it; None where that is not there in time, by the clock or the processor's. What lies there then counts."""
    parts: list[bytes] = []
    began, hangs = time.monotonic(), hangs_after(within)
    while True:
        took = time.monotonic() - began
        wait = hangs - took if took < hangs else min(within - took, GLANCES)
        if select.select([file], [], [], max(wait, 0.0))[0]:
            part = os.read(file, 1 << 20)
            if not part:
                return b"".join(parts)
            parts.append(part)
        elif wait <= 0.0 or processor_s(pid) > hangs:
            return None
