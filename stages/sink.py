"""The sink: reads terminal outcomes into a file and an index, so that any query can be explained.

``outcomes.jsonl`` holds one outcome a line; ``index.sqlite`` maps id, app and source of a query to the byte offset of
its line. Where the file has half of what may be kept, both are kept as ``outcomes.1.jsonl`` and ``index.1.sqlite`` in
place of those before, and begin anew. Writing happens in a thread, a batch at a time; offsets are committed after the
batch is on disk. Where the disk cannot take a batch (it is full), the sink says so on the status topic and tries again
until it can: what it has read waits in memory, up to the intake's limit, the rest in its topics, and nothing is
committed meanwhile.
"""

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.query import QueryKey
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.connections import Connections
from sluicegate.stages.runtime.append_file import Appending
from sluicegate.stages.runtime.consumer_loop import Intake, topic_seen
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.telemetry.telemetry import buried
from sluicegate.streams.ports import Consumer, Record, Unreadable
from sluicegate.streams.records import codec, control

log = logging.getLogger(__name__)

_SUBJECT = "stage:sink"
_MOST = 500
_NEW = ("outcomes.jsonl", "index.sqlite")
_OLD = ("outcomes.1.jsonl", "index.1.sqlite")


class OutcomeStore:
    """The file and its index in ``folder``; past half of ``most_bytes`` both make place, and take that of those before.

    Raises ConfigurationError where they cannot be opened.
    """

    def __init__(self, folder: Path, *, most_bytes: int = 1 << 30) -> None:
        self._folder = folder
        self._most = most_bytes // 2
        self._open_pair: tuple[Appending, sqlite3.Connection] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._open_pair = self._opened()
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(f"sink folder {folder}: {error}; give a writable folder with room") from error

    def add(self, outcomes: Sequence[tuple[QueryKey, bytes]]) -> None:
        """Append (query, JSON) pairs: all of them, or none. Raises OSError or sqlite3.Error for none."""
        lines = b"".join(line + b"\n" for _, line in outcomes)
        file, index = self._with_room(len(lines))
        rows = []
        begin = position = file.end
        for key, line in outcomes:
            rows.append((key.id, key.app, key.source, position))
            position += len(line) + 1
        file.append(lines)
        try:
            with index:
                index.executemany("insert or ignore into ends values (?, ?, ?, ?)", rows)
        except sqlite3.Error:
            file.undo(begin)
            raise

    def find(self, key: QueryKey) -> bytes | None:
        """The JSON of a query's outcome, None where it has none yet, or none any more."""
        asked = (key.id, key.app, key.source)
        for lines, ends in (_OLD, _NEW):
            if not (self._folder / ends).exists():
                continue
            with closing(sqlite3.connect(self._folder / ends)) as index:
                row = index.execute(
                    "select position from ends where query_id = ? and app = ? and source = ?", asked
                ).fetchone()
            if row is not None:
                with (self._folder / lines).open("rb") as file:
                    file.seek(row[0])
                    return file.readline().rstrip(b"\n")
        return None

    def close(self) -> None:
        """Close both files."""
        if self._open_pair is not None:
            file, index = self._open_pair
            self._open_pair = None
            file.close()
            index.close()

    def _with_room(self, size: int) -> tuple[Appending, sqlite3.Connection]:
        """The open ones, after those before have made place where there is none for ``size`` bytes."""
        if self._open_pair is not None and 0 < self._open_pair[0].end > self._most - size:
            self.close()
            for old, new in zip(_OLD, _NEW, strict=True):
                (self._folder / new).replace(self._folder / old)
        if self._open_pair is None:
            self._open_pair = self._opened()
        return self._open_pair

    def _opened(self) -> tuple[Appending, sqlite3.Connection]:
        lines, ends = _NEW
        with ExitStack() as opened:
            file = opened.enter_context(closing(Appending(self._folder / lines)))
            index = opened.enter_context(closing(sqlite3.connect(self._folder / ends, check_same_thread=False)))
            index.execute("pragma journal_mode=wal")
            index.execute("pragma synchronous=off")
            index.execute(
                "create table if not exists ends "
                "(query_id text, app text, source text, position integer, primary key (query_id, app, source))"
            )
            opened.pop_all()
        return file, index


class SinkStage:
    """Reads the result topics of ``apps`` as a member of one group."""

    name = "sink"

    def __init__(
        self,
        connections: Connections,
        apps: Sequence[str],
        *,
        store: OutcomeStore,
        member: str | None = None,
        retry: float = 1.0,
    ) -> None:
        topics, telemetry = connections.topics, connections.telemetry
        self._names = [topics.results(app) for app in apps]
        self._broker = connections.broker
        self._topics = topics
        self._store = store
        self._clock = connections.clock
        self._member = member
        self._retry = retry
        self._outbox = Outbox(connections.producer, connections.topics.control)
        self._intake = Intake(self._make_consumer, answers=topic_seen(self._broker, self._topics.status))
        self._read: deque[Record] = deque()
        self._came = asyncio.Event()
        self._meters = telemetry.meters
        telemetry.of_outbox(self.name, self._outbox)
        telemetry.of_intake(self.name, lambda: self._intake)

    async def run(self, stop: asyncio.Event) -> None:
        """Write until ``stop``."""
        await self._outbox.start()
        beside = [asyncio.create_task(work) for work in (self._write_often(), self._outbox.failure())]
        try:
            await self._intake.run(self._take, stop, beside=beside)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await self._outbox.stop()
            self._store.close()

    async def registered(self, served: Catalogue) -> None:
        """The results of these apps are stored too; those of retired ones go on being."""
        self._names = sorted({*self._names, *(self._topics.results(app) for app in served.apps)})
        await self._intake.subscribe(self._names)

    def _make_consumer(self, intake: Intake) -> Consumer:
        return self._broker.consumer(
            topics=self._names, group=self._topics.sink_group, member=self._member, listener=intake
        )

    def _key(self, record: Record) -> QueryKey:
        app = self._topics.app_of(record.topic) or ""
        return QueryKey(app, codec.query_source_of(record), codec.query_id_of(record) or "")

    async def _take(self, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(record, Unreadable):
                self._dead_letter(record)
            else:
                self._read.append(record)
        self._came.set()

    def _dead_letter(self, record: Unreadable) -> None:
        error = InvalidInputError("record", record.why)
        now = self._clock.wall()
        letter = buried(record, error, stage=self.name, now=now, topics=self._topics, meters=self._meters)
        self._intake.answer(record, self._outbox, letter)

    async def _write_often(self) -> None:
        while True:
            await self._came.wait()
            self._came.clear()
            while self._read:
                await self._write([self._read.popleft() for _ in range(min(_MOST, len(self._read)))])

    async def _write(self, records: Sequence[Record]) -> None:
        lines = [(self._key(r), codec.outcome_json(r)) for r in records]
        paused = False
        while True:
            # To its end, though this be cancelled: the file must not be closed under it.
            storing = asyncio.create_task(asyncio.to_thread(self._store.add, lines))
            try:
                await asyncio.shield(storing)
                break
            except (OSError, sqlite3.Error) as error:
                if not paused:
                    paused = True
                    self._say("paused", f"outcomes cannot be written ({error}); make room, it goes on by itself")
                await asyncio.sleep(self._retry)
            except asyncio.CancelledError:
                await asyncio.gather(storing, return_exceptions=True)
                raise
        if paused:
            self._say("resumed", "outcomes are written again")
        self._meters.add("sluice_outcomes_stored", by=len(records))
        for record in records:
            self._intake.done(record)

    def _say(self, state: str, detail: str) -> None:
        log.log(logging.ERROR if state == "paused" else logging.WARNING, "sink %s: %s", state, detail)
        self._meters.add("sluice_announcements", self.name, state)
        said = Announce(_SUBJECT, state, detail)
        self._outbox.post(self._topics.status, control.encode_announce(said), key=_SUBJECT.encode())
