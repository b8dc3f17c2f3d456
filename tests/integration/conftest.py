"""Brokers that whole systems are tested on."""

import pytest

from tests.harness import BROKERS


@pytest.fixture(params=BROKERS)
def broker_url(request: pytest.FixtureRequest) -> str:
    """The embedded broker's, and Apache Kafka's in ``make test-all``."""
    return "memory://" if request.param == "memory" else str(request.getfixturevalue("kafka_url"))
