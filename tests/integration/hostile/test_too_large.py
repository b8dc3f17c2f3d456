"""What is too large for the topic it must go to ends its own query, in both deliveries; the partition goes on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluicegate.domain.models.tensor import Tensor, TensorSpec
from sluicegate.domain.outcome import OutcomeKind, Reason
from sluicegate.sluice.audit.topic_audit import AuditReport
from sluicegate.streams import connect
from sluicegate.streams.kafka.broker import KafkaBroker
from sluicegate.streams.ports import TopicSpec
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics
from tests.harness import Running, running, settings_for, toy_catalogue

pytestmark = pytest.mark.virtual

WIDE = 20_000
LIMIT = 330_000  # bytes of a record: of one row of WIDE numbers, and not of eight
KAFKA = pytest.mark.kafka
ALSO_KAFKA = [pytest.mark.kafka, pytest.mark.thorough]
WAYS = [
    pytest.param("memory", "at_least_once", True, id="memory"),
    pytest.param("kafka", "at_least_once", True, id="kafka", marks=ALSO_KAFKA),
    pytest.param("kafka", "at_least_once", False, id="kafka-unexpected", marks=KAFKA),
    pytest.param("kafka", "exactly_once", True, id="exactly-once", marks=KAFKA),
    pytest.param("kafka", "exactly_once", False, id="exactly-once-unexpected", marks=ALSO_KAFKA),
]
"""Broker, delivery, and whether the limit is known before the broker says it."""


@asynccontextmanager
async def limited(
    request: pytest.FixtureRequest, folder: Path, broker: str, delivery: str, known: bool, topic: str, **wide: Any
) -> AsyncIterator[Running]:
    """A system whose ``topic`` takes ``LIMIT`` bytes a record."""
    url = "memory://" if broker == "memory" else str(request.getfixturevalue("kafka_url"))
    chained = topic != "admitted"  # a topic that is not used limits nothing
    patient = {"device_timeout_s": 60.0, "lease_s": 60.0}  # nobody dies here, on however busy a machine
    settings = settings_for(url, folder, partitions=1, devices=1, delivery=delivery, chained=chained, planner=patient)
    catalogue = toy_catalogue(slo=10.0)
    catalogue = replace(catalogue, apps={"toy": replace(catalogue.apps["toy"], **wide)})
    connected = connect(url)
    topics = Topics(settings.prefix)
    name = topics.work("d0") if topic == "work" else getattr(topics, topic)("toy")
    await connected.admin().create_topics([TopicSpec(name=name, max_message_bytes=LIMIT)])
    async with running(settings, connected, catalogue=catalogue) as run:
        if not known:
            assert isinstance(connected, KafkaBroker)
            connected._limits.learn({name: 16 << 20})
        await run.planned()
        yield run


async def ask(run: Running, name: str, rows: int, columns: int) -> None:
    tensor = Tensor("image", "FP32", (rows, columns), bytes(4 * rows * columns))
    message = codec.encode_query(name, (tensor,), app="toy", now=run.system.clock.wall())
    await run.send("toy", message.value, key=message.key, headers=message.headers)


async def asked(run: Running, columns: int) -> AuditReport:
    """Ones of one row between, before and behind two of eight rows."""
    for name, rows in (("a", 1), ("b", 8), ("c", 1), ("d", 8), ("e", 1)):
        await ask(run, name, rows, columns)
    return await run.settled()


def check(report: AuditReport, outcomes: dict[str, Any], kind: OutcomeKind, reason: Reason) -> None:
    assert (report.lost, report.duplicates, report.unknown, report.dead_letters) == (0, 0, 0, 0)
    assert {name: outcomes[name].kind for name in "ace"} == dict.fromkeys("ace", OutcomeKind.ANSWERED)
    assert [(outcomes[name].kind, outcomes[name].reason) for name in "bd"] == [(kind, reason)] * 2


@pytest.mark.parametrize(("broker", "delivery", "known"), WAYS)
async def test_a_result_larger_than_its_topic_allows_fails_alone(
    request: pytest.FixtureRequest, tmp_path: Path, broker: str, delivery: str, known: bool
) -> None:
    outputs = (TensorSpec("scores", "FP32", (WIDE,)), TensorSpec("label", "INT64", ()))
    async with limited(request, tmp_path, broker, delivery, known, "results", outputs=outputs) as run:
        report = await asked(run, 4)
        outcomes = await run.outcomes()
    check(report, outcomes, OutcomeKind.FAILED, Reason.RESULT_TOO_LARGE)
    counted = run.system.telemetry.meters.values("sluice_outcomes")
    failed = ("toy", "worker d0", "failed", Reason.RESULT_TOO_LARGE)
    assert counted[failed] == 2 and sum(counted.values()) == 5
    assert (outcomes["b"].variant or "").startswith("toy-v")
    assert "objects.results" in (outcomes["b"].detail or "")
    if known:
        assert str(LIMIT) in (outcomes["b"].detail or "")


@pytest.mark.parametrize(("broker", "delivery", "known"), WAYS)
@pytest.mark.parametrize(
    ("topic", "kind"), [("admitted", OutcomeKind.REJECTED), ("work", OutcomeKind.FAILED)], ids=["admitted", "work"]
)
async def test_a_query_larger_than_a_hop_allows_ends_there(
    request: pytest.FixtureRequest, tmp_path: Path, broker: str, delivery: str, known: bool, topic: str, kind: Any
) -> None:
    inputs = (TensorSpec("image", "FP32", (WIDE,)),)
    async with limited(request, tmp_path, broker, delivery, known, topic, inputs=inputs) as run:
        report = await asked(run, WIDE)
        outcomes = await run.outcomes()
    check(report, outcomes, kind, Reason.TOO_LARGE)
