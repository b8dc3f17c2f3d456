"""Where Apache Kafka is and what it is asked with: what cannot be is refused by its name, before anything is tried."""

from pathlib import Path

import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams import connect
from sluicegate.streams.broker_settings import KafkaSecurity, KafkaSettings
from sluicegate.streams.kafka.connection import connection
from sluicegate_client import Client, ClientError
from sluicegate_client.over_kafka import Security

WRONG = ["", "here", "here:", "here:x", "here:0", "here:65536", "here:-1", ":9092", "h re:9092", "a:1,,b:2", "a:1,b"]


@pytest.mark.parametrize("servers", WRONG)
async def test_an_address_that_cannot_be_is_named(servers: str) -> None:
    with pytest.raises(ConfigurationError, match=r"host:port"):
        connect(f"kafka://{servers}")
    with pytest.raises(ClientError, match=r"give .*host:port"):
        async with Client(f"kafka://{servers}"):
            pass


async def test_a_password_in_an_address_is_told_to_nobody() -> None:
    with pytest.raises(ConfigurationError, match=r"broker: .* holds a user") as by_server:
        connect("kafka://me:secret@127.0.0.1:1")
    said = [str(by_server.value)]
    for at, told in (
        ("kafka://me:secret@127.0.0.1:1", "holds a user"),
        ("http://me:secret@127.0.0.1:1", "//127.0.0.1:1"),
    ):
        with pytest.raises(ClientError, match=told) as by_client:
            async with Client(at):
                pass
        said.append(str(by_client.value))
    assert not [one for one in said if "secret" in one]


def test_one_and_several_and_numbers_of_either_kind_are_taken() -> None:
    for servers in ("here:1", "kafka-0.kafka:9092,10.0.0.7:65535", "[::1]:9092"):
        assert connect(f"kafka://{servers}").url == f"kafka://{servers}"


def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "ca.pem"
    empty.write_text("none")
    with pytest.raises(ClientError, match=rf"security: ca_file {empty}: cannot be used .* PEM"):
        Security(protocol="SSL", ca_file=empty).options()
    with pytest.raises(ConfigurationError, match=rf"kafka\.security: ca_file {empty}: cannot be used"):
        connection("here:1", KafkaSettings(security=KafkaSecurity(protocol="SSL", ca_file=empty)))
    with pytest.raises(ClientError, match=r"cert_file .*gone"):
        Security(protocol="SSL", cert_file=tmp_path / "gone", key_file=tmp_path / "gone").options()


@pytest.mark.parametrize(
    "security", [Security(protocol="ssl"), Security(protocol="SASL_PLAINTEXT", sasl_mechanism="X")]
)
async def test_a_protocol_or_mechanism_that_is_none_is_named(security: Security) -> None:
    with pytest.raises(ClientError, match="security: "):
        async with Client("kafka://127.0.0.1:1", security=security):
            pass
