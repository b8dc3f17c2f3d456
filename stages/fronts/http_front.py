"""The HTTP front: Open Inference Protocol v2 on loopback, a door to the same topics.

Statuses are all fronts' (``sluicegate.stages.fronts.front_error``), and 408 too slow, 413 too large, 415 neither JSON
nor binary, or packed otherwise than by gzip or deflate. An error is JSON with ``error`` alone, as the protocol wants:
how a query without an answer ended is in the header ``Sluice-Outcome``.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from aiohttp import web

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.connections import Connections
from sluicegate.stages.fronts.front_desk import FrontDesk
from sluicegate.stages.fronts.front_error import FrontError
from sluicegate.stages.fronts.http_auth import Access, Guard, bind, given
from sluicegate.stages.fronts.http_handler import refusal, runner_of
from sluicegate.stages.fronts.oip_responses import SERVER, read_request, respond, with_model
from sluicegate.stages.fronts.plain_requests import TYPES, plain_requests
from sluicegate.stages.runtime.background_tasks import beside
from sluicegate.streams.records import codec
from sluicegate.streams.remote.http_bodies import BodyError, read_body

_HEALTH = frozenset({"/v2/health/live", "/v2/health/ready"})
"""Asked by balancers and orchestrators, which hold no token; they say nothing but whether it serves."""


class HttpStage:
    """Serves what ``desk`` has, where and for whom ``access`` says. ``routes`` adds the control endpoint's."""

    name = "http"

    def __init__(
        self,
        connections: Connections,
        desk: FrontDesk,
        *,
        access: Access,
        routes: Iterable[web.AbstractRouteDef] = (),
    ) -> None:
        self._desk = desk
        self._access = access
        self._routes = tuple(routes)
        meters = connections.telemetry.meters
        self._guard = Guard(
            access,
            connections.clock,
            open_paths=_HEALTH,
            counted=lambda status: meters.add("sluice_http_requests", self.name, str(status)),
        )
        self._guard.doors.plain = plain_requests(desk, self._guard, access)
        meters.read("sluice_http_waiting_requests", lambda: [((self.name,), float(desk.waiting))])
        self.bound = asyncio.Event()
        self.address = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``; what waits then gets its outcome within a bound, else 503, as does what comes."""
        await self._desk.open()
        runner = runner_of(self._application())
        await runner.setup()
        try:
            async with beside([self._desk.listen(), self._desk.failure()]):
                self.address = await bind(runner, self._access, "http", self._guard.doors)
                self.bound.set()
                await stop.wait()
                await self._desk.finish()
        finally:
            self._desk.give_up()
            await runner.cleanup()
            self._guard.doors.close()
            await self._desk.close()

    async def registered(self, served: Catalogue) -> None:
        """These apps, and no others, are served from now on."""
        await self._desk.registered(served)

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=self._desk.max_body_bytes, middlewares=[self._guard.middleware])
        application.add_routes(
            [
                web.get("/v2", self._server),
                web.get("/v2/health/live", self._live),
                web.get("/v2/health/ready", self._is_ready),
                web.post("/v2/repository/index", self._index),
                web.get("/v2/models/{app}", self._metadata),
                web.get("/v2/models/{app}/ready", self._app_ready),
                web.get("/v2/models/{app}/config", self._config),
                web.post("/v2/models/{app}/infer", self._infer),
                # A variant's name may hold slashes.
                web.get("/v2/models/{app}/versions/{version:.+}/ready", self._app_ready),
                web.get("/v2/models/{app}/versions/{version:.+}/config", self._config),
                web.post("/v2/models/{app}/versions/{version:.+}/infer", self._infer),
                web.get("/v2/models/{app}/versions/{version:.+}", self._metadata),
                *self._routes,
                web.route("*", "/{path:.*}", self._elsewhere),
            ]
        )
        return application

    async def _server(self, request: web.Request) -> web.Response:
        del request
        return _json(SERVER)

    async def _live(self, request: web.Request) -> web.Response:
        del request
        return _json({"live": True})

    async def _is_ready(self, request: web.Request) -> web.Response:
        del request
        return self._readiness({})

    async def _index(self, request: web.Request) -> web.Response:
        del request
        return _json([{"name": app, "version": version, "state": "READY"} for app, version in self._desk.index()])

    async def _app_ready(self, request: web.Request) -> web.Response:
        try:
            app = await self._app_of(request)
        except FrontError as error:
            return _refused(error)
        return self._readiness({"name": app.name})

    def _readiness(self, told: Mapping[str, str]) -> web.Response:
        status, headers = (200, None) if self._desk.ready else (503, {"Retry-After": "1"})
        return _json({**told, "ready": self._desk.ready}, status, headers)

    async def _metadata(self, request: web.Request) -> web.Response:
        try:
            return _json(self._desk.metadata(await self._app_of(request)))
        except FrontError as error:
            return _refused(error)

    async def _config(self, request: web.Request) -> web.Response:
        try:
            return _json(self._desk.config(await self._app_of(request)))
        except FrontError as error:
            return _refused(error)

    async def _elsewhere(self, request: web.Request) -> web.Response:
        """Nothing is at this path, or it is asked for otherwise."""
        apps = ", ".join(sorted({app for app, _ in self._desk.index()})) or "none"
        return refusal(
            404,
            f"{request.method} {request.path!a:.80} is not here; POST /v2/models/APP/infer asks (apps: {apps}), "
            "GET /v2/models/APP describes, GET /v2/health/ready, POST /v2/repository/index",
        )

    async def _app_of(self, request: web.Request) -> App:
        return await self._desk.app_of(request.match_info["app"], request.match_info.get("version"))

    async def _infer(self, request: web.Request) -> web.Response:
        try:
            return await self._answer(request)
        except FrontError as error:
            return _refused(error)
        except BodyError as error:
            refused = refusal(error.status, error.problem)
            refused.force_close()
            return refused
        except InvalidInputError as error:
            return refusal(400, str(error))

    async def _answer(self, request: web.Request) -> web.Response:
        app = await self._app_of(request)
        if (kind := request.headers.get("Content-Type")) and request.content_type not in TYPES:
            return refusal(415, f"content-type: {kind!a:.80}; send {' or '.join(TYPES)}")
        client = self._desk.client_of(request.remote, self._guard.client_of(request.path, given(request)) or "")
        self._desk.check_room(app, client)
        most, within = self._desk.max_body_bytes, self._access.body_s
        body = await read_body(request, most, within, setting="admission.max_body_bytes")
        json_length = request.headers.get(codec.JSON_LENGTH_HEADER)
        version = request.match_info.get("version")
        asked = read_request(body, json_length, app)
        if version is not None:
            body, json_length = with_model(body, json_length, version)
        carried = codec.along(request.headers.items())
        if asked.takes_raw:
            carried = (*carried, codec.TAKES_RAW)
        result = await self._desk.ask(app, body, json_length, carried, client)
        made, length = respond(result, asked)
        if length is None:
            return web.Response(body=made, content_type="application/json")
        headers = {codec.JSON_LENGTH_HEADER: str(length)}
        return web.Response(body=made, content_type="application/octet-stream", headers=headers)


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json", headers=headers)


def _refused(error: FrontError) -> web.Response:
    return refusal(error.status, error.why, error.headers)
