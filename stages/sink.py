"""The sink: reads terminal outcomes into a file, so that any can be explained once its topic has let go of it.

``outcomes.jsonl`` holds one outcome a line. At half of what may be kept it becomes ``outcomes.1.jsonl``, in place of
that before, and begins anew. Writing happens in a thread, a batch at a time; offsets are committed after the batch is
on disk. Where the disk cannot take a batch (it is full), the sink says so on the status topic and tries again
until it can: what it has read waits in memory, up to the intake's limit, the rest in its topics, and nothing is
committed meanwhile.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import ConfigurationError, InvalidInputError
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
_NEW = "outcomes.jsonl"
_OLD = "outcomes.1.jsonl"


class OutcomeStore:
    """The file in ``folder``; past half of ``most_bytes`` it makes place, and takes that of the one before.

    Raises ConfigurationError where it cannot be opened.
    """

    def __init__(self, folder: Path, *, most_bytes: int = 1 << 30) -> None:
        self._folder = folder
        self._most = most_bytes // 2
        self._file: Appending | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = Appending(folder / _NEW)
        except OSError as error:
            raise ConfigurationError(f"sink folder {folder}: {error}; give a writable folder with room") from error

    def add(self, outcomes: Sequence[bytes]) -> None:
        """Append JSON lines: all of them, or none. Raises OSError for none."""
        lines = b"".join(line + b"\n" for line in outcomes)
        self._with_room(len(lines)).append(lines)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _with_room(self, size: int) -> Appending:
        """The open one, after that before has made place where there is none for ``size`` bytes."""
        if self._file is not None and 0 < self._file.end > self._most - size:
            self.close()
            (self._folder / _NEW).replace(self._folder / _OLD)
        if self._file is None:
            self._file = Appending(self._folder / _NEW)
        return self._file


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
        lines = [codec.outcome_json(record) for record in records]
        paused = False
        while True:
            # To its end, though this be cancelled: the file must not be closed under it.
            storing = asyncio.create_task(asyncio.to_thread(self._store.add, lines))
            try:
                await asyncio.shield(storing)
                break
            except OSError as error:
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
