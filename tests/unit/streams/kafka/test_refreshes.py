"""How often clients ask for metadata while no broker answers: aiokafka's sender would without a pause."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.errors import ConcurrentTransactions, KafkaConnectionError
from aiokafka.producer.sender import AddPartitionsToTxnHandler

from sluicegate.domain.errors import SluiceError
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka import producer, transactions
from sluicegate.streams.kafka.topic_limits import Limits
from sluicegate_client import ClientError, Security, over_kafka
from sluicegate_client.outages import LOGGERS, refresh_seldom, speak_seldom

pytestmark = pytest.mark.virtual


class Client:
    """Finds nobody, ``takes`` seconds after it was asked."""

    def __init__(self, takes: float = 0.0) -> None:
        self.asked: list[float] = []
        self._takes = takes

    def force_metadata_update(self) -> "asyncio.Future[bool]":
        loop = asyncio.get_running_loop()
        self.asked.append(loop.time())
        found: asyncio.Future[bool] = loop.create_future()
        loop.call_later(self._takes, lambda: found.done() or found.set_result(False))
        return found

    async def bootstrap(self) -> None: ...


@pytest.mark.parametrize(("takes", "times"), [(0.0, 12), (0.03, 11), (0.25, 5)])
async def test_who_asks_without_end_is_answered_ten_times_a_second(takes: float, times: int) -> None:
    client = Client(takes)
    refresh_seldom(client)
    loop = asyncio.get_running_loop()
    began = loop.time()
    while loop.time() < began + 1.001:
        assert await client.force_metadata_update() is False
    assert len(client.asked) == times and client.asked[0] == began
    gaps = [later - sooner for sooner, later in zip(client.asked, client.asked[1:], strict=False)]
    assert min(gaps) >= 0.1 - 1e-9


async def test_several_who_wait_are_told_of_one_and_one_that_gives_up_disturbs_nobody() -> None:
    client = Client()
    refresh_seldom(client)
    await client.force_metadata_update()
    waits = [asyncio.ensure_future(client.force_metadata_update()) for _ in range(3)]
    waits[1].cancel()
    assert await asyncio.gather(waits[0], waits[2]) == [False, False]
    assert len(client.asked) == 2
    await asyncio.sleep(5.0)
    began = asyncio.get_running_loop().time()
    await client.force_metadata_update()
    assert client.asked[2] == began, "at once where nobody asked for a while"


def test_what_is_said_again_and_again_is_let_pass_once(caplog: pytest.LogCaptureFixture) -> None:
    speak_seldom()
    speak_seldom()
    for logger in LOGGERS:
        for number in range(100):
            logger.warning("no broker at %d", number)
        logger.warning("and another thing")
    said = [record.getMessage() for record in caplog.records]
    assert said == ["no broker at 0", "and another thing"] * len(LOGGERS)


@pytest.mark.parametrize("made", ["producer", "transactions", "of an application"])
async def test_whatever_writes_asks_seldom(made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[Client] = []
    backoffs: list[int] = []

    class Unreachable:
        """Asks ten times, and gives up."""

        def __init__(self, **given: Any) -> None:
            self.client = Client()
            backoffs.append(given.get("retry_backoff_ms", 100))
            self._message_accumulator = SimpleNamespace(_batches={})
            clients.append(self.client)

        async def start(self) -> None:
            for _ in range(10):
                await self.client.force_metadata_update()
            raise KafkaConnectionError

        async def stop(self) -> None: ...

    settings = KafkaSettings()
    for module in (producer, transactions, over_kafka):
        monkeypatch.setattr(module, "AIOKafkaProducer", Unreachable)
    limits = Limits(settings)
    begin: Callable[[], Awaitable[None]] = {
        "producer": producer.KafkaProducer("here:1", settings, limits).start,
        "transactions": transactions.KafkaTransactions(
            "here:1", settings, limits, cast(Any, SimpleNamespace()), "t"
        ).start,
        "of an application": over_kafka.KafkaLog("here:1", Security()).open,
    }[made]
    with pytest.raises((SluiceError, ClientError), match="no Kafka broker answers"):
        await begin()
    (asked,) = (client.asked for client in clients)
    assert asked[-1] - asked[0] == pytest.approx(0.9)
    assert (backoffs[0] < 10) is (made == "transactions"), "parts of a transaction are in each other's way for a moment"


def test_who_begins_a_transaction_while_the_one_before_ends_asks_again_soon() -> None:
    manager = SimpleNamespace(txn_partitions=set())
    handler = AddPartitionsToTxnHandler(SimpleNamespace(_retry_backoff=0.1, _txn_manager=manager), [])
    refused = SimpleNamespace(errors=[("t", [(0, ConcurrentTransactions.errno)])])
    assert handler.handle_response(refused) == pytest.approx(0.005)
