"""The audit reads the topics by itself: all partitions to their present end, of all apps, with windows of time."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.models.app import Promise
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.query import Query, QueryKey
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.audit.fault_windows import MARGIN, FaultWindow, read_windows
from sluicegate.sluice.audit.result_log import find_results, read_results, result_topics
from sluicegate.sluice.audit.topic_audit import read_topics
from sluicegate.sluice.registration.registry_topic import app_record
from sluicegate.streams import connect
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.memory.consumer import MemoryConsumer
from sluicegate.streams.ports import Broker, Record, TopicPartition, TopicSpec, Written
from sluicegate.streams.records import codec, control
from sluicegate.streams.topics import Topics
from tests.harness import toy_catalogue

TOPICS = Topics("a.log")
NOW = 1.7e9
ASKED = [("cats", "/shop", "q1"), ("cats", "/web", "q1"), ("words", "/shop", "q1"), ("words", "/shop", "q2")]
"""One id of two apps and two sources; two partitions each."""


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    made = connect("memory://")
    both = [
        TopicSpec(name=name(app), partitions=2)
        for app in ("cats", "words")
        for name in (TOPICS.queries, TOPICS.results)
    ]
    others = [TopicSpec(name=TOPICS.dead_letters), TopicSpec(name=TOPICS.status), TopicSpec(name="elsewhere.results")]
    await made.admin().create_topics([*both, *others])
    yield made


async def put(broker: Broker, topic: str, partition: int, message: codec.Message, at: float) -> None:
    producer = broker.producer()
    await producer.start()
    sent = await producer.send(
        topic, message.value, key=message.key, headers=message.headers, partition=partition, timestamp=at
    )
    await sent


def ended(key: tuple[str, str, str], kind: OutcomeKind = OutcomeKind.ANSWERED, after: float = 0.5) -> codec.Message:
    app, source, name = key
    query = Query(id=name, app=app, source=source, arrival=NOW, deadline=NOW + 1.0)
    return codec.encode_outcome(Outcome.of(query, kind, NOW + after, variant="v"), ())


async def ask(broker: Broker) -> None:
    for number, (app, source, name) in enumerate(ASKED):
        message = codec.encode_query(name, (), app=app, source=source[1:], now=NOW)
        await put(broker, TOPICS.queries(app), number % 2, message, NOW + 10 * number)


async def test_it_reads_every_partition_of_every_app_and_tells_what_is_missing_and_when(broker: Broker) -> None:
    await ask(broker)
    for key in ASKED[:2]:
        await put(broker, TOPICS.results(key[0]), 1, ended(key), NOW + 1)
    await put(broker, TOPICS.results("words"), 0, ended(ASKED[2], OutcomeKind.EXPIRED, 1.5), NOW + 2)
    await put(broker, TOPICS.results("words"), 1, ended(ASKED[2], OutcomeKind.ANSWERED), NOW + 3)
    refused = Record(TOPICS.queries("cats"), 1, 0, None, b"", (), NOW)
    letter = codec.dead_letter(refused, InvalidInputError("id", "duplicate_id: seen"), stage="admission", now=NOW)
    await put(broker, TOPICS.dead_letters, 0, letter, NOW)
    windows = [
        FaultWindow(name="first", began=NOW, ended=NOW + 10.0),
        FaultWindow(name="later", began=NOW + 20.0, ended=NOW + 30.0),
        FaultWindow(name="last", began=NOW + 30.5, ended=NOW + 99.0),
    ]
    found = (await read_topics(broker, TOPICS, timed=True)).report(windows)
    assert (found.queries, found.outcomes, found.lost, found.duplicates) == (4, 4, 1, 2), "one was answered and refused"
    assert (found.dead_letters, found.duplicate_ids, found.unreadable) == (1, 1, 0)
    assert found.examples["lost"] == ("q2",)
    assert {name: n for name, n in found.kinds.items() if n} == {"answered": 3, "expired": 1}
    assert [(w.queries, w.lost, w.duplicates) for w in found.windows] == [(2, 0, 1), (2, 1, 1), (0, 0, 0)]
    untimed = (await read_topics(broker, TOPICS)).report(windows)
    assert [(w.queries, w.lost) for w in untimed.windows] == [(0, 0)] * 3 and untimed.lost == 1


async def test_it_hears_the_status_topic_of_devices_money_and_safe_mode(broker: Broker) -> None:
    await ask(broker)
    said = [
        (Announce("device:d1", "lost", ""), NOW + 1),
        (Announce("device:d1", "returned", ""), NOW + 4),
        (Announce("device:d2", "lost", ""), NOW + 7),
        (Announce(control.COST_SUBJECT, "spent", "", data={"spot": 1.5, "on_demand": 2.0, "note": "x"}), NOW + 8),
    ]
    for announce, at in said:
        value = control.encode_announce(announce, at)
        await put(broker, TOPICS.status, 0, codec.Message(value, announce.subject.encode()), at)
    await put(broker, TOPICS.status, 0, codec.Message(b"[1", b"junk"), NOW + 9)
    audit = await read_topics(broker, TOPICS, timed=True)
    assert audit.devices_missed() == (
        FaultWindow(name="d1 missed", began=NOW + 1 - MARGIN, ended=NOW + 4 + MARGIN),
        FaultWindow(name="d2 missed", began=NOW + 7 - MARGIN, ended=NOW + 30 + MARGIN),  # until the newest query
    )
    report = audit.report()
    assert report.cost == {"spot": 1.5, "on_demand": 2.0}
    assert (report.dead_letters, report.unreadable) == (0, 0)


async def test_what_was_promised_is_read_of_the_registry_where_no_worker_said_it(broker: Broker) -> None:
    plain = toy_catalogue(("cats", "words"))
    promised = replace(plain.apps["words"], promise=Promise(max_consecutive=1))
    catalogue = Catalogue.of([plain.apps["cats"], promised], plain.variants.values(), [])
    await broker.admin().create_topics([TopicSpec(name=TOPICS.registry, compacted=True)])
    for app in catalogue.apps:
        await put(broker, TOPICS.registry, 0, codec.Message(app_record(catalogue, app), app.encode()), NOW)
    await ask(broker)
    for number, key in enumerate(ASKED):
        await put(broker, TOPICS.results(key[0]), 0, ended(key, OutcomeKind.EXPIRED, 1.5), NOW + number)
    report = (await read_topics(broker, TOPICS)).report()
    assert [(stream.app, stream.misses, stream.broken) for stream in report.promises] == [("words", 2, 1)]


class Busy(MemoryBroker):
    """Whenever somebody is about to read, a query is asked twice, answered and refused."""

    asked = 0

    def consumer(self, **reads: Any) -> MemoryConsumer:
        key = ("cats", "/shop", f"n{self.asked}")
        query = codec.encode_query(key[2], (), app="cats", source="shop", now=NOW)
        _, copy = [self._append(TOPICS.queries("cats"), query) for _ in range(2)]
        refused = Record(*copy, None, b"", (), NOW)
        error = InvalidInputError("id", "duplicate_id: seen")
        self._append(TOPICS.dead_letters, codec.dead_letter(refused, error, stage="admission", now=NOW))
        self._append(TOPICS.results("cats"), ended(key))
        self.asked += 1
        return super().consumer(**reads)

    def _append(self, topic: str, message: codec.Message) -> Written:
        return self._store.append(topic, message.value, message.key, message.headers, self.asked % 2, NOW + self.asked)


async def test_of_a_system_that_is_being_asked_no_outcome_is_unknown() -> None:
    """What had not ended when the audit began has not: the query that came since is lost, and so is its copy."""
    busy = Busy()
    names = (TOPICS.queries("cats"), TOPICS.results("cats"), TOPICS.dead_letters)
    await busy.admin().create_topics([TopicSpec(name=name, partitions=2) for name in names])
    for _ in range(3):
        before = busy.asked
        report = (await read_topics(busy, TOPICS)).report()
        assert busy.asked == before + 4
        assert (report.outcomes, report.dead_letters, report.queries) == (before + 1, before + 1, 2 * (before + 2))
        assert (report.lost, report.unknown, report.duplicates) == (2, 0, 0)
        assert set(report.examples["lost"]) == {f"n{before + 1}"}
    await busy.close()


async def test_nothing_is_read_where_there_are_no_topics() -> None:
    empty = connect("memory://")
    report = (await read_topics(empty, TOPICS)).report()
    assert (report.queries, report.outcomes, report.balanced, report.promises_broken) == (0, 0, True, 0)
    assert [r async for r in read_results(empty, [], follow=True)] == []


async def test_results_of_an_id_are_told_apart_by_app_and_source_and_the_first_counts(broker: Broker) -> None:
    for number, key in enumerate(ASKED):
        await put(broker, TOPICS.results(key[0]), number % 2, ended(key), NOW + number)
    await put(broker, TOPICS.results("cats"), 0, ended(ASKED[0], OutcomeKind.FAILED), NOW + 9)
    keys = [QueryKey(app, source, name) for app, source, name in ASKED]
    assert set(await find_results(broker, TOPICS, "q1")) == set(keys[:3])
    assert set(await find_results(broker, TOPICS, "q1", app="cats")) == set(keys[:2])
    assert set(await find_results(broker, TOPICS, "q1", source="/shop")) == {keys[0], keys[2]}
    assert await find_results(broker, TOPICS, "q3") == {}
    (first,) = (await find_results(broker, TOPICS, "q1", app="cats", source="/shop")).values()
    assert codec.decode_outcome(first).outcome.kind is OutcomeKind.ANSWERED


async def test_results_are_read_to_their_end_at_the_start_or_followed(broker: Broker) -> None:
    partitions = await result_topics(broker, TOPICS, ["words"])
    assert partitions == [TopicPartition(TOPICS.results("words"), number) for number in (0, 1)]
    assert len(await result_topics(broker, TOPICS)) == 4
    with pytest.raises(InvalidInputError, match="--app: 'wrods' has no results there; apps that have: cats, words"):
        await result_topics(broker, TOPICS, ["words", "wrods"])
    for number in range(3):
        await put(broker, TOPICS.results("words"), number % 2, ended(ASKED[2 + number % 2]), NOW + number)
    seen = []
    async for record in read_results(broker, partitions, follow=False):
        if not seen:
            await put(broker, TOPICS.results("words"), record.partition, ended(ASKED[3]), NOW + 50)
        seen.append(record.timestamp)
    assert sorted(seen) == [NOW, NOW + 1, NOW + 2]


async def test_what_is_followed_from_the_end_tells_only_what_comes_then(broker: Broker) -> None:
    partitions = await result_topics(broker, TOPICS, ["words"])
    await put(broker, TOPICS.results("words"), 0, ended(ASKED[2]), NOW)
    followed = read_results(broker, partitions, follow=True, start_at="end")
    waiting = asyncio.ensure_future(anext(followed))  # type: ignore[arg-type]
    while not waiting.done():  # its start is not told: what comes before that is not read
        await put(broker, TOPICS.results("words"), 1, ended(ASKED[3]), NOW + 60)
        await asyncio.sleep(0.01)
    assert (await waiting).timestamp == NOW + 60
    await followed.aclose()  # type: ignore[attr-defined]


def windows_of(folder: Path, content: object) -> tuple[FaultWindow, ...]:
    file = folder / "windows.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_windows(file)


def test_windows_are_read_in_seconds_or_dates_by_their_beginning(tmp_path: Path) -> None:
    listed = [
        {"name": "late", "began": "2023-11-14T22:13:30+00:00", "ended": "2023-11-14T23:13:40+01:00"},
        {"name": "b", "began": NOW, "ended": NOW},
        {"name": "a", "began": int(NOW), "ended": NOW + 5.5},
        {"name": "ever", "began": 0, "ended": 253_402_300_799},
    ]
    found = windows_of(tmp_path, listed)
    assert found == (
        FaultWindow(name="ever", began=0.0, ended=253_402_300_799.0),
        FaultWindow(name="a", began=NOW, ended=NOW + 5.5),
        FaultWindow(name="b", began=NOW, ended=NOW),
        FaultWindow(name="late", began=NOW + 10.0, ended=NOW + 20.0),
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "not JSON"),
        ({}, "not a list"),
        ([[]] * 100_001, "not a list of at most 100000"),
        (["x"], "entry 0 has no name"),
        ([{"name": "a", "began": 1, "ended": 2}, {"name": 3, "began": 1, "ended": 2}], "entry 1 has no name"),
        ([{"name": "a", "began": True, "ended": 2}], "began is True"),
        ([{"name": "a", "began": 1}], "ended is None"),
        (
            [{"name": "a", "began": 1_700_000_000_000, "ended": 1_700_000_009_000}],
            "0: began.*seconds, not milliseconds",
        ),
        ([{"name": "a", "began": 1, "ended": 253_402_300_800}], "ended is 253402300800, past the year 9999"),
        ([{"name": "a", "began": -0.5, "ended": 2}], "began is -0.5, .*before 1970"),
        ([{"name": "a", "began": 1, "ended": "soon"}], "ended is 'soon'"),
        ([{"name": "a", "began": "2023-11-14T22:13:30", "ended": 2}], "began.*time zone"),
        ([{"name": "a", "began": 3, "ended": 2}], "entry 0: ended lies before"),
    ],
)
def test_windows_that_cannot_be_are_refused_by_place_and_name(tmp_path: Path, content: object, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        windows_of(tmp_path, content)


def test_a_file_of_windows_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.json: No such file"):
        read_windows(tmp_path / "nowhere.json")
