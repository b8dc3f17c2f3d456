"""Connections to an HTTP endpoint: how many there may be, how long each may take.

Rules.
- At most ``connections`` are open, and never more than an eighth of the descriptors that this process may have; a
  quarter as many are taken at once, or linger to read why they were refused. The rest is the broker's and the
  executors'. Where there are as many, the one that has been without a request for longest makes room, if that is over
  ``_SETTLES`` seconds, else the one that has said no more for longest, who may be gone, else the one whose request's
  body has been awaited for longest, each if over as many; else the new one gets 503. So does one that takes of the last
  eighth (``_KEPT``): whatever else holds descriptors here, the broker is reached again, and executors are started
  again, by what is left.
- A request's head must be there ``idle_s`` seconds after the connection was made or the last request ended; who does
  not take an answer for as long loses the connection. Bodies have limits of their own
  (``sluicegate.streams.remote.http_bodies``).
- Who says no more (shuts down its sending side) still gets the answers to what it asked in whole; then it is closed.
"""

import asyncio
import logging
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Protocol

from aiohttp import web
from typing_extensions import override

from sluicegate.stages.fronts.http_handler import Handler
from sluicegate.stages.fronts.http_listening import Listener, listen

log = logging.getLogger(__name__)

_SETTLES = 1.0
_LINGERS = 1.0
"""Seconds that a refused connection is read for, so that who made it reads the refusal."""
_LINGERING = 64
"""Refused connections that are waited for at a time, so that they read why, at most."""
_KEPT = 256
_KEPT_LEAST = 8
"""Descriptors that no connection takes, at most and at least: an executor needs eight to start."""
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 48\r\nRetry-After: 1\r\n"
    b'Connection: close\r\n\r\n{"error": "too many connections; again later."}\n'
)


class Plain(Protocol):
    """Takes what comes on a connection before the web framework does, for as long as it likes."""

    def data_received(self, data: bytes) -> None:
        """Of asyncio's protocols."""
        ...

    def eof_received(self) -> bool:
        """Of asyncio's protocols: whether the connection stays, for answers that are due."""
        ...

    def pause_writing(self) -> None:
        """Of asyncio's protocols."""
        ...

    def resume_writing(self) -> None:
        """Of asyncio's protocols."""
        ...

    def connection_lost(self) -> None:
        """Nothing comes any more."""
        ...


class Doors:
    """Makes the protocol of each connection. ``counted`` is told each answer's status, also where there is no room."""

    plain: "Callable[[Door, asyncio.Transport], Plain] | None" = None
    """Makes what takes requests before the framework."""

    def __init__(
        self, connections: int, patience: float, counted: Callable[[int], None] = lambda _status: None
    ) -> None:
        self._most = most_connections(connections)
        self.at_once = min(_LINGERING, max(1, self._most // 4))
        self._last = last_descriptor()
        self._patience = patience
        self._counted = counted
        self._open: dict[asyncio.BaseTransport, Door] = {}
        self._idle: dict[Door, float] = {}  # since when, the longest first
        self._awaited: dict[Door, tuple[float, Callable[[], bool]]] = {}  # its body, the longest first; whether it came
        self._half_closed: dict[Door, float] = {}  # since when, the longest first
        self.lingering = 0

    def of(self, server: web.Server) -> Callable[[], asyncio.Protocol]:
        """What makes protocols of ``server`` within these limits."""
        return lambda: Door(self, lambda: Handler(server, self._patience, self._counted), self._patience)

    def begun(self, request: web.Request) -> None:
        """A request's head has come to the framework."""
        door = self._open.get(request.transport) if request.transport is not None else None
        if door is not None:
            self.asks(door, None if request.content.is_eof() else request.content.is_eof)

    def ended(self, request: web.Request) -> None:
        """It is answered."""
        door = self._open.get(request.transport) if request.transport is not None else None
        if door is not None:
            self.rests(door)

    def asks(self, door: "Door", is_whole: Callable[[], bool] | None = None) -> None:
        """A request's head has come. ``is_whole``: whether its body has, None: it has."""
        self._idle.pop(door, None)
        if is_whole is not None:
            self._awaited[door] = (time.monotonic(), is_whole)

    def rests(self, door: "Door") -> None:
        """It is answered."""
        self._awaited.pop(door, None)
        self._idle[door] = time.monotonic()

    def half_closed(self, door: "Door") -> None:
        """It says no more, and is to be answered yet."""
        self._half_closed.setdefault(door, time.monotonic())

    def close(self) -> None:
        """End those whose requests the framework has not seen: it ends the others."""
        for transport, door in tuple(self._open.items()):
            if door.is_plain:
                transport.close()

    def opened(self, door: "Door", transport: asyncio.Transport) -> bool:
        """Whether there is room for it."""
        now = time.monotonic()
        if len(self._open) >= self._most or self.short(transport):
            longest = self._longest(now)
            if longest is None:
                self._counted(503)
                return False
            longest.leave()
        self._open[transport] = door
        self._idle[door] = now
        return True

    def _longest(self, now: float) -> "Door | None":
        """Who makes room for another, if anybody has had his time."""
        for longest in (self._idle, self._half_closed):
            door, since = next(iter(longest.items()), (None, now))
            if door is not None and now - since >= _SETTLES:
                return door
        while self._awaited:
            door, (since, is_whole) = next(iter(self._awaited.items()))
            if not is_whole():
                return door if now - since >= _SETTLES else None
            del self._awaited[door]
        return None

    def short(self, transport: asyncio.Transport) -> bool:
        """Whether it holds one of the last descriptors: a new one is the lowest that is free."""
        sock = transport.get_extra_info("socket")
        return sock is not None and sock.fileno() > self._last

    def left(self, door: "Door", transport: asyncio.BaseTransport | None) -> None:
        """It counts no more."""
        self._idle.pop(door, None)
        self._awaited.pop(door, None)
        self._half_closed.pop(door, None)
        if transport is not None:
            self._open.pop(transport, None)


class Door(asyncio.Protocol):
    """Hands on what happens on a connection that was let in: to ``plain``, and from when that wants it to what
    ``server`` makes."""

    __slots__ = ("_doors", "_in", "_inner", "_patience", "_plain", "_server", "_stuck", "_transport")

    def __init__(self, doors: Doors, server: Callable[[], asyncio.Protocol], patience: float) -> None:
        self._doors = doors
        self._server = server
        self._inner: asyncio.Protocol | None = None
        self._plain: Plain | None = None
        self._patience = patience
        self._in = False
        self._stuck: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the framework has not seen it."""
        return self._plain is not None

    def hand_over(self, data: bytes = b"") -> None:
        """To the framework, from ``data`` on."""
        assert self._transport is not None
        self._plain = None
        self._inner = self._server()
        self._inner.connection_made(self._transport)
        if data:
            self._inner.data_received(data)

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._doors.opened(self, transport):
            self._in = True
            if self._doors.plain is None:
                self.hand_over()
            else:
                self._plain = self._doors.plain(self, transport)
        else:
            transport.write(_FULL)
            if self._doors.lingering >= self._doors.at_once or self._doors.short(transport):
                transport.close()
                return
            # Closed with a request unread, it would be reset, and the refusal lost with it.
            self._doors.lingering += 1
            with suppress(OSError):  # it may be gone already
                transport.write_eof()
            self._stuck = asyncio.get_running_loop().call_later(_LINGERS, transport.abort)

    def leave(self) -> None:
        """Make room."""
        if self._transport is not None:
            self._doors.left(self, self._transport)
            self._transport.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if not self._in and self._stuck is not None:
            self._doors.lingering -= 1
        self._unstuck()
        self._doors.left(self, self._transport)
        if self._plain is not None:
            self._plain.connection_lost()
        elif self._inner is not None:
            self._inner.connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        if self._plain is not None:
            self._plain.data_received(data)
        elif self._inner is not None:
            self._inner.data_received(data)

    @override
    def eof_received(self) -> bool | None:
        inner = self._plain or self._inner
        stays = inner.eof_received() if inner is not None else None
        if stays:
            self._doors.half_closed(self)
        return stays

    @override
    def pause_writing(self) -> None:
        if self._in and self._transport is not None:
            self._stuck = asyncio.get_running_loop().call_later(self._patience, self._transport.abort)
            if (inner := self._plain or self._inner) is not None:
                inner.pause_writing()

    @override
    def resume_writing(self) -> None:
        if self._in:
            self._unstuck()
            if (inner := self._plain or self._inner) is not None:
                inner.resume_writing()

    def _unstuck(self) -> None:
        """The other side reads again, or is gone."""
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None


class Site(web.BaseSite):
    """Listens on ``host``:``port`` for ``runner``, by ``doors``."""

    def __init__(self, runner: web.AppRunner, doors: Doors, host: str, port: int) -> None:
        super().__init__(runner)
        self._doors, self._host, self._port = doors, host, port
        self._listener: Listener | None = None

    @property
    @override
    def name(self) -> str:
        """For aiohttp."""
        return f"http://{self._host}:{self._port}"

    @override
    async def start(self) -> None:
        """Listen. Raises OSError."""
        await super().start()
        server = self._runner.server
        assert server is not None
        self._listener = await listen(self._host, self._port, self._doors.of(server), self._doors.at_once)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self._listener is not None
        host, port, *_ = self._listener.sockets[0].getsockname()
        return host, port

    @override
    async def stop(self) -> None:
        """Listen no more."""
        await super().stop()
        if self._listener is not None:
            self._listener.close()


def last_descriptor() -> float:
    """The highest that a connection may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept = min(_KEPT, max(_KEPT_LEAST, soft // 8))
    return inf if soft == resource.RLIM_INFINITY else soft - kept - 1


def most_connections(asked: int) -> int:
    """``asked``, or what this process's descriptors allow."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = max(1, soft // 8)
    if soft == resource.RLIM_INFINITY or asked <= allowed:
        return asked
    log.info("%d connections at most: an eighth of this process's %d descriptors", allowed, soft)
    return allowed
