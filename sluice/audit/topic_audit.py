"""The audit: reads the topics by itself and proves that every query has exactly one terminal outcome.

records on the query topics = outcomes on the result topics + dead letters about query records. A query is known by app,
source and id; a record of one that was seen before has a dead letter, not a second outcome: without either it is lost.
What has a dead letter that refuses it and an outcome ended twice, and so did one of the records of a query of which
there are fewer than outcomes and dead letters. Outcomes of older versions do not tell the source: each is of the query
of its app and id that has no other. Promises are recounted (sluicegate.sluice.audit.promise_audit). Nothing here trusts
a counter of the system. Where windows are asked for, what went wrong is told of each of them
(sluicegate.sluice.audit.fault_windows).

Topics do not keep records for ever. Where a partition has let go of its oldest ones, a query that may have had its
outcome among them is not lost, and an outcome whose query may have been among them is not unknown: both are *gone by*.
What a partition has let go of is older than what it still holds, and than what retention may have taken
(sluicegate.sluice.audit.retention). Of a query topic, where it holds something, the first alone counts: admission may
have read late what is gone, but before that.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.fold import OutcomeFold, Summary
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.query import QueryKey
from sluicegate.sluice.audit.fault_windows import DevicesMissed, FaultWindow, WindowReport, report_by_window
from sluicegate.sluice.audit.promise_audit import PromiseAudit, StreamReport
from sluicegate.sluice.audit.retention import gone_before
from sluicegate.stages.following.registry_follower import part_of
from sluicegate.streams.ports import Broker, Record, TopicPartition
from sluicegate.streams.records import codec, control
from sluicegate.streams.topics import Topics

_EXAMPLES = 5
_UNORDERED_S = 5.0
"""By so much a record may have been written before one of an earlier time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What was found. ``balanced``: nothing lost, duplicated, unknown or marked wrongly. ``cost``: money by kind.
    ``summary``: of the first outcome of each query, and of what is lost.

    ``unreadable``: records on result topics that are no outcome, which a stranger may write. ``gone_by``: queries and
    outcomes that are not judged, as the topics may have let go of the other.

    ``since``: time of the earliest query record that was read, seconds since 1970; None: there was none.
    ``whole_since``: by topic that has let go of records, since when it holds all; infinite where that is not known.
    """

    since: float | None
    whole_since: Mapping[str, float]

    queries: int
    outcomes: int
    dead_letters: int
    duplicate_ids: int
    lost: int
    duplicates: int
    max_copies: int
    unknown: int
    late_unmarked: int
    unreadable: int
    gone_by: int
    kinds: Mapping[str, int]
    examples: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    summary: Summary
    cost: Mapping[str, float] = field(default_factory=dict)
    promises: tuple[StreamReport, ...]
    windows: tuple[WindowReport, ...]

    @property
    def promises_broken(self) -> int:
        """Windows that hold more misses than were promised, announced or not."""
        return sum(stream.broken for stream in self.promises)

    @property
    def promises_unannounced(self) -> int:
        """Of those the windows that broke without safe mode having been announced."""
        return sum(stream.unannounced for stream in self.promises)

    @property
    def balanced(self) -> bool:
        """Whether every acknowledged query has exactly one terminal outcome."""
        return not (self.lost or self.duplicates or self.unknown or self.late_unmarked)


class Audit:
    """Pure fold over records of query, result, dead-letter, status and registry topics, in any order across topics.

    ``timed``: keep when each query was asked, for windows.
    """

    def __init__(self, topics: Topics, *, timed: bool = False) -> None:
        self._topics = topics
        self._when: dict[QueryKey, float] | None = {} if timed else None
        self._earliest = inf
        self._newest = 0.0
        self._missed = DevicesMissed()
        self._since: dict[str, float] = {}  # by topic that let go of records: what was written later is there
        self._arrived: dict[QueryKey, float] = {}  # of those whose query may be gone by
        self._asked: dict[tuple[str, int, int], QueryKey] = {}
        self._dead: dict[tuple[str, int, int], str] = {}
        self._outcomes: Counter[QueryKey] = Counter()
        self._unreadable = 0
        self._kinds: Counter[str] = Counter()
        self._fold = OutcomeFold()
        self._late_unmarked: list[QueryKey] = []
        self._cost: Mapping[str, float] = {}
        self._promises = PromiseAudit()

    @property
    def needs_times(self) -> bool:
        """Whether ends are gone by, and it was not kept when queries were asked, which tells whose those may be."""
        ends = (topic for topic in self._since if self._topics.is_results(topic) or topic == self._topics.dead_letters)
        return self._when is None and any(ends)

    def let_go(self, topic: str, until: float) -> None:
        """A partition of ``topic`` does not hold any more what was written before ``until``. Queries come first."""
        self._since[topic] = max(until, self._since.get(topic, until))

    def add_query(self, record: Record) -> None:
        """A record of a query topic."""
        app = self._topics.app_of(record.topic) or ""
        key = QueryKey(app, codec.source_of_query(record), codec.query_id_of(record) or "")
        self._asked[record.topic, record.partition, record.offset] = key
        self._earliest = min(self._earliest, record.timestamp)
        if self._when is not None:
            self._when.setdefault(key, record.timestamp)
            self._newest = max(self._newest, record.timestamp)

    def add_dead_letter(self, record: Record) -> None:
        """A record of the dead-letter topic."""
        origin = codec.dead_letter_origin(record)
        if origin is not None:
            self._dead[origin] = codec.dead_letter_reason(record)

    def add_result(self, record: Record) -> None:
        """A record of a result topic."""
        try:
            decoded = codec.decode_outcome(record)
        except InvalidInputError:
            self._unreadable += 1
            return
        outcome: Outcome = decoded.outcome
        self._outcomes[outcome.key] += 1
        self._kinds[outcome.kind.value] += 1
        if outcome.kind is OutcomeKind.ANSWERED and outcome.late != decoded.marked_late:
            self._late_unmarked.append(outcome.key)
        if self._outcomes[outcome.key] == 1:
            if self._topics.queries(outcome.app) in self._since:
                self._arrived[outcome.key] = outcome.arrival
            self._fold.add(outcome)
            self._promises.add_outcome(outcome, outcome.sequence, record.timestamp)

    def add_status(self, record: Record) -> None:
        """A record of the status topic."""
        if record.value is not None:
            try:
                said = control.decode_announce(record.value)
            except InvalidInputError:
                return
            self._missed.add(said, record.timestamp)
            if said.subject == control.COST_SUBJECT:
                self._cost = {kind: money for kind, money in (said.data or {}).items() if isinstance(money, float)}
            announcer = (record.key or b"").decode(errors="replace")
            self._promises.add_status(announcer, said, record.timestamp, control.announced_at(record.value))

    def add_registered(self, record: Record) -> None:
        """A record of the registry topic."""
        app = (record.key or b"").decode(errors="replace")
        if record.value:
            try:
                promise = part_of(app, record.value).apps[app].promise
            except InvalidInputError:
                return
            self._promises.add_promise(app, promise, record.timestamp)

    def devices_missed(self) -> tuple[FaultWindow, ...]:
        """Windows as the system itself told them on the status topic."""
        return self._missed.windows(self._newest)

    def _owned(
        self, asked: set[QueryKey], expected: set[QueryKey]
    ) -> tuple[Counter[QueryKey], dict[QueryKey, QueryKey]]:
        """Outcomes of each query, and whose those are that tell no source: of the queries of that app and id one goes
        to each that has none, to who needs one first, and what is left to the first."""
        same: dict[QueryKey, list[QueryKey]] = {}
        for key in sorted(asked, key=lambda key: (key not in expected, key)):
            same.setdefault(QueryKey(key.app, "", key.id), []).append(key)
        sourceless = self._outcomes.keys() & same.keys() - asked
        outcomes = Counter({key: n for key, n in self._outcomes.items() if key not in sourceless})
        whose: dict[QueryKey, QueryKey] = {}
        for key in sourceless:
            n = self._outcomes[key]
            owners = [one for one in same[key] if not outcomes[one]][:n]
            owners += same[key][:1] * (n - len(owners))
            outcomes.update(owners)
            whose[key] = owners[0]
        return outcomes, whose

    def report(self, windows: Sequence[FaultWindow] = ()) -> AuditReport:
        """Reconcile what was read. ``windows``: only of a timed audit."""
        asked = set(self._asked.values())
        # A copy is answered by what became of the first of its kind: where nothing did, the query is lost all the same.
        excused = {place for place, reason in self._dead.items() if reason != codec.DUPLICATE_ID}
        expected = {key for place, key in self._asked.items() if place not in excused}
        outcomes, whose = self._owned(asked, expected)
        records = Counter(self._asked.values())
        letters = Counter(self._asked[place] for place in self._dead if place in self._asked)
        missing = {key: records[key] - letters[key] - outcomes[key] for key in asked}
        missing |= {key: max(1, missing[key]) for key in expected - outcomes.keys()}
        unanswered = [key for key in sorted(asked) for _ in range(missing[key])]
        lost = [key for key in unanswered if not self._may_have_ended(key)]
        unasked = sorted(outcomes.keys() - asked)
        once = expected.union(unasked)
        # Each record has one of the two: what is more than all records, where all are there, is too much.
        ends = {key: outcomes[key] + letters[key] - records[key] for key in asked if self._is_whole(key)}
        copies = {key: max(n - (key in once), ends.get(key, 0)) for key, n in outcomes.items()}
        copies = {key: n for key, n in copies.items() if n > 0}
        read_until = self._read_until()
        unknown = [key for key in unasked if not self._may_have_been_asked(key, read_until)]
        unmarked = [whose.get(key, key) for key in self._late_unmarked]
        dead = {place: reason for place, reason in self._dead.items() if place in self._asked}
        promises = self._promises.report()
        return AuditReport(
            since=self._earliest if self._asked else None,
            whole_since=dict(sorted(self._since.items())),
            queries=len(self._asked),
            outcomes=sum(outcomes.values()),
            dead_letters=len(dead),
            duplicate_ids=sum(reason == codec.DUPLICATE_ID for reason in dead.values()),
            lost=len(lost),
            duplicates=sum(copies.values()),
            max_copies=max(outcomes.values(), default=0),
            unknown=len(unknown),
            unreadable=self._unreadable,
            gone_by=len(unanswered) - len(lost) + len(unasked) - len(unknown),
            late_unmarked=len(unmarked),
            kinds={kind.value: self._kinds[kind.value] for kind in OutcomeKind},
            examples={
                "lost": _ids(lost),
                "duplicates": _ids(sorted(copies)),
                "unknown": _ids(unknown),
                "late_unmarked": _ids(unmarked),
            },
            summary=self._fold.summary(lost=Counter(key.app for key in lost)),
            cost=self._cost,
            promises=promises,
            windows=report_by_window(
                windows,
                self._when or {},
                lost=lost,
                duplicates=copies,
                late_unmarked=unmarked,
                broken_at=[at for stream in promises for at in stream.broken_at],
                unannounced_at=[at for stream in promises for at in stream.unannounced_at],
            ),
        )

    def _may_have_ended(self, key: QueryKey) -> bool:
        """Whether topics that let go of records may have held its end."""
        ends = (self._topics.results(key.app), self._topics.dead_letters)
        since = max((self._since[topic] for topic in ends if topic in self._since), default=None)
        return since is not None and (self._when is None or self._when[key] <= since + _UNORDERED_S)

    def _is_whole(self, key: QueryKey) -> bool:
        """Whether every record of this query that there was has been read."""
        return self._topics.queries(key.app) not in self._since

    def _may_have_been_asked(self, key: QueryKey, read_until: Mapping[str, float]) -> bool:
        topic = self._topics.queries(key.app)
        return topic in self._since and self._arrived.get(key, inf) <= read_until[topic] + _UNORDERED_S

    def _read_until(self) -> Mapping[str, float]:
        """By query topic that has let go of records: no such query arrived later. Who admits late takes what it reads
        for arrived not long before; in a partition what is gone was read before the first that is there."""
        until = dict(self._since)
        found: set[tuple[str, int]] = set()
        for (topic, partition, _), key in self._asked.items():
            if topic in self._since and (topic, partition) not in found and key in self._arrived:
                found.add((topic, partition))
                until[topic] = max(until[topic], self._arrived[key])
        return until


def _ids(keys: Sequence[QueryKey]) -> tuple[str, ...]:
    return tuple(key.id for key in keys[:_EXAMPLES])


async def read_topics(
    broker: Broker, topics: Topics, *, timed: bool = False, wall: Callable[[], float] = time.time
) -> Audit:
    """Read every query, result and dead-letter topic of the prefix from its beginning to its present end.

    Where results and dead letters end is looked up before queries are read: of what ends meanwhile the query may come
    behind those that are read. What has not ended by then is lost, as far as this tells. ``wall``: the time, as far as
    it tells how old what is gone must be.
    """
    names = await broker.admin().topics()
    begin, end = await _extents(broker, {n for n in names if topics.is_results(n) or n == topics.dead_letters})
    audit = Audit(topics, timed=timed or any(begin.values()))
    queries = {n for n in names if topics.is_queries(n)}
    await read_whole(broker, queries, audit.add_query, audit.let_go, wall=wall, by_first=True)
    results = {n for n in names if topics.is_results(n)}
    await read_whole(broker, results, audit.add_result, audit.let_go, wall=wall, until=end)
    await read_whole(broker, {topics.dead_letters}, audit.add_dead_letter, audit.let_go, wall=wall, until=end)
    if audit.needs_times:  # the first ends to go went just now
        return await read_topics(broker, topics, timed=True, wall=wall)
    await read_whole(broker, {n for n in names if n == topics.status}, audit.add_status)
    await read_whole(broker, {n for n in names if n == topics.registry}, audit.add_registered)
    return audit


async def _extents(
    broker: Broker, names: set[str]
) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
    """Where each partition of ``names`` begins and ends."""
    partitions = await _partitions(broker, names)
    if not partitions:
        return {}, {}
    consumer = broker.consumer(partitions=partitions, start_at="end")
    await consumer.start()
    try:
        return await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    finally:
        await consumer.stop()


async def _partitions(broker: Broker, names: set[str]) -> list[TopicPartition]:
    counts = await broker.admin().partitions(sorted(names))
    return [TopicPartition(topic, i) for topic, count in sorted(counts.items()) for i in range(count)]


async def read_whole(
    broker: Broker,
    names: set[str],
    take: Callable[[Record], None],
    let_go: Callable[[str, float], None] | None = None,
    *,
    wall: Callable[[], float] = time.time,
    until: Mapping[TopicPartition, int] | None = None,
    by_first: bool = False,
) -> None:
    """Hand over all records of these topics, from their beginning to their present end, or to where ``until`` says of
    the partitions that it names.

    ``let_go`` is told of each topic with a partition that has lost its oldest records, and since when it holds all:
    since its first record, or since when nothing can have been lost, where that is earlier (``by_first``: all the
    same), or where it has lost everything.
    """
    if until is None:
        partitions = await _partitions(broker, names)
    else:
        partitions = [place for place in until if place.topic in names]
    if not partitions:
        return
    consumer = broker.consumer(partitions=partitions, start_at="beginning")
    await consumer.start()
    try:
        ends = until or await consumer.end_offsets(partitions)
        shortened = {p for p, begin in (await consumer.beginning_offsets(partitions)).items() if begin > 0}
        firsts: dict[TopicPartition, float] = {}
        unread = {p for p in partitions if await consumer.position(p) < ends[p]}
        while unread:
            for record in await consumer.get_many(wait=0.5, max_records=2000):
                place = TopicPartition(record.topic, record.partition)
                if place in shortened:
                    firsts.setdefault(place, record.timestamp)
                if record.offset < ends[place]:
                    take(record)
            unread = {p for p in unread if await consumer.position(p) < ends[p]}
        if let_go is not None:
            gone = await gone_before(broker, {place.topic for place in shortened}, wall())
            for place, first in firsts.items():
                let_go(place.topic, first if by_first else min(first, gone[place.topic]))
            for topic in sorted({place.topic for place in shortened - firsts.keys()}):
                let_go(topic, gone[topic])
    finally:
        await consumer.stop()
