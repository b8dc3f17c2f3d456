"""What aiokafka does while no broker answers, bounded: it asks for metadata and tells of it many times a second, and
keeps what was sent without an end."""

import asyncio
import logging
import time
from typing import Any

from aiokafka.errors import KafkaError

LOGGERS = tuple(
    logging.getLogger(f"aiokafka{name}")
    for name in ("", ".cluster", ".conn", ".consumer.fetcher", ".consumer.group_coordinator", ".producer.sender")
)
"""Those that tell of it."""
_REFRESH_EVERY = 0.1


class Seldom:
    """A filter that lets the same message of a logger pass once in ``every`` seconds."""

    def __init__(self, every: float = 5.0) -> None:
        self._every = every
        self._last: dict[str, float] = {}

    def __call__(self, record: logging.LogRecord) -> bool:
        """Whether to let it pass. The message before its arguments counts, of which there are not many."""
        now = time.monotonic()
        if now - self._last.get(str(record.msg), -self._every) < self._every:
            return False
        self._last[str(record.msg)] = now
        return True


def speak_seldom() -> None:
    """Keep aiokafka from filling logs."""
    for logger in LOGGERS:
        if not any(isinstance(known, Seldom) for known in logger.filters):
            logger.addFilter(Seldom())


def refresh_seldom(client: Any) -> None:
    """Have ``client`` ask the brokers for metadata ten times a second at most; who asks meanwhile is told of the next.

    aiokafka's sender asks again at once while a partition has no leader, and takes a processor where none answers.
    """
    refresh = client.force_metadata_update
    last = -_REFRESH_EVERY
    waiting: asyncio.Future[Any] | None = None

    def ask() -> Any:
        nonlocal last
        last = asyncio.get_running_loop().time()
        return refresh()

    def ask_for(waiter: "asyncio.Future[Any]") -> None:
        ask().add_done_callback(lambda asked: None if waiter.done() else waiter.set_result(asked.result()))

    def seldom() -> Any:
        nonlocal waiting
        loop = asyncio.get_running_loop()
        if waiting is None or waiting.done():
            if loop.time() >= last + _REFRESH_EVERY:
                return ask()
            waiting = loop.create_future()
            loop.call_at(last + _REFRESH_EVERY, ask_for, waiting)
        return asyncio.shield(waiting)

    client.force_metadata_update = seldom


def give_up(producer: Any) -> int:
    """Fail all that a producer still holds, whether it waits to be sent or to be acknowledged. Returns how many records
    that are. Its sender must have ended."""
    accumulator = producer._message_accumulator
    waiting = [batch for batches in accumulator._batches.values() for batch in batches]
    accumulator._pending_batches.update(waiting)  # each batch is taken out of there as it ends
    count = sum(int(batch.record_count) for batch in accumulator._pending_batches)
    accumulator.fail_all(KafkaError("the producer was stopped before it was acknowledged"))
    see_given_up(producer)
    return count


def see_given_up(producer: Any) -> None:
    """What batches that a producer gave up wait for: seen, so that the loop does not complain that nobody asked."""
    for batches in producer._message_accumulator._batches.values():
        for batch in batches:
            if batch._drain_waiter.done():
                batch._drain_waiter.exception()


async def cut_off(consumer: Any) -> None:
    """End what a client left behind: while the broker is away, its fetches may cancel the stop that cancels them."""
    left = set(consumer._fetcher._pending_tasks) if consumer._fetcher is not None else set()
    if consumer._coordinator is not None:
        named = ("_coordination_task", "_heartbeat_task", "_commit_refresh_task", "_reset_committed_task")
        left |= {task for name in named if (task := getattr(consumer._coordinator, name, None)) is not None}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await consumer._client.close()
