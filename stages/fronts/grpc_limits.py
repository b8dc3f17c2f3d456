"""What connections to the gRPC front, and requests on them, may take: how many at once, and how long.

Rules.
- At most ``connections`` are open, and never more than an eighth of the descriptors that this process may have; one
  more is closed at once. One that does not begin as HTTP/2 within ``_SHAKES`` seconds is closed, as is one without a
  call for ``idle_s`` seconds; one whose other side is gone without a word is found by a ping.
- A call's request must be there ``body_s`` seconds after the call began. Of one address at most half of the calls that
  there may be wait for theirs.
- A stream on which nothing comes for ``idle_s`` seconds, while nothing is asked on it, is ended.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from sluicegate.stages.fronts.front_desk import MOST_WAITING, FrontError
from sluicegate.stages.fronts.http_auth import Access
from sluicegate.stages.fronts.http_connections import most_connections

_SHAKES = 5.0
_ENVELOPE = 64 << 10
"""Bytes that a message may have beyond the body that it stands for."""


def server_options(access: Access, max_body_bytes: int) -> list[tuple[str, int]]:
    """For ``grpc.aio.server``."""
    idle_ms = int(1e3 * access.idle_s)
    return [
        ("grpc.max_receive_message_length", max_body_bytes + _ENVELOPE),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", most_connections(access.connections)),
        ("grpc.server_handshake_timeout_ms", int(1e3 * min(_SHAKES, access.idle_s))),
        ("grpc.max_connection_idle_ms", idle_ms),
        ("grpc.keepalive_time_ms", idle_ms),
        ("grpc.keepalive_timeout_ms", idle_ms),
    ]


class Requests:
    """Waits for the requests of calls, of each address not for too many at once."""

    def __init__(self, access: Access) -> None:
        self._idle_s = access.idle_s
        self._body_s = access.body_s
        self._awaited: Counter[str] = Counter()

    async def of_call(self, coming: AsyncIterator[Any], address: str) -> Any:
        """The only request of a call. Raises FrontError where it does not come."""
        if self._awaited[address] >= MOST_WAITING // 2:
            raise FrontError(503, "too many of your calls wait for their request; send them whole")
        self._awaited[address] += 1
        try:
            async with asyncio.timeout(self._body_s):
                return await anext(coming)
        except StopAsyncIteration:
            raise FrontError(400, "the call ended without a request") from None
        except TimeoutError:
            raise FrontError(408, f"the request did not come within {self._body_s:g} s") from None
        finally:
            self._awaited[address] -= 1
            if not self._awaited[address]:
                del self._awaited[address]

    async def of_stream(self, coming: AsyncIterator[Any], asks: Callable[[], bool]) -> AsyncIterator[Any]:
        """Those of a stream, in order, until its end. ``asks``: whether some wait for their answer.

        Raises FrontError where none comes for too long, and nothing is asked meanwhile.
        """
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
