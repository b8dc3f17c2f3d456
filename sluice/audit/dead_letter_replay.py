"""Which dead letters can be asked again, and what is written for them. Pure, but for reading the topics.

Rules. Only records of query topics are written again, to the partition that they came by, as they stand there (as the
dead letter keeps them where the topic has let go of them, unless it had to cut them), with two headers more: how often
that was done, and of which record. Nothing is written twice: not what was replayed before, nor a query that has an
outcome or is still to get one; what stands behind a duplicate id only where the first of its kind has a dead letter of
another reason. So the audit holds: the record that is written is one of its own, which ends in one outcome or in one
dead letter, and the one it stands for has its dead letter already.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.query import QueryKey
from sluicegate.sluice.audit.topic_audit import read_whole
from sluicegate.streams.ports import Broker, Headers, Producer, Record, Unreadable
from sluicegate.streams.records import codec
from sluicegate.streams.records.dead_letters import DeadLetter, read_dead_letter, replay_origin, replays_of
from sluicegate.streams.source_proofs import PROOF
from sluicegate.streams.topics import Topics

MAX_REPLAYS = 3
_OTHERS = 8
Place = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which dead letters are meant. Times are seconds since the epoch, of the dead letter."""

    apps: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    since: float = 0.0
    until: float = float("inf")

    def takes(self, letter: DeadLetter, app: str | None) -> bool:
        """Whether it is one of them; ``app``: whose topic its record came by."""
        return (
            (not self.apps or app in self.apps)
            and (not self.reasons or letter.reason in self.reasons)
            and self.since <= letter.at <= self.until
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """A dead letter, and what is written for it; None where ``refused`` says why not. ``timestamp``: of a record whose
    source proves itself, for that moment alone; None: when it is written."""

    letter: DeadLetter
    app: str | None
    headers: Headers = ()
    key: bytes | None = None
    value: bytes | None = None
    refused: str = ""
    timestamp: float | None = None


@dataclass(slots=True)
class ReplayBook:
    """A fold over dead letters, then query records and outcomes; and what comes of it."""

    topics: Topics
    chosen: Chosen
    max_replays: int = MAX_REPLAYS
    others: set[str] = field(default_factory=set)
    """Of dead letters that are not meant, reason and app of some."""
    apps: set[str] = field(default_factory=set)
    """That have dead letters or topics."""
    _letters: list[DeadLetter] = field(default_factory=list)
    _dead: dict[Place, str] = field(default_factory=dict)
    _wanted: set[Place] = field(default_factory=set)
    _originals: dict[Place, Record] = field(default_factory=dict)
    _asked: dict[Place, QueryKey] = field(default_factory=dict)
    _replayed: set[Place] = field(default_factory=set)
    _ended: set[QueryKey] = field(default_factory=set)

    def add_dead_letter(self, record: Record) -> None:
        """A record of the dead-letter topic."""
        letter = read_dead_letter(record)
        if letter is None:
            return
        self._dead[letter.origin] = letter.reason
        app = self.topics.app_of(letter.origin[0])
        if app is not None:
            self.apps.add(app)
        if self.chosen.takes(letter, app):
            self._letters.append(letter)
            self._wanted.add(letter.origin)
        elif len(self.others) < _OTHERS:
            self.others.add(f"{letter.reason:.40} of {app or 'no app'}")

    def add_query(self, record: Record) -> None:
        """A record of a query topic."""
        place = (record.topic, record.partition, record.offset)
        query_id = codec.query_id_of(record)
        if query_id is not None:
            self._asked[place] = QueryKey(
                self.topics.app_of(record.topic) or "", codec.source_of_query(record), query_id
            )
        if place in self._wanted:
            self._originals[place] = record
        if (origin := replay_origin(record)) is not None and origin[0] == record.topic:
            self._replayed.add(origin)

    def add_result(self, record: Record) -> None:
        """A record of a result topic."""
        try:
            self._ended.add(codec.decode_outcome(record).outcome.key)
        except InvalidInputError:
            return

    def plan(self) -> tuple[Replay, ...]:
        """What is to be written, and what is not and why, in the order of the dead letters."""
        waiting = {key for place, key in self._asked.items() if place not in self._dead}
        failed = {
            key for place, key in self._asked.items() if self._dead.get(place, codec.DUPLICATE_ID) != codec.DUPLICATE_ID
        }
        found = []
        for letter in self._letters:
            replay = self._judged(letter, waiting, failed)
            if not replay.refused:
                self._replayed.add(letter.origin)
                if letter.origin in self._asked:
                    waiting.add(self._asked[letter.origin])
            found.append(replay)
        return tuple(found)

    def _judged(self, letter: DeadLetter, waiting: set[QueryKey], failed: set[QueryKey]) -> Replay:
        app = self.topics.app_of(letter.origin[0])
        original = self._originals.get(letter.origin)
        key = self._asked.get(letter.origin)
        if key is None and letter.query_id is not None and app is not None:
            key = QueryKey(app, codec.source_of_query(letter.kept), letter.query_id)
        count = replays_of(letter.kept.headers if original is None else original.headers)
        refused = self._refused(letter, original, count)
        if not refused and key is not None:
            refused = self._ends_otherwise(letter, key, waiting, failed)
        if refused:
            return Replay(letter, app, refused=refused)
        record = letter.kept if original is None else original
        headers = codec.with_replay(record.headers, letter.origin, (count or 0) + 1)
        proven = any(name == PROOF for name, _ in headers)
        timestamp = record.timestamp if proven else None
        return Replay(letter, app, headers, record.key, record.value, timestamp=timestamp)

    def _refused(self, letter: DeadLetter, original: Record | None, count: int | None) -> str:
        topic = letter.origin[0]
        if not self.topics.is_queries(topic):
            return f"its record is of {topic[:100]}: only what stands on query topics is asked again"
        if letter.origin in self._replayed:
            return "it was replayed before"
        if count is None or count >= self.max_replays:
            told = "how often, cannot be read" if count is None else f"{count} times"
            return f"it was replayed before ({told}); at most {self.max_replays} are allowed"
        if isinstance(original, Unreadable) or (original is None and letter.reason == codec.UNREADABLE):
            return "its record cannot be read"
        if original is None and letter.cut:
            return "its topic has let go of it, and the dead letter had to cut it"
        return ""

    def _ends_otherwise(self, letter: DeadLetter, key: QueryKey, waiting: set[QueryKey], failed: set[QueryKey]) -> str:
        if key in self._ended:
            return "its query has an outcome"
        if key in waiting:
            return "its query was asked in another record too, which has not ended yet"
        if letter.reason == codec.DUPLICATE_ID and key not in failed:
            return "its query was asked before, and ends by that"
        return ""


async def read_replays(broker: Broker, book: ReplayBook) -> tuple[Replay, ...]:
    """Read all dead letters, query records and outcomes of the book's prefix that there are; what comes of them."""
    names, topics = await broker.admin().topics(), book.topics
    await read_whole(broker, {n for n in names if n == topics.dead_letters}, book.add_dead_letter)
    book.apps.update(app for app in map(topics.app_of, names) if app is not None)
    await read_whole(broker, _of(book, {n for n in names if topics.is_queries(n)}), book.add_query)
    await read_whole(broker, _of(book, {n for n in names if topics.is_results(n)}), book.add_result)
    return book.plan()


def _of(book: ReplayBook, names: Iterable[str]) -> set[str]:
    apps = book.chosen.apps
    return {name for name in names if not apps or book.topics.app_of(name) in apps}


async def write_replays(broker: Broker, replays: Sequence[Replay]) -> tuple[Replay, ...]:
    """Write what is to be written, one after the other in each partition. All of them, those refused that their topic
    does not take: it has no such partition any more, or has no room for the two headers. All others were acknowledged.
    """
    producer = broker.producer()
    await producer.start()
    try:
        return tuple([one if one.refused else await _written(producer, one) for one in replays])
    finally:
        await producer.stop()


async def _written(producer: Producer, replay: Replay) -> Replay:
    topic, partition, _ = replay.letter.origin
    try:
        sent = await producer.send(
            topic,
            replay.value,
            key=replay.key,
            headers=replay.headers,
            partition=partition,
            timestamp=replay.timestamp,
        )
        await sent
    except (InvalidInputError, ConfigurationError) as error:
        return replace(replay, refused=f"it cannot be written: {error}")
    return replay
