"""Topics and access rules as Strimzi's resources, for Apache Kafka on Kubernetes."""

import re
from collections.abc import Iterable, Mapping
from hashlib import blake2s
from typing import Any

from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.describe.acls import Rule
from sluicegate.streams.kafka.topic_configs import configs
from sluicegate.streams.ports import TopicSpec

_API = "kafka.strimzi.io/v1beta2"
_KINDS = {"topic": "topic", "group": "group", "cluster": "cluster", "transactional-id": "transactionalId"}


def kafka_topics(specs: Iterable[TopicSpec], settings: KafkaSettings, cluster: str) -> list[dict[str, Any]]:
    """A ``KafkaTopic`` each. ``cluster``: the name of the ``Kafka`` resource they belong to."""
    return [_topic(spec, settings, cluster) for spec in specs]


def kafka_users(rules: Iterable[Rule], user: str, cluster: str) -> list[dict[str, Any]]:
    """A ``KafkaUser`` for each role, ``<user>-<role>``, authenticated by SCRAM."""
    by_role: dict[str, list[dict[str, Any]]] = {}
    for rule in rules:
        by_role.setdefault(rule.role, []).append({"resource": _resource(rule), "operations": list(rule.operations)})
    return [
        {
            "apiVersion": _API,
            "kind": "KafkaUser",
            "metadata": _metadata(f"{user}-{role}", cluster),
            "spec": {
                "authentication": {"type": "scram-sha-512"},
                "authorization": {"type": "simple", "acls": allowed},
            },
        }
        for role, allowed in by_role.items()
    ]


def _topic(spec: TopicSpec, settings: KafkaSettings, cluster: str) -> dict[str, Any]:
    copies = spec.replication or settings.replication
    return {
        "apiVersion": _API,
        "kind": "KafkaTopic",
        "metadata": _metadata(spec.name, cluster),
        "spec": {
            "topicName": spec.name,
            "partitions": spec.partitions,
            **({} if copies is None else {"replicas": copies}),
            "config": configs(spec, settings),
        },
    }


def _resource(rule: Rule) -> Mapping[str, str]:
    kind = {"type": _KINDS[rule.resource]}
    if rule.resource == "cluster":
        return kind
    return {**kind, "name": rule.name, "patternType": "prefix" if rule.prefixed else "literal"}


def _metadata(name: str, cluster: str) -> dict[str, Any]:
    return {"name": _resource_name(name), "labels": {"strimzi.io/cluster": cluster}}


def _resource_name(name: str) -> str:
    """What Kubernetes takes as a name; where that is not ``name`` itself, two never become one."""
    plain = re.sub(r"[^a-z0-9.-]", "-", name.lower()).strip("-.")
    return plain if plain == name else f"{plain}-{blake2s(name.encode(), digest_size=4).hexdigest()}"
