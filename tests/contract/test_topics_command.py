"""`sluice topics` on a broker: created, compared, made so, and what nobody serves deleted."""

import json
import subprocess
import sys
import uuid

import pytest

from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.broker import KafkaBroker
from sluicegate.streams.ports import TopicSpec

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
