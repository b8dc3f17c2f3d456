"""The Kubernetes manifests: what is named is there, triggers are on what the system has, a worker an ordinal."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluicegate.sluice.settings.settings import Settings, load
from sluicegate.stages.telemetry.metric_catalogue import BY_NAME
from sluicegate.streams.topics import Topics

FILE = Path(__file__).parents[3] / "compose" / "kubernetes" / "workers.yaml"


def manifests() -> dict[str, Any]:
    return {document["kind"]: document for document in yaml.safe_load_all(FILE.read_text())}


def references(value: Any) -> set[tuple[str, str]]:
    """(kind, name) of every object that a manifest refers to."""
    kinds = {"configMapRef": "ConfigMap", "secretRef": "Secret", "secretKeyRef": "Secret",
             "serviceName": "Service", "claimName": "PersistentVolumeClaim"}  # fmt: skip
    found: set[tuple[str, str]] = set()
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in kinds:
                found.add((kinds[key], inner if isinstance(inner, str) else inner["name"]))
            elif key == "scaleTargetRef":
                found.add((inner["kind"], inner["name"]))
            else:
                found |= references(inner)
    elif isinstance(value, list):
        found = set().union(*map(references, value))
    return found


def settings_of(monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in manifests()["ConfigMap"]["data"].items():
        assert isinstance(value, str), name
        monkeypatch.setenv(name, value)
    return load(None)


def test_whatever_a_manifest_names_is_in_the_file() -> None:
    found = manifests()
    there = {(kind, manifest["metadata"]["name"]) for kind, manifest in found.items()}
    named = references(list(found.values()))
    assert {kind for kind, _ in named} == {"ConfigMap", "Service", "StatefulSet"}
    assert named <= there


def test_the_service_selects_the_workers_pods_and_has_no_address() -> None:
    found = manifests()
    service, template = found["Service"]["spec"], found["StatefulSet"]["spec"]["template"]
    assert service["clusterIP"] == "None"
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    assert found["StatefulSet"]["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]


def test_the_settings_are_ours_and_have_a_device_for_every_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(monkeypatch)
    kafka, _ = (t["metadata"] for t in manifests()["ScaledObject"]["spec"]["triggers"])
    most = manifests()["ScaledObject"]["spec"]["maxReplicaCount"]
    assert [device.name for device in settings.devices] == [f"cpu{i}" for i in range(most)]
    assert settings.broker == f"kafka://{kafka['bootstrapServers']}"
    assert kafka["topic"] in {Topics(settings.prefix).admitted(app) for app in settings.apps}


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
