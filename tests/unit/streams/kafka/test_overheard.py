"""What the Kafka client logs while it begins: it is told in the error, once, and not beside it."""

import logging
import socket

import pytest
from aiokafka.errors import NotLeaderForPartitionError, TopicAuthorizationFailedError

from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.broker import KafkaBroker
from sluicegate.streams.ports import UnreachableError


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


async def test_why_no_broker_answers_is_in_the_error_and_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    first, second = f"127.0.0.1:{free_port()}", f"localhost:{free_port()}"
    with pytest.raises(UnreachableError, match=f"answers at {first} \\(.*Connect call failed") as alone:
        await KafkaBroker(first, KafkaSettings()).producer().start()
    with pytest.raises(UnreachableError) as both:
        await KafkaBroker(f"{first},{second}", KafkaSettings()).admin().topics()
    assert first in str(both.value) and f"; {second}: " in str(both.value)
    assert "AddressFamily" not in f"{alone.value}{both.value}"
    assert caplog.messages == []


def test_offsets_that_are_asked_for_again_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    KafkaBroker("127.0.0.1:9", KafkaSettings())
    log = logging.getLogger("aiokafka.consumer.fetcher")
    log.error("Failed fetch offsets from %s: %s", 1, NotLeaderForPartitionError("t"))
    log.error("Failed fetch offsets from %s: %s", 1, TopicAuthorizationFailedError("t"))
    assert len(caplog.messages) == 1 and "TopicAuthorizationFailed" in caplog.messages[0]
