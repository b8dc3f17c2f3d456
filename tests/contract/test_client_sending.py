"""What an application's client writes to Apache Kafka behind a query that the broker refused."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from sluicegate.streams import connect
from sluicegate.streams.ports import Broker, TopicPartition
from sluicegate_client import InvalidQueryError, Security
from sluicegate_client.over_kafka import KafkaLog
from tests.contract.brokers import new_topic, read
from tests.harness import PATIENCE_S

pytestmark = pytest.mark.kafka

TOO_LARGE = bytes(1_000_000)


@pytest.fixture
async def broker(kafka_url: str) -> AsyncIterator[Broker]:
    made = connect(kafka_url)
    yield made
    await made.close()


async def test_a_query_too_large_for_its_topic_is_refused_and_what_comes_behind_and_beside_it_is_written_once(
    broker: Broker,
) -> None:
    topic = await new_topic(broker, max_message_bytes=1)  # as small as topics are made: a quarter of a MiB
    log = KafkaLog(broker.url.removeprefix("kafka://"), Security())

    async def send(value: bytes) -> None:
        await log.send(topic, value, key=b"k", headers=())

    await log.open()
    try:
        async with asyncio.timeout(PATIENCE_S):
            await send(b"before")
            for behind in (b"behind", b"again"):
                with pytest.raises(InvalidQueryError, match=f"inputs: 1000000 bytes .*{topic}"):
                    await send(TOO_LARGE)
                await send(behind)
            beside = [TOO_LARGE if i in {3, 11} else b"%d" % i for i in range(16)]
            fates = await asyncio.gather(*map(send, beside), return_exceptions=True)
    finally:
        await log.close()
    assert [i for i, fate in enumerate(fates) if isinstance(fate, InvalidQueryError)] == [3, 11]
    assert [fate for fate in fates if fate is not None and not isinstance(fate, InvalidQueryError)] == []
    consumer = broker.consumer(partitions=[TopicPartition(topic, 0)], start_at="beginning")
    await consumer.start()
    written = [record.value or b"" for record in await read(consumer, 17)]
    await consumer.stop()
    assert written[:3] == [b"before", b"behind", b"again"]
    assert sorted(written[3:]) == sorted(value for value in beside if value != TOO_LARGE)
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if "_stop_producer" in repr(task)]
