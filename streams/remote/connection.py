"""HTTP calls to the log of another process, and its errors as our own."""

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import aiohttp
import orjson

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.streams.broker_settings import RemoteSettings
from sluicegate.streams.ports import BrokerError, UnreachableError
from sluicegate.streams.remote.frames import CALL_HEADER, MAX_WAIT


class Connection:
    """HTTP calls to one log."""

    def __init__(self, base: str, settings: RemoteSettings) -> None:
        self._base = base.rstrip("/")
        self.settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def call(self, path: str, body: bytes | None = None) -> bytes:
        """Answer of ``/log/<path>``; GET without a body. Raises what the other side raised, or BrokerError."""
        if self._session is None:
            headers = {CALL_HEADER: "1"}
            if self.settings.token is not None:
                headers["Authorization"] = f"Bearer {self.settings.token}"
            timeout = aiohttp.ClientTimeout(total=self.settings.timeout + MAX_WAIT)
            self._session = aiohttp.ClientSession(headers=headers, timeout=timeout)
        method = "GET" if body is None else "POST"
        try:
            # As a file: the client warns of large bytes, which it would write at once.
            data = None if body is None else BytesIO(body)
            async with self._session.request(method, f"{self._base}/log/{path}", data=data) as answer:
                content = await answer.read()
                if answer.status == 200:
                    return content
                raise _refused(self._base, content, answer.status)
        except aiohttp.ClientConnectorError as error:
            raise UnreachableError(
                f"nothing answers at {self._base} ({error.strerror}); start `sluice up`, or name another broker"
            ) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise BrokerError(f"{self._base}: {type(error).__name__} {error}") from error

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The same in JSON."""
        answer = await self.call(path, None if body is None else orjson.dumps(body))
        try:
            decoded = orjson.loads(answer)
        except ValueError as error:
            raise BrokerError(f"{self._base}: no log answers here ({error})") from error
        if not isinstance(decoded, dict):
            raise BrokerError(f"{self._base}: no log answers here")
        return decoded

    async def close(self) -> None:
        """Disconnect."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _refused(base: str, content: bytes, status: int) -> Exception:
    try:
        told = orjson.loads(content)
    except ValueError:
        told = None
    if isinstance(told, dict) and "problem" in told:
        return error_of(told)
    if status == 404:
        return UnreachableError(
            f"{base} holds no log: that `sluice up` is on another broker; "
            "name it here, too (an option, or SLUICE_BROKER)"
        )
    return BrokerError(f"status {status}: {content[:100].decode(errors='replace')}")


def error_of(told: Mapping[str, Any]) -> Exception:
    """The error that the other side tells of."""
    if told.get("error") == "input":
        return InvalidInputError(str(told.get("field")), str(told.get("problem")))
    return ConfigurationError(str(told.get("problem")))
