"""What the fronts share: which apps are served, and asking over topics. A front turns its protocol into this and back.

A request becomes a query record; its outcome, when it comes by the result topic, the answer. The desk decides nothing
and holds nothing but the requests that wait. A model is an app; its versions are its variants. Status, as HTTP's: 200
answered (also late, marked), 400 rejected, 404 unknown app or version, 413 too large, 429 over its client's share, 500
failed, 502 answered and not to be had (it lies in an object store that does not give it), 503 dropped, not routed, too
many waiting or a host that does not keep up, 504 expired.
"""

import asyncio
import logging
import os
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2s
from typing import Any

from sluicegate.domain.errors import InvalidInputError, SluiceError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import BYTES, Tensor, TensorSpec
from sluicegate.domain.outcome import OutcomeKind, Reason
from sluicegate.domain.query import QueryKey
from sluicegate.policies.admission.transport_delay import TransportDelay
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.connections import Connections
from sluicegate.stages.following.results_reader import ResultsReader
from sluicegate.stages.fronts.http_auth import network_of
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.streams.objects.store import ObjectError
from sluicegate.streams.ports import Headers, Record
from sluicegate.streams.records import codec
from sluicegate.streams.source_proofs import SourceKeys

log = logging.getLogger(__name__)

_STATUS = {
    OutcomeKind.ANSWERED: 200,
    OutcomeKind.REJECTED: 400,
    OutcomeKind.FAILED: 500,
    OutcomeKind.DROPPED: 503,
    OutcomeKind.EXPIRED: 504,
}
_LOOK = 5.0
"""Seconds that looking an unknown app up in the registry may take."""
_MAX_LATENCY = 600.0
"""Seconds that a query may take at most."""
_GRACE = 5.0
"""Seconds after its longest deadline that a request waits for its outcome."""
MOST_WAITING = 4096
"""Requests that may wait at a time; of one client half as many."""


class FrontError(Exception):
    """A request gets no answer. ``result``: how its query ended, None where it was not one."""

    def __init__(self, status: int, why: str, result: bytes | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.why = why
        self.result = result


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
        self._waiting: dict[QueryKey, asyncio.Future[codec.OutcomeMessage]] = {}
        self._asking: Counter[str] = Counter()
        self._salt = os.urandom(16)
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

    def give_up(self) -> None:
        """Who waits is told that the server stops."""
        for waiting in self._waiting.values():
            waiting.cancel()

    async def close(self) -> None:
        """Read and write no more."""
        await asyncio.gather(*([self._looking] if self._looking else []), return_exceptions=True)
        await self._results.close()
        await self._outbox.stop()

    async def registered(self, served: Catalogue) -> None:
        """These apps, and no others, are served from now on."""
        await self._results.add(served.apps)
        self._versions = {name: [v.name for v in served.of_app(name)] for name in served.apps}
        self._apps = dict(served.apps)

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
        if not address:
            return self.name
        return f"{self.name}/{blake2s(network_of(address).encode(), key=self._salt, digest_size=4).hexdigest()}"

    def check_room(self, app: App, client: str) -> None:
        """Raise FrontError where too many wait, or the way there and back takes too long for all to be sent."""
        if self._asking[client] >= MOST_WAITING // 2:
            raise FrontError(503, "too many of your requests wait for their answer; try again later")
        if len(self._waiting) >= MOST_WAITING:
            raise FrontError(503, "too many requests wait for their answer; try again later")
        if not self._transport_of(app).comes(self._clock.wall()):
            raise FrontError(503, "this host does not keep up with what is asked; try again later, or elsewhere")

    async def ask(
        self, app: App, body: bytes, json_length: str | None, carried: Headers, client: str
    ) -> codec.OutcomeMessage:
        """The result of a query of ``client`` that was answered. Raises FrontError where it was not.

        ``carried``: of the request's headers, what goes along and comes back with the outcome.
        """
        query_id = uuid.uuid4().hex
        key = QueryKey(app.name, f"/{client}", query_id)
        outcome: asyncio.Future[codec.OutcomeMessage] = asyncio.get_running_loop().create_future()
        now = self._clock.wall()
        self._waiting[key] = outcome
        self._asking[client] += 1
        transport = self._transport_of(app)
        transport.sent(query_id, now)
        topic = self._topics.queries(app.name)
        proof = self._sources.proof(topic, f"/{client}", query_id, body, now) if self._sources is not None else ()
        try:
            self._outbox.post(
                topic,
                body,
                key=query_id.encode(),
                headers=codec.query_headers(
                    query_id,
                    app=app.name,
                    source=client,
                    now=now,
                    json_length=json_length,
                    carried=carried,
                    delivery_s=transport.way_back,
                )
                + proof,
                timestamp=now,
            )
            async with asyncio.timeout(_MAX_LATENCY + _GRACE):
                message = await outcome
            told = message.outcome
            if told.device is not None:
                transport.ended(query_id, self._clock.wall(), told.at, told.queue_s + told.batch_s)
        except TimeoutError:
            why = f"query {query_id}: no outcome in time; `sluice explain {query_id}` may tell why"
            raise FrontError(504, why) from None
        except asyncio.CancelledError:
            if outcome.cancelled():
                raise FrontError(503, "the server is stopping; try again elsewhere") from None
            raise
        finally:
            self._waiting.pop(key, None)
            self._asking[client] -= 1
            if not self._asking[client]:
                del self._asking[client]
            transport.ended(query_id, self._clock.wall())
        check_answered(message)
        return await self._whole(message)

    async def _whole(self, message: codec.OutcomeMessage) -> codec.OutcomeMessage:
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
        if waiting is not None and not waiting.done():
            waiting.set_result(codec.decode_outcome(record))


def check_answered(message: codec.OutcomeMessage) -> None:
    """Raise FrontError where it was not."""
    outcome = message.outcome
    told = {Reason.NOTHING_ROUTES: 503, Reason.OVER_SHARE: 429}
    status = next((code for reason, code in told.items() if outcome.reason == reason), _STATUS[outcome.kind])
    if status == 200:
        return
    why = f"query {outcome.query_id}: {outcome.kind.value}"
    if outcome.reason:
        why += f" ({outcome.reason})"
    if outcome.detail:
        why += f": {outcome.detail}"
    raise FrontError(status, why, message.body)


def _spec(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": [-1, *_dims(spec)]}


def _configured(spec: TensorSpec) -> dict[str, Any]:
    kind = "STRING" if spec.datatype == BYTES else spec.datatype  # as Triton's configurations call it
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": _dims(spec)}


def _dims(spec: TensorSpec) -> list[int]:
    return [-1, *spec.row_shape[1:]] if spec.varying else list(spec.row_shape)
