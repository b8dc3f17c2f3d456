"""`sluice topics` on a broker: created, compared, made so, and what nobody serves deleted."""

import asyncio
import json
import subprocess
import sys
import uuid
from dataclasses import replace

import pytest

from sluicegate.domain.models.app import Promise
from sluicegate.domain.plan import Epoch, Plan
from sluicegate.sluice.registration.registry_topic import publish_catalogue
from sluicegate.stages.runtime.outbox import Outbox
from sluicegate.streams import connect
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.broker import KafkaBroker
from sluicegate.streams.ports import TopicSpec
from sluicegate.streams.records import control
from sluicegate.streams.topics import Topics
from tests.harness import PATIENCE_S, toy_catalogue

pytestmark = pytest.mark.kafka


def topics(url: str, prefix: str, *arguments: str, rc: int = 0) -> dict[str, list[dict[str, str]]]:
    command = [sys.executable, "-m", "sluicegate.sluice.main", "topics", "--broker", url, "--prefix", prefix, "--json"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == rc, done.stderr
    found: dict[str, list[dict[str, str]]] = json.loads(done.stdout)
    return found


async def test_topics_are_created_checked_configured_and_pruned(kafka_url: str) -> None:
    prefix = f"t{uuid.uuid4().hex[:8]}"
    named = ("--app", "kept", "--device", "d0")
    missing = topics(kafka_url, prefix, *named, "--check", rc=1)["differences"]
    assert {one["what"] for one in missing} == {"topic"} and len(missing) > 10
    assert topics(kafka_url, prefix, *named, "--create")["differences"] == []
    assert topics(kafka_url, prefix, *named, "--check")["differences"] == []

    broker = KafkaBroker(kafka_url.removeprefix("kafka://"), KafkaSettings())
    admin = broker.admin()
    results = f"{prefix}.app.kept.results"
    await admin.configure(results, {"retention.ms": "1000", "flush.ms": "12345"})
    (wrong,) = topics(kafka_url, prefix, *named, "--check", rc=1)["differences"]
    assert (wrong["topic"], wrong["what"], wrong["has"], wrong["wants"]) == (
        results,
        "retention.ms",
        "1000",
        "86400000",
    )
    assert topics(kafka_url, prefix, *named, "--apply")["differences"] == []
    configs = (await admin.states([results]))[results].configs
    assert configs["flush.ms"] == "12345"  # what an operator set besides is not ours to take away
    assert configs["message.timestamp.type"] == "LogAppendTime"

    gone, foreign = f"{prefix}.app.gone.queries", f"{prefix}.demand-table-changelog"
    await admin.create_topics([TopicSpec(name=n) for n in (gone, f"{prefix}.device.d9.work", foreign)])
    unserved = [gone, f"{prefix}.device.d9.work"]
    assert topics(kafka_url, prefix, *named, "--prune")["unserved"] == unserved
    assert set(unserved) <= await admin.topics()
    assert topics(kafka_url, prefix, *named, "--prune", "--yes")["unserved"] == []
    left = await admin.topics()
    assert not set(unserved) & left and {results, foreign} <= left
    await broker.close()


async def test_an_app_with_a_promise_of_its_own_has_as_many_partitions_as_the_planner_gives_it(kafka_url: str) -> None:
    prefix = f"t{uuid.uuid4().hex[:8]}"
    broker = KafkaBroker(kafka_url.removeprefix("kafka://"), KafkaSettings())
    names = Topics(prefix)
    whole = toy_catalogue(("plain", "kept"))
    apps = [
        replace(app, promise=Promise(max_consecutive=3 * (app.name == "kept") or None)) for app in whole.apps.values()
    ]
    catalogue = replace(whole, apps={app.name: app for app in apps})
    await broker.admin().create_topics(names.specs(["plain", "kept"], ["d0"], partitions={"plain": 2}))
    producer = broker.producer()
    await producer.start()
    await publish_catalogue(broker, producer, names, catalogue)
    await producer.stop()
    await broker.close()
    assert topics(kafka_url, prefix, "--device", "d0", "--check")["differences"] == []


async def test_no_topic_is_pruned_of_a_device_that_is_set_or_planned(
    kafka_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings of whoever prunes may be others than the planner's, and naming a device takes none off."""
    prefix = f"t{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("SLUICE_DEVICES", '[{"name": "set0"}, {"name": "set1"}]')
    broker = KafkaBroker(kafka_url.removeprefix("kafka://"), KafkaSettings())
    names = Topics(prefix)
    await broker.admin().create_topics(names.specs(["kept"], ["set0", "set1", "old0", "run0", "asked"]))
    producer = broker.producer()
    await producer.start()
    for plan in (
        Plan(epoch=Epoch(2, 7), created=1.0, incarnations={"set0": "a", "run0": "b"}),
        Plan(epoch=Epoch(1, 9), created=2.0, incarnations={"old0": "a"}),
    ):
        await (await producer.send(names.plan, control.encode_plan(plan), key=b"plan"))
    await producer.stop()
    found = topics(kafka_url, prefix, "--app", "kept", "--device", "asked", "--prune")
    assert found["unserved"] == [names.work("old0")]
    await broker.close()


async def test_what_was_for_a_pruned_topic_holds_up_nothing(kafka_url: str, library: str) -> None:
    """A stage had read queries of an app whose topics are deleted, and goes on serving others."""
    broker = connect(kafka_url, kafka=KafkaSettings(library=library, answer_timeout=1.0, request_timeout=2.0))
    gone, kept = (f"t{uuid.uuid4().hex[:8]}" for _ in range(2))
    await broker.admin().create_topics([TopicSpec(name=name) for name in (gone, kept)])
    producer = broker.producer()
    await producer.start()
    outbox = Outbox(producer)
    await outbox.start()
    for name in (gone, kept):
        outbox.post(name, b"before")
    await outbox.flush()
    pruner = KafkaBroker(kafka_url.removeprefix("kafka://"), KafkaSettings())
    await pruner.admin().delete([gone])
    outbox.post(gone, b"after")
    for i in range(10):
        acknowledged = asyncio.Event()
        outbox.post(kept, str(i).encode(), done=acknowledged.set)
        async with asyncio.timeout(PATIENCE_S):
            await acknowledged.wait()
    assert outbox.unacknowledged == 1
    await outbox.stop(within=0.1)
    await producer.stop()
    await broker.close()
    await pruner.close()
