"""What a process has to say that no stage of it says: on the dead-letter topic and on the status topic.

A record that cannot be read, in a topic that is read without a group and so by nobody who commits (control topics,
counts, results), has one dead letter a process, however many readers there are in it, and one more after a restart.
"""

import logging

from sluicegate.domain.actions import Announce
from sluicegate.domain.clock import Clock
from sluicegate.domain.errors import InvalidInputError
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.stages.telemetry.metrics import Meters
from sluicegate.stages.telemetry.telemetry import buried
from sluicegate.streams.ports import Producer, Unreadable
from sluicegate.streams.records import control
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)

_MOST = 100_000


class Notices:
    """What is said before ``start`` is written then."""

    def __init__(self, producer: Producer, topics: Topics, clock: Clock, meters: Meters) -> None:
        self._outbox = Outbox(producer, topics.control)
        self._meters = meters
        self._topics = topics
        self._clock = clock
        self._taken: set[str] = set()

    async def start(self) -> None:
        """Write from now on."""
        await self._outbox.start()

    async def stop(self) -> None:
        """Write what was said, within a bound."""
        await self._outbox.stop(within=2.0)

    def unreadable(self, record: Unreadable) -> None:
        """A record was passed over."""
        if record.place in self._taken or len(self._taken) >= _MOST or record.topic == self._topics.dead_letters:
            return
        self._taken.add(record.place)
        error = InvalidInputError("record", record.why)
        now = self._clock.wall()
        letter = buried(record, error, stage="reader", now=now, topics=self._topics, meters=self._meters)
        self._outbox.post(letter.topic, letter.value, key=letter.key, headers=letter.headers)

    def say(self, subject: str, state: str, detail: str) -> None:
        """On the status topic, and in the log."""
        log.error("%s %s: %s", subject, state, detail)
        self._write(Announce(subject, state, detail))

    def warn(self, said: Announce) -> None:
        """On the status topic, and in the log as a warning."""
        log.warning("%s %s: %s", said.subject, said.state, said.detail)
        self._write(said)

    def _write(self, said: Announce) -> None:
        self._outbox.post(self._topics.status, control.encode_announce(said), key=said.subject.encode())
