"""Sends that end well: each record is sent again until the broker acknowledges it, and only then is its cause told.

Nobody awaits a send: acknowledgements come by callback. What is unacknowledged is counted, so that a stage can stop
reading while the broker does not answer.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from domain.errors import InvalidInputError
from streams.ports import Headers, Producer, Written

log = logging.getLogger(__name__)

_FIRST_RETRY = 0.1
_LAST_RETRY = 2.0


class Outbox:
    """One a stage, over the process's shared producer."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._retries: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.unacknowledged = 0

    async def put(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
        done: Callable[[], None] | None = None,
    ) -> None:
        """Send; ``done`` is called once the broker has acknowledged. Waits only while the send buffer is full.

        A record over the broker's size limit raises InvalidInputError: it can never be sent.
        """
        self.unacknowledged += 1
        self._idle.clear()

        async def send() -> Awaitable[Written]:
            return await self._producer.send(
                topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
            )

        try:
            pending = asyncio.ensure_future(await send())
        except InvalidInputError:
            self._settle(None)
            raise
        except Exception as error:  # the client's own errors are many; each means: not sent, try again
            self._retry_later(send, topic, done, error)
            return
        if pending.done() and not pending.cancelled() and pending.exception() is None:
            self._settle(done)
            return
        pending.add_done_callback(lambda future: self._acknowledged(future, send, topic, done))

    async def flush(self) -> None:
        """Wait until all is acknowledged."""
        await self._idle.wait()

    def _acknowledged(
        self,
        future: "asyncio.Future[Written]",
        send: Callable[[], Awaitable[Awaitable[Written]]],
        topic: str,
        done: Callable[[], None] | None,
    ) -> None:
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or error is not None:
            self._retry_later(send, topic, done, error)
        else:
            self._settle(done)

    def _settle(self, done: Callable[[], None] | None) -> None:
        self.unacknowledged -= 1
        if not self.unacknowledged:
            self._idle.set()
        if done is not None:
            done()

    def _retry_later(
        self,
        send: Callable[[], Awaitable[Awaitable[Written]]],
        topic: str,
        done: Callable[[], None] | None,
        error: BaseException | None,
    ) -> None:
        log.warning("send to %s failed (%s); sending again", topic, error or "cancelled")
        task = asyncio.get_running_loop().create_task(self._retry(send, topic, done))
        self._retries.add(task)
        task.add_done_callback(self._retries.discard)

    async def _retry(
        self, send: Callable[[], Awaitable[Awaitable[Written]]], topic: str, done: Callable[[], None] | None
    ) -> None:
        pause = _FIRST_RETRY
        while True:
            await asyncio.sleep(pause)
            try:
                await (await send())
            except asyncio.CancelledError:
                raise
            except Exception as error:  # as in put: every error means not sent
                pause = min(2 * pause, _LAST_RETRY)
                log.warning("send to %s failed again (%s); next try in %.1f s", topic, error, pause)
            else:
                self._settle(done)
                return
