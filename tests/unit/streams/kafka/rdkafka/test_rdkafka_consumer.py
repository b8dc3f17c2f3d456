"""A consumer on librdkafka that cannot look something up: no record is lost, and reading goes on once it can."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.ports import BrokerError, Record, TopicPartition, Unreadable
from sluicegate.streams.subscription import Subscription

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: pip install 'sluicegate[rdkafka]'")

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from sluicegate.streams.kafka.rdkafka import consumer as rdkafka

KEPT, CUT = TopicPartition("t", 0), TopicPartition("t", 1)
END = 3
TRIES = 20
"""Reads within which all is read that can be."""


def message(place: TopicPartition, offset: int, error: KafkaError | None = None) -> Any:
    told = {
        "topic": place.topic,
        "partition": place.partition,
        "offset": offset,
        "error": error,
        "key": None,
        "value": b"%d" % offset,
        "headers": None,
        "timestamp": (1, 0),
    }
    return SimpleNamespace(**{name: lambda value=value: value for name, value in told.items()})


class Library:
    """Stands for the library's consumer of a broker that keeps each partition from ``first`` to END, and says so unless
    it is ``silent``. A group gives it all."""

    def __init__(self) -> None:
        self.first = {KEPT: 0, CUT: 0}
        self.silent = False
        self.gives = [[KEPT, CUT]]
        """What the group gives, one after the other."""
        self.between: list[Any] = []
        """What is told before records are."""
        self._at: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._on_assign: Callable[[Any, Iterable[Any]], None] | None = None

    def subscribe(self, topics: list[str], *, on_assign: Callable[[Any, Iterable[Any]], None], **_: Any) -> None:
        self._on_assign = on_assign

    def incremental_assign(self, partitions: Iterable[Any]) -> None:
        for one in partitions:
            self.seek(one)

    assign = incremental_assign

    def seek(self, to: Any) -> None:
        self._at[TopicPartition(to.topic, to.partition)] = to.offset

    def pause(self, partitions: Iterable[Any]) -> None:
        self._paused |= {TopicPartition(p.topic, p.partition) for p in partitions}

    def resume(self, partitions: Iterable[Any]) -> None:
        self._paused -= {TopicPartition(p.topic, p.partition) for p in partitions}

    def poll(self, timeout: float) -> Any:
        if self._on_assign is not None and self.gives:
            self._on_assign(self, [KafkaPartition(*place) for place in self.gives.pop(0)])
        if found := self.consume(1, 0):
            return found[0]
        time.sleep(min(timeout, 0.005))
        return None

    def consume(self, most: int, timeout: float) -> list[Any]:
        found, self.between = self.between[:most], self.between[most:]
        for place, at in tuple(self._at.items()):
            if place in self._paused:
                continue
            if at < self.first[place] and len(found) < most:
                del self._at[place]  # it fetches no more there
                found.append(message(place, at, KafkaError(KafkaError._AUTO_OFFSET_RESET)))
            while place in self._at and self._at[place] < END and len(found) < most:
                found.append(message(place, self._at[place]))
                self._at[place] += 1
        return found

    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        if self.silent:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return self.first[TopicPartition(partition.topic, partition.partition)], END

    def committed(self, partitions: Sequence[Any], timeout: float) -> Sequence[Any]:
        return partitions

    def consumer_group_metadata(self) -> object:
        return "a generation"

    def close(self) -> None: ...


class Counts:
    async def partitions(self, topics: Iterable[str]) -> Mapping[str, int]:
        return {"t": 2}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(rdkafka, "Consumer", lambda _properties: made)
    return made


def consumer_of(reads: Subscription, **settings: Any) -> rdkafka.RdkafkaConsumer:
    return rdkafka.RdkafkaConsumer("here:1", KafkaSettings(gather=0.0, **settings), Counts(), reads, on_stop=_nothing)


def _nothing(_consumer: object) -> None: ...


def offsets(records: Iterable[Record], place: TopicPartition) -> list[int]:
    return [r.offset for r in records if (r.topic, r.partition) == place]


async def test_where_bounds_are_not_told_what_was_read_is_handed_out_and_they_are_asked_for_again(
    library: Library,
) -> None:
    consumer = consumer_of(Subscription(partitions=(KEPT, CUT), start_at="beginning"))
    await consumer.start()
    library.first[CUT] = 2  # retention goes past where it reads
    library.silent = True
    records: list[Record] = []
    failures = 0
    for _ in range(TRIES):
        try:
            records += await consumer.get_many(wait=0.01)
        except BrokerError:
            failures += 1
            library.silent = failures < 2
    await consumer.stop()
    assert (offsets(records, KEPT), offsets(records, CUT), failures) == ([0, 1, 2], [2], 2)


async def test_a_member_that_cannot_ask_whether_it_is_one_hands_out_nothing_until_it_can(
    library: Library, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[bool | Exception] = [True, KafkaException(KafkaError(KafkaError._TRANSPORT)), TimeoutError()]

    async def asked(*_: object) -> bool:
        answer = answers.pop() if answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(rdkafka, "asked", asked)
    consumer = consumer_of(Subscription(topics=("t",), group="g"), session_timeout=0.0)  # it always stood still
    await consumer.start()
    records: list[Record] = []
    for _ in range(TRIES):
        records += await consumer.get_many(wait=0.0)
        assert not records or not answers
    await consumer.stop()
    assert (offsets(records, KEPT), offsets(records, CUT)) == ([0, 1, 2], [0, 1, 2])
    assert caplog.text.count("could not be asked") == 2


@pytest.mark.parametrize("failures", [1, 3])
async def test_what_a_group_gives_is_read_once_it_is_told_where_to_begin_and_the_rest_meanwhile(
    library: Library, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.gives = [[KEPT]]
    consumer = consumer_of(Subscription(topics=("t",), group="g"))
    await consumer.start()
    left = failures

    def committed(partitions: Sequence[Any], timeout: float) -> Sequence[Any]:
        nonlocal left
        left -= 1
        if left >= 0:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return partitions

    monkeypatch.setattr(library, "committed", committed)
    library.gives = [[CUT]]
    records: list[Record] = []
    for _ in range(TRIES):
        records += await consumer.get_many(wait=0.01)
        if left >= 0:
            assert consumer.assignment() == {KEPT} and not offsets(records, CUT)
    assert consumer.assignment() == {KEPT, CUT}
    await consumer.stop()
    assert (offsets(records, KEPT), offsets(records, CUT)) == ([0, 1, 2], [0, 1, 2])


async def test_a_member_starts_once_it_is_told_where_to_begin(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [KafkaException(KafkaError(KafkaError._TIMED_OUT))] * 2

    def committed(partitions: Sequence[Any], timeout: float) -> Sequence[Any]:
        if answers:
            raise answers.pop()
        return partitions

    monkeypatch.setattr(library, "committed", committed)
    consumer = consumer_of(Subscription(topics=("t",), group="g"))
    await consumer.start()
    assert consumer.assignment() == {KEPT, CUT} and not answers
    await consumer.stop()


async def test_what_lies_behind_a_record_that_cannot_be_read_is_handed_out_once(library: Library) -> None:
    consumer = consumer_of(Subscription(partitions=(KEPT, CUT), start_at="beginning"))
    damaged = KafkaError(KafkaError._BAD_MSG)
    library.between = [message(CUT, 0, damaged), message(CUT, 0, damaged), message(CUT, 0, damaged), message(KEPT, 0)]
    await consumer.start()
    records: list[Record] = []
    for _ in range(TRIES):
        records += await consumer.get_many(wait=0.01)
    await consumer.stop()
    assert (offsets(records, KEPT), offsets(records, CUT)) == ([0, 1, 2], [0, 1, 2])
    assert [(r.topic, r.partition, r.offset) for r in records if isinstance(r, Unreadable)] == [(*CUT, 0)]
