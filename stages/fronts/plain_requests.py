"""Requests for answers in their plain form, read and answered here: a web framework takes more than all stages do.

Rules.
- Plain is ``POST /v2/models/<app>/infer`` of HTTP/1.1 whose head comes at once, in ASCII, sound to the framework's own
  parser, no header twice, with the length of its body told, and nothing that asks for more than an answer
  (``_FOR_OTHERS``). Of an app that is known here, by who may ask. Any other request goes to the framework from its
  first byte on, which judges it, and so does whatever comes on that connection from then on.
- What the framework would let pass passes here, and is answered with the same status and body. The guard is asked once
  a request, before its body is read.
- One request of a connection is under way at a time, and none is begun while its answers are not taken. What comes
  meanwhile waits, and beyond ``_AHEAD`` bytes is not read. A body must be there ``body_s`` seconds after its head; who
  asks nothing for ``idle_s`` seconds is let go.
- Who says no more is answered what was asked in whole, then the connection ends.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

import orjson
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import SERVER_SOFTWARE, HttpProcessingError, HttpRequestParser, HttpVersion11

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.stages.fronts.front_desk import FrontDesk
from sluicegate.stages.fronts.front_error import FrontError, check_answered
from sluicegate.stages.fronts.http_auth import Access, Guard
from sluicegate.stages.fronts.http_connections import Door
from sluicegate.stages.fronts.http_handler import FAILED
from sluicegate.stages.fronts.oip_responses import Asked, read_request, respond
from sluicegate.streams.ports import Headers
from sluicegate.streams.records import codec

log = logging.getLogger(__name__)

JSON, BINARY = "application/json", "application/octet-stream"
TYPES = (JSON, BINARY)
"""What bodies may be: web pages send neither to another place unasked."""
_JSON_LENGTH = codec.JSON_LENGTH_HEADER.lower()
_MOST_HEAD = 4096
_HEADS = 256
"""Heads that are remembered: a client that sends one size of body sends the same head over and over."""
_AHEAD = 65_536
_BEGINS = b"POST /v2/models/"
_PATH = re.compile(r"/v2/models/([\w.~-]+)/infer", re.ASCII)
_FOR_OTHERS = frozenset(("transfer-encoding", "content-encoding", "expect", "upgrade", "te", "trailer"))
_LENGTH = re.compile(r"[1-9]\d{0,8}")


@dataclass(frozen=True, slots=True)
class Head:
    """Of a plain request. ``headers`` by name in lower case; ``size``: bytes of the body."""

    path: str
    app: str
    headers: Mapping[str, str]
    size: int
    json_length: str | None
    carried: Headers


@lru_cache(_HEADS)
def read_head(text: bytes, loop: asyncio.AbstractEventLoop) -> Head | None:
    """The head of a request, its empty line included, read by the framework's parser; None where it is not plain."""
    if not text.startswith(_BEGINS) or text.find(b"\r\n\r\n") != len(text) - 4 or not text.isascii():
        return None
    try:
        ((message, _),) = HttpRequestParser(BaseProtocol(loop), loop, _MOST_HEAD).feed_data(text)[0]
    except (HttpProcessingError, ValueError):
        return None
    headers = {name.lower(): held for name, held in message.headers.items()}
    found = _PATH.fullmatch(message.path)
    size = headers.get("content-length", "")
    if (
        found is None
        or message.version != HttpVersion11
        or len(headers) != len(message.headers)
        or not all(held.isprintable() for held in headers.values())
        or not _FOR_OTHERS.isdisjoint(headers)
        or headers.get("connection", "keep-alive").lower() != "keep-alive"
        or headers.get("content-type", JSON).lower() not in TYPES
        or not _LENGTH.fullmatch(size)
    ):
        return None
    try:
        carried = codec.along(headers.items())
    except InvalidInputError:
        return None
    return Head(message.path, found[1], headers, int(size), headers.get(_JSON_LENGTH), carried)


def _head_of(data: bytes, loop: asyncio.AbstractEventLoop) -> tuple[Head | None, int]:
    """The head that ``data`` begins with, where it is a whole and plain one, and where it ends."""
    if (end := data.find(b"\r\n\r\n", 0, _MOST_HEAD)) < 0:
        return None, 0
    return read_head(data[: end + 4], loop), end + 4


class PlainRequests:
    """Of one connection: see the module's rules."""

    __slots__ = (
        "_access", "_address", "_app", "_asked", "_body_timer", "_client", "_desk", "_door", "_fetching", "_guard",
        "_half_closed", "_head", "_idle_timer", "_loop", "_missing", "_parts", "_rest", "_since", "_taken",
        "_transport", "_trouble", "_under_way",
    )  # fmt: skip

    def __init__(
        self, door: Door, transport: asyncio.Transport, *, desk: FrontDesk, guard: Guard, access: Access
    ) -> None:
        self._door = door
        self._transport = transport
        self._desk = desk
        self._guard = guard
        self._access = access
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else ""
        self._head: Head | None = None
        self._app: App | None = None
        self._client = ""
        self._trouble: FrontError | None = None
        self._asked = Asked()
        self._parts: list[bytes] = []
        self._missing = 0
        self._rest = b""
        self._under_way = False
        self._taken = True
        self._half_closed = False
        self._fetching: asyncio.Task[None] | None = None
        self._since = time.monotonic()
        self._body_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._idle_timer = self._loop.call_later(access.idle_s, self._look)

    def data_received(self, data: bytes) -> None:
        """More of a request, or of several."""
        if self._under_way or self._rest or not self._taken:
            self._rest += data
            if len(self._rest) > _AHEAD:
                self._transport.pause_reading()
        elif self._head is None:
            self._begin(data)
        else:
            self._take(data)

    def eof_received(self) -> bool:
        """No more comes; whether anything is to be answered yet."""
        self._half_closed = True
        return self._under_way or bool(self._rest)

    def pause_writing(self) -> None:
        """The other side does not take its answers."""
        self._taken = False

    def resume_writing(self) -> None:
        """It does again."""
        self._taken = True
        if self._rest:
            self._loop.call_soon(self._go_on)

    def connection_lost(self) -> None:
        """What was asked goes on; nobody reads its answer."""
        self._idle_timer.cancel()
        if self._body_timer is not None:
            self._body_timer.cancel()

    def _begin(self, data: bytes) -> None:
        head, end = _head_of(data, self._loop)
        app = self._desk.known(head.app) if head is not None else None
        if head is None or app is None or head.size > self._desk.max_body_bytes:
            self._hand_over(data)
            return
        if self._guard.refused(self._address, head.path, head.headers) is not None:
            self._hand_over(data)
            return
        self._head, self._app = head, app
        self._client = self._desk.client_of(self._address, self._guard.client_of(head.path, head.headers) or "")
        try:
            self._desk.check_room(app, self._client)
        except FrontError as error:
            self._trouble = error
        self._missing = head.size
        is_whole = len(data) - end >= head.size
        self._guard.doors.asks(self._door, None if is_whole else lambda: self._missing <= 0)
        if not is_whole:
            self._body_timer = self._loop.call_later(self._access.body_s, self._body_is_late)
        self._take(data[end:])

    def _take(self, data: bytes) -> None:
        """More of the body, and perhaps of what follows it."""
        if len(data) > self._missing:
            self._rest = data[self._missing :]
            data = data[: self._missing]
        self._missing -= len(data)
        if self._trouble is None:
            self._parts.append(data)
        if self._missing == 0:
            if self._body_timer is not None:
                self._body_timer.cancel()
                self._body_timer = None
            body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts.clear()
            self._ask(body)

    def _ask(self, body: bytes) -> None:
        assert self._head is not None
        assert self._app is not None
        self._under_way = True
        if self._trouble is not None:
            self._ended(self._trouble)
            return
        head = self._head
        try:
            asked = self._asked = read_request(body, head.json_length, self._app)
            carried = (*head.carried, codec.TAKES_RAW) if asked.takes_raw else head.carried
            self._desk.begin(self._app, body, head.json_length, carried, self._client, self._ended)
        except InvalidInputError as error:
            self._ended(FrontError(400, str(error)))
        except Exception as error:
            self._failed(error)

    def _ended(self, result: codec.OutcomeMessage | FrontError) -> None:
        """How a query ended, or why it was none."""
        try:
            if isinstance(result, FrontError):
                self._refuse(result)
                return
            check_answered(result)
            if self._desk.fetches:
                self._fetching = asyncio.create_task(self._fetch(result))
            else:
                self._answer(result)
        except FrontError as error:
            self._refuse(error)
        except Exception as error:
            self._failed(error)

    async def _fetch(self, result: codec.OutcomeMessage) -> None:
        try:
            self._answer(await self._desk.whole(result))
        except FrontError as error:
            self._refuse(error)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """A defect of ours ends nothing but this request."""
        log.error("a request could not be answered (%s: %s)", type(error).__name__, error, exc_info=error)
        self._write(500, orjson.dumps({"error": FAILED}))

    def _answer(self, result: codec.OutcomeMessage) -> None:
        made, length = respond(result, self._asked)
        if length is None:
            self._write(200, made)
        else:
            self._write(200, made, BINARY, f"{codec.JSON_LENGTH_HEADER}: {length}\r\n")

    def _refuse(self, error: FrontError) -> None:
        more = "".join(f"{name}: {held}\r\n" for name, held in error.headers.items())
        self._write(error.status, orjson.dumps({"error": error.why}), JSON, more)

    def _write(self, status: int, body: bytes, kind: str = JSON, more: str = "", *, last: bool = False) -> None:
        self._head = self._app = self._trouble = None
        self._fetching = None
        self._under_way = False
        self._guard.count(status)
        transport = self._transport
        if transport.is_closing():
            return
        self._since = now = time.monotonic()
        self._guard.doors.rests(self._door)
        last = last or (self._half_closed and not self._rest)
        if last:
            more += "Connection: close\r\n"
        head = _start(status, kind, int(now))
        transport.write(b"%b%d\r\n%b\r\n%b" % (head, len(body), more.encode("ascii", "replace"), body))
        if last:
            transport.close()
        elif self._rest and self._taken:
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """With what came meanwhile."""
        if self._under_way or self._transport.is_closing():
            return
        rest, self._rest = self._rest, b""
        self._transport.resume_reading()
        if rest:
            self.data_received(rest)
        if self._half_closed:
            self._loop.call_soon(self._end_where_nothing_is_due)  # once the framework has begun with what it was given

    def _end_where_nothing_is_due(self) -> None:
        if not self._door.eof_received():
            self._transport.close()

    def _hand_over(self, data: bytes) -> None:
        self._idle_timer.cancel()
        self._door.hand_over(data)

    def _body_is_late(self) -> None:
        self._body_timer = None
        self._parts.clear()
        why = f"body: not here within {self._access.body_s:g} s; send it faster, or less at once"
        self._write(408, orjson.dumps({"error": why}), last=True)

    def _look(self) -> None:
        """Whether anything was asked for lately: one timer a connection, not one a request."""
        busy = self._under_way or self._head is not None
        left = self._access.idle_s if busy else self._since + self._access.idle_s - time.monotonic()
        if left <= 0.0:
            self._transport.close()
            return
        self._idle_timer = self._loop.call_later(left, self._look)


@lru_cache(_HEADS)
def _start(status: int, kind: str, second: int) -> bytes:
    """A response's head up to the length of its body. ``second``: changes when the date may."""
    del second
    lines = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"Content-Type: {kind}",
        f"Date: {formatdate(usegmt=True)}",
        f"Server: {SERVER_SOFTWARE}",
        "Content-Length: ",
    )
    return "\r\n".join(lines).encode()


def plain_requests(desk: FrontDesk, guard: Guard, access: Access) -> Callable[[Door, asyncio.Transport], PlainRequests]:
    """Makes what takes the plain requests of a connection."""
    return lambda door, transport: PlainRequests(door, transport, desk=desk, guard=guard, access=access)
