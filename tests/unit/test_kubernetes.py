"""The Kubernetes manifests: triggers on names that the system really has, a worker for each ordinal."""

import re
from pathlib import Path
from typing import Any

import yaml

from stages.metric_catalogue import BY_NAME
from streams.topics import Topics

FILE = Path(__file__).parents[2] / "compose" / "kubernetes" / "workers.yaml"


def manifests() -> dict[str, Any]:
    return {document["kind"]: document for document in yaml.safe_load_all(FILE.read_text())}


def test_triggers_watch_topics_groups_and_metrics_that_exist() -> None:
    kafka, prometheus = (t["metadata"] for t in manifests()["ScaledObject"]["spec"]["triggers"])
    topics = Topics()
    assert kafka["topic"] == topics.admitted("digits") and kafka["consumerGroup"] == topics.router_group("digits")
    named = re.findall(r"sluice_\w+", prometheus["query"])
    assert named and all(BY_NAME[name].exported == name for name in named)


def test_the_scaled_object_scales_the_workers_and_each_pod_has_a_device_of_its_own() -> None:
    found = manifests()
    target = found["ScaledObject"]["spec"]["scaleTargetRef"]
    workers = found["StatefulSet"]
    assert (target["kind"], target["name"]) == (workers["kind"], workers["metadata"]["name"])
    container = workers["spec"]["template"]["spec"]["containers"][0]
    assert "${HOSTNAME##*-}" in container["command"][-1]
