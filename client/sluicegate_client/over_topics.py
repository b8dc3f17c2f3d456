"""Asking over topics: queries are CloudEvents around Open Inference Protocol bodies, results are matched by app, source
and query id."""

import asyncio
import hmac
import json
import logging
import struct
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sluicegate_client.answers import Answer, Status, outcome_of
from sluicegate_client.errors import ClientError, InvalidQueryError, NoOutcomeError
from sluicegate_client.log import Headers, Log, Received
from sluicegate_client.query import Query
from sluicegate_client.tensors import outputs_of

log = logging.getLogger(__name__)

_LEASE = b"lease:planner"
_JSON_LENGTH = "inference-header-content-length"


class OverTopics:
    """Asks by query topics and hears by result topics. ``ce_source`` is ``/<source>``, proven by ``key``."""

    at_once = 1024
    takes_ids = True

    def __init__(self, held: Log, *, prefix: str, source: str, timeout: float, key: str | None = None) -> None:
        self._log = held
        self._prefix = prefix
        self._source = source
        self._own = key.encode() if key is not None else None
        self._timeout = timeout
        self._apps: frozenset[str] = frozenset()
        self._waiting: dict[tuple[str, str], asyncio.Future[Answer]] = {}
        self._deaf = ""
        self._background: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Connect; results are read from now on."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._open()
        except TimeoutError as error:
            why = "correct the address, or what `security` says"
            raise ClientError(f"nothing answers at {self._log.url} within {self._timeout:g} s: {why}") from error

    async def _open(self) -> None:
        try:
            await self._log.open()
            names = {app: f"{self._prefix}.app.{app}.results" for app in self._served(await self._log.topics())}
            if not names:
                raise ClientError(
                    f"no result topics under {self._prefix!r} at {self._log.url}: start `sluice up`, or name its prefix"
                )
            reading = await self._log.follow(sorted(names.values()), self._heard, beginning=False)
        except BaseException:
            await self._log.close()
            raise
        self._apps = frozenset(names)
        self._deaf = ""
        if reading is not None:
            reading.add_done_callback(self._heard_the_last)

    async def close(self) -> None:
        """Disconnect; who still waits is cancelled."""
        for waiting in self._waiting.values():
            waiting.cancel()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._log.close()

    async def ask(self, app: str, query: Query) -> Answer:
        """Ask one query."""
        if app not in self._apps:
            known = ", ".join(sorted(self._apps))
            raise InvalidQueryError("app", f"{app!r:.80} is not served here; known: {known}; connect again for others")
        if self._deaf:
            raise ClientError(self._deaf)
        key = (app, query.id)
        if key in self._waiting:
            raise InvalidQueryError("query_id", f"{query.id!r:.80} waits for its outcome; give each query its own")
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[key] = waiting
        try:
            head, raw = query.body()
            topic, value = f"{self._prefix}.app.{app}.queries", head + raw
            proof = _proof(self._own, topic, f"/{self._source}", query.id, value) if self._own is not None else ()
            async with asyncio.timeout(self._timeout):
                await self._log.send(
                    topic,
                    value,
                    key=(query.stream if query.stream is not None else query.id).encode(),
                    headers=self._headers(app, query.id, len(head)) + proof,
                )
                return await waiting
        except TimeoutError as error:
            raise NoOutcomeError(
                f"no outcome of {app} within {self._timeout:g} s: see that `sluice up admission` and `sluice up router`"
                " run for it on this broker and prefix"
            ) from error
        finally:
            self._waiting.pop(key, None)

    def on_status(self, callback: Callable[[Status], None]) -> None:
        """Follow the status topic."""

        def tell(record: Received) -> None:
            if record.value is None or record.key == _LEASE:
                return
            try:
                said = json.loads(record.value)
                status = Status(said["subject"], said["state"], said["detail"])
            except (ValueError, KeyError, TypeError, RecursionError):
                return  # an older or newer system's
            try:
                callback(status)
            except Exception:
                log.exception("what was called with an announcement raised")

        async def follow() -> None:
            try:
                reading = await self._log.follow([f"{self._prefix}.control.status"], tell, beginning=True)
                if reading is not None:
                    await reading
            except Exception:
                log.exception("announcements cannot be followed")

        task = asyncio.create_task(follow())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _served(self, names: frozenset[str]) -> list[str]:
        start, end = f"{self._prefix}.app.", ".results"
        found = [name[len(start) : -len(end)] for name in names if name.startswith(start) and name.endswith(end)]
        return [app for app in found if app and "." not in app]

    def _headers(self, app: str, query_id: str, json_length: int) -> Headers:
        return (
            ("ce_specversion", b"1.0"),
            ("ce_id", query_id.encode()),
            ("ce_source", f"/{self._source}".encode()),
            ("ce_type", b"sluicegate.query"),
            ("ce_subject", app.encode()),
            ("ce_time", datetime.fromtimestamp(time.time(), UTC).isoformat().encode()),
            ("content-type", b"application/octet-stream"),
            (_JSON_LENGTH, str(json_length).encode()),
            ("accept", b"application/octet-stream"),
        )

    def _heard_the_last(self, reading: "asyncio.Future[None]") -> None:
        """Who waits, or asks from now on, is told that results are read no more."""
        if reading.cancelled():  # disconnected
            return
        error = reading.exception()
        why = str(error or "its reader has ended") or type(error).__name__
        self._deaf = f"results are read no more: {why:.200}; connect again"
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ClientError(self._deaf))
                waiting.exception()  # looked at, where who asked is told of something else

    def _heard(self, record: Received) -> None:
        headers: dict[str, bytes | None] = dict(record.headers)  # Kafka's may be without a value
        if headers.get("ce_querysource") != f"/{self._source}".encode():
            return
        app = record.topic[len(self._prefix) + len(".app.") : -len(".results")]
        waiting = self._waiting.get((app, (headers.get("ce_id") or b"").decode(errors="replace")))
        if waiting is None or waiting.done():
            return
        try:
            waiting.set_result(answer_of(record.value or b"", headers.get(_JSON_LENGTH)))
        except Exception as error:  # whatever is wrong with one outcome: others are heard behind it
            waiting.set_exception(ClientError(f"outcome: {record.value!r:.80} is no outcome ({error!s:.80})"))


def _proof(key: bytes, topic: str, source: str, query_id: str, value: bytes) -> Headers:
    """That a query is of ``source``: the time in milliseconds, and a signature over it and the others by its key."""
    told = struct.pack(">q", round(time.time() * 1e3))
    parts = (topic.encode(), source.encode(), query_id.encode(), value)
    sizes = struct.pack(">iiii", *map(len, parts))
    return (("sluice-source-proof", told + hmac.digest(key, b"".join((told, sizes, *parts)), "sha256")),)


def answer_of(value: bytes, json_length: bytes | None = None) -> Answer:
    """Of a result record; ``json_length``: where raw tensors follow its JSON. What is none raises whatever reading it
    does."""
    end = len(value) if json_length is None else int(json_length)
    head = value[:end]
    body: Any = json.loads(head)
    return Answer(outcome_of(body), outputs_of(body, value[end:]), head)
