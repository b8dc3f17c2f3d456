"""What fields of settings, scenarios and problems may say each, and not together; names twice; names nobody knows."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.refusals.test_bounds import classes, faults

_VARIANT = {"name": "v", "app": "a", "accuracy": 1}
DISTINCT = [
    ("Settings", "apps", ["a", "b"]),
    ("Settings", "devices", [{"name": "d0"}, {"name": "d1"}]),
    ("LoadFields", "spare", ["d0", "d1"]),
    ("PlannerChoice", "spare", ["d0", "d1"]),
    ("SimulationSpec", "shared", ["cpu", "gpu"]),
    ("DeviceSpec", "slices", [{"name": "s"}, {"name": "t"}]),
    (
        "CatalogueSpec",
        "variants",
        [{**_VARIANT, "name": name, "app": app, "latency_ms": {}} for name, app in (("v", "a"), ("w", "b"))],
    ),
]


@pytest.mark.parametrize(("name", "field", "values"), DISTINCT)
def test_names_that_are_given_twice_are_refused(name: str, field: str, values: list[Any]) -> None:
    kind = classes()[name]
    assert faults(kind, field, values) == []
    assert any("given twice" in fault for fault in faults(kind, field, [*values, values[0]]))


CLASHES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    (
        "AppSpec",
        {"queries": [{"share": 0.4}, {"share": 0.6}]},
        {"queries": [{"share": 0.5}, {"share": 0.51}]},
        "queries",
    ),
    ("CatalogueSpec", {"format": "sluice", "path": "c"}, {"format": "sluice"}, "needs a path"),
    ("CatalogueSpec", {"variants": [{**_VARIANT, "latency_ms": {}}]}, {}, "lists"),
    (
        "CatalogueSpec",
        {"variants": [{**_VARIANT, "latency_ms": {}}]},
        {"variants": [{**_VARIANT, "latency_ms": {}}], "path": "c"},
        "path: an inline catalogue",
    ),
    (
        "CatalogueSpec",
        {"format": "sluice", "path": "c"},
        {"format": "sluice", "path": "c", "variants": [{**_VARIANT, "latency_ms": {}}]},
        "variants: format sluice reads them",
    ),
    (
        "DeviceSpec",
        {"geometry": "4g", "type": "g"},
        {"geometry": "4g", "type": "g", "slices": [{"name": "s"}]},
        "geometry",
    ),
    (
        "InlineVariant",
        {**_VARIANT, "latency_ms": {"cpu": {1: 2}}, "shorter_latency_ms": {8: {"cpu": {1: 1}}}},
        {**_VARIANT, "latency_ms": {"cpu": {1: 2}}, "shorter_latency_ms": {8: {"cpu": {1: 1}, "gpu": {1: 1}}}},
        r"shorter_latency_ms\.8\.gpu",
    ),
    ("KafkaSection", {"cert_file": "c", "key_file": "k"}, {"cert_file": "c"}, "go together"),
    ("KafkaSection", {"cert_file": "c", "key_file": "k"}, {"key_file": "k"}, "go together"),
    ("KafkaSection", {"session_timeout_s": 1.5}, {"session_timeout_s": 1.0}, "heartbeat_interval_s"),
    ("KafkaSection", {"sasl_mechanism": "PLAIN"}, {"sasl_mechanism": "OAUTHBEARER"}, "go together"),
    (
        "KafkaSection",
        {"replication": 2, "min_insync_replicas": 2},
        {"replication": 2, "min_insync_replicas": 3},
        "min_insync",
    ),
    (
        "KafkaSection",
        {"protocol": "SASL_SSL", "username": "u", "password": "p"},
        {"protocol": "SASL_SSL", "username": "u"},
        "password",
    ),
    (
        "KafkaSection",
        {"protocol": "SASL_SSL", "username": "u", "password_file": "p"},
        {"protocol": "SASL_SSL", "password": "p"},
        "username",
    ),
    (
        "NoticeSpec",
        {"device": "d", "at_s": 2, "deadline_s": 2},
        {"device": "d", "at_s": 2, "deadline_s": 1.9},
        "1.9 is before at_s, 2",
    ),
    ("PlannerChoice", {"scaling": "ilp", "spare": ["d"]}, {"spare": ["d"]}, "spare"),
    ("PlannerChoice", {"scaling": "greedy"}, {"scaling": "greedy", "geometry": "joint"}, "takes the place"),
    ("PlannerChoice", {"geometry": "protean"}, {"scaling": "ilp", "geometry": "protean"}, "takes the place"),
    ("PlannerChoice", {"scaling": "greedy"}, {"scaling": "greedy", "name": "per-device"}, "takes the place"),
    (
        "ProcurementSettings",
        {"notices": "http://[::1]:1/", "on_demand_price": 1},
        {"notices": "http://h/", "on_demand_price": 1},
        "notices_remote",
    ),
    (
        "PointDocument",
        {"batch": 1, "median_s": 2, "p95_s": 2},
        {"batch": 1, "median_s": 2, "p95_s": 1.9},
        "the median, 2 s",
    ),
    ("PromiseLoadSpec", {"app": "a", "mk": [[2, 10]]}, {"app": "a"}, "what is promised"),
    ("TableFields", {"phases": 1, "batching": "variable", "late": "drop"}, {"phases": 2, "late": "drop"}, "phases"),
    ("TableFields", {"phases": 2}, {"phases": 2, "batching": "variable"}, "phases"),
    (
        "_Topics",
        {"replication": 3, "min_insync_replicas": 3},
        {"replication": 3, "min_insync_replicas": 4},
        "nothing could be written",
    ),
    ("TraceSpec", {"qps": [1, 2]}, {}, "qps"),
    ("TraceSpec", {"format": "counts", "path": "c"}, {"format": "counts"}, "needs a path"),
    ("TraceSpec", {"format": "arrivals", "path": "c"}, {"format": "arrivals", "path": "c", "qps": [1, 2]}, "scale"),
    *(
        (
            "TraceSpec",
            {"format": "counts", **drawn},
            {"format": "arrivals", **drawn},
            f"{[*drawn][-1]}: listed arrivals",
        )
        for drawn in (
            {"path": "c", "step_s": 2},
            {"path": "c", "interpolate": "linear"},
            {"path": "c", "process": "uniform"},
            {"path": "c", "zipf": 1},
            {"path": "c", "shares": {"a": 1}},
        )
    ),
    (
        "TraceSpec",
        {"format": "arrivals", "path": "c", "scale": 2, "speed": 2, "repeat": True},
        {"format": "arrivals", "path": "c", "shape": 2},
        "shape: listed arrivals",
    ),
    (
        "TraceSpec",
        {"qps": [1, 2], "process": "gamma", "shape": 2},
        {"qps": [1, 2], "shape": 2},
        "shape: does nothing where process is poisson",
    ),
    (
        "TraceSpec",
        {"qps": [1, 2], "shares": {"a": 1}, "zipf": 0},
        {"qps": [1, 2], "shares": {"a": 1}, "zipf": 1},
        "shares and zipf",
    ),
    ("WeaklyHardDocument", {"m": 2, "k": 3}, {"m": 3, "k": 3}, "promise nothing"),
]
"""What fields may say each, and not together: a class, what it takes, what it refuses, and what it says of that."""


@pytest.mark.parametrize(("name", "good", "bad", "said_of_it"), CLASHES)
def test_fields_that_contradict_one_another_are_refused(
    name: str, good: dict[str, Any], bad: dict[str, Any], said_of_it: str
) -> None:
    kind = classes()[name]
    kind.model_validate_json(json.dumps(good))
    with pytest.raises(ValidationError, match=said_of_it):
        kind.model_validate_json(json.dumps(bad))


def test_every_class_that_compares_its_fields_has_its_contradictions_tried() -> None:
    compares = {
        name
        for name, kind in classes().items()
        if any(check.cls_var_name in vars(kind) for check in kind.__pydantic_decorators__.model_validators.values())
    }
    assert compares == {name for name, *_ in CLASHES}


OPEN = {
    "_PolicyFields": "options of policies, which know them",
    **dict.fromkeys(("_Batch", "_File", "_Model"), "the papers' data says more than is read"),
}


@pytest.mark.parametrize("name", sorted(classes()))
def test_a_field_that_nobody_knows_is_refused(name: str) -> None:
    kind = classes()[name]
    if kind.model_config.get("extra") != "forbid":
        assert name in OPEN, "extra fields are let in"
        return
    with pytest.raises(ValidationError) as refused:
        kind.model_validate_json(json.dumps({"unheard_of": 1}))
    assert ("unheard_of",) in {e["loc"] for e in refused.value.errors() if e["type"] == "extra_forbidden"}
