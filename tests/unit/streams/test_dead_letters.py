"""Dead letters can always be written, say what there is to say, and are read as they were written."""

import orjson
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.streams.kafka.topic_limits import size_of
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import Record, TopicSpec, Unreadable
from sluicegate.streams.records import codec
from sluicegate.streams.records.dead_letters import (
    REPLAY_OF,
    REPLAYS,
    DeadLetter,
    dead_letter,
    read_dead_letter,
    replay_origin,
    replays_of,
    with_replay,
)

WRONG = InvalidInputError("body", "is wrong")


async def test_a_record_without_key_and_value_has_a_dead_letter_that_can_be_written() -> None:
    broker = MemoryBroker()
    await broker.admin().create_topics([TopicSpec(name="dead")])
    producer = broker.producer()
    await producer.start()
    nothing = Record("in", 3, 7, None, None, (), 5.0)
    letter = codec.dead_letter(nothing, InvalidInputError("ce_id", "missing"), stage="admission", now=9.0)
    await producer.send("dead", letter.value, key=letter.key, headers=letter.headers)


def test_what_cannot_be_read_has_a_letter_that_says_where_it_is_and_why() -> None:
    record = Unreadable.at("in", 3, 7, 5.0, "its codec is unknown")
    told = InvalidInputError("ce_id", "missing")  # what who tried to understand it found
    letter = codec.dead_letter(record, told, stage="admission", now=9.0)
    about = {name.removeprefix("__dlq.errors."): held for name, held in letter.headers}
    assert (about["topic"], about["partition"], about["offset"]) == (b"in", b"3", b"7")
    assert (about["reason"], about["field"], about["stage"]) == (b"unreadable", b"record", b"admission")
    assert b"its codec is unknown" in about["message"]
    assert letter.value is not None


@pytest.mark.parametrize(("extra", "named"), [(0, b"q7"), (1, b"stream")])
def test_an_id_is_sought_in_a_value_that_is_kept_whole_and_in_no_longer_one(extra: int, named: bytes) -> None:
    bare = len(orjson.dumps({"id": "q7", "pad": ""}))
    value = orjson.dumps({"id": "q7", "pad": "x" * ((1 << 20) - bare + extra)})
    record = Record("in", 3, 7, b"stream", value, (), 5.0)
    letter = dead_letter(record, WRONG, stage="admission", now=9.0)
    assert len(value) == (1 << 20) + extra
    assert letter.key == named
    assert letter.value == value[: 1 << 20]
    told = dict(letter.headers).get("__dlq.errors.value-bytes")
    assert told == (b"%d" % len(value) if extra else None)
    read = read_dead_letter(Record("dead", 0, 1, letter.key, letter.value, letter.headers, 9.5))
    assert read is not None
    assert (read.cut, read.query_id) == ((True, None) if extra else (False, "q7"))


def test_an_id_in_a_header_names_the_letter_though_its_value_was_cut() -> None:
    record = Record("in", 3, 7, b"stream", b"x" * (2 << 20), (("ce_id", b"q8"),), 5.0)
    assert dead_letter(record, WRONG, stage="admission", now=9.0).key == b"q8"


def test_a_letter_is_read_as_it_was_written() -> None:
    headers = (("ce_id", b"q1"), ("mine", b"1"))
    record = Record("in", 3, 7, b"stream", b"{}", headers, 1234.5678)
    letter = dead_letter(record, WRONG, stage="admission", now=1240.25)
    assert read_dead_letter(Record("dead", 0, 1, letter.key, letter.value, letter.headers, 1300.0)) == DeadLetter(
        origin=("in", 3, 7),
        reason="invalid",
        field="body",
        message="body: is wrong",
        stage="admission",
        at=1240.25,
        query_id="q1",
        kept=Record("in", 3, 7, b"q1", b"{}", headers, 1234.568),
        cut=False,
    )
    assert read_dead_letter(record) is None


@pytest.mark.parametrize(
    ("held", "at"),
    [
        (b"1234.5", 1234.5),
        (b"0", 0.0),
        (b"0.25", 0.25),
        (b"-0.25", 0.0),
        (b"999999999999", 999_999_999_999.0),
        (b"1e12", 0.0),
        (b"nan", 0.0),
        (b"inf", 0.0),
        (b"soon", 0.0),
        (None, 0.0),
    ],
)
def test_a_time_that_cannot_be_is_none(held: bytes | None, at: float) -> None:
    letter = dead_letter(Record("in", 3, 7, None, b"{}", (), 50.0), WRONG, stage="admission", now=60.0)
    headers = tuple(header for header in letter.headers if header[0] != "__dlq.errors.record-timestamp")
    if held is not None:
        headers = (*headers, ("__dlq.errors.record-timestamp", held))
    read = read_dead_letter(Record("dead", 0, 1, None, b"{}", headers, 70.0))
    assert read is not None
    assert (read.kept.timestamp, read.at) == (at, 60.0)


def test_a_record_that_is_written_again_says_so_once_and_keeps_its_other_headers() -> None:
    first = with_replay((("ce_id", b"q1"), ("mine", b"1")), ("in", 3, 7), 1)
    assert first == (("ce_id", b"q1"), ("mine", b"1"), (REPLAYS, b"1"), (REPLAY_OF, b"in/3/7"))
    again = with_replay(first, ("in", 3, 12), 2)
    assert again == (("ce_id", b"q1"), ("mine", b"1"), (REPLAYS, b"2"), (REPLAY_OF, b"in/3/12"))
    assert (replays_of(()), replays_of(first), replays_of(again)) == (0, 1, 2)
    assert replay_origin(Record("in", 3, 20, None, b"{}", again, 5.0)) == ("in", 3, 12)


@pytest.mark.parametrize(("digits", "understood"), [(19, True), (20, False)])
def test_numbers_of_a_replay_have_less_than_twenty_digits(digits: int, understood: bool) -> None:
    number = "9" * digits
    assert replays_of(((REPLAYS, number.encode()),)) == (int(number) if understood else None)
    for told, place in ((f"in/3/{number}", ("in", 3, int(number))), (f"in/{number}/5", ("in", int(number), 5))):
        record = Record("in", 3, 20, None, b"{}", ((REPLAY_OF, told.encode()),), 5.0)
        assert replay_origin(record) == (place if understood else None)


def test_headers_are_kept_as_far_as_they_fit_and_the_rest_is_counted() -> None:
    """A header takes the bytes of its name and of its value, and ten for their lengths; 64 KiB fit."""
    full = ("äb", b"x" * (65_536 - 3 - 3 - 20))
    fits = Record("in", 3, 7, b"k", b"{", (full, ("c", b"12")), 5.0)
    letter = dead_letter(fits, WRONG, stage="admission", now=9.0)
    assert letter.headers[:2] == fits.headers
    assert "__dlq.errors.headers-dropped" not in dict(letter.headers)
    over = fits._replace(headers=(full, ("c", b"123"), ("d", b"")))
    letter = dead_letter(over, WRONG, stage="admission", now=9.0)
    assert [name for name, _ in letter.headers if not name.startswith("__dlq")] == ["äb"]
    assert dict(letter.headers)["__dlq.errors.headers-dropped"] == b"2"


def test_many_empty_headers_are_cut_so_that_the_letter_is_no_larger_than_its_record() -> None:
    many = Record("in", 3, 7, b"k", b"{", (("", b""),) * 300_000, 5.0)
    letter = dead_letter(many, WRONG, stage="admission", now=9.0)
    assert size_of(letter.key, letter.value, letter.headers) < size_of(many.key, many.value, many.headers)
    assert dict(letter.headers)["__dlq.errors.headers-dropped"] == b"%d" % (300_000 - 65_536 // 10)


def test_a_reason_that_is_given_stands_before_what_the_error_says() -> None:
    record = Record("in", 3, 7, b"k", b"{", (), 5.0)
    twice = InvalidInputError("ce_id", f"{codec.DUPLICATE_ID} 'q1'; give each query its own")
    told = [
        dict(dead_letter(record, twice, stage="admission", now=9.0, reason=reason).headers)["__dlq.errors.reason"]
        for reason in (None, "unsigned")
    ]
    assert told == [b"duplicate_id", b"unsigned"]
