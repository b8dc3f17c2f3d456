"""What of the dead letters is asked again: each record once, none whose query ends otherwise, none too often."""

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.query import Query
from sluicegate.sluice.audit.dead_letter_replay import (
    Chosen,
    Replay,
    ReplayBook,
    read_replays,
    write_replays,
)
from sluicegate.sluice.commands.reading import dead_letters
from sluicegate.streams import connect
from sluicegate.streams.ports import Headers, Record, TopicPartition, TopicSpec, Unreadable
from sluicegate.streams.records import codec
from sluicegate.streams.records.dead_letters import REPLAY_OF, REPLAYS
from sluicegate.streams.source_proofs import PROOF
from sluicegate.streams.topics import Topics

TOPICS = Topics("t")
NOW = 1_700_000_000.0
DEFECT = InvalidInputError("record", "could not be admitted: ValueError; please report it")


def asked(
    offset: int, query_id: str | None = None, *, app: str = "toy", partition: int = 1, headers: Headers = ()
) -> Record:
    """A query record, keyed unlike its id."""
    named = () if query_id is None else (("ce_id", query_id.encode()), ("ce_source", b"/me"))
    return Record(TOPICS.queries(app), partition, offset, b"stream", b"body %d" % offset, (*named, *headers), NOW)


def dead(record: Record, error: InvalidInputError = DEFECT, *, at: float = NOW) -> Record:
    """Its dead letter."""
    letter = codec.dead_letter(record, error, stage="admission", now=at)
    return Record(TOPICS.dead_letters, 0, int(at - NOW), letter.key, letter.value, letter.headers, at)


def duplicate(record: Record) -> Record:
    """Its dead letter for an id that was asked before."""
    return dead(record, InvalidInputError("ce_id", f"{codec.DUPLICATE_ID} of source; give each query its own"))


def outcome(query_id: str, source: str = "/me") -> Record:
    """A result."""
    of = Outcome.of(Query(query_id, "toy", NOW, NOW + 1, source=source), OutcomeKind.ANSWERED, NOW + 0.1)
    message = codec.encode_outcome(of, ())
    return Record(TOPICS.results("toy"), 0, 0, message.key, message.value, message.headers, NOW)


def planned(
    letters: list[Record], queries: list[Record], results: list[Record] | None = None, **options: object
) -> tuple[Replay, ...]:
    """What comes of these topics."""
    chosen = options.pop("chosen", Chosen())
    assert isinstance(chosen, Chosen)
    book = ReplayBook(TOPICS, chosen, **options)  # type: ignore[arg-type]
    for letter in letters:
        book.add_dead_letter(letter)
    for query in queries:
        book.add_query(query)
    for result in results or ():
        book.add_result(result)
    return book.plan()


def written(replay: Replay, offset: int) -> Record:
    """The record as it then stands on its topic."""
    topic, partition, _ = replay.letter.origin
    return Record(topic, partition, offset, replay.key, replay.value, replay.headers, NOW + 60)


def test_a_record_is_written_as_it_stands_on_its_topic_and_says_so() -> None:
    first = asked(7, "q1", headers=(("mine", b"1"),))
    (replay,) = planned([dead(first)], [asked(6, "q0"), first, asked(8, "q2", partition=0)])
    assert (replay.refused, replay.app, replay.key, replay.value) == ("", "toy", b"stream", b"body 7")
    assert replay.headers == (*first.headers, (REPLAYS, b"1"), (REPLAY_OF, b"t.app.toy.queries/1/7"))


def test_a_record_whose_source_proves_itself_keeps_its_time_and_others_do_not() -> None:
    proven, plain = asked(1, "q1", headers=((PROOF, b"x"),)), asked(2, "q2")
    found = planned([dead(proven, at=NOW + 500), dead(plain, at=NOW + 500)], [proven, plain])
    assert [(one.refused, one.timestamp) for one in found] == [("", NOW), ("", None)]


def test_what_its_topic_has_let_go_of_is_written_as_the_letter_keeps_it_unless_that_was_cut() -> None:
    kept, cut = asked(3, "q1"), asked(4, "q2")._replace(value=b"x" * (2 << 20))
    whole, short = planned([dead(kept), dead(cut)], [])
    assert (whole.refused, whole.value) == ("", b"body 3") and (REPLAYS, b"1") in whole.headers
    assert "cut" in short.refused
    (answered,) = planned([dead(kept)], [], [outcome("q1")])
    assert "has an outcome" in answered.refused, "its letter names the query"
    (there,) = planned([dead(cut)], [cut])
    assert (there.refused, there.value) == ("", cut.value)


def test_a_record_is_replayed_once_and_what_came_of_it_once_more_up_to_the_limit() -> None:
    record = asked(0)
    letters, queries = [dead(record)], [record]
    for count in range(1, 4):
        *before, last = planned(letters, queries, max_replays=3)
        assert all("replayed before" in one.refused for one in before)
        assert not last.refused and (REPLAYS, str(count).encode()) in last.headers
        again = written(last, count)
        queries.append(again)
        assert all("replayed before" in one.refused for one in planned(letters, queries))
        letters.append(dead(again, at=NOW + 100 * count))
    assert "at most 3" in planned(letters, queries, max_replays=3)[-1].refused
    assert not planned(letters, queries, max_replays=4)[-1].refused


@pytest.mark.parametrize("held", [b"many", b"-1", b"", b"9" * 40])
def test_a_count_that_a_stranger_wrote_is_refused(held: bytes) -> None:
    record = asked(0, "q1", headers=((REPLAYS, held),))
    (replay,) = planned([dead(record)], [record])
    assert "cannot be read" in replay.refused


@pytest.mark.parametrize(
    "held", [b"", b"t.app.toy.queries/1", b"t.app.toy.queries/x/0", b"\xff/0/" + b"9" * 40, b"t.app.other.queries/1/0"]
)
def test_an_origin_that_a_stranger_wrote_hides_nothing(held: bytes) -> None:
    record = asked(0, "q1")
    (replay,) = planned([dead(record)], [record, asked(5, "q9", headers=((REPLAY_OF, held),))])
    assert not replay.refused


def test_a_query_that_ends_otherwise_is_not_asked_again() -> None:
    first, second = asked(0, "q1"), asked(1, "q1")
    assert "has an outcome" in planned([dead(first)], [first], [outcome("q1")])[0].refused
    assert not planned([dead(first)], [first], [outcome("q1", source="/other"), outcome("q2")])[0].refused
    assert "not ended yet" in planned([dead(first)], [first, second])[0].refused
    one, other = planned([dead(first), dead(second)], [first, second])
    assert not one.refused and "not ended yet" in other.refused


def test_behind_a_duplicate_id_stands_another_record_which_is_asked_again_where_that_failed() -> None:
    first, second = asked(0, "q1"), asked(1, "q1")
    assert "has an outcome" in planned([duplicate(second)], [first, second], [outcome("q1")])[0].refused
    assert "not ended yet" in planned([duplicate(second)], [first, second])[0].refused
    assert "ends by that" in planned([duplicate(second)], [second])[0].refused
    replayed = written(planned([dead(first)], [first])[0], 1)
    one, other = planned([dead(first), duplicate(replayed)], [first, replayed])
    assert "replayed before" in one.refused and not other.refused and (REPLAYS, b"2") in other.headers


def test_only_what_stands_on_query_topics_and_can_be_read_is_written() -> None:
    elsewhere = asked(0, "q1")._replace(topic=TOPICS.admitted("toy"))
    unread = Unreadable.at(TOPICS.queries("toy"), 1, 2, NOW, "its codec is unknown")
    found = planned([dead(elsewhere), dead(unread)], [unread])
    assert "query topics" in found[0].refused and "cannot be read" in found[1].refused
    assert "cannot be read" in planned([dead(unread)], [])[0].refused
    (now_readable,) = planned([dead(unread)], [asked(2, "q1")])
    assert (now_readable.refused, now_readable.value) == ("", b"body 2")


async def test_what_is_not_refused_is_written_to_the_partition_that_it_came_from() -> None:
    broker = connect("memory://")
    await broker.admin().create_topics([TopicSpec(name=TOPICS.queries(app), partitions=2) for app in ("toy", "other")])
    records = [asked(0, "q1"), asked(0, "q2", app="other", partition=0), asked(1, "q3")]
    elsewhere = asked(0, "q4")._replace(topic=TOPICS.admitted("toy"))
    replays = planned([*map(dead, records), dead(elsewhere)], records)
    assert await write_replays(broker, replays) == replays
    for at, bodies in ((("toy", 0), []), (("toy", 1), [b"body 0", b"body 1"]), (("other", 0), [b"body 0"])):
        place = TopicPartition(TOPICS.queries(at[0]), at[1])
        consumer = broker.consumer(partitions=[place], start_at="beginning")
        await consumer.start()
        found = [r for r in await consumer.get_many(wait=0.0) if isinstance(r, Record)]
        await consumer.stop()
        assert [(r.key, r.value) for r in found] == [(b"stream", body) for body in bodies]
        assert all(dict(r.headers)[REPLAYS] == b"1" for r in found)


async def test_what_its_topic_does_not_take_is_told_and_those_behind_it_are_written() -> None:
    broker, limit = connect("memory://"), 1_000
    queries = TopicSpec(name=TOPICS.queries("toy"), partitions=2, max_message_bytes=limit)
    await broker.admin().create_topics([queries])
    large = asked(0, "q0")._replace(value=b"x" * (limit - 200))
    gone = asked(0, "q2", partition=2)
    nowhere = asked(0, "q4", app="gone")
    records = [large, asked(1, "q1"), gone, asked(2, "q3"), nowhere, asked(3, "q5")]
    replays = planned([*map(dead, records)], records)
    assert not any(one.refused for one in replays)
    told = await write_replays(broker, replays)
    assert [one.letter.query_id for one in told if not one.refused] == ["q1", "q3", "q5"]
    said = {one.letter.query_id: one.refused for one in told}
    assert str(limit) in said["q0"] and "partition" in said["q2"] and "app.gone.queries" in said["q4"]
    place = TopicPartition(TOPICS.queries("toy"), 1)
    consumer = broker.consumer(partitions=[place], start_at="beginning")
    await consumer.start()
    assert [r.value for r in await consumer.get_many(wait=0.0)] == [b"body 1", b"body 2", b"body 3"]
    await consumer.stop()


def test_they_are_chosen_by_app_reason_and_time() -> None:
    records = [asked(0, "a"), asked(0, "b", app="other"), asked(1, "c")]
    letters = [dead(records[0], at=NOW), dead(records[1], at=NOW + 10), dead(records[2], at=NOW + 20)]

    def chosen(**by: object) -> list[str | None]:
        found = planned(letters, records, chosen=Chosen(**by))  # type: ignore[arg-type]
        return [one.letter.query_id for one in found]

    assert chosen() == ["a", "b", "c"]
    assert chosen(apps=frozenset({"toy"})) == ["a", "c"]
    assert chosen(reasons=frozenset({"unreadable"})) == [] and chosen(reasons=frozenset({"invalid"})) == ["a", "b", "c"]
    assert chosen(since=NOW + 10) == ["b", "c"] and chosen(until=NOW + 10) == ["a", "b"]
    strange = Record(TOPICS.dead_letters, 0, 0, None, b"x", (("__dlq.errors.topic", b"t"),), NOW)
    assert len(planned([strange, replace_time(letters[0])], records)) == 1


def test_where_none_is_meant_those_that_there_are_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    letters = [dead(asked(1)), duplicate(asked(2, app="cats")), dead(asked(3))]

    async def read(_: object, book: ReplayBook, **__: object) -> tuple[Replay, ...]:
        for letter in letters:
            book.add_dead_letter(letter)
        return book.plan()

    monkeypatch.setattr(dead_letters, "_look", read)
    told = "none is of these apps, reasons and times; there are: duplicate_id of cats, invalid of toy\n"
    dead_letters.list_(reason=["invalit"], broker="memory+http://127.0.0.1:9", prefix="t")
    assert capsys.readouterr() == ("0 dead letters\n", told)
    dead_letters.replay(app=["dogs"], dry_run=True, broker="memory+http://127.0.0.1:9", prefix="t", as_json=True)
    assert capsys.readouterr().err == told
    dead_letters.list_(reason=["invalid"], broker="memory+http://127.0.0.1:9", prefix="t")
    said = capsys.readouterr()
    assert said.out.endswith("2 dead letters\n") and not said.err


def replace_time(letter: Record) -> Record:
    """The same, whose time cannot be read."""
    headers = tuple((n, b"soon" if n == "__dlq.errors.timestamp" else held) for n, held in letter.headers)
    return letter._replace(headers=headers)


def test_a_letter_without_a_time_counts_from_when_it_was_written() -> None:
    letter = replace_time(dead(asked(0, "a"), at=NOW + 5))
    assert planned([letter], [])[0].letter.at == NOW + 5


@pytest.mark.parametrize(
    ("apps", "refused"),
    [((), {"a": True, "b": True, "c": False}), (("toy",), {"a": True, "c": False}), (("other",), {"b": True})],
)
async def test_topics_are_read_as_far_as_the_apps_that_are_chosen_need(
    apps: tuple[str, ...], refused: dict[str, bool]
) -> None:
    """Of two queries that were answered since, one is of another app."""
    broker = connect("memory://")
    names = [name(app) for app in ("toy", "other") for name in (TOPICS.queries, TOPICS.results)]
    specs = [TopicSpec(name=name, partitions=2) for name in (*names, TOPICS.dead_letters, TOPICS.status)]
    await broker.admin().create_topics(specs)
    producer = broker.producer()
    await producer.start()
    asks = [asked(0, "a"), asked(0, "b", app="other"), asked(1, "c")]
    ends = [outcome("a")._replace(partition=1), outcome_of_other()]
    for record in (*asks, *map(dead, asks), *ends):
        sent = await producer.send(
            record.topic, record.value, key=record.key, headers=record.headers, partition=record.partition
        )
        await sent
    found = await read_replays(broker, ReplayBook(TOPICS, Chosen(apps=frozenset(apps))))
    assert {one.letter.query_id: bool(one.refused) for one in found} == refused
    assert all("has an outcome" in one.refused for one in found if one.refused)


def outcome_of_other() -> Record:
    """A result of the other app."""
    of = Outcome.of(Query("b", "other", NOW, NOW + 1, source="/me"), OutcomeKind.EXPIRED, NOW + 1.1)
    message = codec.encode_outcome(of, ())
    return Record(TOPICS.results("other"), 0, 0, message.key, message.value, message.headers, NOW)
