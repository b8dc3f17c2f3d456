"""What the broker is asked for once, and may not answer for a moment: asked again, where that ended the process."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from sluicegate.streams.ports import BrokerError

log = logging.getLogger(__name__)

_RETRY = 0.5

T = TypeVar("T")


async def patiently(ask: Callable[[], Awaitable[T]], what: str, over: asyncio.Event) -> T | None:
    """What ``ask`` returns, asked again while it raises BrokerError. None: it failed, and ``over`` was set."""
    while True:
        try:
            return await ask()
        except BrokerError as error:
            if over.is_set():
                return None
            log.warning("%s: %s; trying again", what, error)
        with suppress(TimeoutError):
            async with asyncio.timeout(_RETRY):
                await over.wait()
