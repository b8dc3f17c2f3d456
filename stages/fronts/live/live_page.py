"""The page that shows what happens, live: a reader of topics like any other, and a small HTTP server.

Rules.
- Everything shown comes from topics, so the page is the same on the embedded broker and on Apache Kafka.
- The page is three files beside this module; it asks for nothing from elsewhere and works offline. Its files are open,
  what it shows (``/state``, and ``/outcome`` of a
  query that it names) needs the token where one is set.
- A picture is made at most twice a second, however many look at it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from importlib import resources

import orjson
from aiohttp import web

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.connections import Connections
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.following.results_reader import ResultsReader
from sluicegate.stages.fronts.http_auth import Access, Guard, bind
from sluicegate.stages.fronts.http_handler import runner_of
from sluicegate.stages.fronts.live.live_view import End, LiveView
from sluicegate.stages.fronts.live.plan_capacity import PlanCapacity
from sluicegate.stages.runtime.background_tasks import beside
from sluicegate.streams.ports import Record
from sluicegate.streams.records import codec, control

_FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_FRESH = 0.5
_MOST = 1e12
_STORY = 1 << 20
"""Bytes of an outcome, at most, whose story is kept, as those of some are."""
_TEXT = 1000


class WebStage:
    """Watches ``apps``, of what is ``served`` on ``devices``."""

    name = "web"

    def __init__(
        self,
        connections: Connections,
        apps: Mapping[str, App],
        *,
        served: Catalogue,
        devices: Sequence[Device],
        access: Access,
    ) -> None:
        self._apps = apps
        self._broker = broker = connections.broker
        self._topics = topics = connections.topics
        self._clock = connections.clock
        self._access = access
        self._meters = connections.telemetry.meters
        self._capacity = PlanCapacity(served, devices)
        self.view = LiveView(apps, _accuracies(served), self._capacity.of)
        self._results = ResultsReader(broker, topics, self._on_result, gather=0.05)
        self._picture = b""
        self._made = float("-inf")
        self.bound = asyncio.Event()
        self.address = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Watch and serve until ``stop``."""
        topics = self._topics
        followers = [
            Follower(self._broker, topics.plan, self._on_plan),
            Follower(self._broker, topics.status, self._on_status),
            Follower(self._broker, topics.demand, self._on_demand, start_at="end", every_partition=True),
            Follower(self._broker, topics.devices_metrics, self._on_heartbeat, start_at="end"),
            Follower(self._broker, topics.dead_letters, self._on_dead_letter, start_at="end"),
        ]
        guard = Guard(
            self._access,
            self._clock,
            open_paths=_FILES,
            counted=lambda status: self._meters.add("sluice_http_requests", self.name, str(status)),
        )
        runner = runner_of(self._application(guard))
        await runner.setup()
        try:
            async with beside([*(follower.run(stop) for follower in followers), self._results.add(self._apps)]):
                self.address = await bind(runner, self._access, "web", guard.doors)
                self.bound.set()
                await stop.wait()
        finally:
            await runner.cleanup()
            await self._results.close()

    async def registered(self, served: Catalogue) -> None:
        """These apps, and no others, are shown from now on."""
        await self._results.add(served.apps)
        self._capacity.registered(served)
        self.view.registered(served.apps, _accuracies(served))
        self._results.keep(served.apps)

    def _application(self, guard: Guard) -> web.Application:
        application = web.Application(middlewares=[guard.middleware], client_max_size=1 << 10)
        for path in _FILES:
            application.router.add_get(path, self._file)
        application.router.add_get("/state", self._state)
        application.router.add_get("/outcome", self._outcome)
        application.router.add_route("*", "/{elsewhere:.*}", self._elsewhere)
        return application

    async def _file(self, request: web.Request) -> web.Response:
        name, kind = _FILES[request.path]
        body = resources.files(__name__.rpartition(".")[0]).joinpath("page", name).read_bytes()
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=_HEADERS)

    async def _state(self, request: web.Request) -> web.Response:
        del request
        now = self._clock.monotonic()
        if now - self._made >= _FRESH:
            self._made = now
            shown = {"prefix": self._topics.prefix, **self.view.snapshot(self._clock.wall())}
            self._picture = orjson.dumps(shown)
        return web.Response(body=self._picture, content_type="application/json", headers=_HEADERS)

    async def _outcome(self, request: web.Request) -> web.Response:
        story = self.view.story(request.query.get("id", ""), request.query.get("app", ""))
        if story is None:
            return web.json_response({"error": "not kept here any more; ask sluice explain"}, status=404)
        return web.Response(body=orjson.dumps(story), content_type="application/json", headers=_HEADERS)

    async def _elsewhere(self, request: web.Request) -> web.Response:
        where = f"{request.method} {request.path[:100]!r} is not here; this is the live page: GET /"
        told = f"{where}. Queries go to the HTTP front (http.port): POST /v2/models/APP/infer"
        return web.json_response({"error": told}, status=404)

    def _on_plan(self, record: Record) -> None:
        if record.value is not None:
            self.view.planned(control.decode_plan(record.value))

    def _on_status(self, record: Record) -> None:
        if record.value is not None:
            self.view.said(control.decode_announce(record.value), record.timestamp)

    def _on_demand(self, record: Record) -> None:
        if record.value is not None:
            self.view.demanded(control.decode_demand(record.value), record.timestamp)

    def _on_heartbeat(self, record: Record) -> None:
        if record.value is not None:
            self.view.beat(control.decode_heartbeat(record.value))

    def _on_dead_letter(self, record: Record) -> None:
        del record
        self.view.dead_letters += 1

    def _on_result(self, record: Record) -> None:
        end = end_of(record)
        if end is not None:
            self.view.ended(end)


def _accuracies(served: Catalogue) -> dict[str, float]:
    return {name: variant.accuracy for name, variant in served.variants.items()}


def _number(value: object) -> float:
    """A number that can be counted with: no text that reads as one, such as "nan"."""
    if not isinstance(value, int | float) or not abs(value) <= _MOST:
        raise ValueError(f"{value!r:.60} is no number to count with")
    return float(value)


def end_of(record: Record) -> End | None:
    """What the page needs of an outcome, without checking all of it; None for what is no outcome."""
    try:
        told = codec.outcome_json(record)
        body = orjson.loads(told)
        why = body["parameters"]
        return End(
            query_id=str(body["id"]),
            app=str(body["model_name"]),
            kind=str(why["kind"]),
            arrival=_number(why["arrival"]),
            at=_number(why["at"]),
            late=bool(why["late"]),
            reason=str(why.get("reason") or "")[:_TEXT],
            variant=str(why.get("variant") or ""),
            device=str(why.get("device") or ""),
            accuracy=_number(why.get("accuracy") or 0.0),
            best=_number(why.get("best_accuracy") or 1.0),
            queue_s=_number(why.get("queue_s") or 0.0),
            detail=str(why.get("detail") or "")[:_TEXT],
            source=str(why.get("source") or ""),
            story=why if len(told) <= _STORY else {},
            left=_left(why.get("promise")),
            rows=int(_number(why.get("rows", 1))),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _left(promise: object) -> int | None:
    """Misses that a stream has left, as its outcome tells; None where that says nothing."""
    left = promise.get("left") if isinstance(promise, dict) else None
    return min((int(_number(misses)) for _, misses in left), default=None) if left else None
