"""Reading the body of an HTTP request within limits, however it is sent: its length told, in chunks, or compressed."""

import asyncio

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

ENCODINGS = "send gzip, deflate, or the body as it is"
"""What to do about a ``Content-Encoding`` that is not read."""
_ENCODINGS = frozenset({"gzip", "deflate", "identity"})


class BodyError(Exception):
    """The body is not taken; ``status`` and ``problem`` tell the client why."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status
        self.problem = problem


async def read_body(request: web.Request, most: int, within: float, *, setting: str = "") -> bytes:
    """The body: at most ``most`` bytes once unpacked, in at most ``within`` seconds. Raises BodyError.

    No more is ever held. ``setting``: what says ``most``, where anything can be set.
    """
    limit = f"at most {most}{setting and f' ({setting})'} are taken"
    encoding = ", ".join(request.headers.getall("Content-Encoding", ["identity"]))
    if encoding.lower() not in _ENCODINGS:
        raise BodyError(415, f"content-encoding: {encoding!a:.80} is not read; {ENCODINGS}")
    told = request.content_length
    if told is not None and told > most:
        raise BodyError(413, f"body: {told} bytes; {limit}")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(within):
            while part := await request.content.readany():
                size += len(part)
                if size > most:
                    raise BodyError(413, f"body: over {size} bytes; {limit}")
                parts.append(part)
    except TimeoutError:
        raise BodyError(408, f"body: not here within {within:g} s; send it faster, or less at once") from None
    except (RequestPayloadError, web.PayloadAccessError) as error:
        raise BodyError(400, f"body: cannot be read ({' '.join(str(error).split())!a:.100})") from error
    return b"".join(parts)
