"""What connections to the gRPC front, and requests on them, may take: how many at once, and how long.

Rules.
- At most ``connections`` are open, and never more than an eighth of the descriptors that this process may have; one
  more is closed at once. Before it comes to that, those on which nothing has been asked for longest make room, where
  that is over ``_SETTLES`` seconds: an eighth of what there may be is kept free. One that does not begin as HTTP/2
  within ``_SHAKES`` seconds is closed, as is one without a call for ``idle_s`` seconds; one whose other side is gone
  without a word is found by a ping.
- A connection may have ``_STREAMS`` calls at a time, those included that it has given up and that have not ended here:
  else whoever begins and gives up calls without end would take the place of all.
- A call's request must be there ``body_s`` seconds after the call began. Of one address at most half of the calls that
  there may be wait for theirs or are streams.
- A stream on which nothing comes for ``idle_s`` seconds, while nothing is asked on it, is ended.
"""

import asyncio
import os
import socket
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sluicegate.stages.fronts.front_desk import MOST_WAITING
from sluicegate.stages.fronts.front_error import FrontError
from sluicegate.stages.fronts.http_auth import Access, network_of
from sluicegate.stages.fronts.http_connections import most_connections

_SHAKES = 5.0
_ENVELOPE = 64 << 10
"""Bytes that a message may have beyond the body that it stands for."""
_STREAMS = 256
"""Calls that one connection may have at a time."""
_SETTLES = 1.0
_LOOKS = 0.25
_DESCRIPTORS = Path("/dev/fd")


def server_options(access: Access, max_body_bytes: int) -> list[tuple[str, int]]:
    """For ``grpc.aio.server``."""
    idle_ms = int(1e3 * access.idle_s)
    return [
        ("grpc.max_receive_message_length", max_body_bytes + _ENVELOPE),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", _STREAMS),
        ("grpc.max_allowed_incoming_connections", most_connections(access.connections)),
        ("grpc.server_handshake_timeout_ms", int(1e3 * min(_SHAKES, access.idle_s))),
        ("grpc.max_connection_idle_ms", idle_ms),
        ("grpc.keepalive_time_ms", idle_ms),
        ("grpc.keepalive_timeout_ms", idle_ms),
    ]


class Rooms:
    """Which connections ask nothing, and of those as many closed as others need room.

    gRPC tells nobody which connections there are, nor closes one that is asked to leave: they are found among this
    process's descriptors, by the ``port`` that is listened on, and shut down there.
    """

    def __init__(self, access: Access) -> None:
        self._most = most_connections(access.connections)
        self._asking: Counter[int] = Counter()  # by the other side's port
        self._since: dict[int, float] = {}

    @contextmanager
    def asked(self, peer: str) -> Iterator[None]:
        """A whole request of ``peer`` is being answered."""
        port = _port(peer)
        self._asking[port] += 1
        try:
            yield
        finally:
            self._asking[port] -= 1
            if not self._asking[port]:
                del self._asking[port]
            if port in self._since:
                self._since[port] = time.monotonic()

    async def keep(self, port: int) -> None:
        """Keep room, for ever."""
        while True:
            await asyncio.sleep(_LOOKS)
            self.look(port)

    def look(self, port: int) -> None:
        """Close those that make room now."""
        free = max(1, self._most // 8)
        found = _descriptors()
        if len(found) <= self._most - free:
            return
        now, since = time.monotonic(), self._since
        there = {other: number for number in found if (other := _other_side(number, port)) is not None}
        self._since = {other: since.get(other, now) for other in there}
        idle = (other for other, at in self._since.items() if not self._asking[other] and now - at >= _SETTLES)
        for other in sorted(idle, key=self._since.__getitem__)[: max(0, len(there) - (self._most - free))]:
            _other_side(there[other], port, leaves=other)


def _descriptors() -> list[int]:
    with suppress(OSError):
        return [int(one.name) for one in _DESCRIPTORS.iterdir()]
    return []


def _other_side(descriptor: int, port: int, *, leaves: int | None = None) -> int | None:
    """The other side's port, where it is a connection that was made to ``port``; None: it is something else, or gone.

    ``leaves``: it is shut down where that is the other side's.
    """
    try:
        copy = os.dup(descriptor)  # its number may be another's the next moment
    except OSError:
        return None
    try:
        sock = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None
    with sock, suppress(OSError):
        if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.getsockname()[1] == port:
            other = int(sock.getpeername()[1])
            if other == leaves:
                sock.shutdown(socket.SHUT_RDWR)
            return other
    return None


def _port(peer: str) -> int:
    """Of "ipv4:127.0.0.1:4711"; 0 where it tells none."""
    told = peer.rpartition(":")[2]
    return int(told) if told.isdecimal() else 0


class Requests:
    """Waits for the requests of calls and streams, of each address not for too many at once."""

    def __init__(self, access: Access) -> None:
        self._idle_s = access.idle_s
        self._body_s = access.body_s
        self._awaited: Counter[str] = Counter()

    @contextmanager
    def _awaiting(self, address: str) -> Iterator[None]:
        address = network_of(address)
        if self._awaited[address] >= MOST_WAITING // 2:
            raise FrontError(503, "too many of your calls wait for a request; send calls whole, ask on fewer streams")
        self._awaited[address] += 1
        try:
            yield
        finally:
            self._awaited[address] -= 1
            if not self._awaited[address]:
                del self._awaited[address]

    async def of_call(self, coming: AsyncIterator[Any], address: str) -> Any:
        """The only request of a call. Raises FrontError where it does not come."""
        with self._awaiting(address):
            try:
                async with asyncio.timeout(self._body_s):
                    return await anext(coming)
            except StopAsyncIteration:
                raise FrontError(400, "the call ended without a request") from None
            except TimeoutError:
                raise FrontError(408, f"the request did not come within {self._body_s:g} s") from None

    async def of_stream(
        self, coming: AsyncIterator[Any], address: str, asks: Callable[[], bool]
    ) -> AsyncGenerator[Any, None]:
        """Those of a stream, in order, until its end. ``asks``: whether some wait for their answer.

        Raises FrontError where there are too many of ``address``, or none comes for too long, and nothing is asked
        meanwhile.
        """
        with self._awaiting(address):
            while True:
                next_one = asyncio.ensure_future(anext(coming))  # not cancelled by a look: it could not be read again
                try:
                    while not (await asyncio.wait([next_one], timeout=self._idle_s))[0]:
                        if not asks():
                            raise FrontError(408, f"no request came for {self._idle_s:g} s; ask on another stream")
                    request = await next_one
                except StopAsyncIteration:
                    return
                finally:
                    next_one.cancel()
                yield request
