"""The parent's end of the connection to a child: many requests in flight, answered by number, never blocking.

Rules. Requests are written in the order they are made. A reply goes to the request whose ``id`` it carries; a reply
to a request that nobody waits for any more is dropped. When the connection ends every request fails, and so does
every later one. It runs on the event loop's reader and writer callbacks: a round trip costs no task switch of its own.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sluicegate.executors.onnx.framing import PREFIX, Buffer, FrameError, Header, lengths, pack, parse_header, send_some


class ChannelClosedError(Exception):
    """The connection ended: the child is gone, or it broke the format."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply's header and body."""

    header: Header
    body: memoryview


class Channel:
    """Owns ``sock``, which becomes non-blocking. ``on_end`` is called once, when the other side is gone."""

    def __init__(self, sock: socket.socket, on_end: Callable[[], None] = lambda: None) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._next_id = 0
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._pending: list[memoryview] = []
        self._writing = False
        self._ended: str | None = None
        self._prefix = bytearray(PREFIX.size)
        self._frame: bytearray | None = None  # header and body of the frame being read; None while in its prefix
        self._head_bytes = 0
        self._got = 0
        self._loop.add_reader(sock, self._read)

    @property
    def open(self) -> bool:
        """Whether requests can be made."""
        return self._ended is None

    def request(self, header: Header, buffers: Sequence[Buffer] = ()) -> "asyncio.Future[Reply]":
        """Send a request. The future fails with ChannelClosedError; FrameError at once if it is too large."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        if self._ended is not None:
            future.set_exception(ChannelClosedError(self._ended))
            return future
        self._next_id += 1
        frame = pack({"id": self._next_id, **header}, buffers)
        self._waiting[self._next_id] = future
        self._pending += frame
        if not self._writing:
            self._write()
        return future

    def finish(self) -> None:
        """Say that no more requests come: the child answers what it has and leaves."""
        if self._ended is None:
            self._sock.shutdown(socket.SHUT_WR)

    def close(self, why: str = "closed") -> None:
        """End the connection and fail what is in flight. Idempotent."""
        if self._ended is not None:
            return
        self._ended = why
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._pending.clear()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ChannelClosedError(why))
        self._on_end()

    def _write(self) -> None:
        try:
            while self._pending:
                send_some(self._sock, self._pending)
        except BlockingIOError:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._sock, self._write)
            return
        except OSError as error:
            # The reader sees the end too, but only after what the child still had to say.
            self.close(f"writing failed: {error.strerror}")
            return
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock)

    def _read(self) -> None:
        try:
            while self._ended is None:
                target = self._prefix if self._frame is None else self._frame
                count = self._sock.recv_into(memoryview(target)[self._got :])
                if count == 0:
                    self.close("the process ended")
                    return
                self._got += count
                if self._got == len(target):
                    self._got = 0
                    self._complete()
        except BlockingIOError:
            return
        except (OSError, FrameError) as error:
            self.close(str(error))

    def _complete(self) -> None:
        """A prefix or a frame is whole."""
        if self._frame is None:
            self._head_bytes, body = lengths(self._prefix)
            self._frame = bytearray(self._head_bytes + body)
            return
        view = memoryview(self._frame).toreadonly()
        self._frame = None
        header = parse_header(view[: self._head_bytes])
        number = header.get("id")
        if not isinstance(number, int):
            raise FrameError("a reply to no request")
        future = self._waiting.pop(number, None)
        if future is not None and not future.done():
            future.set_result(Reply(header, view[self._head_bytes :]))
