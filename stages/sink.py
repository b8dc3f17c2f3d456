"""The sink: reads terminal outcomes into a file and an index, so that any query can be explained. It writes no topic.

``outcomes.jsonl`` holds one outcome a line; ``index.sqlite`` maps id, app and source of a query to the byte offset of
its line. Writing
happens in a thread, a batch at a time; offsets are committed after the batch is on disk.
"""

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from domain.errors import ConfigurationError
from domain.query import QueryKey
from profiles.catalogue import Catalogue
from stages.intake import Intake
from stages.telemetry import Telemetry
from streams import codec
from streams.ports import Broker, Consumer, Record
from streams.topics import Topics


class OutcomeStore:
    """The file and its index in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = (folder / "outcomes.jsonl").open("ab")
            self._index = sqlite3.connect(folder / "index.sqlite", check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(f"sink folder {folder}: {error}; give a writable folder") from error
        self._index.execute("pragma journal_mode=wal")
        self._index.execute("pragma synchronous=off")
        self._index.execute(
            "create table if not exists ends "
            "(query_id text, app text, source text, position integer, primary key (query_id, app, source))"
        )

    def add(self, outcomes: Sequence[tuple[QueryKey, bytes]]) -> None:
        """Append (query, JSON) pairs."""
        rows = []
        position = self._file.tell()
        for key, line in outcomes:
            rows.append((key.id, key.app, key.source, position))
            position += len(line) + 1
        self._file.write(b"".join(line + b"\n" for _, line in outcomes))
        self._file.flush()
        with self._index:
            self._index.executemany("insert or ignore into ends values (?, ?, ?, ?)", rows)

    def find(self, key: QueryKey) -> bytes | None:
        """The JSON of a query's outcome, None where it has none yet."""
        asked = (key.id, key.app, key.source)
        row = self._index.execute(
            "select position from ends where query_id = ? and app = ? and source = ?", asked
        ).fetchone()
        if row is None:
            return None
        with (self._folder / "outcomes.jsonl").open("rb") as lines:
            lines.seek(row[0])
            return lines.readline().rstrip(b"\n")

    def close(self) -> None:
        """Close both files."""
        self._file.close()
        self._index.close()


class SinkStage:
    """Reads the result topics of ``apps`` as a member of one group."""

    name = "sink"

    def __init__(
        self,
        apps: Sequence[str],
        *,
        broker: Broker,
        topics: Topics,
        store: OutcomeStore,
        member: str | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._names = [topics.results(app) for app in apps]
        self._broker = broker
        self._topics = topics
        self._store = store
        self._member = member
        self._intake = Intake(self._make_consumer)
        telemetry = telemetry or Telemetry()
        self._meters = telemetry.meters
        telemetry.of_intake(self.name, lambda: self._intake)

    async def run(self, stop: asyncio.Event) -> None:
        """Write until ``stop``."""
        try:
            await self._intake.run(self._take, stop)
        finally:
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
        await asyncio.to_thread(self._store.add, [(self._key(r), codec.outcome_json(r)) for r in records])
        self._meters.add("sluice_outcomes_stored", by=len(records))
        for record in records:
            self._intake.done(record)
