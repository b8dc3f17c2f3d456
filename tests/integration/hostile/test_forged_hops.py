"""Hop records of apps that are not served, or of what admission lets nobody write, are dead letters, and nobody's query
waits for them."""

from pathlib import Path
from typing import Any

import pytest

from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import OutcomeKind
from sluicegate.domain.plan import Epoch
from sluicegate.domain.query import Query
from sluicegate.streams import connect
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.records import codec
from tests.harness import PATIENCE_S, PIXELS, Running, running, settings_for

pytestmark = pytest.mark.virtual

LATE = "later"
"""An app whose topics are there already, and of which no process of the system has heard yet."""
WAYS = [
    pytest.param("memory://", "at_least_once", id="memory"),
    pytest.param("kafka", "at_least_once", id="kafka", marks=pytest.mark.kafka),
    pytest.param("kafka", "exactly_once", id="exactly-once", marks=pytest.mark.kafka),
]


async def forge(run: Running, topic: str, query_id: str, app: str, *, within: float, **changes: Any) -> None:
    """A hop record as stages write them, of a query of ``app`` with so many seconds left and these ``changes``."""
    now = run.system.clock.wall()
    query = Query(query_id, app, now - 0.5, now + within, **changes)
    message = codec.QueryMessage(query, (Tensor("image", "FP32", (1, PIXELS), bytes(4 * PIXELS)),))
    if topic.endswith(".work"):
        hop = codec.encode_work(message, epoch=Epoch(1, 1), slice="whole")
    else:
        hop = codec.encode_admitted(message)
    await (await run.producer.send(topic, hop.value, key=hop.key, headers=hop.headers))


@pytest.mark.parametrize(("broker", "delivery"), WAYS)
async def test_a_hop_of_an_app_that_is_not_served_ends_as_a_dead_letter_and_holds_up_nobody(
    request: pytest.FixtureRequest, tmp_path: Path, broker: str, delivery: str
) -> None:
    url = str(request.getfixturevalue("kafka_url")) if broker == "kafka" else broker
    patient = {"device_timeout_s": 60.0, "lease_s": 60.0}  # nobody dies here, on however busy a machine
    settings = settings_for(url, tmp_path, partitions=1, devices=1, delivery=delivery, planner=patient)
    connected = connect(url)
    async with running(settings, connected, close=False) as run:
        await run.planned()
        topics = run.topics
        await connected.admin().create_topics(topics.specs([LATE], []))
        work, admitted = topics.work("d0"), topics.admitted("toy")
        for topic in (work, admitted):
            for app in ("nobody", "no/body"):
                for within in (-0.25, PATIENCE_S):
                    await forge(run, topic, f"{app} {within}", app, within=within)
        await forge(run, work, "past", LATE, within=-0.25)
        await forge(run, work, "ahead", LATE, within=PATIENCE_S)
        asked = {await run.ask() for _ in range(5)}
        report = await run.settled()
        outcomes = await run.outcomes()
        assert {outcomes[one].kind for one in asked} == {OutcomeKind.ANSWERED}
        assert (report.lost, report.duplicates) == (0, 0)
        buried = [dict(letter.headers) for letter in await run.dead_letters()]
        assert sorted((one["__dlq.errors.topic"].decode(), one["__dlq.errors.field"]) for one in buried) == sorted(
            (topic, b"app") for topic in (work, admitted) for _ in range(4)
        )
        assert outcomes["past"].kind is OutcomeKind.EXPIRED and outcomes["past"].app == LATE
        (back,) = await run._control(topics.admitted(LATE))
        assert codec.decode_admitted(back).query.id == "ahead"
        group = topics.worker_group("d0")
    consumer = connected.consumer(partitions=[TopicPartition(work, 0)], group=group, start_at="committed")
    await consumer.start()
    assert not await consumer.get_many(wait=0.5), "all of it is behind the worker"
    await consumer.stop()
    await connected.close()


async def test_a_hop_of_what_admission_lets_nobody_write_is_a_dead_letter(tmp_path: Path) -> None:
    connected = connect("memory://")
    async with running(settings_for("memory://", tmp_path, partitions=1, devices=1), connected) as run:
        await run.planned()
        asked = []
        for topic in (run.topics.work("d0"), run.topics.admitted("toy")):
            for name, changes in (
                ("a row more", {"rows": 2}),
                ("more rows than can be counted", {"rows": 2**60}),
                ("x" * 257, {}),
                ("of whom", {"source": "/" + "s" * 256}),
                ("in which stream", {"stream": "s" * 257}),
            ):
                asked.append(await run.ask())
                await forge(run, topic, name, "toy", within=PATIENCE_S, **changes)
                asked.append(await run.ask())
                await forge(run, topic, "as long as may be", "toy", within=PATIENCE_S, stream="s" * 256, source="/me")
        report = await run.settled()
        outcomes = await run.outcomes()
        assert {outcomes[one].kind for one in asked} == {OutcomeKind.ANSWERED}
        assert (report.lost, outcomes["as long as may be"].kind) == (0, OutcomeKind.ANSWERED)
        fields = [dict(letter.headers)["__dlq.errors.field"] for letter in await run.dead_letters()]
        assert fields == [b"sluice"] * 10
