"""Asking over the HTTP front: one request a query."""

import json
import time
from base64 import b64encode
from calendar import timegm
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import parsedate
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import aiohttp

from sluicegate_client.answers import Answer, Status, outcome_of
from sluicegate_client.errors import ClientError, InvalidQueryError, NoOutcomeError, RefusedError
from sluicegate_client.query import Query
from sluicegate_client.tensors import outputs_of

_OUTCOME = "Sluice-Outcome"
_JSON_LENGTH = "Inference-Header-Content-Length"


class OverHttp:
    """Asks by ``POST /v2/models/<app>/infer``. ``token``: what the front asks for, if it does.

    The front names queries itself: ``outcome.query_id`` is what ``sluice explain`` takes.
    """

    at_once = 16
    takes_ids = False

    def __init__(self, base: str, *, token: str | None, timeout: float) -> None:
        self._base, user = _without_user(base)
        if user and token is not None:
            raise ClientError("token: the front's address names a user already; give one of them")
        self._headers = {"Authorization": user or f"Bearer {token}"} if user or token is not None else {}
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Connect, and see that a front answers."""
        timeout = aiohttp.ClientTimeout(total=self._timeout)
        connector = aiohttp.TCPConnector(limit=0)
        session = aiohttp.ClientSession(headers=self._headers, timeout=timeout, connector=connector)
        try:
            async with session.get(f"{self._base}/v2/health/live") as answer:
                if answer.status != 200:
                    raise ClientError(f"no front of Sluicegate answers at {self._base}; start `sluice up`")
        except BaseException as error:
            await session.close()
            if not isinstance(error, aiohttp.ClientError | TimeoutError):
                raise
            why = str(error) or f"within {self._timeout:g} s"
            raise ClientError(f"nothing answers at {self._base} ({why}); start `sluice up`") from error
        self._session = session

    async def close(self) -> None:
        """Disconnect."""
        if self._session is not None:
            await self._session.close()

    async def ask(self, app: str, query: Query) -> Answer:
        """Ask one query."""
        if query.stream is not None:
            raise InvalidQueryError("stream", "is told over kafka:// only; leave it out")
        if self._session is None:
            raise ClientError("the client is not connected: use `async with Client(…)`")
        asked = Query(query.id, query.tensors, {**query.parameters, "binary_data_output": True})
        head, raw = asked.body(with_id=False)
        try:
            async with self._session.post(
                f"{self._base}/v2/models/{quote(app, safe='')}/infer",
                data=head + raw,
                headers={_JSON_LENGTH: str(len(head)), "Content-Type": "application/octet-stream"},
            ) as response:
                content = await response.read()
                return _answer(response.status, response.headers, content)
        except TimeoutError as error:
            raise NoOutcomeError(f"no outcome of {app} within {self._timeout:g} s at {self._base}") from error
        except aiohttp.ClientError as error:
            raise ClientError(f"{self._base}: {type(error).__name__} {error}") from error

    def on_status(self, callback: Callable[[Status], None]) -> None:
        """Announcements stand on a topic."""
        del callback
        raise ClientError("announcements are told over kafka:// only")


def _without_user(base: str) -> tuple[str, str]:
    """A front's address as it may be told, and a header's value for the user whom it named, "" for nobody. Raises
    ClientError, which does not repeat it."""
    try:
        parts = urlsplit(base.rstrip("/"))
        user, _, place = parts.netloc.rpartition("@")
        if not parts.hostname or parts.port == 0 or "@" in parts.path + parts.query + parts.fragment:
            raise ValueError
        name, _, password = map(unquote, user.partition(":"))
        if ":" in name:
            raise ValueError
        proof = b64encode(f"{name}:{password}".encode("latin-1")).decode()
    except ValueError:
        raise ClientError(
            "the front's address cannot be read: give http://host:port; of a user and password before it, "
            "what is neither letter nor digit as %XX"
        ) from None
    return parts._replace(netloc=place).geturl(), f"Basic {proof}" if user else ""


def seconds_told(retry_after: str, now: float) -> float | None:
    """Seconds to wait by a ``Retry-After``, which is a number of them or a date; None where it is neither. ``now``:
    seconds since 1970."""
    if retry_after.isascii() and retry_after.isdecimal():
        return float(retry_after)
    date = parsedate(retry_after)
    with suppress(ValueError, OverflowError):
        return None if date is None else max(0.0, timegm(date) - now)
    return None


def _answer(status: int, headers: Mapping[str, str], content: bytes) -> Answer:
    wait = seconds_told(headers.get("Retry-After", ""), time.time())
    try:
        if _OUTCOME in headers:
            return Answer(outcome_of(json.loads(headers[_OUTCOME])), {}, content, wait)
        size = int(headers.get(_JSON_LENGTH, len(content)))
        body: Any = json.loads(content[:size])
        if "model_name" in body and "parameters" in body:
            return Answer(outcome_of(body), outputs_of(body, content[size:]), content[:size])
        problem = str(body.get("error", "no reason told"))
    except Exception as error:  # whatever is wrong with it
        told = f"{content[:80]!r} is no answer of a front ({type(error).__name__}: {error!s:.80})"
        raise RefusedError(status, told, wait) if status >= 400 else ClientError(told) from error
    if status in {400, 404}:
        field, _, rest = problem.partition(": ")
        raise InvalidQueryError(field, rest or "is not taken")
    raise RefusedError(status, problem, wait)
