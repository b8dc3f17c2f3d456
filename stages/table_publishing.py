"""Publishing selection tables beside the planner.

What a plan asks for is answered in a process of its own, one question at a time, so that seconds of linear algebra hold
nothing up. Loads that workers miss come by the status topic; what they counted under each table comes with their
heartbeats, and a broken promise is announced on the status topic, with the reason, and logged.
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Mapping, Sequence

from domain.actions import Announce
from domain.clock import Clock
from domain.device import Device
from domain.errors import InvalidInputError, SluiceError
from domain.plan import Plan
from domain.table import SelectionTable, TableObserved
from planner.tables.codec import decode, encode
from planner.tables.names import Shelf, decode_name, encode_name
from planner.tables.publishing import (
    Asked,
    LoadMissing,
    Made,
    Make,
    PublishingEvent,
    PutTable,
    TablePublishing,
    TableSeen,
    WithdrawTable,
)
from planner.tables.questions import TableRules, questions
from planner.tables.watch import DriftWatch
from profiles.catalogue import Catalogue
from stages.beside import beside
from stages.control import Follower
from stages.outbox import Outbox
from stages.table_maker import LENGTH, decode_answer, encode_request
from streams import control
from streams.ports import Broker, Record
from streams.topics import Topics

log = logging.getLogger(__name__)

_REMEMBERED = 2000
_MOST_QPS = 1e7


class TableMaker:
    """The process that makes tables; started ahead, since its imports take a second, and again where it died."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it; where that fails, ``make`` tries again and says why."""
        with contextlib.suppress(OSError):
            await self._started()

    async def make(self, make: Make, rules: TableRules) -> tuple[SelectionTable, ...]:
        """Raises SluiceError with what went wrong."""
        try:
            process = await self._started()
            assert process.stdin is not None and process.stdout is not None  # pipes, as asked for
            process.stdin.write(encode_request(make, rules.library))
            await process.stdin.drain()
            (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
            answer = await process.stdout.readexactly(length)
        except (OSError, EOFError) as error:
            await self.close()
            raise SluiceError(f"the process that makes tables ended ({type(error).__name__} {error})") from error
        return decode_answer(answer)

    async def close(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        assert process.stdin is not None  # a pipe, as asked for
        process.stdin.close()
        await process.wait()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "stages.table_maker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        return self._process


class TablePublisher:
    """``follow`` takes plans, ``counted`` heartbeats' counts; ``run`` works until ``stop``."""

    def __init__(
        self, *, broker: Broker, topics: Topics, clock: Clock, catalogue: Catalogue, rules: TableRules, outbox: Outbox
    ) -> None:
        self._topics = topics
        self._clock = clock
        self._catalogue = catalogue
        self._rules = rules
        self._outbox = outbox
        self._publishing = TablePublishing(rules.library)
        self._tables: dict[tuple[str, float], SelectionTable] = {}
        self._watch = DriftWatch(self._tables, period=rules.watch_s)
        self._maker = TableMaker()
        self._makes: asyncio.Queue[Make] = asyncio.Queue()
        self._newest: tuple[Plan, Sequence[Device], Mapping[tuple[str, str], float]] | None = None
        self._known = Follower(broker, topics.policies, self._on_table)
        self._status = Follower(broker, topics.status, self._on_status, start_at="end")

    async def run(self, stop: asyncio.Event) -> None:
        """Make and publish. What is on the topic already is read first."""
        try:
            async with beside(follower.run(stop) for follower in (self._known, self._status)):
                await self._maker.start()
                await self._known.ready.wait()
                self._ask()
                while True:
                    await self._make(await self._makes.get())
        finally:
            await self._maker.close()

    def follow(self, plan: Plan, devices: Sequence[Device], latency_factor: Mapping[tuple[str, str], float]) -> None:
        """A plan is in force from now on."""
        self._newest = (plan, devices, latency_factor)
        if self._known.ready.is_set():
            self._ask()

    def registered(self) -> None:
        """Profiles may be others from now on: what the plan in force asks for is asked anew."""
        if self._known.ready.is_set():
            self._ask()

    def counted(self, observed: Sequence[TableObserved]) -> None:
        """What a worker counted."""
        for said in self._watch.handle(observed, self._clock.wall()):
            log.warning("%s: %s: %s", said.subject, said.state, said.detail)
            self._outbox.post(self._topics.status, control.encode_announce(said), key=said.subject.encode())

    # -- what is heard

    def _on_table(self, record: Record) -> None:
        name = decode_name(record.key)
        if record.value is None:
            self._tell(TableSeen(name, None))
            return
        table = decode(record.value)
        self._remember(table)
        self._tell(TableSeen(name, table.fingerprint))

    def _on_status(self, record: Record) -> None:
        if record.value is None:
            return
        said = control.decode_announce(record.value)
        if said.state != "table_missing" or said.data is None:
            return
        app = said.subject.removeprefix("tables:")
        try:
            shelf = Shelf(app, str(said.data["worker_class"]), float(said.data["slo"]))
            qps = float(said.data["qps"])
        except (KeyError, ValueError) as error:
            raise InvalidInputError("status.data", f"{said.data} names no load, SLO and kind of worker") from error
        if not 0.0 < qps <= _MOST_QPS:
            raise InvalidInputError("status.data.qps", f"{qps:g} is no load; give queries/s above 0, to {_MOST_QPS:g}")
        self._tell(LoadMissing(shelf, qps))

    # -- what is done

    def _ask(self) -> None:
        if self._newest is None:
            return
        plan, devices, factors = self._newest
        self._tell(Asked(questions(plan, self._catalogue, devices, factors, self._rules)))

    def _tell(self, event: PublishingEvent) -> None:
        for action in self._publishing.handle(event):
            match action:
                case Make():
                    self._makes.put_nowait(action)
                case PutTable(name, table):
                    self._remember(table)
                    self._outbox.post(self._topics.policies, encode(table), key=encode_name(name))
                case WithdrawTable(name):
                    self._outbox.post(self._topics.policies, None, key=encode_name(name))

    def _remember(self, table: SelectionTable) -> None:
        """Also beyond its withdrawal: what was counted under it is still to be judged."""
        self._tables[table.fingerprint, table.qps] = table
        while len(self._tables) > _REMEMBERED:
            del self._tables[next(iter(self._tables))]

    async def _make(self, make: Make) -> None:
        started = self._clock.monotonic()
        shelf = make.question.shelf
        try:
            tables = await self._maker.make(make, self._rules)
        except SluiceError as error:
            log.error("no tables for %s on %s: %s", shelf.app, shelf.worker_class, error)
            tables = ()
        took = self._clock.monotonic() - started
        log.info("%d tables for %s on %s in %.2f s", len(tables), shelf.app, shelf.worker_class, took)
        self._tell(Made(make, tables))
        if not make.loads:
            said = Announce(
                f"tables:{shelf.app}/{shelf.worker_class}/{1e3 * shelf.slo:g}ms",
                "ready" if tables else "none",
                f"{len(tables)} tables, up to {max(t.qps for t in tables):.4g} queries/s"
                if tables
                else f"no table holds {1e3 * shelf.slo:g} ms here; workers fall back",
            )
            self._outbox.post(self._topics.status, control.encode_announce(said), key=said.subject.encode())
