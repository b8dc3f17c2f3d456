"""A stack under fault: a broker of its own, a process a stage, load from here, and whatever a cell does to them."""

import asyncio
import json
import os
import random
import re
import signal
import struct
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sluicegate.domain.models.app import App, Promise, WeaklyHard
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.tensor import Tensor, TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.sluice.settings.kafka_section import KafkaSection
from sluicegate.sluice.settings.settings import DeviceSettings, PlannerSettings, Settings, WorkerSettings
from sluicegate.stages.runtime.system_clock import SystemClock
from sluicegate.streams import connect
from sluicegate.streams.local_kafka.broker import LocalBroker
from sluicegate.streams.ports import Broker, Producer, Written
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics
from tests.chaos.links import Links

_ROOT = Path(__file__).resolve().parents[2]
PIXELS = 4
SLO = 1.0
SESSION_TIMEOUT = 6.0
PROMISED = Promise(weakly_hard=(WeaklyHard(10, 20),))
Delivery = Literal["at_least_once", "exactly_once"]
DEVICES = ("d0", "d1", "d2", "d3")
_MOVES = re.compile(r"Loaded classic group|Stabilized group|Preparing to rebalance|has failed, removing|has left group")


def catalogue() -> Catalogue:
    """Two apps of three variants, one with a promise."""
    apps, variants, profiles = [], [], []
    for name, promise in (("toy", Promise()), ("vow", PROMISED)):
        apps.append(
            App(
                name=name,
                slo=SLO,
                promise=promise,
                inputs=(TensorSpec("image", "FP32", (PIXELS,)),),
                outputs=(TensorSpec("label", "INT64", ()),),
                max_rows=4,
            )
        )
        for level, first in enumerate((0.002, 0.004, 0.008)):
            variants.append(Variant(name=f"{name}-v{level}", app=name, accuracy=0.7 + 0.1 * level))
            points = tuple(
                BatchLatency(b, first * (1 + 0.2 * (b - 1)), 1.5 * first * (1 + 0.2 * (b - 1))) for b in (1, 4, 16)
            )
            profiles.append(Profile(variant=f"{name}-v{level}", device_type="cpu", points=points, load=0.05))
    return Catalogue.of(apps, variants, profiles)


@dataclass(slots=True)
class Child:
    """A stage's process. ``arguments``: of ``sluice up``."""

    arguments: tuple[str, ...]
    point: str
    process: "asyncio.subprocess.Process | None" = None
    environment: dict[str, str] = field(default_factory=dict)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it lives."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)


@dataclass
class Stack:
    """Everything of one cell. ``sent``: query records acknowledged, by app. ``mended``: wall clock at which what was
    broken served again, where that takes its time; 0 for none. ``links``: between the broker's nodes. ``front``: ports
    of the process with doors, HTTP and gRPC."""

    folder: Path
    settings: Settings
    local: LocalBroker
    broker: Broker
    children: dict[str, Child] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    kills: int = 0
    mended: float = 0.0
    links: Links | None = None
    front: tuple[int, int] = (0, 0)
    _numbers: int = 0

    @property
    def topics(self) -> Topics:
        """Names."""
        return Topics(self.settings.prefix)

    async def start(self, name: str, arguments: Sequence[str], point: str = "none", **environment: str) -> Child:
        """Start a stage's process."""
        child = self.children[name] = Child(tuple(arguments), point, environment=environment)
        await self.start_again(name)
        return child

    async def start_again(self, name: str) -> None:
        """Start the process of ``name`` anew."""
        child = self.children[name]
        log = (self.folder / f"{name}.log").open("ab")
        child.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.chaos.faulty", child.point, "up", *child.arguments),
            *("--settings", str(self.folder / "settings.yaml")),
            stdout=log,
            stderr=log,
            env={**os.environ, **child.environment},
            cwd=_ROOT,
        )
        log.close()

    def joined(self, routers: int) -> bool:
        """Whether the routers' groups are stable with so many members, as the broker's logs tell last."""
        logs = [node.log_file.read_text(errors="replace") for node in self.local.nodes.values()]
        # Each line of them begins with its time. Whoever has a group tells of it, one node after the other.
        told = sorted(line for log in logs for line in log.splitlines() if _MOVES.search(line))
        for app in ("toy", "vow"):
            group = f" group {self.topics.router_group(app)} "
            last = next((line for line in reversed(told) if group in line), "")
            if f"with {routers} members" not in last:
                return False
        return True

    async def ended(self, name: str, *, within: float = 30.0) -> bool:
        """Wait for the end of a process; whether it came."""
        process = self.children[name].process
        assert process is not None
        try:
            async with asyncio.timeout(within):
                await process.wait()
        except TimeoutError:
            return False
        return True

    async def load(self, app: str, rate: float, stop: asyncio.Event, rng: random.Random) -> None:
        """Poisson arrivals until ``stop``; what the broker does not acknowledge is not counted."""
        producer = self.broker.producer()
        await producer.start()
        clock = SystemClock()
        loop = asyncio.get_running_loop()
        due = loop.time()
        try:
            while not stop.is_set():
                due += rng.expovariate(rate)
                if (wait := due - loop.time()) > 0:
                    await asyncio.sleep(wait)
                await self._ask(producer, app, clock.wall())
            await producer.flush()
        finally:
            await producer.stop()

    async def _ask(self, producer: Producer, app: str, now: float) -> None:
        self._numbers += 1
        tensor = Tensor("image", "FP32", (1, PIXELS), struct.pack(f"<{PIXELS}f", *(0.0,) * PIXELS))
        message = codec.encode_query(f"{app}-{self._numbers}", (tensor,), app=app, now=now)
        sent = await producer.send(self.topics.queries(app), message.value, key=message.key, headers=message.headers)
        sent.add_done_callback(lambda future: self._acknowledged(app, future))

    def _acknowledged(self, app: str, future: "asyncio.Future[Written]") -> None:
        if not future.cancelled() and future.exception() is None:
            self.sent[app] = self.sent.get(app, 0) + 1


@asynccontextmanager
async def stack(
    folder: Path,
    home: Path,
    *,
    record: bool = False,
    delivery: Delivery = "at_least_once",
    nodes: int = 1,
    linked: bool = False,
) -> AsyncIterator[Stack]:
    """A broker and settings in ``folder``; stages are started by the caller and ended here.

    ``nodes``: of the broker; ``linked``: what is said to them goes through ``Stack.links``.
    """
    links = Links(lambda: _pids(local), lambda port: _owner(local, port)) if linked else None
    told = links.told if links is not None else int
    local = LocalBroker(folder / "kafka", home=home, nodes=nodes, told=told)
    url = (await asyncio.to_thread(local.start, within=300.0)).url
    assert url is not None
    save_catalogue(folder / "catalogue", catalogue(), {})
    settings = Settings(
        broker=url,
        prefix="chaos",
        home=folder / "home",
        runs=folder / "runs",
        catalogue=folder / "catalogue",
        devices=tuple(DeviceSettings(name=name) for name in DEVICES),
        worker=WorkerSettings(executor="emulated", batching="adaptive", max_in_flight=500),
        planner=PlannerSettings(period_s=5.0),
        record=record,
        delivery=delivery,
        kafka=KafkaSection(session_timeout_s=SESSION_TIMEOUT),
    )
    (folder / "settings.yaml").write_text(json.dumps(settings.model_dump(mode="json", exclude={"http"})))
    running = Stack(folder, settings, local, connect(url), links=links)
    try:
        yield running
    finally:
        for child in running.children.values():
            child.send(signal.SIGCONT)
            child.send(signal.SIGTERM)
        for name, child in running.children.items():
            if not await running.ended(name, within=20.0):
                child.send(signal.SIGKILL)
                await running.ended(name)
        await running.broker.close()
        await asyncio.to_thread(local.stop, within=1.0)
        if links is not None:
            links.close()


def _pids(local: LocalBroker) -> dict[int, int]:
    return {number: node.pid for number, node in local.nodes.items() if node.pid is not None}


def _owner(local: LocalBroker, port: int) -> int:
    """Whose port it is."""
    for number, node in local.nodes.items():
        ports = node.ports
        if ports is not None and port in (ports.clients, ports.controllers):
            return number
    return 0


__all__ = ["DEVICES", "PROMISED", "SESSION_TIMEOUT", "SLO", "Child", "Delivery", "Stack", "catalogue", "stack"]
