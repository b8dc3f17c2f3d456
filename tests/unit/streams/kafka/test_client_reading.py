"""How an application's client reads Apache Kafka: what passes is tried again, whatever else ends it is told."""

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import CorruptRecordException, KafkaError, RecordTooLargeError, TopicAuthorizationFailedError
from aiokafka.structs import ConsumerRecord

from sluicegate_client import ClientError, over_kafka
from sluicegate_client.log import Received

pytestmark = pytest.mark.virtual


class Consumer:
    """Gives or raises ``finds`` one after the other, then nothing more."""

    def __init__(self, *finds: bytes | Exception) -> None:
        self._finds = list(finds)
        self.fetching: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._fetcher = SimpleNamespace(error_future=self.fetching)

    async def getmany(self, timeout_ms: int) -> dict[str, list[Any]]:
        if not self._finds:
            await asyncio.sleep(1e-3 * timeout_ms)
            return {}
        found = self._finds.pop(0)
        if isinstance(found, Exception):
            raise found
        return {"t": [ConsumerRecord("t", 0, 7, 0, 0, None, found, None, -1, len(found), ())]}


async def test_what_passes_is_tried_again() -> None:
    heard: list[Received] = []
    consumer = Consumer(b"1", RecordTooLargeError("t"), TopicAuthorizationFailedError("t"), b"2")
    reading = asyncio.create_task(over_kafka._read(consumer, heard.append))
    await asyncio.sleep(5.0)
    assert [record.value for record in heard] == [b"1", b"2"]
    assert not reading.done()
    reading.cancel()


@pytest.mark.parametrize("fault", [CorruptRecordException("Invalid CRC"), ValueError("no such codec"), OverflowError()])
async def test_what_is_damaged_ends_reading_and_is_told(fault: Exception) -> None:
    async with asyncio.timeout(5.0):
        with pytest.raises(ClientError, match=re.escape(f"cannot be read ({str(fault) or 'OverflowError'})")):
            await over_kafka._read(Consumer(fault), lambda _: None)


async def test_a_client_that_fetches_no_more_is_not_taken_for_a_topic_on_which_nothing_comes() -> None:
    consumer = Consumer()
    reading = asyncio.create_task(over_kafka._read(consumer, lambda _: None))
    await asyncio.sleep(10.0)
    assert not reading.done()
    consumer.fetching.set_exception(KafkaError("Unexpected error during data retrieval"))
    async with asyncio.timeout(5.0):
        with pytest.raises(ClientError, match="Unexpected error during data retrieval"):
            await reading
