"""Demand by windows, on Faust: Apache Kafka only, beside the query path, for planners that read demand's windows.

Rules.
- Faust counts (``sluicegate.streams.faust.demand_app``); this shell starts and stops it in its loop, and keeps what its
  web views show: ``/demand``, the last seconds of every app, whichever worker counts them, and ``/plan``, the newest
  plan.
- A crash of Faust ends the stage, as of any other.
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from sluicegate.domain.clock import Clock
from sluicegate.domain.errors import ConfigurationError
from sluicegate.profiles.catalogue.leftovers import folder_for_a_while
from sluicegate.stages.following.control_follower import Follower
from sluicegate.stages.runtime.background_tasks import beside
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.ports import Broker, BrokerError, Record
from sluicegate.streams.records import control
from sluicegate.streams.records.demand_windows import DemandWindows, decode_windows
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)

_LOOK_EVERY = 0.1


class DemandStage:
    """One worker of the group. ``servers``: host:port of Kafka; ``port``: of the web views, on loopback."""

    name = "demand"

    def __init__(
        self, *, broker: Broker, servers: str, kafka: KafkaSettings, topics: Topics, clock: Clock, port: int
    ) -> None:
        self._broker = broker
        self._servers = servers
        self._kafka = kafka
        self._topics = topics
        self._clock = clock
        self._port = port
        self._windows: dict[str, DemandWindows] = {}
        self._plan: dict[str, Any] = {}
        self.bound = asyncio.Event()
        self.address = f"http://127.0.0.1:{port}"

    async def run(self, stop: asyncio.Event) -> None:
        """Count until ``stop``. Raises BrokerError where Faust gives up, ConfigurationError where its port is taken."""
        count = (await self._broker.admin().partitions([self._topics.demand])).get(self._topics.demand, 0)
        if not count:
            raise ConfigurationError(f"topic {self._topics.demand} is missing; run `sluice topics --create`")
        followers = [
            Follower(self._broker, self._topics.demand_windows, self._on_windows),
            Follower(self._broker, self._topics.plan, self._on_plan),
        ]
        with folder_for_a_while("demand") as folder:
            app, watch = await self._app(count, folder)
            try:
                async with beside([*(follower.run(stop) for follower in followers), watch()]):
                    await self._start(app)
                    self.bound.set()
                    while not stop.is_set():
                        if app.crashed:
                            raise BrokerError(f"counting demand by windows ended: {app.crash_reason}")
                        await asyncio.sleep(_LOOK_EVERY)
            finally:
                await app.stop()

    async def _start(self, app: Any) -> None:
        try:
            await app.start()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise ConfigurationError(
                f"faust 127.0.0.1:{self._port}: the port is taken; set SLUICE_FAUST__PORT to a free one"
            ) from error

    async def _app(self, partitions: int, folder: Path) -> tuple[Any, Callable[[], Coroutine[Any, Any, None]]]:
        try:
            from sluicegate.streams.faust.demand_app import demand_app
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"stage demand: {error.name} is not installed; pip install 'sluicegate[faust]'"
            ) from error
        return await demand_app(
            self._broker,
            self._servers,
            self._kafka,
            self._topics,
            partitions=partitions,
            port=self._port,
            folder=folder,
            views={"/demand": self._show_demand, "/plan": lambda: self._plan},
        )

    def _show_demand(self) -> dict[str, Any]:
        apps = {
            app: {
                "at": windows.at,
                "halves": [
                    {"start": half.start, "rows": half.rows, "classes": half.classes} for half in windows.halves
                ],
            }
            for app, windows in sorted(self._windows.items())
        }
        return {"now": self._clock.wall(), "apps": apps}

    def _on_windows(self, record: Record) -> None:
        if record.value is not None:
            windows = decode_windows(record.value)
            self._windows[windows.app] = windows

    def _on_plan(self, record: Record) -> None:
        if record.value is not None:
            control.decode_plan(record.value)
            self._plan = control.decode_state(record.value)
