"""How long topics are kept, by class: a day at most unless it is said, and as it is said."""

from pathlib import Path

import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.sluice.settings.settings import Settings, load
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.topics import Topics


def kept(settings: Settings) -> dict[str, float | None]:
    specs = Topics().specs(["a"], ["d"], policies=settings.topics.policies())
    return {spec.name: spec.retention_s for spec in specs if not spec.compacted}


def test_nothing_is_kept_for_longer_than_a_day_unless_it_is_said() -> None:
    assert set(kept(Settings()).values()) == {86_400.0, 3_600.0}


def test_each_class_of_topics_is_kept_as_it_is_told(tmp_path: Path) -> None:
    classes = ("queries", "admitted", "work", "results", "dead_letters", "metrics")
    file = tmp_path / "settings.yaml"
    told = "".join(f"  {name}: {{retention_s: {60 + number}}}\n" for number, name in enumerate(classes[:-1]))
    file.write_text(f"topics:\n{told}  metrics: {{retention_s: null}}\n")
    topics = Topics()
    assert kept(load(file)) == {
        topics.queries("a"): 60.0,
        topics.admitted("a"): 61.0,
        topics.work("d"): 62.0,
        topics.results("a"): 63.0,
        topics.dead_letters: 64.0,
        topics.demand: None,
        topics.devices_metrics: None,
        topics.turns: None,
        topics.routers: None,
    }


@pytest.mark.parametrize("value", ["59", "-1", ".inf", "soon"])
def test_what_would_lose_queries_or_means_nothing_is_refused(tmp_path: Path, value: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"topics:\n  work: {{retention_s: {value}}}\n")
    with pytest.raises(ConfigurationError, match=r"topics\.work\.retention_s"):
        load(file)


def test_more_copies_in_sync_than_there_are_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("kafka:\n  replication: 2\n  min_insync_replicas: 3\n")
    with pytest.raises(ConfigurationError, match="min_insync_replicas"):
        load(file)
    file.write_text("kafka:\n  replication: 3\n  min_insync_replicas: 2\n")
    told = load(file).kafka.settings()
    assert (told.replication, told.min_insync_replicas) == (3, 2)


async def test_the_embedded_broker_lets_go_of_what_is_older() -> None:
    now = [5_000.0]
    broker = MemoryBroker(clock=lambda: now[0])
    topics = Topics()
    await broker.admin().create_topics(topics.specs(["a"], ["d"]))
    producer = broker.producer()
    await producer.start()
    for _ in range(16):
        await producer.send(topics.queries("a"), b"x", key=b"k")
    now[0] += 86_401.0
    await producer.send(topics.queries("a"), b"y", key=b"k")
    consumer = broker.consumer(partitions=[TopicPartition(topics.queries("a"), 0)], start_at="beginning")
    await consumer.start()
    assert [record.value for record in await consumer.get_many(wait=0.0)] == [b"y"]
    await broker.close()
