"""One seed: the live stages, a process each, under load and faults, and what the topics say afterwards."""

import asyncio
import contextvars
import hashlib
import json
import logging
import struct
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

from domain.app import App, Promise, WeaklyHard
from domain.device import Device
from domain.errors import ConfigurationError, ExecutionError, LoadError, SluiceError
from domain.executor import Executed, Loaded
from domain.profile import BatchLatency, Profile
from domain.tensor import Tensor, TensorSpec
from domain.variant import Variant
from executors.emulated import EmulatedExecutor
from profiles.catalogue import Catalogue
from sluice.audit import AuditReport, read_topics
from sluice.settings import DeviceSettings, PlannerSettings, Settings, WorkerSettings
from sluice.wiring import System
from stages.run import run_stages
from streams import codec, control
from streams.ports import BrokerError, Letter, TopicPartition
from streams.topics import Topics
from tests.explore.clients import Connection
from tests.explore.cluster import Cluster, Link
from tests.explore.loop import BASE, HOST, Host, VirtualLoop, run

Delivery = Literal["at_least_once", "exactly_once"]

PIXELS = 4
SLO = 0.6
WARM = 15.0
"""Seconds that a system may take until all its devices serve."""
LOAD = 5.0
"""Seconds of load; faults fall into all but the last of them."""
SETTLE = 40.0
"""Seconds within which every query must have its outcome once everything is mended."""
APPS = (("toy", 35.0, Promise()), ("vow", 15.0, Promise(weakly_hard=(WeaklyHard(10, 20),))))
"""Name, queries a second, what is promised."""
DEVICES = ("d0", "d1", "d2")


def catalogue() -> Catalogue:
    """Two apps of two unequal variants."""
    apps, variants, profiles = [], [], []
    for number, (name, _, promise) in enumerate(APPS):
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
        for level, first in enumerate((0.004, 0.03)):
            first *= 1 + 0.3 * number
            variant = f"{name}-v{level}"
            variants.append(Variant(name=variant, app=name, accuracy=0.7 + 0.17 * level - 0.05 * number))
            points = tuple(
                BatchLatency(b, first * (1 + 0.2 * (b - 1)), 1.3 * first * (1 + 0.2 * (b - 1))) for b in (1, 4, 16)
            )
            profiles.append(Profile(variant=variant, device_type="cpu", points=points, load=0.1 + 0.1 * level))
    return Catalogue.of(apps, variants, profiles)


class SteppedClock:
    """A process's clock: its wall clock may be set."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.skew = 0.0

    def wall(self) -> float:
        """Seconds since the epoch."""
        return BASE + self._loop.time() + self.skew

    def monotonic(self) -> float:
        """Seconds."""
        return self._loop.time()


class BreakableExecutor:
    """An emulated device whose process can die, idle or at work, hang, or refuse to load."""

    def __init__(self, inner: EmulatedExecutor) -> None:
        self._inner = inner
        self._on_end: Callable[[], None] = lambda: None
        self._alive = False
        self.trouble = ""

    def watch(self, on_end: Callable[[], None]) -> None:
        """Whom to tell that it died."""
        self._on_end = on_end

    def die(self) -> None:
        """Its process ends by itself."""
        self._alive = False
        self._on_end()

    async def start(self) -> None:
        """A restart mends what died."""
        await self._inner.start()
        self._alive = True

    async def load(self, variant: Variant, *, max_batch: int) -> Loaded:
        """Load, or fail."""
        self._check()
        if self.trouble == "refuses":
            raise LoadError(f"{variant.name}: refused")
        return await self._inner.load(variant, max_batch=max_batch)

    async def unload(self, variant: str) -> None:
        """Forget."""
        await self._inner.unload(variant)

    async def run(
        self, variant: str, inputs: Sequence[Sequence[Tensor]], rows: int, *, within: float | None = None
    ) -> Executed:
        """Run, if it lives; what hangs is ended with its process."""
        self._check()
        begun = asyncio.get_running_loop().time()
        while self.trouble == "hangs":
            await asyncio.sleep(0.02)
            if within is not None and asyncio.get_running_loop().time() - begun > within:
                self.die()
                raise ExecutionError("the batch took too long", fatal=True)
        executed = await self._inner.run(variant, inputs, rows)
        self._check()
        return executed

    async def close(self) -> None:
        """End."""
        self._alive = False
        await self._inner.close()

    def _check(self) -> None:
        if not self._alive:
            raise ExecutionError("the executor died", fatal=True)


class Process(Host):
    """A process that runs some roles. Killed, it can be started again."""

    def __init__(self, world: "World", name: str, roles: tuple[str, ...], **only: tuple[str, ...]) -> None:
        super().__init__()
        self.world = world
        self.name = name
        self.roles = roles
        self.only = only
        self.clock = SteppedClock(world.loop)
        self.link = Link(world.cluster, name)
        self.executors: list[BreakableExecutor] = []
        self.stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.slow_disk = 0.0

    def start(self) -> None:
        """Begin, as a host of its own."""
        context = contextvars.Context()
        context.run(HOST.set, self)
        self.task = self.world.loop.create_task(self._main(), context=context)

    def kill(self) -> None:
        """Nothing of it runs any more, from the next callback on."""
        self.dead = True
        self.link.break_off()

    async def _main(self) -> None:
        world = self.world
        broker = Connection(self.link)
        producer = broker.producer()
        await producer.start()
        folder = world.folder / f"{self.name}-{world.number()}"
        folder.mkdir()
        system = System(world.settings, catalogue(), Path(), broker, producer, folder)  # type: ignore[arg-type]
        system.clock = self.clock  # type: ignore[assignment]
        system.make_executor = self._executor
        await system.create_topics()
        await run_stages(system.stages(self.roles, **self.only), self.stop)
        system.close()
        await producer.stop()

    def _executor(self, device: Device, *_: object) -> BreakableExecutor:
        seed = self.world.rng.getrandbits(32)
        emulated = EmulatedExecutor(catalogue(), device.type, jitter=True, seed=seed, monotonic=self.world.loop.time)
        executor = BreakableExecutor(emulated)
        self.executors.append(executor)
        return executor


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one seed showed. ``digest``: of every record, when and where it was written."""

    seed: int
    delivery: str
    faults: tuple[str, ...]
    queries: int
    lost: int
    duplicates: int
    unknown: int
    late_unmarked: int
    promises_broken_unannounced: int
    promises_announced: int
    on_time: float
    exits: tuple[str, ...]
    unstopped: tuple[str, ...]
    virtual_s: float
    digest: str
    why: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass
class World:
    """Everything of one seed."""

    loop: VirtualLoop
    seed: int
    delivery: Delivery
    folder: Path
    rng: Random
    processes: dict[str, Process] = field(default_factory=dict)
    sent: int = 0
    happened: list[str] = field(default_factory=list)
    exits: list[str] = field(default_factory=list)
    graves: list[Process] = field(default_factory=list)
    _numbers: int = 0

    def __post_init__(self) -> None:
        self.cluster = Cluster(self.loop, Random(self.rng.getrandbits(64)))
        self.settings = Settings(
            broker="memory://",
            prefix="x",
            home=self.folder / "home",
            runs=self.folder / "runs",
            partitions=2,
            delivery=self.delivery,
            devices=tuple(DeviceSettings(name=name) for name in DEVICES),
            worker=WorkerSettings(executor="emulated", heartbeat_s=0.25),
            planner=PlannerSettings(period_s=2.0, device_timeout_s=1.0, lease_s=1.0),
        )
        self.topics = Topics("x")

    def number(self) -> int:
        """A new one."""
        self._numbers += 1
        return self._numbers

    def note(self, what: str) -> None:
        """Add to the story."""
        self.happened.append(f"{self.loop.time() - 1000:7.3f} {what}")

    # -- the system

    def lay_out(self) -> None:
        """A process a role, two where roles scale out or stand by."""
        for number in range(2):
            self.add(f"admission{number}", ("admission",))
            self.add(f"router{number}", ("router",))
            self.add(f"planner{number}", ("planner",))
        for device in DEVICES:
            self.add(device, ("worker",), devices=(device,))
        self.add("sink", ("sink",))

    def add(self, name: str, roles: tuple[str, ...], **only: tuple[str, ...]) -> None:
        """Start a process and see to it that it is started again where it ends by itself."""
        process = self.processes[name] = Process(self, name, roles, **only)
        process.start()
        assert process.task is not None
        process.task.add_done_callback(lambda task: self._ended(process, task), context=contextvars.Context())

    def restart(self, name: str) -> None:
        """A new process in the place of an old one."""
        old = self.processes[name]
        self.graves.append(old)
        self.add(name, old.roles, **old.only)
        self.processes[name].clock.skew = old.clock.skew

    def _ended(self, process: Process, task: "asyncio.Task[None]") -> None:
        if process.dead or process.stop.is_set() or self.processes.get(process.name) is not process:
            return
        error = None if task.cancelled() else task.exception()
        self.note(f"{process.name} ended by itself: {error!r}")
        if not isinstance(error, BrokerError | ConfigurationError):  # those say that the broker was away
            self.exits.append(f"{process.name}: {error!r}")
        self.loop.call_later(0.5, self._again, process, context=contextvars.Context())

    def _again(self, process: Process) -> None:
        if self.processes.get(process.name) is process:
            self.restart(process.name)

    # -- load

    async def serving(self) -> None:
        """Wait until each device has loaded what a plan wants of it."""
        acks = self.cluster.store
        until = self.loop.time() + WARM
        while self.loop.time() < until:
            await asyncio.sleep(0.1)
            with suppress(SluiceError):
                plans = acks.log(TopicPartition(self.topics.plan, 0)).read(0, 10_000)
                told = acks.log(TopicPartition(self.topics.acks, 0)).read(0, 10_000)
                newest = max((control.decode_plan(r.value).epoch for r in plans if r.value), default=None)
                heard = [control.decode_acknowledged(r.value) for r in told if r.value]
                if newest is not None and {a.device for a in heard if a.epoch == newest} >= set(DEVICES):
                    return
        raise TimeoutError("the system did not begin to serve")

    async def load(self, app: str, rate: float) -> None:
        """Poisson arrivals for ``LOAD`` seconds, some of them best effort, acknowledged at once."""
        rng = Random(self.rng.getrandbits(64))
        end = self.loop.time() + LOAD
        while True:
            await asyncio.sleep(rng.expovariate(rate))
            if self.loop.time() >= end:
                return
            rows = rng.choice((1, 1, 1, 2))
            values = struct.pack(f"<{PIXELS * rows}f", *(rng.random() for _ in range(PIXELS * rows)))
            tensor = Tensor("image", "FP32", (rows, PIXELS), values)
            parameters = {"class": "best_effort"} if rng.random() < 0.2 else None
            now = BASE + self.loop.time()
            message = codec.encode_query(f"{app}-{self.sent}", (tensor,), app=app, now=now, parameters=parameters)
            self.cluster.append(
                Letter(self.topics.queries(app), message.value, message.key, message.headers, timestamp=now)
            )
            self.sent += 1

    async def settled(self) -> AuditReport:
        """The audit, once nothing is missing, or after ``SETTLE`` seconds."""
        until = self.loop.time() + SETTLE
        while self._written() < self.sent and self.loop.time() < until:
            await asyncio.sleep(0.25)
        await asyncio.sleep(1.0)
        while True:
            report = (await read_topics(Connection(Link(self.cluster, "audit")), self.topics)).report()  # type: ignore[arg-type]
            if not report.lost or self.loop.time() >= until:
                return report
            await asyncio.sleep(1.0)

    def _written(self) -> int:
        store = self.cluster.store
        counts = store.partition_counts()
        names = [self.topics.results(app) for app, _, _ in APPS] + [self.topics.dead_letters]
        return sum(store.log(TopicPartition(n, p)).end for n in names for p in range(counts.get(n, 0)))

    async def stopped(self) -> tuple[str, ...]:
        """Everybody is told to end. Who has not within 20 s."""
        for process in self.processes.values():
            process.stop.set()
        tasks = {p.name: p.task for p in self.processes.values() if p.task is not None and not p.dead}
        await asyncio.wait(tasks.values(), timeout=20.0)
        return tuple(name for name, task in tasks.items() if not task.done())


Fault = Callable[[World, Random], Awaitable[str]]


async def _play(world: World, faults: Sequence[Fault]) -> Verdict:
    world.lay_out()
    await world.serving()
    loads = [asyncio.create_task(world.load(app, rate)) for app, rate, _ in APPS]
    struck = [asyncio.create_task(_strike(world, fault)) for fault in faults]
    await asyncio.gather(*loads, *struck)
    report = await world.settled()
    unstopped = await world.stopped()
    names = tuple(task.result() for task in struck)
    why = [name for name in ("lost", "unknown", "late_unmarked", "promises_broken") if getattr(report, name)]
    if world.delivery == "exactly_once" and report.duplicates:
        why.append("duplicates")
    if report.queries != world.sent:
        why.append("queries")
    if world.exits:
        why.append("exits")
    if unstopped:
        why.append("unstopped")
    return Verdict(
        seed=world.seed,
        delivery=world.delivery,
        faults=names,
        queries=report.queries,
        lost=report.lost,
        duplicates=report.duplicates,
        unknown=report.unknown,
        late_unmarked=report.late_unmarked,
        promises_broken_unannounced=report.promises_broken,
        promises_announced=sum(s.broken for s in report.promises) - report.promises_broken,
        on_time=report.summary.slo_attainment if report.summary is not None else 0.0,
        exits=tuple(world.exits),
        unstopped=unstopped,
        virtual_s=world.loop.time() - 1000,
        digest=world.cluster.written.hexdigest(),
        why=tuple(why),
    )


async def _strike(world: World, fault: Fault) -> str:
    rng = Random(world.rng.getrandbits(64))
    await asyncio.sleep(rng.uniform(0.3, LOAD - 1.5))
    said = await fault(world, rng)
    world.note(f"mended: {said}")
    return said


def pace(world: World) -> Callable[[Callable[..., Any]], float]:
    """How long work in threads takes: solving, and writing to a disk that may be slow."""

    def seconds(function: Callable[..., Any]) -> float:
        host = HOST.get()
        slow = host.slow_disk if isinstance(host, Process) else 0.0
        return world.rng.uniform(0.002, 0.05) + slow

    return seconds


def explore(seed: int, delivery: Delivery, faults: Callable[[Random], Sequence[Fault]]) -> tuple[Verdict, list[str]]:
    """Play one seed to its end: what it showed, and its story."""
    mixed = hashlib.blake2b(json.dumps([seed, delivery]).encode(), digest_size=8).digest()
    rng = Random(int.from_bytes(mixed, "big"))
    with tempfile.TemporaryDirectory(prefix="explore-") as folder:
        held: list[World] = []
        loop = VirtualLoop(lambda function: pace(held[0])(function))
        world = World(loop, seed, delivery, Path(folder), rng)
        held.append(world)
        logs = _Story(world)
        root = logging.getLogger()
        level = root.level
        root.addHandler(logs)
        root.setLevel(logging.WARNING)
        try:
            verdict: Verdict = run(loop, lambda: _play(world, faults(rng)), seed)
        finally:
            root.removeHandler(logs)
            root.setLevel(level)
        return verdict, world.happened


class _Story(logging.Handler):
    """What the stages log, with the virtual time, behind what was done to them."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        host = HOST.get()
        name = host.name if isinstance(host, Process) else "-"
        self._world.note(f"[{name}] {record.levelname} {record.getMessage()[:300]}")
