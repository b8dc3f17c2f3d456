"""Notices from a file or over HTTP: JSON ``[{"node": "gpu0", "deadline": "2026-01-02T03:04:05Z"}, ...]``.

Rules:
- A deadline is a time with a zone, or seconds since the epoch. A notice is told once.
- The file may be absent (no notices); over HTTP 404 means none, as cloud metadata services answer.
- What cannot be understood is one clear error; nothing of it is taken.
- Answers are bounded in size and time; redirects are not followed.
- Neither errors nor logs repeat what an address may keep secret: user, password and query.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from sluicegate.domain.errors import ConfigurationError
from sluicegate.executors.drivers.provider import Notice, ProviderError
from sluicegate.profiles.formats.addresses import shown

MAX_BYTES = 1 << 20
MAX_NOTICES = 10_000
_TIMEOUT = aiohttp.ClientTimeout(total=2.0)


class NoticeReader:
    """Implements NoticeSource over something that gives bytes (None: no notices)."""

    def __init__(self, name: str, read: Callable[[], Awaitable[bytes | None]]) -> None:
        self._name = name
        self._read = read
        self._told: set[Notice] = set()

    async def poll(self) -> tuple[Notice, ...]:
        """Notices not told before."""
        content = await self._read()
        known = notices_of(content, self._name) if content is not None and content.strip() else ()
        fresh = tuple(n for n in known if n not in self._told)
        # What is no longer listed may come again later.
        self._told = set(known)
        return fresh


def file_notices(path: Path) -> NoticeReader:
    """Notices from a file that something else writes."""

    def read() -> bytes | None:
        try:
            with path.open("rb") as file:
                return file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ProviderError(f"notices {path}: {error.strerror}") from error

    return NoticeReader(str(path), lambda: asyncio.to_thread(read))


def http_notices(url: str) -> NoticeReader:
    """Notices from a metadata service. Raises ConfigurationError for a URL that is not http(s)."""
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError("notices: give an http:// or https:// address")
    try:
        name = shown(url)
    except ValueError:
        raise ConfigurationError("notices: is no address; look at its brackets") from None

    async def read() -> bytes | None:
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT) as session,
                session.get(url, allow_redirects=False) as got,
            ):
                if got.status == 404:
                    return None
                if got.status != 200:
                    raise ProviderError(f"notices {name}: answered {got.status}")
                content = bytearray()
                while len(content) <= MAX_BYTES and (part := await got.content.readany()):
                    content += part
                return bytes(content)
        except (aiohttp.ClientError, TimeoutError) as error:  # others than of sockets may repeat the address
            told = str(error) if isinstance(error, aiohttp.ClientOSError) else type(error).__name__
            raise ProviderError(f"notices {name}: {told}") from None

    return NoticeReader(name, read)


def notices_of(content: bytes, name: str) -> tuple[Notice, ...]:
    """Parse. Raises ProviderError that names the source and the entry."""
    if len(content) > MAX_BYTES:
        raise ProviderError(f"notices {name}: more than {MAX_BYTES} bytes")
    try:
        listed = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ProviderError(f"notices {name}: not JSON ({error})") from error
    if not isinstance(listed, list) or len(listed) > MAX_NOTICES:
        raise ProviderError(f"notices {name}: must be a list of at most {MAX_NOTICES} entries")
    return tuple(_notice(entry, f"notices {name}[{i}]") for i, entry in enumerate(listed))


def _notice(entry: Any, where: str) -> Notice:
    if not isinstance(entry, dict) or not isinstance(entry.get("node"), str) or not entry["node"]:
        raise ProviderError(f"{where}.node: is missing; give the name of a node")
    deadline = entry.get("deadline")
    if isinstance(deadline, str):
        try:
            moment = datetime.fromisoformat(deadline)
        except ValueError as error:
            raise ProviderError(
                f"{where}.deadline: {deadline[:40]!r} is not a time such as 2026-01-02T03:04:05Z"
            ) from error
        if moment.tzinfo is None:
            raise ProviderError(f"{where}.deadline: {deadline!r} has no zone; end it with Z")
        return Notice(entry["node"], moment.timestamp())
    if isinstance(deadline, int | float) and not isinstance(deadline, bool) and 0 <= deadline < 1e11:
        return Notice(entry["node"], float(deadline))
    raise ProviderError(f"{where}.deadline: {str(deadline)[:40]!r} is neither a time nor seconds since the epoch")
