"""The client: asks a running system, over its topics or its HTTP front.

``async with Client("kafka://127.0.0.1:9092") as client: answer = await client.infer("digits", {"image": array})``
"""

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from types import TracebackType
from typing import Any, Protocol, Self

from sluicegate_client.answers import Answer, Status
from sluicegate_client.errors import ClientError, InvalidQueryError, RefusedError
from sluicegate_client.log import Log
from sluicegate_client.over_topics import OverTopics
from sluicegate_client.query import Query, check_name
from sluicegate_client.security import Security
from sluicegate_client.tensors import count_of, rows_of, tensor_of

_PREFIX, _SOURCE = "sluice", "client"
_BUSY = (429, 503)
_PAUSE = 0.1
"""Seconds, at least, before what a busy front has refused is asked again."""


class _Way(Protocol):
    at_once: int
    takes_ids: bool

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def ask(self, app: str, query: Query) -> Answer: ...
    def on_status(self, callback: Callable[[Status], None]) -> None: ...


class Client:
    """One connection. Queries may be asked concurrently.

    ``at``: ``kafka://host:port[,host:port]``, ``http://host:port`` of a front, or a ``Log`` of one's own. ``prefix``:
    of the system's topics. ``timeout``: seconds that an outcome is waited for, and a broker or front. ``source``: who
    asks over topics, its ``ce_source`` is ``/<source>``: a query's id is its own among those of its source; ``key``: by
    which it proves to be that, where the system asks for it. ``security``: of Kafka, TLS and SASL; ``token``: a
    front's.

    Raises ClientError for an address of no known kind, a timeout that is none, a token that no header can carry, a
    source that is no name, and what would do nothing there.
    """

    def __init__(
        self,
        at: str | Log,
        *,
        prefix: str = _PREFIX,
        timeout: float = 60.0,
        source: str = _SOURCE,
        key: str | None = None,
        security: Security | None = None,
        token: str | None = None,
    ) -> None:
        if not 0.0 < timeout < float("inf"):
            raise ClientError(f"timeout: is {timeout}; give seconds above 0")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ClientError("token: holds what no header carries; strip the end of its line")
        self._timeout = timeout
        self._connected = False
        self._way: _Way
        if isinstance(at, str) and at.startswith(("http://", "https://")):
            from sluicegate_client.over_http import OverHttp  # aiohttp and aiokafka are slow to load

            by_topics = {"prefix": prefix != _PREFIX, "source": source != _SOURCE, "key": key, "security": security}
            _check_idle("over http://", by_topics)
            self._way = OverHttp(at, token=token, timeout=timeout)
            return
        if isinstance(at, str):
            servers = at.removeprefix("kafka://").rstrip("/")
            if not at.startswith("kafka://") or not servers:
                raise ClientError(
                    f"{at.rpartition('@')[2]!r:.100}: give kafka://host:port, or http://host:port of a front"
                )
            from sluicegate_client.over_kafka import KafkaLog

            _check_idle("over kafka://", {"token": token})
            at = KafkaLog(servers, security or Security())
        else:
            _check_idle("over a log of one's own", {"token": token, "security": security})
        check_name("source", f"/{source}")
        self._way = OverTopics(at, prefix=prefix, source=source, timeout=timeout, key=key)

    async def __aenter__(self) -> Self:
        """Connect. Raises ClientError where nothing answers, or who is connected connects again."""
        if self._connected:
            raise ClientError("the client is connected already: share it inside of one `async with`")
        await self._way.open()
        self._connected = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect; queries that still wait are cancelled here (the system ends them all the same)."""
        self._connected = False
        await self._way.close()

    async def infer(
        self,
        app: str,
        inputs: Mapping[str, Any],
        *,
        query_id: str | None = None,
        stream: str | None = None,
        **parameters: Any,
    ) -> Answer:
        """Ask one query. ``inputs``: arrays, nested lists or Tensors by name, axis 0 the batch. ``parameters``:
        ``latency_ms``, ``accuracy``, ``cost``, ``model``, ``priority``; ``query_class`` stands for ``class``.
        ``query_id``, ``stream``: over topics alone.

        Raises NoOutcomeError, a TimeoutError, where no outcome came within the client's timeout; InvalidQueryError for
        what cannot be asked; RefusedError where a front does not take it. How a query ended is told by the answer.
        """
        if not self._connected:
            raise ClientError("the client is not connected: use `async with Client(…)`")
        if query_id is not None and not self._way.takes_ids:
            raise InvalidQueryError(
                "query_id", "is told over kafka:// only, a front names queries itself; leave it out"
            )
        if "query_class" in parameters:
            parameters["class"] = parameters.pop("query_class")
        if not isinstance(inputs, Mapping):
            raise InvalidQueryError(
                "inputs", f"is of type {type(inputs).__name__}; give a mapping, each input by its name"
            )
        tensors = {name: tensor_of(name, value) for name, value in inputs.items()}
        return await self._way.ask(app, Query(query_id or uuid.uuid4().hex, tensors, parameters, stream))

    async def infer_batch(
        self, app: str, inputs: Iterable[Mapping[str, Any]], *, at_once: int | None = None, **parameters: Any
    ) -> list[Answer]:
        """Ask many queries, drawn as they are asked, at most ``at_once`` at a time (16 of a front, 1024 over topics);
        answers in their order.

        What a front refuses because it is busy is asked again when the front says (``Retry-After``), else soon, for as
        long as the client's timeout; a refusal that would last longer is raised at once, or returned where it is how a
        query ended. What ``infer`` raises else is raised, and the other queries are given up.
        """
        drawn = enumerate(inputs)
        answers: dict[int, Answer] = {}

        async def ask(first: tuple[int, Mapping[str, Any]]) -> None:
            for number, one in chain((first,), drawn):
                answers[number] = await self._ask_on(app, one, parameters)

        most = self._way.at_once if at_once is None else max(1, at_once)
        asking: list[asyncio.Task[None]] = []
        try:
            asking.extend(asyncio.create_task(ask(first)) for first in islice(drawn, most))
            await asyncio.gather(*asking)
        finally:
            for task in asking:
                task.cancel()
        return [answers[number] for number in range(len(answers))]

    async def _ask_on(self, app: str, inputs: Mapping[str, Any], parameters: Mapping[str, Any]) -> Answer:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timeout
        while True:
            try:
                answer = await self.infer(app, inputs, **parameters)
            except RefusedError as error:
                pause = max(_PAUSE, error.retry_after or 0.0)
                if error.status not in _BUSY or loop.time() + pause > until:
                    raise
            else:
                pause = max(_PAUSE, answer.retry_after or 0.0)
                if answer.retry_after is None or loop.time() + pause > until:
                    return answer
            await asyncio.sleep(pause)

    async def infer_rows(
        self, app: str, inputs: Mapping[str, Any], *, rows: int = 16, **parameters: Any
    ) -> list[Answer]:
        """Ask about many rows, ``rows`` of them a query, as ``infer_batch`` does. ``inputs``: of n rows each, by name.

        Raises InvalidQueryError where the inputs differ in n.
        """
        counts = {name: count_of(value) for name, value in inputs.items()}
        if len(set(counts.values())) != 1 or rows < 1:
            raise InvalidQueryError("inputs", f"rows by input are {counts}, {rows} a query; give as many of each")
        (count,) = set(counts.values())
        parts = [{n: rows_of(v, i, i + rows) for n, v in inputs.items()} for i in range(0, count, rows)]
        return await self.infer_batch(app, parts, **parameters)

    def on_status(self, callback: Callable[[Status], None]) -> None:
        """Call ``callback`` with what stands on the status topic and whatever is announced from now on; Kafka only.

        ``subject`` "app:<name>": state "safe_mode" before a promise breaks and "promise_kept" once misses are within it
        again; "over_sustainable_rate", "degrade" and "within_sustainable_rate" of admission. "hop:<name>":
        "hop_exceeded" where queries are longer on their way than the promise allows for. Where the callback raises,
        that is logged, and it is called with what comes next. Raises ClientError where the client is not connected.
        """
        if not self._connected:
            raise ClientError("the client is not connected: use `async with Client(…)`")
        self._way.on_status(callback)


def _check_idle(where: str, given: Mapping[str, Any]) -> None:
    """Raises ClientError for what is given and does nothing ``where`` the client asks."""
    if idle := ", ".join(name for name, value in given.items() if value):
        raise ClientError(f"{idle}: would do nothing {where}; leave it out")
