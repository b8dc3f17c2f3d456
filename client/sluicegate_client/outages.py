"""What aiokafka does many times a second while no broker answers, made seldom: to ask for metadata, to tell of it."""

import asyncio
import logging
import time
from typing import Any

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
