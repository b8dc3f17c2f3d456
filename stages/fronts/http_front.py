"""The HTTP front: Open Inference Protocol v2 on loopback, a door to the same topics.

A request becomes a query record; its outcome, when it comes by the result topic, the response. The front decides
nothing and holds nothing but the requests that wait. A model is an app; its versions are its variants, and a request
to one names it. Status: 200 answered (also late, marked), 400 rejected, 404 unknown app or version, 408 too slow,
413 too large, 415 neither JSON nor binary, 500 failed, 503 dropped, not routed or too many waiting, 504 expired.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson
from aiohttp import web

from sluicegate.domain.errors import InvalidInputError, SluiceError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.domain.outcome import Outcome, OutcomeKind, Reason
from sluicegate.domain.query import QueryKey
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.connections import Connections
from sluicegate.stages.following.results_reader import ResultsReader
from sluicegate.stages.fronts.http_auth import Access, Guard, bind
from sluicegate.stages.fronts.http_connections import runner_of
from sluicegate.stages.fronts.oip_responses import (
    OUTCOME_HEADER,
    Asked,
    read_request,
    refusal_header,
    respond,
    with_model,
)
from sluicegate.stages.runtime.background_tasks import beside
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.streams.http_bodies import BodyError, read_body
from sluicegate.streams.ports import Record
from sluicegate.streams.records import codec

log = logging.getLogger(__name__)

_STATUS = {
    OutcomeKind.ANSWERED: 200,
    OutcomeKind.REJECTED: 400,
    OutcomeKind.FAILED: 500,
    OutcomeKind.DROPPED: 503,
    OutcomeKind.EXPIRED: 504,
}
_SOURCE = "http"
_TYPES = ("application/json", "application/octet-stream")
"""What bodies may be: web pages send neither to another place unasked."""
_HEALTH = frozenset({"/v2/health/live", "/v2/health/ready"})
"""Asked by balancers and orchestrators, which hold no token; they say nothing but whether it serves."""
_LOOK = 5.0
"""Seconds that looking an unknown app up in the registry may take."""
_MAX_LATENCY = 600.0
"""Seconds that a query may take at most."""
_GRACE = 5.0
"""Seconds after its longest deadline that a request waits for its outcome."""
_MOST_WAITING = 4096
"""Requests that may wait at a time."""


class HttpStage:
    """Serves ``apps``, where and for whom ``access`` says. ``routes`` adds the control endpoint's.

    ``versions``: app -> names of its variants. ``registry``: waits until everything that is registered by now is known
    here; asked before an app or version is said to be unknown, so that whoever registered it reads its own write.
    """

    name = "http"

    def __init__(
        self,
        connections: Connections,
        apps: Mapping[str, App],
        *,
        access: Access,
        routes: Iterable[web.AbstractRouteDef] = (),
        versions: Mapping[str, Sequence[str]] | None = None,
        registry: Callable[[], Awaitable[None]] | None = None,
        max_body_bytes: int = 1_000_000,
    ) -> None:
        self._apps = dict(apps)
        self._broker = connections.broker
        self._topics = connections.topics
        self._clock = connections.clock
        self._access = access
        self._routes = tuple(routes)
        self._versions = dict(versions or {})
        self._registry = registry
        self._results = ResultsReader(self._broker, self._topics, self._on_result)
        self._max_body = max_body_bytes
        self._outbox = Outbox(connections.producer)
        self._waiting: dict[QueryKey, asyncio.Future[codec.OutcomeMessage]] = {}
        self._looking: asyncio.Task[None] | None = None
        telemetry = connections.telemetry
        meters = telemetry.meters
        self._guard = Guard(
            access,
            self._clock,
            open_paths=_HEALTH,
            counted=lambda status: meters.add("sluice_http_requests", self.name, str(status)),
        )
        telemetry.of_outbox(self.name, self._outbox)
        meters.read("sluice_http_waiting_requests", lambda: [((self.name,), float(len(self._waiting)))])
        self.bound = asyncio.Event()
        self.address = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``; requests that wait get 503 then."""
        await self._outbox.start()
        runner = runner_of(self._application(), self._access.idle_s)
        await runner.setup()
        try:
            async with beside([self._results.add(self._apps)]):
                self.address = await bind(runner, self._access, "http", self._guard.doors)
                self.bound.set()
                await stop.wait()
        finally:
            for waiting in self._waiting.values():
                waiting.cancel()
            await runner.cleanup()
            await asyncio.gather(*([self._looking] if self._looking else []), return_exceptions=True)
            await self._results.close()
            await self._outbox.stop()

    async def registered(self, served: Catalogue) -> None:
        """These apps, and no others, are served from now on."""
        await self._results.add(served.apps)
        self._versions = {name: [v.name for v in served.of_app(name)] for name in served.apps}
        self._apps = dict(served.apps)

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=self._max_body, middlewares=[self._guard.middleware])
        application.add_routes(
            [
                web.get("/v2", self._server),
                web.get("/v2/health/live", self._live),
                web.get("/v2/health/ready", self._is_ready),
                web.get("/v2/models/{app}", self._metadata),
                web.get("/v2/models/{app}/ready", self._app_ready),
                web.post("/v2/models/{app}/infer", self._infer),
                # A variant's name may hold slashes.
                web.get("/v2/models/{app}/versions/{version:.+}/ready", self._app_ready),
                web.post("/v2/models/{app}/versions/{version:.+}/infer", self._infer),
                web.get("/v2/models/{app}/versions/{version:.+}", self._metadata),
                *self._routes,
            ]
        )
        return application

    async def _server(self, request: web.Request) -> web.Response:
        del request
        return _json({"name": "sluicegate", "version": "0.1.0", "extensions": ["binary_tensor_data"]})

    async def _live(self, request: web.Request) -> web.Response:
        del request
        return _json({"live": True})

    async def _is_ready(self, request: web.Request) -> web.Response:
        del request
        return _json({"ready": self._results.ready}, 200 if self._results.ready else 503)

    async def _app_ready(self, request: web.Request) -> web.Response:
        app = await self._app_of(request)
        if app is None:
            return self._unknown(request)
        return _json({"name": app.name, "ready": self._results.ready}, 200 if self._results.ready else 503)

    async def _metadata(self, request: web.Request) -> web.Response:
        app = await self._app_of(request)
        if app is None:
            return self._unknown(request)
        return _json(
            {
                "name": app.name,
                "versions": list(self._versions.get(app.name, ())),
                "platform": "sluicegate",
                "inputs": [_spec(s) for s in app.inputs],
                "outputs": [_spec(s) for s in app.outputs],
            }
        )

    async def _app_of(self, request: web.Request) -> App | None:
        """The app that a request is about, None where it, or the version named, is not served here."""
        found = self._known(request)
        if found is None and self._registry is not None:
            # Many strangers' questions are one look at the registry.
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look(self._registry))
            await asyncio.shield(self._looking)
            found = self._known(request)
        return found

    async def _look(self, registry: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(_LOOK):
                await registry()
        except (TimeoutError, SluiceError) as error:
            log.warning("the registry cannot be read (%s)", str(error) or "timed out")

    def _known(self, request: web.Request) -> App | None:
        name, version = request.match_info["app"], request.match_info.get("version")
        if version is not None and version not in self._versions.get(name, ()):
            return None
        return self._apps.get(name)

    def _unknown(self, request: web.Request) -> web.Response:
        app, version = request.match_info["app"], request.match_info.get("version")
        if app in self._apps and version is not None:
            there = ", ".join(self._versions.get(app, ())) or "none"
            return _error(404, f"version: {version!r:.80} is no variant of {app}; known: {there}")
        known = ", ".join(sorted(self._apps)) or "none"
        return _error(404, f"model: {request.match_info['app']!r:.80} is not served here; known: {known}")

    async def _infer(self, request: web.Request) -> web.Response:
        app = await self._app_of(request)
        if app is None:
            return self._unknown(request)
        if (kind := request.headers.get("Content-Type")) and request.content_type not in _TYPES:
            return _error(415, f"content-type: {kind!a:.80}; send {' or '.join(_TYPES)}")
        try:
            body = await read_body(request, self._max_body, self._access.body_s)
        except BodyError as error:
            refused = _error(error.status, error.problem)
            refused.force_close()
            return refused
        if len(self._waiting) >= _MOST_WAITING:
            return _error(503, "too many requests wait for their answer; try again later")
        json_length = request.headers.get(codec.JSON_LENGTH_HEADER)
        version = request.match_info.get("version")
        try:
            asked = read_request(body, json_length, app)
            if version is not None:
                body, json_length = with_model(body, json_length, version)
        except InvalidInputError as error:
            return _error(400, str(error))
        traceparent = codec.readable_traceparent(request.headers.get("traceparent"))
        return await self._ask(app, body, json_length, asked, traceparent)

    async def _ask(
        self, app: App, body: bytes, json_length: str | None, asked: Asked, traceparent: str | None
    ) -> web.Response:
        query_id = uuid.uuid4().hex
        key = QueryKey(app.name, f"/{_SOURCE}", query_id)
        outcome = asyncio.get_running_loop().create_future()
        self._waiting[key] = outcome
        try:
            self._outbox.post(
                self._topics.queries(app.name),
                body,
                key=query_id.encode(),
                headers=codec.query_headers(
                    query_id,
                    app=app.name,
                    source=_SOURCE,
                    now=self._clock.wall(),
                    json_length=json_length,
                    traceparent=traceparent,
                ),
                timestamp=self._clock.wall(),
            )
            async with asyncio.timeout(_MAX_LATENCY + _GRACE):
                message = await outcome
        except TimeoutError:
            return _error(504, f"query {query_id}: no outcome in time; `sluice explain {query_id}` may tell why")
        except asyncio.CancelledError:
            if outcome.cancelled():
                return _error(503, "the server is stopping; try again elsewhere")
            raise
        finally:
            self._waiting.pop(key, None)
        return self._respond(message, asked)

    def _respond(self, message: codec.OutcomeMessage, asked: Asked) -> web.Response:
        outcome: Outcome = message.outcome
        status = 503 if outcome.reason == Reason.NOTHING_ROUTES else _STATUS[outcome.kind]
        if status == 200:
            made, json_length = respond(message.body, asked)
            if json_length is None:
                return web.Response(body=made, content_type="application/json")
            headers = {codec.JSON_LENGTH_HEADER: str(json_length)}
            return web.Response(body=made, content_type="application/octet-stream", headers=headers)
        why = f"query {outcome.query_id}: {outcome.kind.value}"
        if outcome.reason:
            why += f" ({outcome.reason})"
        if outcome.detail:
            why += f": {outcome.detail}"
        refused = _error(status, why)
        refused.headers[OUTCOME_HEADER] = refusal_header(message.body)
        return refused

    def _on_result(self, record: Record) -> None:
        if not self._waiting:
            return
        app = self._topics.app_of(record.topic) or ""
        key = QueryKey(app, codec.query_source_of(record), codec.query_id_of(record) or "")
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.done():
            waiting.set_result(codec.decode_outcome(record))


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def _error(status: int, why: str) -> web.Response:
    return _json({"error": why}, status)


def _spec(spec: TensorSpec) -> dict[str, Any]:
    shape = (-1, *spec.row_shape[1:]) if spec.varying else spec.row_shape
    return {"name": spec.name, "datatype": spec.datatype, "shape": [-1, *shape]}
