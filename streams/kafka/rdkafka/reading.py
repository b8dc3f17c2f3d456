"""The thread of a consumer: it waits for what librdkafka has fetched, and serves what the client calls back.

Rules. The loop asks, at most one question at a time, and is woken once for all that came. The library calls back, of
partitions that a group gives and takes, only while something is waited for; what is done for that on the loop is waited
for here. All that the loop asks of the library is done in this thread too: in another it would stand still for as long
as the library calls back. Where nothing is asked for ``IDLE_S``, the loop is told: it may ask on behalf of the group.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from sluicegate.streams.kafka.rdkafka.connection import tell

Result = TypeVar("Result")

IDLE_S = 1.0
_LOOK = 0.25
"""Seconds after which the thread looks whether there is something else to do than to wait."""


class Ask:
    """One question: at most ``most`` messages, until ``until`` (monotonic seconds), which may be moved."""

    __slots__ = ("answer", "look", "most", "until")

    def __init__(self, wait: float, most: int, look: float = _LOOK) -> None:
        self.until = time.monotonic() + wait
        self.most = most
        self.look = look
        self.answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()


class Reading:
    """The thread that reads ``inner``, a consumer of the library. ``idle`` is called by the loop; None: never."""

    def __init__(self, inner: Any, idle: Callable[[], None] | None) -> None:
        self._inner = inner
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._asks: queue.SimpleQueue[Ask | None] = queue.SimpleQueue()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._ends = False
        self.ended: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._run, name="sluice-reading", daemon=True).start()

    def ask(self, ask: Ask) -> None:
        """Put a question."""
        self._asks.put(ask)

    async def do(self, work: Callable[[], Result]) -> Result:
        """What ``work`` gives, which waits for the broker."""
        found: asyncio.Future[Result] = self._loop.create_future()

        def run() -> None:
            try:
                result = work()
            except Exception as error:
                tell(self._loop, _give, found, None, error)
            else:
                tell(self._loop, _give, found, result, None)

        self.post(run)
        either: list[asyncio.Future[Any]] = [found, self.ended]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not found.done():
            raise RuntimeError("the consumer was stopped")
        return found.result()

    def post(self, work: Callable[[], None]) -> None:
        """Have it done there, as soon as may be."""
        self._work.put(work)
        self._asks.put(None)

    def wait_for(self, work: Coroutine[Any, Any, None]) -> None:
        """Called in the thread: have the loop do ``work``, and meanwhile what it asks for."""
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        done.add_done_callback(lambda _: self._work.put(None))
        while not done.done():
            if (asked := self._work.get()) is not None:
                asked()
        done.result()

    def end(self) -> None:
        """Leave the group and disconnect, once what is waited for has come."""
        self._ends = True
        self._asks.put(None)

    def _run(self) -> None:
        while not self._ends:
            try:
                ask = self._asks.get(timeout=None if self._idle is None else IDLE_S)
            except queue.Empty:
                assert self._idle is not None
                tell(self._loop, self._idle)
                continue
            self._do_all()
            if ask is not None:
                tell(self._loop, _give, ask.answer, *self._read(ask))
        with suppress(KafkaException, RuntimeError):
            self._inner.close()
        tell(self._loop, _give, self.ended, None, None)

    def _do_all(self) -> None:
        while not self._work.empty():
            if (asked := self._work.get()) is not None:
                asked()

    def _read(self, ask: Ask) -> tuple[list[Any], Exception | None]:
        found: list[Any] = []
        try:
            while not self._ends:
                message = self._inner.poll(max(0.0, min(ask.look, ask.until - time.monotonic())))
                if message is not None:
                    found.append(message)
                    if not _at_the_end(message):  # the end of a partition wakes nobody
                        found += self._inner.consume(max(0, ask.most - len(found)), 0)
                        break
                elif time.monotonic() >= ask.until:
                    break
                self._do_all()
        except Exception as error:
            return found, error
        return found, None


def _at_the_end(message: Any) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def _give(answer: "asyncio.Future[Any]", found: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(found)
