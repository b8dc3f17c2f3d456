"""An event loop whose time is virtual and whose every order follows from its inputs.

Rules. Time stands while anything is ready and jumps to the next timer where nothing is. It starts near zero (a float at
1.7e9 cannot hold a timer's remainder; wall time is a base plus this). Threads do not exist: what is handed to one runs
at once, and its result comes after as long as ``pace`` says. Tasks and futures hash by the order in which they were
made, so that sets of them are walked alike in every run. A loop on which nothing can happen any more says so.
"""

import asyncio
import contextvars
import heapq
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
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
        self.parked: list[_Handle] = []
        self.doom: tuple[int, Callable[[], None]] | None = None

    def after_steps(self, steps: int, strike: Callable[[], None]) -> None:
        """Call ``strike`` once this has run so many more callbacks: between any two awaits, that is."""
        self.doom = (self.steps + steps, strike)


HOST: contextvars.ContextVar[Host | None] = contextvars.ContextVar("host", default=None)
"""Whose code is running: tasks, timers and callbacks inherit it."""


class _Handle:
    """A callback to come: all that ``asyncio.Handle`` and ``TimerHandle`` are asked for, and little else."""

    __slots__ = ("args", "callback", "context", "gone", "moment")

    def __init__(
        self, callback: Any, args: tuple[Any, ...], context: contextvars.Context | None, moment: float
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = contextvars.copy_context() if context is None else context
        self.moment = moment
        self.gone = False

    def cancel(self) -> None:
        """It will not run."""
        self.gone = True
        self.callback = self.args = None

    def cancelled(self) -> bool:
        """Whether it will not."""
        return self.gone

    def when(self) -> float:
        """Its moment."""
        return self.moment


class _Future(asyncio.Future[Any]):
    """Hashes by the order in which futures were first hashed: ids differ between runs."""

    def __hash__(self) -> int:
        return number_of(self)


class _Task(asyncio.Task[Any]):
    """Hashes as futures do."""

    def __hash__(self) -> int:
        return number_of(self)


def number_of(future: Any) -> int:
    """What it hashes by."""
    try:
        return int(future._number)
    except AttributeError:
        future._number = next(future.get_loop().numbers)
        return int(future._number)


class VirtualLoop(asyncio.BaseEventLoop):
    """``pace``: seconds that work in a thread takes, given its function."""

    def __init__(self, pace: Callable[[Callable[..., Any]], float]) -> None:
        super().__init__()
        self._now = 1000.0
        self._pace = pace
        self._order = count()
        self._timers: list[tuple[float, int, _Handle]] = []
        self.numbers = count()
        self.steps = 0
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        """Seconds of virtual time."""
        return self._now

    def create_future(self) -> asyncio.Future[Any]:
        """A future with a hash of its own."""
        return _Future(loop=self)

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

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        """As any loop's."""
        handle = _Handle(callback, args, context, self._now)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        """As any loop's; the timer belongs to its host."""
        handle = _Handle(callback, args, context, when)
        heapq.heappush(self._timers, (when, next(self._order), handle))
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        """As any loop's."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def resume(self, host: Host) -> None:
        """What waited while ``host`` stood still runs now, in order."""
        host.paused = False
        parked, host.parked = host.parked, []
        self._ready.extend(handle for handle in parked if not handle.gone)

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready:
            while timers and timers[0][2].gone:
                heapq.heappop(timers)
            if not timers:
                raise StalledError("no timer is set and nothing is ready")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.gone:
                self._call(handle)

    def _call(self, handle: _Handle) -> None:
        host = handle.context.get(HOST)
        if host is not None:
            if host.doom is not None and host.steps >= host.doom[0]:
                _, strike = host.doom
                host.doom = None
                strike()
            if host.dead:
                return
            if host.paused:
                host.parked.append(handle)
                return
            host.steps += 1
        self.steps += 1
        try:
            handle.context.run(handle.callback, *handle.args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.call_exception_handler({"message": f"{handle.callback!r} failed", "exception": error})

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return _Task(coro, loop=loop, **options)

    def abandon(self) -> None:
        """Close without waiting for who still waits: processes that died leave tasks that never end."""
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.close()


@contextmanager
def virtual(loop: VirtualLoop, seed: int) -> Iterator[None]:
    """Clocks and made-up ids come from the loop and the seed meanwhile. Only for code that asks for time by module."""
    rng = Random(seed)
    held = (time.time, time.monotonic, time.perf_counter, os.urandom)
    time.time = lambda: BASE + loop.time()
    time.monotonic = time.perf_counter = loop.time
    os.urandom = rng.randbytes
    try:
        yield
    finally:
        time.time, time.monotonic, time.perf_counter, os.urandom = held


class ClockedLoop(VirtualLoop):
    """A virtual loop that the clocks of its process follow until it is closed. Work in a thread takes ``PACE``."""

    PACE = 0.01

    def __init__(self, seed: int) -> None:
        super().__init__(lambda _: self.PACE)
        self._clocks = ExitStack()
        self._clocks.enter_context(virtual(self, seed))

    def _start_serving(self, *_: Any, **__: Any) -> None:
        """Doors may be opened; nobody comes."""

    async def sock_accept(self, sock: socket.socket) -> Any:
        """Not here either."""
        await self.create_future()

    def remove_reader(self, fd: Any) -> bool:
        """None was added."""
        return False

    def _stop_serving(self, sock: socket.socket) -> None:
        sock.close()

    def close(self) -> None:
        """Give the clocks back."""
        super().close()
        self._clocks.close()


def run(loop: VirtualLoop, main: Callable[[], Any], seed: int) -> Any:
    """Run ``main()`` to its end under virtual time, then leave whatever still waits."""
    asyncio.set_event_loop(loop)
    with virtual(loop, seed):
        try:
            return contextvars.copy_context().run(loop.run_until_complete, main())
        finally:
            asyncio.set_event_loop(None)
            loop.abandon()
