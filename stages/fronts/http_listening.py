"""Listening for connections, and taking them in: no more are on their way in than there are descriptors for.

asyncio's own server takes as many at a time as may wait, over and over, before one of them is looked at, and logs a
traceback for each that there is no descriptor for.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger(__name__)

_BACKLOG = 1024
"""Connections that wait to be taken."""
_AGAIN = 0.2
"""Seconds after which a connection is taken that there was no descriptor for."""


class Listener:
    """Listens; ``make`` makes the protocol of each connection, of which ``at_once`` are taken in at a time."""

    def __init__(self, sockets: list[socket.socket], make: Callable[[], asyncio.Protocol], at_once: int) -> None:
        self.sockets = sockets
        self._make = make
        self._coming: set[asyncio.Task[None]] = set()
        self._tasks = [asyncio.create_task(self._listen(one, asyncio.Semaphore(at_once))) for one in sockets]

    def close(self) -> None:
        """Listen no more. Connections stay."""
        loop = asyncio.get_running_loop()
        for one, task in zip(self.sockets, self._tasks, strict=True):
            task.cancel()
            loop.remove_reader(one)  # not when the task ends, for its number may be another's then
            one.close()

    async def _listen(self, listening: socket.socket, room: asyncio.Semaphore) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await room.acquire()
            try:
                came, _ = await loop.sock_accept(listening)
            except OSError as error:  # no descriptor is free, or who came is gone
                log.warning("a connection cannot be taken (%s)", error.strerror)
                room.release()
                await asyncio.sleep(_AGAIN)
                continue
            coming = loop.create_task(self._take(came))
            self._coming.add(coming)
            coming.add_done_callback(self._coming.discard)
            coming.add_done_callback(lambda _: room.release())

    async def _take(self, came: socket.socket) -> None:
        with suppress(OSError):  # it is gone already
            await asyncio.get_running_loop().connect_accepted_socket(self._make, came)


async def listen(host: str, port: int, make: Callable[[], asyncio.Protocol], at_once: int) -> Listener:
    """Raises OSError where that cannot be."""
    loop = asyncio.get_running_loop()
    bound = await loop.create_server(make, host, port, start_serving=False)
    sockets = [socket.socket(fileno=os.dup(one.fileno())) for one in bound.sockets]
    bound.close()
    for one in sockets:
        one.setblocking(False)
        one.listen(_BACKLOG)
    return Listener(sockets, make, at_once)
