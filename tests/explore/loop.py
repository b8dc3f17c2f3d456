"""An event loop whose time is virtual and whose every order follows from its inputs.

Rules. Time stands while anything is ready and jumps to the next timer where nothing is. It starts near zero (a float at
1.7e9 cannot hold a timer's remainder; wall time is a base plus this). Threads do not exist: what is handed to one runs
at once, and its result comes after as long as ``pace`` says. Tasks and futures hash by the order in which they were
made, so that sets of them are walked alike in every run. A loop on which nothing can happen any more says so.
"""

import asyncio
import contextvars
import heapq
import selectors
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any

BASE = 1.7e9
"""Wall clock at loop time 0."""


class StalledError(RuntimeError):
    """Everybody waits, and for nobody."""


class Host:
    """What can stand still or die: a process, whose callbacks wait or are never run."""

    def __init__(self) -> None:
        self.dead = False
        self.paused = False
        self.steps = 0
        self.parked: list[asyncio.Handle] = []
        self.doom: tuple[int, Callable[[], None]] | None = None

    def after_steps(self, steps: int, strike: Callable[[], None]) -> None:
        """Call ``strike`` once this has run so many more callbacks: between any two awaits, that is."""
        self.doom = (self.steps + steps, strike)


HOST: contextvars.ContextVar[Host | None] = contextvars.ContextVar("host", default=None)
"""Whose code is running: tasks, timers and callbacks inherit it."""


def _held_back(handle: asyncio.Handle) -> bool:
    host = handle._context.get(HOST)  # type: ignore[attr-defined]
    if host is None:
        return False
    if host.doom is not None and host.steps >= host.doom[0]:
        _, strike = host.doom
        host.doom = None
        strike()
    if host.dead:
        return True
    if host.paused:
        host.parked.append(handle)
        return True
    host.steps += 1
    return False


class _Handle(asyncio.Handle):
    def _run(self) -> None:
        if not _held_back(self):
            super()._run()


class _Timer(asyncio.TimerHandle):
    def _run(self) -> None:
        if not _held_back(self):
            super()._run()


class _Future(asyncio.Future[Any]):
    def __init__(self, number: int, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._number = number

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    def __init__(self, number: int, coro: Any, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class _Nothing(selectors.SelectSelector):
    """No file is ever ready but the loop's own wake-up, which only foreign threads use."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[Any]:
        """Let time pass."""
        if timeout is None:
            raise StalledError("no timer is set and nothing is ready")
        if timeout > 0:
            self._advance(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """``pace``: seconds that work in a thread takes, given its function."""

    def __init__(self, pace: Callable[[Callable[..., Any]], float]) -> None:
        self._now = 1000.0
        self._pace = pace
        self._numbers = count()
        self.steps = 0
        super().__init__(_Nothing(self._pass))
        self._clock_resolution = 1e-9
        self.set_task_factory(self._make_task)
        self.slow_callback_duration = float("inf")

    def time(self) -> float:
        """Seconds of virtual time."""
        return self._now

    def create_future(self) -> asyncio.Future[Any]:
        """A future with a hash of its own."""
        return _Future(next(self._numbers), loop=self)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run it now; its result comes later."""
        del executor
        answer = self.create_future()
        try:
            outcome, failure = func(*args), None
        except Exception as error:
            outcome, failure = None, error

        def settle() -> None:
            if answer.done():
                return
            if failure is not None:
                answer.set_exception(failure)
            else:
                answer.set_result(outcome)

        self.call_later(self._pace(func), settle)
        return answer

    def _call_soon(self, callback: Any, args: Any, context: Any) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        """As any loop's; the timer belongs to its host."""
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def resume(self, host: Host) -> None:
        """What waited while ``host`` stood still runs now, in order."""
        host.paused = False
        parked, host.parked = host.parked, []
        self._ready.extend(handle for handle in parked if not handle._cancelled)

    def _pass(self, seconds: float) -> None:
        self._now += seconds
        self.steps += 1

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return _Task(next(self._numbers), coro, loop=loop, **options)

    def abandon(self) -> None:
        """Close without waiting for who still waits: processes that died leave tasks that never end."""
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.close()


@contextmanager
def virtual(loop: VirtualLoop, seed: int) -> Iterator[None]:
    """Clocks and made-up ids come from the loop and the seed meanwhile. Only for code that asks for them by module."""
    rng = Random(seed)
    held = (time.time, time.monotonic, time.perf_counter, uuid.uuid4)
    time.time = lambda: BASE + loop.time()
    time.monotonic = time.perf_counter = loop.time
    uuid.uuid4 = lambda: uuid.UUID(int=rng.getrandbits(128), version=4)
    try:
        yield
    finally:
        time.time, time.monotonic, time.perf_counter, uuid.uuid4 = held


def run(loop: VirtualLoop, main: Callable[[], Any], seed: int) -> Any:
    """Run ``main()`` to its end under virtual time, then leave whatever still waits."""
    asyncio.set_event_loop(loop)
    with virtual(loop, seed):
        try:
            return contextvars.copy_context().run(loop.run_until_complete, main())
        finally:
            asyncio.set_event_loop(None)
            loop.abandon()
