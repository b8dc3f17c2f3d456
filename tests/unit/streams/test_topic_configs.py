"""What topics are configured as, how far those that exist are from it, and the same for Strimzi."""

import pytest

from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.describe.acls import rules
from sluicegate.streams.describe.strimzi import kafka_topics, kafka_users
from sluicegate.streams.kafka.topic_configs import Difference, configs, differences
from sluicegate.streams.ports import TopicSpec, TopicState
from sluicegate.streams.topics import TopicPolicies, TopicPolicy, Topics

SETTINGS = KafkaSettings(replication=3, min_insync_replicas=2)
POLICIES = TopicPolicies(
    queries=TopicPolicy(retention_s=7200.0, replication=1, min_insync_replicas=1, max_bytes=3 << 20),
    results=TopicPolicy(retention_s=None, segment_s=90.0, compression="zstd"),
    metrics=TopicPolicy(retention_s=240.0),
    control=TopicPolicy(compaction_lag_s=1.5),
)


def specs() -> dict[str, TopicSpec]:
    made = Topics("s").specs(["a"], ["d"], partitions=3, policies=POLICIES)
    return {spec.name.removeprefix("s."): spec for spec in made}


def test_each_class_is_configured_as_it_is_told() -> None:
    found = {name: configs(spec, SETTINGS) for name, spec in specs().items()}
    assert found["app.a.queries"] == {
        "cleanup.policy": "delete",
        "message.timestamp.type": "CreateTime",
        "retention.ms": "7200000",
        "segment.ms": "900000",
        "min.insync.replicas": "1",
        "max.message.bytes": str(3 << 20),
    }
    assert found["app.a.results"] == {
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
        "retention.ms": "-1",
        "segment.ms": "90000",
        "min.insync.replicas": "2",
        "compression.type": "zstd",
    }
    assert found["metrics.devices"]["segment.ms"] == "60000"  # no shorter than a minute
    assert found["control.plan"] == {
        "cleanup.policy": "compact",
        "message.timestamp.type": "CreateTime",
        "min.compaction.lag.ms": "1500",
        "min.insync.replicas": "2",
    }
    assert found["control.status"]["message.timestamp.type"] == "LogAppendTime"


def test_a_topic_takes_whole_batches_of_small_records() -> None:
    small = TopicSpec(name="t", max_message_bytes=1000)
    assert int(configs(small, SETTINGS)["max.message.bytes"]) > SETTINGS.batch_bytes > 1000


def as_it_should_be(spec: TopicSpec) -> TopicState:
    return TopicState(spec.partitions, spec.replication or 3, {**configs(spec, SETTINGS), "flush.ms": "9"})


def test_what_is_as_it_should_be_differs_in_nothing_and_what_is_missing_is_named() -> None:
    wanted = list(specs().values())
    states = {spec.name: as_it_should_be(spec) for spec in wanted}
    assert differences(wanted, states, SETTINGS) == ()
    del states["s.app.a.admitted"]
    assert differences(wanted, states, SETTINGS) == (Difference("s.app.a.admitted", "topic", None, "3 partitions"),)


@pytest.mark.parametrize(
    ("change", "what", "has", "wants", "by_hand"),
    [
        ({"partitions": 2}, "partitions", "2", "3", "stop the stages"),
        ({"partitions": 5}, "partitions", "5", "3", "cannot lose"),
        ({"replication": 2}, "replication", "2", "1", "kafka-reassign-partitions"),
        ({"configs": {"retention.ms": "1000"}}, "retention.ms", "1000", "7200000", ""),
    ],
)
def test_what_is_otherwise_is_told_with_what_only_a_person_may_do(
    change: dict[str, object], what: str, has: str, wants: str, by_hand: str
) -> None:
    spec = specs()["app.a.queries"]
    right = as_it_should_be(spec)
    told = {"partitions": right.partitions, "replication": right.replication, "configs": right.configs, **change}
    (found,) = differences([spec], {spec.name: TopicState(**told)}, SETTINGS)  # type: ignore[arg-type]
    assert (found.topic, found.what, found.has, found.wants) == ("s.app.a.queries", what, has, wants)
    assert bool(found.remedy) is bool(by_hand) and by_hand in found.remedy


def test_what_may_not_be_asked_is_not_judged() -> None:
    spec = specs()["app.a.queries"]
    assert differences([spec], {spec.name: TopicState(3, 1, {})}, SETTINGS) == ()


def test_strimzi_gets_the_same_topics_and_rules() -> None:
    made = {one["spec"]["topicName"]: one for one in kafka_topics(specs().values(), SETTINGS, "main")}
    queries = made["s.app.a.queries"]
    assert (queries["kind"], queries["metadata"]["labels"]) == ("KafkaTopic", {"strimzi.io/cluster": "main"})
    assert queries["spec"]["replicas"] == 1 and made["s.app.a.results"]["spec"]["replicas"] == 3
    assert queries["spec"]["config"] == configs(specs()["app.a.queries"], SETTINGS)
    users = {one["metadata"]["name"]: one for one in kafka_users(rules(Topics("s"), ["a"]), "team", "main")}
    router = users["team-router"]["spec"]["authorization"]["acls"]
    work = {"type": "topic", "name": "s.device.", "patternType": "prefix"}
    plan = {"type": "topic", "name": "s.control.plan", "patternType": "literal"}
    assert {"resource": work, "operations": ["Write"]} in router
    assert {"resource": plan, "operations": ["Read"]} in router
    assert {"resource": {"type": "cluster"}, "operations": ["DescribeConfigs"]} in (
        users["team-operator"]["spec"]["authorization"]["acls"]
    )


def test_names_that_kubernetes_does_not_take_stay_apart() -> None:
    named = [
        one["metadata"]["name"]
        for one in kafka_topics([TopicSpec(name=n) for n in ("a_b", "a-b", "A-b")], SETTINGS, "c")
    ]
    assert len(set(named)) == 3 and named[1] == "a-b"
    assert all(name == name.lower() and "_" not in name for name in named)
