"""The web framework's side of a connection: what it does after a client's last word, and with bad requests.

Rules.
- A client that shuts down its sending side is answered what it asked in whole, then the connection ends: at once where
  nothing is due. A last request that is cut off is passed over.
- Whatever is refused, also by aiohttp itself, is refused as JSON with ``error`` alone.
- Each request that is answered is counted once by its status, whoever answers it.
- Requests that are no HTTP are logged as single lines, one in ``_LINES`` seconds and how many there were besides.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus

import orjson
from aiohttp import StreamReader, web
from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError, LineTooLong
from aiohttp.web_protocol import RequestPayloadError
from typing_extensions import override

from sluicegate.streams.remote.http_bodies import ENCODINGS

_LINES = 10.0
_LINGERS = 1.0
"""Seconds that the rest of a refused body is read for, so that its sender reads the refusal."""
_SHUTDOWN = 2.0
_MOST_LINE = 8192
_MOST_FIELD = 8190
"""Bytes of a request's path and of a header, at most. They differ, as aiohttp tells by the limit alone which it was."""
_MOST_FIELDS = 128
_TOO_LONG = {
    _MOST_LINE: (414, f"request: its path is longer than {_MOST_LINE} bytes"),
    _MOST_FIELD: (431, f"headers: one is longer than {_MOST_FIELD} bytes, its name included"),
}
_TOO_MANY = "Too many headers received"
FAILED = "the server failed; please report it"
"""What a defect of ours is told as."""


class Terse(logging.Filter):
    """Of what aiohttp logs: one line a bad request, few of them; what is a defect of ours keeps its traceback."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._next = {True: -1.0, False: -1.0}
        self._besides = {True: 0, False: 0}

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log it, made shorter."""
        error = record.exc_info[1] if record.exc_info else None
        theirs = isinstance(error, (HttpProcessingError, RequestPayloadError, OSError, asyncio.IncompleteReadError))
        now = self._monotonic()
        if now < self._next[theirs]:
            self._besides[theirs] += 1
            return False
        besides, self._besides[theirs] = self._besides[theirs], 0
        self._next[theirs] = now + _LINES
        told = " ".join(record.getMessage().split())
        if theirs:
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            told = f"{told}: {type(error).__name__}: {' '.join(str(error).split())!a:.120}"
            record.exc_info = record.exc_text = None
        record.msg, record.args = told + (f" (and {besides} others before)" if besides else ""), ()
        return True


_log = logging.getLogger(f"{__name__}.server")
_log.addFilter(Terse())


class Handler(web.RequestHandler):
    """aiohttp's protocol of one connection of ``server``, closed where nothing is asked for ``idle_s`` seconds.
    ``counted`` is told the status of each answer."""

    __slots__ = ("_counted", "_half_closed", "_last_body")

    def __init__(self, server: web.Server, idle_s: float, counted: Callable[[int], None]) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # as aiohttp's own runners allow
            keepalive_timeout=idle_s,
            lingering_time=_LINGERS,
            logger=_log,
            max_line_size=_MOST_LINE,
            max_field_size=_MOST_FIELD,
            max_headers=_MOST_FIELDS,
        )
        self._counted = counted
        self._half_closed = False
        self._last_body: StreamReader | None = None

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages:
            self._last_body = self._messages[-1][1]

    @override
    def eof_received(self) -> bool:  # type: ignore[override]
        due = len(self._messages) + (self._waiter is None)
        cut_off = self._last_body is not None and not self._last_body.is_eof()
        if due <= cut_off:
            return False
        if cut_off:
            self._messages.pop()
        self._half_closed = True
        self._end_after_last()
        return True

    @override
    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        self._end_after_last()
        if isinstance(resp, web.HTTPException):
            allowed = {"Allow": resp.headers["Allow"]} if "Allow" in resp.headers else None
            resp = refusal(resp.status, f"{request.method} {request.path!a:.80}: {resp.reason}", allowed)
        self._counted(resp.status)
        return await super().finish_response(request, resp, start_time)

    @override
    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)  # logs it
        if isinstance(exc, ContentEncodingError):  # it knows the name, and lacks the library
            status, why = 415, f"content-encoding: is not read; {ENCODINGS}"
        elif status == HTTPStatus.BAD_REQUEST:  # by the parser
            status, why = _refused_by_parser(exc, message or "")
        else:
            why = FAILED if status == HTTPStatus.INTERNAL_SERVER_ERROR else HTTPStatus(status).phrase
        refused = refusal(status, why)
        refused.force_close()
        return refused

    def _end_after_last(self) -> None:
        if self._half_closed and not self._messages:
            self.close()


def _refused_by_parser(exc: BaseException | None, message: str) -> tuple[int, str]:
    if isinstance(exc, LineTooLong):
        return _TOO_LONG.get(exc.args[1], _TOO_LONG[_MOST_FIELD])
    if message == _TOO_MANY:
        return 431, f"headers: more than {_MOST_FIELDS}"
    return 400, f"request: cannot be read as HTTP/1.1 ({' '.join(message.split())!a:.200})"


def refusal(status: int, why: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """A refusal as JSON."""
    return web.Response(
        body=orjson.dumps({"error": why}), status=status, content_type="application/json", headers=headers
    )


def runner_of(application: web.Application) -> web.AppRunner:
    """What runs ``application``; ``Handler`` has aiohttp's limits of a connection."""
    return web.AppRunner(application, handle_signals=False, shutdown_timeout=_SHUTDOWN)
