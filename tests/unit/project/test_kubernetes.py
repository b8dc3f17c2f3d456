"""The Kubernetes manifests: what is named is there, triggers are on what the system has, a worker an ordinal."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluicegate.profiles.demo.build_models import DEFAULT
from sluicegate.sluice.settings.settings import Settings, load
from sluicegate.stages.telemetry.metric_catalogue import BY_NAME
from sluicegate.streams.topics import Topics

FILE = Path(__file__).parents[3] / "compose" / "kubernetes" / "workers.yaml"


def manifests() -> dict[str, Any]:
    return {document["kind"]: document for document in yaml.safe_load_all(FILE.read_text())}


def references(value: Any) -> set[tuple[str, str]]:
    """(kind, name) of every object that a manifest refers to."""
    kinds = {"configMapRef": "ConfigMap", "secretRef": "Secret", "secretKeyRef": "Secret",
             "secretName": "Secret", "serviceName": "Service", "claimName": "PersistentVolumeClaim"}  # fmt: skip
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


def triggers() -> dict[str, dict[str, str]]:
    """Metadata of each, by type."""
    return {trigger["type"]: trigger["metadata"] for trigger in manifests()["ScaledObject"]["spec"]["triggers"]}


def settings_of(monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in manifests()["ConfigMap"]["data"].items():
        assert isinstance(value, str), name
        monkeypatch.setenv(name, value)
    return load(None)


def test_whatever_a_manifest_names_is_in_the_file() -> None:
    found = manifests()
    there = {(kind, manifest["metadata"]["name"]) for kind, manifest in found.items()}
    named = references(list(found.values()))
    assert {kind for kind, _ in named} == {"ConfigMap", "PersistentVolumeClaim", "Secret", "Service", "StatefulSet"}
    # A secret is made by a command that the file begins with, never written down.
    made = {
        ("Secret", name)
        for name in re.findall(r"create secret generic (\S+) --from-file=\S+/token\n", FILE.read_text())
    }
    assert made and named <= there | made


def test_the_service_selects_the_workers_pods_and_has_no_address() -> None:
    found = manifests()
    service, template = found["Service"]["spec"], found["StatefulSet"]["spec"]["template"]
    assert service["clusterIP"] == "None"
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    assert found["StatefulSet"]["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]


def test_the_settings_are_ours_and_have_a_device_for_every_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(monkeypatch)
    kafka = triggers()["kafka"]
    most = manifests()["ScaledObject"]["spec"]["maxReplicaCount"]
    assert [device.name for device in settings.devices] == [f"cpu{i}" for i in range(most)]
    assert settings.broker == f"kafka://{kafka['bootstrapServers']}"
    assert not settings.apps, "what is registered later would not be served"
    assert kafka["topic"] in {Topics(settings.prefix).admitted(app) for app in DEFAULT}


def test_triggers_watch_topics_groups_and_metrics_that_exist() -> None:
    kafka, prometheus = triggers()["kafka"], triggers()["prometheus"]
    topics = Topics()
    assert kafka["topic"] == topics.admitted("digits") and kafka["consumerGroup"] == topics.router_group("digits")
    named = re.findall(r"sluice_\w+", prometheus["query"])
    assert named and all(BY_NAME[name].exported == name for name in named)


def test_no_trigger_counts_what_a_worker_more_takes_away_nor_stops_at_the_topics_partitions() -> None:
    """The target of a trigger is an average over the pods: the whole, divided by it, is how many there shall be."""
    named = re.findall(r"sluice_\w+", triggers()["prometheus"]["query"])
    assert named == ["sluice_plan_demand_rows"], "the workers that there are already must not lessen it"
    assert triggers()["kafka"]["allowIdleConsumers"] == "true", "else topics of two partitions have two workers"


def test_the_scaled_object_scales_the_workers_and_each_pod_has_a_device_of_its_own() -> None:
    found = manifests()
    target = found["ScaledObject"]["spec"]["scaleTargetRef"]
    workers = found["StatefulSet"]
    assert (target["kind"], target["name"]) == (workers["kind"], workers["metadata"]["name"])
    container = workers["spec"]["template"]["spec"]["containers"][0]
    assert "${HOSTNAME##*-}" in container["command"][-1]


def test_a_pod_that_hangs_is_started_again_and_one_that_starts_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(monkeypatch)
    container = manifests()["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    starting, alive = container["startupProbe"], container["livenessProbe"]
    for probe in (starting, alive):
        assert probe["httpGet"]["path"] == "/healthz"
        assert ports[probe["httpGet"]["port"]] == settings.metrics.port
    assert (
        starting["periodSeconds"] * starting["failureThreshold"]
        >= 300
        > alive["periodSeconds"] * alive["failureThreshold"]
    )


def test_a_pod_runs_as_the_images_user_and_can_write_where_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(monkeypatch)
    pod = manifests()["StatefulSet"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    user = int(re.findall(r"^USER (\d+)$", (FILE.parents[1] / "Dockerfile").read_text(), re.M)[-1])
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == user
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    kinds = {volume["name"]: volume for volume in pod["volumes"]}
    assert set(mounts) == set(kinds)
    assert settings.home == mounts["home"] and "persistentVolumeClaim" in kinds["home"]
    assert settings.runs.is_relative_to(mounts["home"])
    assert settings.metrics.token_file is not None and settings.metrics.token_file.parent == mounts["token"]
