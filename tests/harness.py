"""A whole system in one process for tests: a synthetic catalogue, emulated devices, any broker."""

import asyncio
import contextlib
import itertools
import os
import socket
import struct
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.tensor import Tensor, TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.outcome import Outcome
from sluicegate.domain.query import QueryKey
from sluicegate.policies.serving.router import RouterCore
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.audit.result_log import read_results, result_topics
from sluicegate.sluice.audit.topic_audit import AuditReport, read_topics
from sluicegate.sluice.settings.settings import DeviceSettings, Settings
from sluicegate.sluice.system.process_stages import stages_of
from sluicegate.sluice.system.roles.router import router_rules
from sluicegate.sluice.system.system import System
from sluicegate.stages.runtime.supervisor import Stage, run_stages
from sluicegate.streams.ports import Broker, BrokerError, Producer, Record, TopicPartition
from sluicegate.streams.records import codec, control
from sluicegate.streams.topics import Topics

PIXELS = 4
PATIENCE = 30_000.0
"""Milliseconds: a busy machine is no fault of the system's. Tests of deadlines say theirs."""
PATIENCE_S = 300.0
"""Seconds for what is awaited: what never comes fails then, and a busy machine may take its time."""
BROKERS = ["memory", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.thorough])]
"""For what holds on any broker: the port's contract is tested on both, and each of the rest costs seconds on Kafka."""
ROLES = ("admission", "router", "worker", "planner", "sink")


def toy_catalogue(apps: tuple[str, ...] = ("toy",), slo: float = 0.25, times: float = 1.0) -> Catalogue:
    """Three variants an app: 2, 5 and 10 ms for one row, 0.7, 0.8 and 0.9 accurate.

    ``times``: as slow, SLO and all, so that few queries fill a device.
    """
    listed = []
    variants = []
    profiles = []
    for name in apps:
        listed.append(
            App(
                name=name,
                slo=times * slo,
                inputs=(TensorSpec("image", "FP32", (PIXELS,)),),
                outputs=(TensorSpec("scores", "FP32", (2,)), TensorSpec("label", "INT64", ())),
                max_rows=32,
            )
        )
        for level, (first, accuracy) in enumerate(((0.002, 0.7), (0.005, 0.8), (0.010, 0.9))):
            slow = times * first
            variant = Variant(name=f"{name}-v{level}", app=name, accuracy=accuracy)
            points = tuple(
                BatchLatency(b, slow * (1 + 0.25 * (b - 1)), 1.1 * slow * (1 + 0.25 * (b - 1)))
                for b in (1, 2, 4, 8, 16)
            )
            variants.append(variant)
            profiles.append(Profile(variant=variant.name, device_type="cpu", points=points, load=0.05))
    return Catalogue.of(listed, variants, profiles)


_ports = itertools.count(os.getpid())


def free_port() -> int:
    """Of loopback; nobody listens there. Above those that the system gives to whoever asks for any, so that it is still
    free when it is used; each process of the suite takes others."""
    first = 61_000 + 450 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 10)
    while True:
        port = first + next(_ports) % 450
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def settings_for(broker: str, folder: Path, *, devices: int = 2, **changes: Any) -> Settings:
    """Settings of a test system with its own prefix."""
    values: dict[str, Any] = {
        "broker": broker,
        "prefix": f"t{uuid.uuid4().hex[:10]}",
        "home": folder / "home",
        "runs": folder / "runs",
        "devices": tuple(DeviceSettings(name=f"d{i}") for i in range(devices)),
        "worker": {"executor": "emulated"},
        **changes,
    }
    return Settings(**values)


@dataclass
class Running:
    """A system under test. ``sent`` counts query records."""

    system: System
    stop: asyncio.Event
    task: "asyncio.Task[None]"
    sent: int = 0
    ids: list[str] = field(default_factory=list)
    stages: tuple[Stage, ...] = ()

    @property
    def topics(self) -> Topics:
        return self.system.topics

    @property
    def broker(self) -> Broker:
        return self.system.broker

    @property
    def producer(self) -> Producer:
        return self.system.producer

    def fresh_router(self, app: str, catalogue: Catalogue | None = None) -> RouterCore:
        """A core as the running router of ``app`` began, with this ``catalogue``; None: that of the start."""
        known = self.system.catalogue if catalogue is None else catalogue
        rules = router_rules(self.system)
        return RouterCore(known.apps[app], catalogue=known, devices=self.system.devices, rules=rules)

    async def ask(
        self,
        query_id: str | None = None,
        *,
        app: str = "toy",
        source: str = "client",
        values: tuple[float, ...] = (0.0,) * PIXELS,
        parameters: Mapping[str, Any] | None = None,
        expires: float | None = None,
    ) -> str:
        """Produce one well-formed query, a row for each ``PIXELS`` values; returns its id. It has ``PATIENCE`` where
        nothing else is said."""
        query_id = query_id or uuid.uuid4().hex
        if parameters is None and expires is None:
            parameters = {"latency_ms": PATIENCE}
        tensor = Tensor("image", "FP32", (len(values) // PIXELS, PIXELS), struct.pack(f"<{len(values)}f", *values))
        message = codec.encode_query(
            query_id,
            (tensor,),
            app=app,
            now=self.system.clock.wall(),
            source=source,
            parameters=parameters,
            expires=expires,
        )
        await self.send(app, message.value, key=message.key, headers=message.headers)
        self.ids.append(query_id)
        return query_id

    async def send(self, app: str, value: bytes | None, **options: Any) -> None:
        """Produce any record to an app's query topic and wait for its acknowledgement."""
        await (await self.producer.send(self.topics.queries(app), value, **options))
        self.sent += 1

    async def audit(self) -> AuditReport:
        """Read the topics."""
        return (await read_topics(self.broker, self.topics)).report()

    async def settled(self, *, within: float = PATIENCE_S) -> AuditReport:
        """The audit once every query record has its outcome or dead letter; the last one seen otherwise."""
        deadline = asyncio.get_running_loop().time() + within
        ends = [*await result_topics(self.broker, self.topics), TopicPartition(self.topics.dead_letters, 0)]
        counting = self.broker.consumer(partitions=ends, start_at="end")
        await counting.start()
        try:
            while True:
                late = asyncio.get_running_loop().time() > deadline
                # An audit reads all there is: none before as many records have ended as were sent.
                if late or sum((await counting.end_offsets(ends)).values()) >= self.sent:
                    report = await self.audit()
                    # More queries than sent: who asked was cancelled before it counted.
                    if late or (report.queries >= self.sent and not report.lost):
                        return report
                await asyncio.sleep(0.1)
        finally:
            await counting.stop()

    async def outcomes(self) -> dict[str, Outcome]:
        """Outcome of each query id."""
        return {key.id: outcome for key, outcome in (await self.ends()).items()}

    async def ends(self) -> dict[QueryKey, Outcome]:
        """Outcome of each query. What is no outcome is left out: some tests write such."""
        for _ in range(2):  # a broker beside eight busy loops may give no answer for as long as clients wait
            with contextlib.suppress(BrokerError):
                return await self._ends()
        return await self._ends()

    async def _ends(self) -> dict[QueryKey, Outcome]:
        found = {}
        async for record in read_results(self.broker, await result_topics(self.broker, self.topics), follow=False):
            with contextlib.suppress(InvalidInputError):
                outcome = codec.decode_outcome(record).outcome
                found[outcome.key] = outcome
        return found

    async def dead_letters(self) -> list[Record]:
        """All dead letters."""
        partition = TopicPartition(self.topics.dead_letters, 0)
        return [r async for r in read_results(self.broker, [partition], follow=False)]

    async def planned(self, *, within: float = PATIENCE_S) -> None:
        """Wait until every device has loaded what the newest plan wants of it."""
        wanted = {d.name for d in self.system.devices}
        async with asyncio.timeout(within):
            while True:
                plans = [control.decode_plan(r.value) for r in await self._control(self.topics.plan) if r.value]
                acks = [control.decode_acknowledged(r.value) for r in await self._control(self.topics.acks) if r.value]
                newest = max((p.epoch for p in plans), default=None)
                if {a.device for a in acks if a.epoch == newest} >= wanted:
                    return
                await asyncio.sleep(0.05)

    async def _control(self, topic: str) -> list[Record]:
        return [r async for r in read_results(self.broker, [TopicPartition(topic, 0)], follow=False)]


@asynccontextmanager
async def running(
    settings: Settings,
    broker: Broker,
    *,
    catalogue: Catalogue | None = None,
    models: Path = Path(),
    roles: tuple[str, ...] = ROLES,
    change: Callable[[System], None] | None = None,
    close: bool = True,
) -> AsyncIterator[Running]:
    """Stages of ``roles`` on ``broker``, stopped and drained at the end; the broker is closed unless told otherwise."""
    producer = broker.producer()
    await producer.start()
    folder = settings.kept_runs / "run"
    folder.mkdir(parents=True, exist_ok=True)
    system = System(settings, catalogue or toy_catalogue(), models, broker, producer, folder)
    if change is not None:
        change(system)
    await system.create_topics()
    stop = asyncio.Event()
    stages = stages_of(system, roles)
    task = asyncio.create_task(run_stages(stages, stop))
    run = Running(system, stop, task, stages=tuple(stages))
    try:
        yield run
    finally:
        stop.set()
        await task
        system.close()
        await producer.stop()
        if close:
            await broker.close()
