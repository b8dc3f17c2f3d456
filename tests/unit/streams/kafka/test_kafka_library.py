"""Which library reads and writes Apache Kafka: chosen by a setting, refused in one line where it cannot be."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import ValidationError

from sluicegate.domain.errors import ConfigurationError
from sluicegate.sluice.settings.kafka_section import KafkaSection
from sluicegate.streams import connect
from sluicegate.streams.broker_settings import KafkaOAuth, KafkaSecurity, KafkaSettings

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: pip install 'sluicegate[rdkafka]'")

from sluicegate.streams.kafka.rdkafka import transactions
from sluicegate.streams.kafka.rdkafka.connection import connection
from sluicegate.streams.kafka.rdkafka.producer import RdkafkaProducer
from sluicegate.streams.kafka.topic_limits import Limits


def test_the_setting_chooses_the_library() -> None:
    chosen = KafkaSection.model_validate({"library": "rdkafka", "group_protocol": "consumer"}).settings()
    assert isinstance(connect("kafka://127.0.0.1:1", kafka=chosen).producer(), RdkafkaProducer)
    assert chosen.group_protocol == "consumer"
    assert not isinstance(connect("kafka://127.0.0.1:1", kafka=KafkaSection().settings()).producer(), RdkafkaProducer)


def test_a_library_that_is_not_installed_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("sluicegate.streams.kafka.rdkafka")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ConfigurationError, match=r"confluent-kafka.*pip install 'sluicegate\[rdkafka\]'"):
        connect("kafka://127.0.0.1:1", kafka=KafkaSettings(library="rdkafka"))


def test_aiokafka_has_no_new_group_protocol() -> None:
    with pytest.raises(ValidationError, match=r"needs kafka\.library rdkafka"):
        KafkaSection.model_validate({"group_protocol": "consumer"})


@pytest.mark.parametrize(
    ("security", "told"),
    [
        (KafkaSecurity(), {"security.protocol": "PLAINTEXT"}),
        (
            KafkaSecurity(
                protocol="SSL", ca_file=Path("ca"), cert_file=Path("c"), key_file=Path("k"), key_password="p"
            ),
            {
                "security.protocol": "SSL",
                "ssl.ca.location": "ca",
                "ssl.certificate.location": "c",
                "ssl.key.location": "k",
                "ssl.key.password": "p",
            },
        ),
        (
            KafkaSecurity(protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", username="u", password="p"),
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "u",
                "sasl.password": "p",
            },
        ),
        (
            KafkaSecurity(
                protocol="SASL_SSL",
                sasl_mechanism="OAUTHBEARER",
                oauth=KafkaOAuth("https://tokens.example/t", "id", "secret", "scope"),
            ),
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": "https://tokens.example/t",
                "sasl.oauthbearer.client.id": "id",
                "sasl.oauthbearer.client.secret": "secret",
                "sasl.oauthbearer.scope": "scope",
            },
        ),
    ],
)
def test_every_way_of_security_is_passed_to_librdkafka(security: KafkaSecurity, told: dict[str, Any]) -> None:
    found = connection("127.0.0.1:1", KafkaSettings(security=security))
    assert {name: value for name, value in found.items() if name.startswith(("security", "ssl", "sasl"))} == told


async def test_what_a_transaction_was_too_early_with_is_asked_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    made = SimpleNamespace(init_transactions=lambda _: None)
    monkeypatch.setattr(transactions, "Producer", lambda properties: given.append(properties) or made)
    settings = KafkaSettings()
    await transactions.RdkafkaTransactions("here:1", settings, Limits(settings), cast(Any, None), "t").start()
    assert given[0]["retry.backoff.ms"] < 10
