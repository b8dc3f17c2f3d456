"""One seed: the live stages, a process each, under load and faults, and what the topics say of it."""

import asyncio
import contextvars
import hashlib
import json
import logging
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from sluicegate.domain.errors import ConfigurationError
from sluicegate.sluice.audit.topic_audit import Audit, AuditReport
from sluicegate.streams.ports import BrokerError, TopicPartition
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics
from tests.explore.cluster import Cluster
from tests.explore.invariants import Witness
from tests.explore.loop import HOST, VirtualLoop, run
from tests.explore.shape import APPS, PREFIX, Delivery, drawn_shape, settings_of
from tests.explore.shells import Process, Story, disks
from tests.explore.traffic import Traffic

WARM = 15.0
"""Seconds that a system may take until all its devices serve."""
LOAD = 3.5
"""Seconds of load; faults begin in all but the last of them."""
SETTLE = 25.0
"""Seconds within which every query must have its outcome once everything is mended."""
RECOVER = 15.0
"""Seconds within which, after that, every device that lives is in force again and queries are answered in time."""
_STOPPING = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one seed showed. ``digest``: of every record, when and where it was written; ``why``: it failed."""

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
    virtual_s: float
    settled_s: float
    recovered_s: float
    digest: str
    stories: tuple[str, ...] = ()
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
    gone: set[str] = field(default_factory=set)
    happened: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    _numbers: int = 0

    def __post_init__(self) -> None:
        self.shape = drawn_shape(self.rng)
        self.topics = Topics(PREFIX)
        self.settings = settings_of(self.shape, self.delivery, self.folder)
        once = self.delivery == "exactly_once"
        self.witness = Witness(self.loop, self.topics, APPS, self.shape.workers, once)
        self.cluster = Cluster(self.loop, Random(self.rng.getrandbits(64)), self.witness)
        self.traffic = Traffic(self.cluster, self.topics, Random(self.rng.getrandbits(64)))

    def number(self) -> int:
        """A new one."""
        self._numbers += 1
        return self._numbers

    def note(self, what: str) -> None:
        """Add to the story."""
        self.happened.append(f"{self.loop.time() - 1000:7.3f} {what}")

    def lay_out(self) -> None:
        """A process a role, or two."""
        for name, roles in self.shape.roles:
            self.add(name, roles)
        for device in self.shape.workers:
            self.add(device, ("worker",), (device,))

    def add(self, name: str, roles: tuple[str, ...], devices: tuple[str, ...] = ()) -> None:
        """Start a process and see to it that it is started again where it ends by itself."""
        process = self.processes[name] = Process(
            name,
            roles,
            devices=devices,
            cluster=self.cluster,
            settings=self.settings,
            folder=self.folder / f"{name}-{self.number()}",
            rng=self.rng,
        )
        process.task.add_done_callback(lambda task: self._ended(process, task), context=contextvars.Context())

    def restart(self, old: Process) -> None:
        """A new process in the place of one that has ended or was killed, unless that is done already, or is not to
        be."""
        if self.processes.get(old.name) is old and old.name not in self.gone:
            old.dead = True
            self.add(old.name, old.roles, old.devices)
            self.processes[old.name].clock.skew = old.clock.skew

    def _ended(self, process: Process, task: "asyncio.Task[None]") -> None:
        if process.dead or process.stop.is_set() or self.processes.get(process.name) is not process:
            return
        error = None if task.cancelled() else task.exception()
        self.note(f"{process.name} ended by itself: {error!r}")
        if not isinstance(error, BrokerError | ConfigurationError):  # those say that the broker was away
            self.wrong.append(f"{process.name} ended by itself: {error!r}")
        self.loop.call_later(0.5, self.restart, process, context=contextvars.Context())

    async def serving(self) -> None:
        """Wait until each device has loaded what a plan wants of it."""
        until = self.loop.time() + WARM
        while self.witness.recovered(self.shape.workers) is not None:
            if self.loop.time() >= until:
                raise TimeoutError("the system did not begin to serve")
            await asyncio.sleep(0.05)

    async def settled(self) -> float:
        """Seconds until every query had its outcome, at most ``SETTLE``."""
        began = self.loop.time()
        while self.witness.open and self.loop.time() < began + SETTLE:
            await asyncio.sleep(0.1)
        return self.loop.time() - began

    async def recovered(self) -> float:
        """Seconds until all that lives serves again, and queries of each app are answered in time."""
        began = self.loop.time()
        living = [name for name in self.shape.workers if name not in self.gone]
        why: str | None = "queries are not answered in time"
        while why is not None and self.loop.time() < began + RECOVER:
            why = self.witness.recovered(living)
            if why is None:
                asked = {app: [self.traffic.ask(app, plain=True) for _ in range(2)] for app in APPS}
                await self.settled()
                in_time = {f"{key.source} {key.id}" for key in self.witness.on_time}
                late = sorted(app for app, names in asked.items() if not in_time.issuperset(names))
                why = f"queries of {', '.join(late)} are not answered in time" if late else None
            if why is not None:
                await asyncio.sleep(0.25)
        if why is not None:
            self.wrong.append(f"not recovered: {why}")
        return self.loop.time() - began

    async def stored(self) -> None:
        """Until sinks, where there are any, have every outcome on disk."""
        if not any("sink" in process.roles for process in self.processes.values()):
            return
        until, store = self.loop.time() + SETTLE, self.cluster.store
        results = [p for app in APPS for p in self._partitions(self.topics.results(app))]
        while any((store.offsets.get((self.topics.sink_group, p)) or 0) < store.log(p).end for p in results):
            if self.loop.time() > until:
                self.wrong.append("sinks have not stored every outcome")
                return
            await asyncio.sleep(0.1)
        ends = {codec.outcome_json(record) for p in results for record in store.log(p).read(0, store.log(p).end)}
        kept = {line for file in self.folder.glob("sink*/outcomes.jsonl") for line in file.read_bytes().splitlines()}
        if missing := len(ends - kept):
            self.witness.tell("not stored", f"{missing} outcomes that sinks have committed are not on disk")

    def _partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(self.cluster.store.partition_counts()[topic])]

    async def stopped(self) -> None:
        """Everybody is told to end, and does."""
        for process in self.processes.values():
            process.stop.set()
        tasks = {p.name: p.task for p in self.processes.values() if not p.dead}
        await asyncio.wait(tasks.values(), timeout=_STOPPING)
        late = [name for name, task in tasks.items() if not task.done()]
        if late:
            self.wrong.append(f"did not end when told to: {', '.join(late)}")

    def audited(self) -> AuditReport:
        """What the topics say."""
        audit, store = Audit(self.topics), self.cluster.store
        takers = {self.topics.queries(app): audit.add_query for app in APPS}
        takers |= {self.topics.results(app): audit.add_result for app in APPS}
        takers |= {self.topics.dead_letters: audit.add_dead_letter, self.topics.status: audit.add_status}
        takers |= {self.topics.registry: audit.add_registered}
        for topic, take in takers.items():
            for partition in self._partitions(topic):
                log = store.log(partition)
                for record in log.read(log.start, log.end):
                    take(record)
        return audit.report()


Fault = Callable[[World, Random], Awaitable[str]]


async def _play(world: World, faults: Sequence[Fault]) -> Verdict:
    world.lay_out()
    await world.serving()
    loads = [asyncio.create_task(world.traffic.steady(app, rate, LOAD)) for app, rate in world.shape.rates]
    together = world.rng.uniform(0.1, LOAD - 1.0)
    struck = [asyncio.create_task(_strike(world, fault, together)) for fault in faults]
    await asyncio.gather(*loads, *struck)
    settled = await world.settled()
    recovered = await world.recovered()
    await world.stored()
    await world.stopped()
    report = world.audited()
    broken = world.witness.broken
    why = [name for name in ("lost", "unknown", "late_unmarked", "promises_unannounced") if getattr(report, name)]
    if world.delivery == "exactly_once" and report.duplicates:
        why.append("duplicates")
    if report.queries != world.traffic.sent:
        why.append("queries")
    return Verdict(
        seed=world.seed,
        delivery=world.delivery,
        faults=tuple(task.result() for task in struck),
        queries=report.queries,
        lost=report.lost,
        duplicates=report.duplicates,
        unknown=report.unknown,
        late_unmarked=report.late_unmarked,
        promises_broken_unannounced=report.promises_unannounced,
        promises_announced=sum(s.broken for s in report.promises) - report.promises_unannounced,
        on_time=report.summary.slo_attainment,
        virtual_s=world.loop.time() - 1000,
        settled_s=settled,
        recovered_s=recovered,
        digest=world.cluster.written.hexdigest(),
        stories=(*broken.values(), *world.wrong),
        why=(*why, *broken, *(["wrong"] if world.wrong else [])),
    )


async def _strike(world: World, fault: Fault, together: float) -> str:
    """Half of the faults of a world fall about ``together``, within what it takes to notice one of them."""
    rng = Random(world.rng.getrandbits(64))
    alone = rng.uniform(0.1, LOAD - 1.0)
    await asyncio.sleep(alone if rng.random() < 0.5 else together + rng.uniform(0.0, 1.5))
    if rng.random() < 0.5:
        await world.traffic.burst(rng.choice(tuple(APPS)))
    said = await fault(world, rng)
    world.note(f"mended: {said}")
    if rng.random() < 0.3:
        await world.traffic.burst(rng.choice(tuple(APPS)))
    return said


def explore(seed: int, delivery: Delivery, faults: Callable[[Random], Sequence[Fault]]) -> tuple[Verdict, list[str]]:
    """Play one seed to its end: what it showed, and its story."""
    mixed = hashlib.blake2b(json.dumps([seed, delivery]).encode(), digest_size=8).digest()
    rng = Random(int.from_bytes(mixed, "big"))

    def seconds(function: Callable[..., Any]) -> float:
        """How long work in threads takes: solving, and writing to a disk that may be slow."""
        del function
        host = HOST.get()
        return rng.uniform(0.002, 0.05) + (host.slow_disk if isinstance(host, Process) else 0.0)

    with tempfile.TemporaryDirectory(prefix="explore-") as folder:
        loop = VirtualLoop(seconds)
        world = World(loop, seed, delivery, Path(folder), rng)
        story = Story(world.note)
        world.wrong = story.wrong
        root = logging.getLogger()
        level = root.level
        root.addHandler(story)
        root.setLevel(logging.WARNING)
        try:
            with disks():
                verdict: Verdict = run(loop, lambda: _play(world, faults(rng)), seed)
        finally:
            root.removeHandler(story)
            root.setLevel(level)
        return verdict, world.happened
