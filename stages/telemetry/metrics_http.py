"""A process's ``/metrics`` endpoint for Prometheus, and ``/healthz`` for whatever restarts processes that hang.

A scrape runs on the event loop, as all counting does; what it costs there is counted as loop delay by itself.
"""

import asyncio
from importlib import metadata

from aiohttp import web
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from sluicegate.domain.clock import Clock
from sluicegate.stages.fronts.http_auth import Access, Guard, bind
from sluicegate.stages.fronts.http_handler import runner_of
from sluicegate.stages.telemetry.metrics import Told
from sluicegate.stages.telemetry.telemetry import Telemetry

_LOOK_EVERY = 0.5
_STANDS = 5.0
"""Seconds without a step after which a reader stands still; it takes one five times a second."""
_STARVED = 0.05
"""Seconds late, beyond which ``/healthz`` says so."""


class MetricsStage:
    """Tells what ``telemetry`` counts, where and to whom ``access`` says. ``roles``: what runs in this process."""

    name = "metrics"

    def __init__(self, telemetry: Telemetry, *, access: Access, clock: Clock, roles: str = "") -> None:
        self._telemetry = telemetry
        meters = self._meters = telemetry.meters
        self._access = access
        self._clock = clock
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._registry.register(Told(meters))
        meters.set("sluice_build_info", 1.0, metadata.version("sluicegate"), roles)
        self._late = 0.0
        self.bound = asyncio.Event()
        self.address = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Tell until ``stop``."""
        guard = Guard(self._access, self._clock, open_paths={"/healthz"}, counted=self._count)
        application = web.Application(middlewares=[guard.middleware], client_max_size=1 << 10)
        application.add_routes([web.get("/metrics", self._metrics), web.get("/healthz", self._healthy)])
        runner = runner_of(application)
        await runner.setup()
        watch = asyncio.create_task(self._watch_loop())
        try:
            self.address = await bind(runner, self._access, "metrics", guard.doors)
            self.bound.set()
            await stop.wait()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await runner.cleanup()

    def text(self) -> bytes:
        """What a scrape gets."""
        return generate_latest(self._registry)

    async def _metrics(self, request: web.Request) -> web.Response:
        del request
        return web.Response(body=self.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _healthy(self, request: web.Request) -> web.Response:
        del request
        standing = self._telemetry.standing(asyncio.get_running_loop().time(), _STANDS)
        if standing:
            told = ", ".join(f"{name} has read nothing for {seconds:.0f} s" for name, seconds in standing.items())
            return web.Response(text=f"{told}\n", status=503)
        if self._late <= _STARVED:
            return web.Response(text="ok\n")
        said = f"ok, but the host is starved: the event loop woke {1e3 * self._late:.0f} ms late\n"
        return web.Response(text=said)  # restarting it would not help

    def _count(self, status: int) -> None:
        self._meters.add("sluice_http_requests", self.name, str(status))

    async def _watch_loop(self) -> None:
        while True:
            before = self._clock.monotonic()
            await asyncio.sleep(_LOOK_EVERY)
            self._late = max(0.0, self._clock.monotonic() - before - _LOOK_EVERY)
            self._meters.set("sluice_loop_delay_seconds", self._late)
