"""What a dead device left is moved, however often whoever moves it is fenced."""

from collections.abc import Mapping, Sequence

import pytest

from stages.clock import SystemClock
from stages.outbox import Outbox
from stages.reclaim import Reclaimer
from streams.memory import MemoryBroker
from streams.ports import FencedError, Letter, TopicPartition
from streams.topics import Topics


class Fenced:
    """Transactions of one id. ``newest``: who holds it."""

    newest: "Fenced | None" = None
    written: list[Letter]

    def __init__(self, written: list[Letter]) -> None:
        self.written = written

    async def start(self) -> None:
        Fenced.newest = self

    async def write(self, letters: Sequence[Letter], offsets: Mapping[TopicPartition, int], group: str) -> None:
        if Fenced.newest is not self:
            raise FencedError("another has taken over")
        self.written += letters

    async def stop(self) -> None: ...


async def test_a_sweep_that_was_fenced_fences_anew_when_it_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, topics, written = MemoryBroker(), Topics("t"), list[Letter]()
    await broker.admin().create_topics(topics.specs(["toy"], ["d0"]))
    producer = broker.producer()
    await producer.start()
    for _ in range(3):
        await (await producer.send(topics.work("d0"), b"noise", key=b"toy"))
    monkeypatch.setattr(broker, "transactions", lambda name: Fenced(written))
    reclaimer = Reclaimer(
        broker=broker, outbox=Outbox(producer), topics=topics, apps=["toy"], clock=SystemClock(), exactly_once=True
    )
    await reclaimer._fence("d0", TopicPartition(topics.work("d0"), 0), topics.worker_group("d0"))
    await Fenced(written).start()  # a zombie
    with pytest.raises(FencedError):
        await reclaimer.sweep("d0")
    assert not written
    assert await reclaimer.sweep("d0") == 3
    assert [letter.topic for letter in written] == [topics.dead_letters] * 3
    await reclaimer.close()
    await producer.stop()
