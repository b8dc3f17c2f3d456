"""What the audit says where topics have let go of their oldest records."""

import json
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Any

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.sluice.audit import topic_audit
from sluicegate.sluice.audit.retention import gone_before
from sluicegate.sluice.audit.topic_audit import Audit, AuditReport, read_topics, read_whole
from sluicegate.sluice.commands.reading.audit import table
from sluicegate.streams.broker_settings import MemorySettings
from sluicegate.streams.memory.broker import MemoryAdmin, MemoryBroker
from sluicegate.streams.ports import Broker, Record, TopicPartition, TopicSpec, TopicState
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics

TOPICS = Topics("t")
QUERIES, RESULTS = TOPICS.queries("cats"), TOPICS.results("cats")
T0 = 1.7e9


def answer(number: int, asked: float, app: str = "cats") -> codec.Message:
    outcome = Outcome(
        query_id=str(number), app=app, source="/a", kind=OutcomeKind.ANSWERED, arrival=asked,
        deadline=asked + 1.0, at=asked + 0.5, accuracy=0.5,
    )  # fmt: skip
    return codec.encode_outcome(outcome, ())


def test_who_asked_after_what_is_kept_begins_is_known_or_unknown() -> None:
    audit = Audit(TOPICS)
    audit.let_go(QUERIES, T0 + 100.0)
    for number, asked in enumerate((T0 + 20.0, T0 + 180.0)):
        message = answer(number, asked)
        audit.add_result(Record(RESULTS, 0, number, message.key, message.value, message.headers, asked + 0.5))
    report = audit.report()
    assert (report.unknown, report.gone_by, report.examples["unknown"]) == (1, 1, ("1",))
    assert not report.balanced


@pytest.mark.parametrize(("after", "unknown"), [(-30.0, False), (5.0, False), (5.001, True), (30.0, True)])
def test_an_outcome_is_unknown_where_its_query_would_surely_be_kept(after: float, unknown: bool) -> None:
    """Records may stand up to 5 s out of the order of their times."""
    audit = Audit(TOPICS)
    audit.let_go(QUERIES, T0 + 100.0)
    message = answer(1, T0 + 100.0 + after)
    audit.add_result(Record(RESULTS, 0, 1, message.key, message.value, message.headers, T0 + 200.0))
    report = audit.report()
    assert (report.unknown, report.gone_by, report.balanced) == ((1, 0, False) if unknown else (0, 1, True))


@pytest.mark.parametrize(("arrived", "unknown"), [(110.0, False), (116.0, False), (116.001, True), (130.0, True)])
def test_admission_that_read_late_takes_what_is_gone_for_arrived_before_the_first_that_is_kept(
    arrived: float, unknown: bool
) -> None:
    """Of each partition the first; what is kept behind it, or asked of another app, arrived later."""
    audit = Audit(TOPICS)
    dogs = TOPICS.queries("dogs")
    audit.let_go(QUERIES, T0 + 100.0)
    audit.let_go(dogs, T0 + 100.0)
    kept = ((QUERIES, 0, 10, 111.0), (QUERIES, 0, 11, 130.0), (QUERIES, 1, 4, 107.0), (dogs, 0, 10, 140.0))
    for number, (topic, partition, offset, _) in enumerate(kept):
        query = codec.encode_query(str(number), (), app="cats", source="a", now=T0 + 100.5)
        audit.add_query(Record(topic, partition, offset, query.key, query.value, query.headers, T0 + 100.5))
    ends = [(topic, number, at) for number, (topic, *_, at) in enumerate(kept)] + [(QUERIES, 9, arrived)]
    for topic, number, at in ends:
        message = answer(number, T0 + at, "dogs" if topic == dogs else "cats")
        audit.add_result(Record(RESULTS, 0, number, message.key, message.value, message.headers, T0 + 150.0))
    report = audit.report()
    assert (report.unknown, report.gone_by, report.balanced) == ((1, 0, False) if unknown else (0, 1, True))


@pytest.mark.parametrize("ends", [RESULTS, TOPICS.dead_letters])
@pytest.mark.parametrize(("after", "lost"), [(-30.0, False), (5.0, False), (5.001, True), (30.0, True)])
def test_a_query_is_lost_where_its_end_would_surely_be_kept(ends: str, after: float, lost: bool) -> None:
    asked = T0 + 100.0 + after
    audit = Audit(TOPICS, timed=True)
    audit.let_go(ends, T0 + 100.0)
    audit.let_go(ends, T0 + 40.0)  # of another partition: the latest counts
    message = codec.encode_query("1", (), app="cats", now=asked, source="a")
    audit.add_query(Record(QUERIES, 0, 7, message.key, message.value, message.headers, asked))
    report = audit.report()
    assert (report.lost, report.gone_by, report.balanced) == ((1, 0, False) if lost else (0, 1, True))


def test_the_later_of_what_results_and_dead_letters_have_let_go_of_counts() -> None:
    audit = Audit(TOPICS, timed=True)
    audit.let_go(RESULTS, T0 + 40.0)
    audit.let_go(TOPICS.dead_letters, T0 + 100.0)
    audit.let_go(TOPICS.results("dogs"), T0 + 300.0)  # of another app
    for number, asked in enumerate((T0 + 20.0, T0 + 90.0, T0 + 200.0)):
        message = codec.encode_query(str(number), (), app="cats", now=asked, source="a")
        audit.add_query(Record(QUERIES, 0, number, message.key, message.value, message.headers, asked))
    report = audit.report()
    assert (report.lost, report.examples["lost"], report.gone_by) == (1, ("2",), 2)


def test_it_is_told_since_when_was_audited_and_what_topics_hold_since_when() -> None:
    audit = Audit(TOPICS)
    assert (audit.report().since, audit.report().whole_since) == (None, {})
    for number, asked in enumerate((T0 + 90.0, T0 + 20.0, T0 + 200.0)):
        message = codec.encode_query(str(number), (), app="cats", now=asked, source="a")
        audit.add_query(Record(QUERIES, number, 7, message.key, message.value, message.headers, asked))
    assert cells(audit.report())["first query record"] == ("2023-11-14 22:13:40+00:00", "")
    assert "whole since, by retention" not in cells(audit.report())
    audit.let_go(RESULTS, T0 + 40.0)
    audit.let_go(QUERIES, T0 + 15.0)
    report = audit.report()
    assert (report.since, report.whole_since) == (T0 + 20.0, {QUERIES: T0 + 15.0, RESULTS: T0 + 40.0})
    assert cells(report)["whole since, by retention"] == ("2023-11-14 22:14:00+00:00", f"{QUERIES}, {RESULTS}")
    audit.let_go(TOPICS.dead_letters, inf)
    assert cells(audit.report())["whole since, by retention"][0] == "not known"


def cells(report: AuditReport) -> dict[str, tuple[str, str]]:
    """Of the table: what -> (count, for example)."""
    columns = ([str(cell) for cell in column.cells] for column in table(report).columns)
    return {what: (count, example) for what, count, example in zip(*columns, strict=True)}


async def audited(settings: MemorySettings, *, skipped: int) -> AuditReport:
    """Of 400 queries, a second apart, of which ``skipped`` has no answer."""
    now = [T0]
    broker = MemoryBroker(settings, clock=lambda: now[0])
    await broker.admin().create_topics([TopicSpec(name=QUERIES), TopicSpec(name=RESULTS, partitions=2)])
    producer = broker.producer()
    await producer.start()
    for number in range(400):
        now[0] += 1.0
        message = codec.encode_query(str(number), (), app="cats", now=now[0], source="a")
        await producer.send(QUERIES, message.value, key=message.key, headers=message.headers, timestamp=now[0])
        if number != skipped:
            said = answer(number, now[0])
            at = now[0] + 0.5
            await producer.send(RESULTS, said.value, key=said.key, headers=said.headers, timestamp=at)
    report = (await read_topics(broker, TOPICS)).report()
    await broker.close()
    return report


async def test_a_log_that_let_go_of_its_oldest_records_is_balanced_as_far_as_it_goes() -> None:
    whole = await audited(MemorySettings(), skipped=-1)
    assert (whole.queries, whole.outcomes, whole.gone_by, whole.balanced) == (400, 400, 0, True)
    rest = await audited(MemorySettings(read_bytes=60_000, unread_s=5.0), skipped=-1)
    assert rest.queries < 300 and rest.outcomes < 300
    assert rest.balanced and rest.gone_by > 0
    assert "not judged: gone by retention" in [str(cell) for cell in table(rest).columns[0].cells]


async def test_what_is_lost_of_what_is_kept_is_seen() -> None:
    report = await audited(MemorySettings(read_bytes=60_000, unread_s=5.0), skipped=395)
    assert (report.lost, report.examples["lost"], report.unknown) == (1, ("395",), 0)


async def test_what_is_lost_is_seen_where_the_first_records_to_go_go_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extents, looks = topic_audit._extents, list[bool]()

    async def as_of_before(broker: Broker, names: set[str]) -> Any:
        begin, end = await extents(broker, names)
        looks.append(any(begin.values()))
        return (begin if looks[1:] else dict.fromkeys(begin, 0)), end

    monkeypatch.setattr(topic_audit, "_extents", as_of_before)
    report = await audited(MemorySettings(read_bytes=60_000, unread_s=5.0), skipped=395)
    assert looks == [True, True]
    assert (report.lost, report.examples["lost"], report.unknown) == (1, ("395",), 0)
    assert report.gone_by > 0


async def test_when_safe_mode_was_announced_is_known_as_long_as_results_are() -> None:
    now = [T0]
    broker = MemoryBroker(clock=lambda: now[0])
    await broker.admin().create_topics([spec for spec in TOPICS.specs(["cats"]) if spec.name == TOPICS.status])
    producer = broker.producer()
    await producer.start()
    for number in range(2000):
        now[0] += 1.0
        await producer.send(TOPICS.status, b"%d" % number, key=b"lease")
        if number in (100, 110, 1500):
            await producer.send(TOPICS.status, b"%d" % number, key=b"app:cats@d0")
    found: list[Record] = []
    await read_whole(broker, {TOPICS.status}, found.append)
    assert [record.value for record in found if record.key == b"app:cats@d0"] == [b"100", b"110", b"1500"]
    await broker.close()


class Told(MemoryAdmin):
    """As Apache Kafka, says how topics are kept."""

    configs: Mapping[str, Mapping[str, str]] = {}

    async def states(self, topics: Iterable[str]) -> Mapping[str, TopicState]:
        return {name: TopicState(1, 1, self.configs[name]) for name in topics if name in self.configs}


class Mute(MemoryAdmin):
    states = None  # type: ignore[assignment]


class Silent(MemoryBroker):
    """Does not say how topics are kept."""

    def admin(self) -> Mute:
        return Mute(self._store)


class Telling(MemoryBroker):
    """``keeps``, dead letters by default, is kept so; all else for ten years."""

    kept: Mapping[str, str] = {}
    keeps = TOPICS.dead_letters

    def admin(self) -> Told:
        admin = Told(self._store)
        others = {"retention.ms": "315360000000", "retention.bytes": "-1"}
        admin.configs = {QUERIES: others, RESULTS: others, TOPICS.dead_letters: others, self.keeps: self.kept}
        return admin


DAY = {"retention.ms": "86400000", "retention.bytes": "-1"}


async def emptied(broker: MemoryBroker, now: list[float]) -> AuditReport:
    """Retention has taken the one dead letter that there was; then twenty are asked, 15 h apart, five of them answered.
    Of the rest the last two are of the last day."""
    await broker.admin().create_topics(TOPICS.specs(["cats"], ["cpu0"]))
    producer = broker.producer()
    await producer.start()
    dead = codec.dead_letter(Record(QUERIES, 0, 0, None, b"", (), T0), InvalidInputError("id", "x"), stage="s", now=T0)
    at = T0 - 2 * 86_400.0  # which a day does not keep
    await producer.send(TOPICS.dead_letters, dead.value, key=dead.key, headers=dead.headers, timestamp=at)
    log = TopicPartition(TOPICS.dead_letters, 0)
    consumer = broker.consumer(partitions=[log], start_at="end")
    await consumer.start()
    assert await consumer.beginning_offsets([log]) == await consumer.end_offsets([log]) == {log: 1}
    await consumer.stop()
    for number in range(20):
        asked = T0 + 54_000.0 * number
        message = codec.encode_query(str(number), (), app="cats", now=asked, source="a")
        await producer.send(QUERIES, message.value, key=message.key, headers=message.headers, timestamp=asked)
        if number < 5:
            said = answer(number, asked)
            await producer.send(RESULTS, said.value, key=said.key, headers=said.headers)
    now[0] = T0 + 54_000.0 * 19 + 3_600.0
    report = (await read_topics(broker, TOPICS, wall=lambda: now[0])).report()
    await broker.close()
    return report


@pytest.mark.parametrize(
    ("kept", "lost"),
    [
        (DAY, 2),
        ({**DAY, "retention.ms": "7200000"}, 1),
        ({**DAY, "retention.ms": "31536000000"}, 15),  # more than all of it
        ({**DAY, "retention.bytes": "1000000"}, 0),  # what is full lets go of anything
        ({**DAY, "retention.ms": "-1"}, 0),  # somebody deleted it
        ({**DAY, "cleanup.policy": "compact"}, 0),  # time takes nothing of it
        ({**DAY, "cleanup.policy": "compact,delete"}, 2),
        ({"retention.ms": "86400000"}, 0),
        ({}, 0),  # may not be asked
    ],
)
async def test_of_a_topic_that_is_empty_nothing_is_gone_that_retention_cannot_have_taken(
    kept: dict[str, str], lost: int
) -> None:
    now = [T0]
    broker = Telling(clock=lambda: now[0])
    broker.kept = kept
    report = await emptied(broker, now)
    assert (report.queries, report.outcomes, report.lost, report.gone_by) == (20, 5, lost, 15 - lost)
    assert report.balanced == (not lost)


async def begun_anew(broker: MemoryBroker, now: list[float], topic: str) -> AuditReport:
    """Retention has taken the one record of ``topic`` that there was. Fifty are asked, half an hour apart, of which
    nothing becomes, and twelve hours later one more, whose end ``topic`` gets."""
    await broker.admin().create_topics(TOPICS.specs(["cats"], ["cpu0"]))
    producer = broker.producer()
    await producer.start()
    asked = [T0 + 1_800.0 * number for number in range(50)] + [T0 + 133_200.0]
    for number, at in enumerate(asked):
        message = codec.encode_query(str(number), (), app="cats", now=at, source="a")
        await producer.send(QUERIES, message.value, key=message.key, headers=message.headers, timestamp=at)
    for number, now[0] in ((0, T0 - 2 * 86_400.0), (50, asked[50])):
        record = Record(QUERIES, 0, number, None, b"", (), now[0])
        dead = codec.dead_letter(record, InvalidInputError("id", "x"), stage="s", now=now[0])
        end = dead if topic == TOPICS.dead_letters else answer(number, asked[number])
        await producer.send(topic, end.value, key=b"k", headers=end.headers, timestamp=now[0])
    report = (await read_topics(broker, TOPICS, wall=lambda: now[0])).report()
    await broker.close()
    return report


@pytest.mark.parametrize(
    ("kept", "lost"),
    [
        (DAY, 23),
        ({**DAY, "retention.ms": "108000000"}, 35),
        ({**DAY, "retention.bytes": "1000000"}, 0),  # what is full lets go of anything
        ({**DAY, "retention.ms": "-1"}, 0),  # somebody deleted it
        ({**DAY, "cleanup.policy": "compact"}, 0),
        ({}, 0),  # may not be asked
    ],
)
@pytest.mark.parametrize("topic", [TOPICS.dead_letters, RESULTS])
async def test_a_new_record_behind_what_is_gone_makes_nothing_gone_that_retention_cannot_have_taken(
    topic: str, kept: dict[str, str], lost: int
) -> None:
    now = [T0]
    broker = Telling(clock=lambda: now[0])
    broker.kept = kept
    broker.keeps = topic
    report = await begun_anew(broker, now, topic)
    assert (report.queries, report.lost, report.gone_by) == (51, lost, 50 - lost)
    assert report.balanced == (not lost)


async def test_outcomes_of_queries_that_admission_read_late_are_not_unknown_for_what_retention_says() -> None:
    """The queries are of two days ago, read a day later, an hour before another was asked, which was refused."""
    now = [T0]
    broker = MemoryBroker(clock=lambda: now[0])
    await broker.admin().create_topics(TOPICS.specs(["cats"], ["cpu0"]))
    producer = broker.producer()
    await producer.start()
    for number, asked in ((0, T0 - 2 * 86_400.0), (1, T0)):
        message = codec.encode_query(str(number), (), app="cats", now=asked, source="a")
        await producer.send(QUERIES, message.value, key=b"k", headers=message.headers, timestamp=asked)
    partition = 0
    for number in range(2):
        found: list[Record] = []
        await read_whole(broker, {QUERIES}, found.append)
        partition = found[-1].partition
        if number == 0:
            said = answer(0, T0 - 3_600.0)
            await producer.send(RESULTS, said.value, key=said.key, headers=said.headers)
    dead = codec.dead_letter(
        Record(QUERIES, partition, 1, None, b"", (), T0), InvalidInputError("id", "x"), stage="s", now=T0
    )
    await producer.send(TOPICS.dead_letters, dead.value, key=dead.key, headers=dead.headers)
    report = (await read_topics(broker, TOPICS, wall=lambda: now[0])).report()
    await broker.close()
    assert (report.queries, report.unknown, report.gone_by, report.balanced) == (1, 0, 1, True)


async def test_a_broker_that_does_not_say_how_topics_are_kept_may_have_let_go_of_anything() -> None:
    now = [T0]
    report = await emptied(Silent(clock=lambda: now[0]), now)
    assert (report.lost, report.gone_by, report.balanced) == (0, 15, True)


@pytest.mark.parametrize(("cap", "lost"), [(None, 2), (1_000_000, 0)])
async def test_the_embedded_broker_says_how_topics_are_kept(cap: int | None, lost: int) -> None:
    now = [T0]
    report = await emptied(MemoryBroker(MemorySettings(max_partition_bytes=cap), clock=lambda: now[0]), now)
    assert (report.lost, report.gone_by, report.balanced) == (lost, 15 - lost, not lost)


async def test_what_the_cap_on_memory_has_taken_a_part_of_is_kept_by_size_and_stays_so_in_a_folder(
    tmp_path: Path,
) -> None:
    broker = MemoryBroker(MemorySettings(max_bytes=20_000), clock=lambda: T0)
    specs = [TopicSpec(name="small", retention_s=60.0), TopicSpec(name="state", compacted=True), TopicSpec(name="x")]
    await broker.admin().create_topics(specs)
    producer = broker.producer()
    await producer.start()
    await producer.send("small", b"-")
    for _ in range(50):
        await producer.send("x", bytes(1_000))
    broker.dump(tmp_path)
    for one in (broker, MemoryBroker.load(tmp_path)):
        states = await one.admin().states(["x", "small", "state", "there-is-none"])
        kept = {name: (s.configs["retention.ms"], s.configs["retention.bytes"] != "-1") for name, s in states.items()}
        assert kept == {"x": ("-1", True), "small": ("60000", False), "state": ("-1", False)}
        assert states["state"].configs["cleanup.policy"] == "compact"
        assert await gone_before(one, kept, T0) == {"x": inf, "small": T0 - 60.0, "state": inf}
    manifest = json.loads((tmp_path / "topics.json").read_text())
    for topic in manifest["topics"]:
        del topic["gave_way"]  # as older versions have it
    (tmp_path / "topics.json").write_text(json.dumps(manifest))
    assert await gone_before(MemoryBroker.load(tmp_path), ["small"], T0) == {"small": inf}


async def test_by_time_the_embedded_broker_keeps_the_newest_record() -> None:
    """So an empty partition is one that its cap on memory took."""
    now = [T0]
    broker = MemoryBroker(clock=lambda: now[0])
    await broker.admin().create_topics([TopicSpec(name="x", retention_s=60.0)])
    producer = broker.producer()
    await producer.start()
    for number in range(30):
        now[0] += 1_000.0
        await producer.send("x", b"%d" % number)
        told: list[tuple[str, float]] = []
        await read_whole(
            broker, {"x"}, lambda _record: None, lambda topic, until, told=told: told.append((topic, until))
        )
        assert told == ([("x", now[0])] if number else [])
    await broker.close()


class OneRead:
    """Three partitions: all of the first, nothing of the second any more, and the third from its sixth record on."""

    def __init__(self) -> None:
        self.topics = [TopicPartition("x", 0), TopicPartition("y", 0), TopicPartition("y", 1)]
        self.records = [
            Record("y", 1, 5, None, b"e", (), T0 + 9.0),
            Record("x", 0, 0, None, b"a", (), T0 + 1.0),
            Record("y", 1, 6, None, b"f", (), T0 + 4.0),
            Record("y", 1, 7, None, b"g", (), T0 + 11.0),  # written since the reader began
        ]
        self.at = {self.topics[0]: 0, self.topics[1]: 1, self.topics[2]: 5}

    def admin(self) -> "OneRead":
        return self

    def consumer(self, *, partitions: list[TopicPartition], start_at: str) -> "OneRead":
        assert (partitions, start_at) == (self.topics, "beginning")
        return self

    async def partitions(self, names: list[str]) -> dict[str, int]:
        assert names == ["x", "y"]
        return {"y": 2, "x": 1}

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def beginning_offsets(self, _: object) -> dict[TopicPartition, int]:
        return dict(zip(self.topics, (0, 1, 5), strict=True))

    async def end_offsets(self, _: object) -> dict[TopicPartition, int]:
        return dict(zip(self.topics, (1, 1, 7), strict=True))

    async def position(self, partition: TopicPartition) -> int:
        return self.at[partition]

    async def get_many(self, **_: object) -> list[Record]:
        record = self.records.pop(0)
        self.at[TopicPartition(record.topic, record.partition)] = record.offset + 1
        return [record] if record.offset != 6 else [record, *self.records]


async def test_topics_are_read_to_the_end_that_they_had_and_what_they_let_go_of_is_told_once() -> None:
    for tells in (True, False):
        told: list[tuple[str, float]] = []
        found: list[Record] = []
        broker: Any = OneRead()
        let_go = (lambda topic, until, told=told: told.append((topic, until))) if tells else None
        await read_whole(broker, {"y", "x"}, found.append, let_go)
        assert [record.value for record in found] == [b"e", b"a", b"f"]
        assert told == ([("y", T0 + 9.0), ("y", inf)] if tells else [])
