"""Dead letters can always be written, and say what there is to say."""

from sluicegate.domain.errors import InvalidInputError
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import Record, TopicSpec, Unreadable
from sluicegate.streams.records import codec


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
