"""The port between asking over topics and whatever holds these topics."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

Headers = tuple[tuple[str, bytes], ...]


class Received(NamedTuple):
    """A record as it was read."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers


class Log(Protocol):
    """Topics that can be written and followed."""

    @property
    def url(self) -> str:
        """For messages, without credentials."""
        ...

    async def open(self) -> None:
        """Connect. Raises ClientError where nothing answers."""
        ...

    async def topics(self) -> frozenset[str]:
        """Names of all topics that this user may see."""
        ...

    async def send(self, topic: str, value: bytes, *, key: bytes, headers: Headers) -> None:
        """Write a record; returns once it is acknowledged."""
        ...

    async def follow(
        self, topics: Sequence[str], heard: Callable[[Received], None], *, beginning: bool
    ) -> "asyncio.Future[None] | None":
        """Hear what is written once this has returned; with ``beginning`` what was written before, too. Returns what
        raises why, should nothing be heard any more; None where that does not happen."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...
