"""Transactions by librdkafka of more than its queue holds: they wait for room, and are undone where none comes."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.ports import BrokerError, Letter, TopicPartition

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: pip install 'sluicegate[rdkafka]'")

from sluicegate.streams.kafka.rdkafka import transactions
from sluicegate.streams.kafka.topic_limits import Limits

LETTERS = [Letter("t", b"%d" % number) for number in range(5)]
OFFSETS = {TopicPartition("in", 0): 5}


class Library:
    """Stands for the library's producer, which has room for two letters. ``away``: it gets rid of none."""

    def __init__(self, *, away: bool) -> None:
        self._away = away
        self._queued: list[bytes] = []
        self._sent: list[bytes] = []
        self.written: list[bytes] = []
        self.is_open = False

    def init_transactions(self, timeout: float) -> None: ...

    def begin_transaction(self) -> None:
        self.is_open = True

    def produce(self, topic: str, value: bytes, *_: object, **_more: object) -> None:
        if len(self._queued) == 2:
            raise BufferError("Local: Queue full")
        self._queued.append(value)

    def poll(self, timeout: float) -> int:
        if self._away:
            return 0
        self._sent.append(self._queued.pop(0))
        return 1

    def send_offsets_to_transaction(self, offsets: object, group: object, timeout: float) -> None: ...

    def commit_transaction(self, timeout: float) -> None:
        self.is_open = False
        self.written = [*self._sent, *self._queued]

    def abort_transaction(self, timeout: float) -> None:
        self.is_open = False


@pytest.mark.parametrize("away", [False, True])
async def test_a_full_queue_is_waited_for_and_leaves_no_transaction_open(
    monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    library = Library(away=away)
    nobody = SimpleNamespace(consumer_group_metadata=lambda: "g", close=lambda: None)
    monkeypatch.setattr(transactions, "Producer", lambda _properties: library)
    monkeypatch.setattr(transactions, "Consumer", lambda _properties: nobody)
    settings = KafkaSettings(request_timeout=0.05 if away else 60.0)
    writer = transactions.RdkafkaTransactions("here:1", settings, Limits(settings), cast(Any, None), "id")
    await writer.start()
    if away:
        with pytest.raises(BrokerError, match="not written"):
            await writer.write(LETTERS, OFFSETS, "g")
    else:
        await writer.write(LETTERS, OFFSETS, "g")
    await writer.stop()
    assert library.written == ([] if away else [letter.value for letter in LETTERS])
    assert not library.is_open
