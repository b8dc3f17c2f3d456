"""That a process which was told to end does end, whatever hangs in it: a solver's thread, a broker, the event loop.

Rules.
- What is told to end has ``WITHIN`` seconds to do so in order; once it has, what is left (threads that nobody can stop)
  has ``PARTING``. Then one line says what is abandoned, and the process ends with exit code 1.
- The bound is kept by a thread, so that no hanging event loop delays it, and at last by the kernel (SIGALRM), should
  that thread not come to run, or to write its line.
- Children die with their parent: executors are told so by the kernel.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

log = logging.getLogger(__name__)

WITHIN = 17.0
PARTING = 5.0
_AT_LAST = 2
"""Seconds after its bound at which the kernel ends it."""


class Ending:
    """The bound on one process's end."""

    def __init__(self) -> None:
        self._timers: list[threading.Timer] = []
        self._told = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def told(self) -> None:
        """It was told to end. Called in the main thread; later calls change nothing."""
        if not self._told:
            self._told = True
            with suppress(RuntimeError):
                self._loop = asyncio.get_running_loop()
            if signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
                signal.alarm(int(WITHIN) + _AT_LAST)
            self._bound(WITHIN, "after it was told to end")

    def parted(self) -> None:
        """All that was to be done in order is done."""
        self._bound(PARTING, "after all else had ended")

    def over(self) -> None:
        """Nothing hangs any more, or it is for the interpreter to wait for it no longer."""
        if not hanging():
            for timer in self._timers:
                timer.cancel()
            if self._told and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
                signal.alarm(0)

    def _bound(self, seconds: float, since: str) -> None:
        timer = threading.Timer(seconds, self._abandon, (f"{seconds:g} s {since}",))
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def _abandon(self, when: str) -> None:
        threading.Timer(1.0, os._exit, (1,)).start()  # should nobody read what is logged
        log.error("ended %s; abandoned: %s", when, ", ".join([*_stages(self._loop), *hanging()]) or "nothing known")
        os._exit(1)


@contextmanager
def bounded_end() -> Iterator[Ending]:
    """The body runs the process's event loop; once it is left, so is everything that hangs."""
    ending = Ending()
    try:
        yield ending
    finally:
        ending.over()


def hanging() -> list[str]:
    """Threads that would keep this process, and where each stands in our code."""
    found = []
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread is threading.current_thread() or (thread.daemon and thread is not threading.main_thread()):
            continue
        place = _place(frames.get(thread.ident or 0))
        if place is not None:
            found.append(f"thread {thread.name} in {place}")
    return found


def _stages(loop: asyncio.AbstractEventLoop | None) -> list[str]:
    """Names of tasks that were given one."""
    with suppress(RuntimeError):  # they change while another thread looks
        tasks = asyncio.all_tasks(loop) if loop is not None else ()
        return sorted(f"stage {name}" for task in tasks if not (name := task.get_name()).startswith("Task-"))
    return []


def _place(frame: FrameType | None) -> str | None:
    """Our innermost function there; None for a thread that runs none, or only waits for its event loop."""
    if frame is None or frame.f_globals.get("__name__") == "selectors":
        return None
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith("sluicegate."):
        frame = frame.f_back
    return None if frame is None else f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}"
