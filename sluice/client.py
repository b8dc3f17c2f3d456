"""The client: asks a running system over its topics and matches answers by app, source and query id.

``async with Client("kafka://127.0.0.1:9092") as client: answer = await client.infer("digits", {"image": array})``
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import ConfigurationError, InvalidInputError, SluiceError
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import Outcome
from sluicegate.domain.query import QueryKey
from sluicegate.sluice.audit.result_log import result_topics
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.following.results_reader import ResultsReader
from sluicegate.stages.runtime.system_clock import SystemClock
from sluicegate.streams import connect
from sluicegate.streams.broker_settings import KafkaSettings, RemoteSettings
from sluicegate.streams.ports import Broker, Producer, Record
from sluicegate.streams.records import codec, control
from sluicegate.streams.records.oip import DTYPES
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)

_DATATYPE_OF = {dtype.newbyteorder("="): name for name, dtype in DTYPES.items()}


class NoOutcomeError(SluiceError, TimeoutError):
    """A query has no outcome yet, within the time that the client waits."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a query. ``outputs`` by name, empty where it was not answered; ``outcome`` says why."""

    outcome: Outcome
    outputs: Mapping[str, NDArray[Any]]


class Client:
    """One connection. Queries may be asked concurrently. ``kafka``: TLS and SASL; ``remote``: a front's token.

    ``source``: who asks, its ``ce_source`` is ``/<source>``: a query's id is its own among those of its source.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "sluice",
        timeout: float = 60.0,
        source: str = "client",
        kafka: KafkaSettings | None = None,
        remote: RemoteSettings | None = None,
    ) -> None:
        self._broker: Broker = connect(url, kafka=kafka, remote=remote)
        self._topics = Topics(prefix)
        self._timeout = timeout
        self._clock = SystemClock()
        self._source = source
        self._waiting: dict[QueryKey, asyncio.Future[codec.OutcomeMessage]] = {}
        self._apps: set[str] = set()
        self._producer: Producer | None = None
        self._results = ResultsReader(self._broker, self._topics, self._heard)
        self._followers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Connect. Results are read from now on."""
        self._producer = self._broker.producer()
        await self._producer.start()
        partitions = await result_topics(self._broker, self._topics)
        if not partitions:
            await self._producer.stop()
            await self._broker.close()
            raise ConfigurationError(
                f"no result topics under {self._topics.prefix!r} at {self._broker.url}: start `sluice up`"
            )
        self._apps = {app for p in partitions if (app := self._topics.app_of(p.topic)) is not None}
        await self._results.add(self._apps)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect; queries that still wait are cancelled here (the system ends them all the same)."""
        for waiting in self._waiting.values():
            waiting.cancel()
        for task in self._followers:
            task.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)
        await self._results.close()
        if self._producer is not None:
            await self._producer.stop()
        await self._broker.close()

    async def infer(
        self,
        app: str,
        inputs: Mapping[str, NDArray[Any]] | Sequence[Tensor],
        *,
        query_id: str | None = None,
        stream: str | None = None,
        **parameters: Any,
    ) -> Answer:
        """Ask one query. ``inputs``: arrays by name, axis 0 the batch. ``parameters``: ``latency_ms``, ``accuracy``,
        ``cost``, ``model``, ``priority``; ``query_class`` stands for ``class``.

        Raises NoOutcomeError, a TimeoutError, where no outcome came within the client's timeout.
        """
        producer = self._producer
        if producer is None:
            raise ConfigurationError("the client is not connected: use `async with Client(…)`")
        if app not in self._apps:
            known = ", ".join(sorted(self._apps)) or "none"
            raise InvalidInputError("app", f"{app!r:.80} is not served here; known: {known}; connect again for others")
        if "query_class" in parameters:
            parameters["class"] = parameters.pop("query_class")
        query_id = query_id or uuid.uuid4().hex
        message = codec.encode_query(
            query_id,
            tensors_of(inputs) if isinstance(inputs, Mapping) else inputs,
            app=app,
            now=self._clock.wall(),
            source=self._source,
            parameters=parameters,
            stream=stream,
        )
        key = QueryKey(app, f"/{self._source}", query_id)
        future: asyncio.Future[codec.OutcomeMessage] = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        try:
            sent = await producer.send(
                self._topics.queries(app), message.value, key=message.key, headers=message.headers
            )
            await sent
            async with asyncio.timeout(self._timeout):
                answer = await future
        except TimeoutError as error:
            raise NoOutcomeError(
                f"no outcome of {app} within {self._timeout:g} s: see that `sluice up admission` and `sluice up router`"
                " run for it on this broker and prefix"
            ) from error
        finally:
            self._waiting.pop(key, None)
        return Answer(answer.outcome, {t.name: array_of(t) for t in answer.outputs()})

    async def infer_batch(
        self, app: str, inputs: Sequence[Mapping[str, NDArray[Any]]], **parameters: Any
    ) -> list[Answer]:
        """Ask many queries at once; answers in their order."""
        return list(await asyncio.gather(*(self.infer(app, one, **parameters) for one in inputs)))

    def on_status(self, callback: Callable[[Announce], None]) -> None:
        """Call ``callback`` with what stands on the status topic and whatever is announced from now on.

        ``subject`` "app:<name>": state "safe_mode" before a promise breaks and "promise_kept" once misses are within it
        again; "over_sustainable_rate", "degrade" and "within_sustainable_rate" of admission. Where the callback raises,
        that is logged, and it is called with what comes next. Raises ConfigurationError where the client is not
        connected.
        """
        if self._producer is None:
            raise ConfigurationError("the client is not connected: use `async with Client(…)`")
        task = asyncio.create_task(self._follow_status(callback))
        self._followers.add(task)

    async def _follow_status(self, callback: Callable[[Announce], None]) -> None:
        def tell(record: Record) -> None:
            if record.value is not None and record.key != control.LEASE_KEY:
                callback(control.decode_announce(record.value))

        try:
            await Follower(self._broker, self._topics.status, tell).run(asyncio.Event())
        except Exception:  # the user's own, in the background: nobody else would hear of it
            log.exception("following %s ended", self._topics.status)

    async def infer_rows(
        self, app: str, inputs: Mapping[str, NDArray[Any]], *, rows: int = 16, **parameters: Any
    ) -> list[Answer]:
        """Ask about many rows, ``rows`` of them a query; answers in their order. ``inputs``: arrays [n, ...] by name.

        Raises InvalidInputError where the arrays differ in n.
        """
        counts = {name: len(array) for name, array in inputs.items()}
        if len(set(counts.values())) != 1 or rows < 1:
            raise InvalidInputError("inputs", f"rows by input are {counts}, {rows} a query; give as many of each")
        (count,) = set(counts.values())
        parts = [{name: a[i : i + rows] for name, a in inputs.items()} for i in range(0, count, rows)]
        return await self.infer_batch(app, parts, **parameters)

    def _heard(self, record: Record) -> None:
        app = self._topics.app_of(record.topic) or ""
        key = QueryKey(app, codec.query_source_of(record), codec.query_id_of(record) or "")
        waiting = self._waiting.get(key)
        if waiting is None or waiting.done():
            return
        try:
            waiting.set_result(codec.decode_outcome(record))
        except InvalidInputError as error:
            waiting.set_exception(error)


def tensors_of(arrays: Mapping[str, NDArray[Any]]) -> tuple[Tensor, ...]:
    """Arrays as tensors. Raises InvalidInputError for a dtype that the protocol has no name for."""
    tensors = []
    for name, array in arrays.items():
        whole = np.ascontiguousarray(array)
        datatype = _DATATYPE_OF.get(whole.dtype.newbyteorder("="))
        if datatype is None:
            raise InvalidInputError(
                f"inputs.{name}", f"dtype {whole.dtype} is not taken; use one of {', '.join(DTYPES)}"
            )
        tensors.append(Tensor(name, datatype, whole.shape, whole.astype(DTYPES[datatype]).tobytes()))
    return tuple(tensors)


def array_of(tensor: Tensor) -> NDArray[Any]:
    """A tensor as an array of its own shape."""
    return np.frombuffer(tensor.data, dtype=DTYPES[tensor.datatype]).reshape(tensor.shape)
