"""What the fronts share: which apps are served, and asking over topics. A front turns its protocol into this and back.

A request becomes a query record; its outcome, when it comes by the result topic, the answer. The desk decides nothing
and holds nothing but the requests that wait. A model is an app; its versions are its variants.
"""

import asyncio
import logging
import os
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2s
from typing import Any

from sluicegate.domain.errors import InvalidInputError, SluiceError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import BYTES, Tensor, TensorSpec
from sluicegate.domain.query import QueryKey
from sluicegate.policies.admission.transport_delay import TransportDelay
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.connections import Connections
from sluicegate.stages.following.results_reader import ResultsReader
from sluicegate.stages.fronts.front_error import FrontError, check_answered
from sluicegate.stages.fronts.http_auth import network_of
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.streams.objects.store import ObjectError
from sluicegate.streams.ports import Headers, Record
from sluicegate.streams.records import codec
from sluicegate.streams.source_proofs import SourceKeys

log = logging.getLogger(__name__)

_FINISHES = 5.0
"""Seconds that what was asked has to end once the front stops."""
_LOOK = 5.0
"""Seconds that looking an unknown app up in the registry may take."""
_MAX_LATENCY = 600.0
"""Seconds that a query may take at most."""
_GRACE = 5.0
"""Seconds after its longest deadline that a request waits for its outcome."""
MOST_WAITING = 4096
"""Requests that may wait at a time; of one client half as many."""
_CLIENTS = 4096
"""Clients whose names are remembered."""
_STOPS = "the server is stopping; try again elsewhere"


Ended = Callable[[codec.OutcomeMessage | FrontError], None]
"""Told once how a query ended, as soon as that is known. Must not raise."""


@dataclass(slots=True)
class _Waiting:
    """A request under way, given up at ``until`` of the event loop's clock."""

    query_id: str
    client: str
    transport: TransportDelay
    until: float
    ended: Ended


class FrontDesk:
    """Serves ``apps`` to the front ``name``, which is the source of its queries, with who asks told apart.

    ``versions``: app -> names of its variants. ``registry``: waits until everything that is registered by now is known
    here; asked before an app or version is said to be unknown, so that whoever registered it reads its own write.
    ``max_body_bytes``: of a request. ``sources``: the keys by which its queries prove to be its own.
    """

    def __init__(
        self,
        name: str,
        connections: Connections,
        apps: Mapping[str, App],
        *,
        versions: Mapping[str, Sequence[str]] | None = None,
        registry: Callable[[], Awaitable[None]] | None = None,
        max_body_bytes: int = 1_000_000,
        sources: SourceKeys | None = None,
    ) -> None:
        self.name = name
        self._sources = sources
        self.max_body_bytes = max_body_bytes
        self._apps = dict(apps)
        self._versions = dict(versions or {})
        self._registry = registry
        self._topics = connections.topics
        self._clock = connections.clock
        self._results = ResultsReader(connections.broker, connections.topics, self._on_result)
        self._outbox = Outbox(connections.producer)
        self._objects = connections.objects
        self._waiting: dict[QueryKey, _Waiting] = {}  # who waits for longest comes first
        self._patience: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self._stopping = False
        self._asking: Counter[str] = Counter()
        self._client_at = lru_cache(_CLIENTS)(_namer(name, os.urandom(16)))
        self._transport: dict[str, TransportDelay] = {}
        self._looking: asyncio.Task[None] | None = None
        connections.telemetry.of_outbox(name, self._outbox)

    @property
    def ready(self) -> bool:
        """Whether results are read."""
        return self._results.ready

    @property
    def waiting(self) -> int:
        """Requests that wait for their outcome."""
        return len(self._waiting)

    async def open(self) -> None:
        """Write from now on."""
        await self._outbox.start()

    async def listen(self) -> None:
        """Read results; returns once that is so."""
        await self._results.add(self._apps)

    async def failure(self) -> None:
        """Wait for what somebody raises who is told of a query, and raise it."""
        await self._outbox.failure()

    async def finish(self) -> None:
        """Take nothing more; who waits gets an outcome for a while yet, then is told that the server stops."""
        self._stopping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_FINISHES):
                while self._waiting:
                    self._ended.clear()
                    await self._ended.wait()
        self.give_up()

    def give_up(self) -> None:
        """Who waits is told that the server stops."""
        for key in tuple(self._waiting):
            self._end(key, FrontError(503, _STOPS, retry_s=_FINISHES))

    async def close(self) -> None:
        """Read and write no more."""
        if self._patience is not None:
            self._patience.cancel()
        await asyncio.gather(*([self._looking] if self._looking else []), return_exceptions=True)
        await self._results.close()
        await self._outbox.stop()

    async def registered(self, served: Catalogue) -> None:
        """These apps, and no others, are served from now on."""
        await self._results.add(served.apps)
        self._versions = {name: [v.name for v in served.of_app(name)] for name in served.apps}
        self._apps = dict(served.apps)
        self._results.keep(served.apps)

    def index(self) -> list[tuple[str, str]]:
        """Every app and variant that is served."""
        return [(app, version) for app in sorted(self._apps) for version in self._versions.get(app, ())]

    def metadata(self, app: App) -> dict[str, Any]:
        """Of a model, as the protocol has it."""
        return {
            "name": app.name,
            "versions": list(self._versions.get(app.name, ())),
            "platform": "sluicegate",
            "inputs": [_spec(s) for s in app.inputs],
            "outputs": [_spec(s) for s in app.outputs],
        }

    def config(self, app: App) -> dict[str, Any]:
        """Of a model, as Triton's clients ask for it: rows of a query are a batch."""
        return {
            "name": app.name,
            "platform": "sluicegate",
            "backend": "sluicegate",
            "max_batch_size": app.max_rows,
            "input": [_configured(s) for s in app.inputs],
            "output": [_configured(s) for s in app.outputs],
        }

    def known(self, name: str) -> App | None:
        """The app of this name, where it is known to be served."""
        return self._apps.get(name)

    async def app_of(self, name: str, version: str | None) -> App:
        """The app of this name. Raises FrontError where it, or the version named, is not served here."""
        found = self._known(name, version)
        if found is None and self._registry is not None:
            # Many strangers' questions are one look at the registry.
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look(self._registry))
            await asyncio.shield(self._looking)
            found = self._known(name, version)
        if found is None:
            raise FrontError(404, self._unknown(name, version))
        return found

    def client_of(self, address: str | None, name: str = "") -> str:
        """Who asks, as the source of its queries: by ``name``, or told from others by an address that is not told."""
        if name:
            return f"{self.name}/{name}"
        return self._client_at(address) if address else self.name

    def check_room(self, app: App, client: str) -> None:
        """Raise FrontError where the front stops, too many wait, or the way takes too long for all to be sent."""
        if self._stopping:
            raise FrontError(503, _STOPS, retry_s=_FINISHES)
        if self._asking[client] >= MOST_WAITING // 2:
            raise FrontError(503, "too many of your requests wait for their answer; try again later")
        # Who goes away is not waited for, but what was asked still goes to the broker.
        if max(len(self._waiting), self._outbox.unacknowledged) >= MOST_WAITING:
            raise FrontError(503, "too many requests wait for their answer; try again later")
        if not self._transport_of(app).comes(self._clock.wall()):
            # An SLO is what it takes to see that it keeps up again.
            told = "queries take too long on their way: this host does not keep up, or its broker is away; try again"
            raise FrontError(503, told, retry_s=app.slo)

    async def ask(
        self, app: App, body: bytes, json_length: str | None, carried: Headers, client: str
    ) -> codec.OutcomeMessage:
        """The result of a query of ``client`` that was answered. Raises FrontError where it was not.

        ``carried``: of the request's headers, what goes along and comes back with the outcome.
        """
        came: asyncio.Future[codec.OutcomeMessage | FrontError] = asyncio.get_running_loop().create_future()

        def ended(result: codec.OutcomeMessage | FrontError) -> None:
            if not came.done():
                came.set_result(result)

        key = self.begin(app, body, json_length, carried, client, ended)
        try:
            message = await came
        finally:
            self._forget(key)
        if isinstance(message, FrontError):
            raise message
        check_answered(message)
        return await self.whole(message)

    def begin(
        self, app: App, body: bytes, json_length: str | None, carried: Headers, client: str, ended: Ended
    ) -> QueryKey:
        """As ``ask``, without waiting: ``ended`` is told the outcome, whatever it is, as it came, or why there is none.
        That may be before this returns. What lies in an object store of it is not fetched."""
        query_id = uuid.uuid4().hex
        source = f"/{client}"
        key = QueryKey(app.name, source, query_id)
        now = self._clock.wall()
        transport = self._transport_of(app)
        topic = self._topics.queries(app.name)
        headers = codec.query_headers(
            query_id,
            app=app.name,
            source=client,
            now=now,
            json_length=json_length,
            carried=carried,
            delivery_s=transport.way_back,
        )
        if self._sources is not None:
            headers += self._sources.proof(topic, source, query_id, body, now)
        loop = asyncio.get_running_loop()
        until = loop.time() + _MAX_LATENCY + _GRACE
        self._waiting[key] = _Waiting(query_id, client, transport, until, ended)
        self._asking[client] += 1
        if self._patience is None:
            self._patience = loop.call_at(until, self._lose_patience)
        transport.sent(query_id, now)

        def refused(error: InvalidInputError) -> None:
            self._end(key, FrontError(413, f"body: {error.problem}, or have topics.queries.max_bytes raised"))

        try:
            self._outbox.post(topic, body, key=query_id.encode(), headers=headers, timestamp=now, refused=refused)
        except BaseException:
            self._forget(key)
            raise
        return key

    def _forget(self, key: QueryKey) -> _Waiting | None:
        """Nobody waits for it any more."""
        waiting = self._waiting.pop(key, None)
        self._ended.set()
        if waiting is not None:
            client = waiting.client
            self._asking[client] -= 1
            if not self._asking[client]:
                del self._asking[client]
            waiting.transport.ended(waiting.query_id, self._clock.wall())
        return waiting

    def _end(self, key: QueryKey, result: codec.OutcomeMessage | FrontError) -> None:
        waiting = self._forget(key)
        if waiting is not None:
            waiting.ended(result)

    def _lose_patience(self) -> None:
        """All are waited for equally long: one timer serves all of them."""
        self._patience = None
        loop = asyncio.get_running_loop()
        for key, waiting in tuple(self._waiting.items()):
            if waiting.until > loop.time():
                self._patience = loop.call_at(waiting.until, self._lose_patience)
                return
            told = f"query {key.id}: no outcome in time; `sluice explain {key.id}` may tell why"
            self._end(key, FrontError(504, told))

    @property
    def fetches(self) -> bool:
        """Whether results may lie in an object store that is read here."""
        return self._objects is not None and self._objects.results is not None

    async def whole(self, message: codec.OutcomeMessage) -> codec.OutcomeMessage:
        """The result with what lies in the object store, where it can be read here. Raises FrontError."""
        store = self._objects
        if store is None or store.results is None:
            return message
        tensors: list[Tensor] = []
        try:
            for tensor, claim in message.claims():
                tensors.append(replace(tensor, data=await store.read(claim, within=_GRACE)))
            return codec.with_outputs(message, tensors) if tensors else message
        except (ObjectError, InvalidInputError, ValueError) as error:
            raise FrontError(502, f"query {message.outcome.query_id} was answered, but {error}") from error
        finally:
            for tensor in tensors:
                store.release(len(tensor.data))

    def _transport_of(self, app: App) -> TransportDelay:
        found = self._transport.get(app.name)
        if found is None or found.slo != app.slo:
            found = self._transport[app.name] = TransportDelay(app.slo)
        return found

    async def _look(self, registry: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(_LOOK):
                await registry()
        except (TimeoutError, SluiceError) as error:
            log.warning("the registry cannot be read (%s)", str(error) or "timed out")

    def _known(self, name: str, version: str | None) -> App | None:
        if version is not None and version not in self._versions.get(name, ()):
            return None
        return self._apps.get(name)

    def _unknown(self, name: str, version: str | None) -> str:
        if name in self._apps and version is not None:
            there = ", ".join(self._versions.get(name, ())) or "none"
            return f"version: {version!r:.80} is no variant of {name}; known: {there}"
        known = ", ".join(sorted(self._apps)) or "none"
        return f"model: {name!r:.80} is not served here; known: {known}"

    def _on_result(self, record: Record) -> None:
        if not self._waiting:
            return
        app = self._topics.app_of(record.topic) or ""
        key = QueryKey(app, codec.query_source_of(record), codec.query_id_of(record) or "")
        waiting = self._waiting.get(key)
        if waiting is None:
            return
        message = codec.decode_outcome(record)
        told = message.outcome
        if told.device is not None:
            waiting.transport.ended(key.id, self._clock.wall(), told.at, told.queue_s + told.batch_s)
        self._end(key, message)


def _namer(name: str, salt: bytes) -> Callable[[str], str]:
    """Tells who comes from one address from who comes from another, not which it is."""

    def client_at(address: str) -> str:
        return f"{name}/{blake2s(network_of(address).encode(), key=salt, digest_size=4).hexdigest()}"

    return client_at


def _spec(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": [-1, *_dims(spec)]}


def _configured(spec: TensorSpec) -> dict[str, Any]:
    kind = "STRING" if spec.datatype == BYTES else spec.datatype  # as Triton's configurations call it
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": _dims(spec)}


def _dims(spec: TensorSpec) -> list[int]:
    return [-1, *spec.row_shape[1:]] if spec.varying else list(spec.row_shape)
