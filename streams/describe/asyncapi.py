"""The AsyncAPI 3 document of all topics: what producers write and what everyone may read."""

from collections.abc import Iterable
from typing import Any

from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import BYTES, TensorSpec
from sluicegate.streams.records.queries import PASSED_OVER
from sluicegate.streams.topics import Topics

_OBJECT = {"type": "object"}
_TIME = {"type": "number", "description": "seconds since the epoch"}


def document(
    topics: Topics,
    apps: Iterable[App],
    *,
    version: str,
    url: str = "127.0.0.1:9092",
    protocol: str = "PLAINTEXT",
    mechanism: str = "SCRAM-SHA-512",
) -> dict[str, Any]:
    """An AsyncAPI 3.0 document for these apps. ``url``: host and port of the broker, ``protocol``: its listener's."""
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages: dict[str, Any] = dict(_SHARED_MESSAGES)
    for app in sorted(apps, key=lambda a: a.name):
        query, outcome = f"{app.name}.query", f"{app.name}.outcome"
        messages[query] = _query(app)
        messages[outcome] = _outcome(app)
        _add(channels, operations, f"{app.name}.queries", topics.queries(app.name), query, "receive")
        _add(channels, operations, f"{app.name}.admitted", topics.admitted(app.name), "hop", "send")
        _add(channels, operations, f"{app.name}.results", topics.results(app.name), outcome, "send")
    channels["work"] = {
        "address": f"{topics.prefix}.device.{{device}}.work",
        "description": "Queries routed to one device; one partition.",
        "parameters": {"device": {"description": "name of the device"}},
        "messages": {"hop": {"$ref": "#/components/messages/hop"}},
    }
    operations["send.work"] = {"action": "send", "channel": {"$ref": "#/channels/work"}}
    for name, address, message in (
        ("demand", topics.demand, "demand"),
        ("demand-windows", topics.demand_windows, "demand-windows"),
        ("devices-metrics", topics.devices_metrics, "heartbeat"),
        ("turns", topics.turns, "turns"),
        ("routers", topics.routers, "router"),
        ("plan", topics.plan, "plan"),
        ("policies", topics.policies, "state"),
        ("registry", topics.registry, "state"),
        ("devices", topics.devices, "device-note"),
        ("instances", topics.instances, "state"),
        ("acks", topics.acks, "acknowledgement"),
        ("status", topics.status, "announcement"),
        ("dead-letters", topics.dead_letters, "dead-letter"),
    ):
        _add(channels, operations, name, address, message, "send")
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Sluicegate",
            "version": version,
            "description": "Inference on Kafka topics: CloudEvents in binary mode around Open Inference Protocol v2.",
        },
        "defaultContentType": "application/json",
        "servers": {"kafka": _server(url, protocol, mechanism)},
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages},
    }


def _server(url: str, protocol: str, mechanism: str) -> dict[str, Any]:
    told: dict[str, Any] = {"host": url, "protocol": "kafka-secure" if protocol.endswith("SSL") else "kafka"}
    if protocol.startswith("SASL"):
        kinds = {"PLAIN": "plain", "SCRAM-SHA-256": "scramSha256", "SCRAM-SHA-512": "scramSha512"}
        told["security"] = [{"type": kinds.get(mechanism, "plain")}]
    return told


def _add(
    channels: dict[str, Any], operations: dict[str, Any], name: str, address: str, message: str, action: str
) -> None:
    channels[name] = {"address": address, "messages": {message: {"$ref": f"#/components/messages/{message}"}}}
    operations[f"{action}.{name}"] = {"action": action, "channel": {"$ref": f"#/channels/{name}"}}


def _query(app: App) -> dict[str, Any]:
    return {
        "title": f"a query of {app.name}",
        "contentType": "application/json",
        "description": "Or in structured mode: content-type application/cloudevents+json, attributes beside `data`.",
        "headers": {
            "type": "object",
            "required": ["ce_id"],
            "properties": {
                "ce_specversion": {"const": "1.0"},
                "ce_id": {"type": "string", "minLength": 1, "maxLength": 256, "description": "id of the query"},
                "ce_source": {
                    "type": "string",
                    "maxLength": 256,
                    "description": "who asks; app, source and id are a query's identity",
                },
                "ce_type": {"type": "string"},
                "ce_time": {"type": "string", "format": "date-time"},
                "ce_expirytime": {"type": "string", "format": "date-time", "description": "absolute deadline"},
                "delivery-ms": {"type": "string", "description": "what the answer's way back takes, off the deadline"},
                "content-type": {"type": "string"},
                "accept": {"type": "string", "description": "application/octet-stream: the outcome's tensors are raw"},
                "traceparent": {"type": "string"},
                "tracestate": {
                    "type": "string",
                    "description": "as baggage, correlation and ce_ extensions: comes back",
                },
                "inference-header-content-length": {
                    "type": "string",
                    "description": "bytes of JSON before raw tensors, where tensors are sent raw",
                },
            },
        },
        "payload": {
            "type": "object",
            "required": ["inputs"],
            "properties": {
                "id": {"type": "string"},
                "parameters": _PARAMETERS,
                "inputs": {
                    "type": "array",
                    "minItems": len(app.inputs) or 1,
                    "items": {"oneOf": [_tensor(s, app.max_rows) for s in app.inputs]} if app.inputs else _OBJECT,
                },
            },
        },
    }


def _outcome(app: App) -> dict[str, Any]:
    return {
        "title": f"the one terminal outcome of a query of {app.name}",
        "contentType": "application/json",
        "payload": {
            "type": "object",
            "required": ["model_name", "id", "parameters"],
            "properties": {
                "model_name": {"const": app.name},
                "model_version": {"type": "string", "description": "the variant that answered"},
                "id": {"type": "string"},
                "outputs": {"type": "array", "items": _OBJECT},
                "error": {"type": "string"},
                "parameters": _WHY,
            },
        },
    }


def _tensor(spec: TensorSpec, max_rows: int) -> dict[str, Any]:
    extents: list[dict[str, Any]] = [{"const": extent} for extent in spec.row_shape]
    if spec.varying:
        extents[0] = {"type": "integer", "minimum": 1, "maximum": spec.row_shape[0]}
    axes = [{"type": "integer", "minimum": 1, "maximum": max_rows}, *extents]
    return {
        "type": "object",
        "required": ["name", "datatype", "shape"],
        "properties": {
            "name": {"const": spec.name},
            "datatype": {"const": spec.datatype},
            "shape": {"type": "array", "prefixItems": axes, "minItems": len(axes), "maxItems": len(axes)},
            "data": {
                "oneOf": [
                    _REFERENCE,
                    {"type": "array", **({"items": {"type": "string"}} if spec.datatype == BYTES else {})},
                ]
            },
            "parameters": {
                "type": "object",
                "properties": {
                    "binary_data_size": {"type": "integer", "minimum": 0},
                    **({"content_type": {"enum": ["base64"]}} if spec.datatype == BYTES else {}),
                },
            },
        },
    }


_REFERENCE = {
    "type": "object",
    "description": "where the data lies in an object store, below what the deployment allows",
    "required": ["ref", "sha256", "bytes"],
    "properties": {
        "ref": {"type": "string"},
        "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "bytes": {"type": "integer", "minimum": 1},
    },
    "additionalProperties": False,
}

_PARAMETERS = {
    "type": "object",
    "properties": {
        "latency_ms": {"type": "number", "exclusiveMinimum": 0, "description": "SLO of this query"},
        "timeout": {"type": "number", "description": "the same in microseconds, as Triton has it"},
        "accuracy": {"type": "number", "minimum": 0, "maximum": 1},
        "cost": {"type": "number", "minimum": 0},
        "class": {"enum": ["strict", "best_effort"]},
        "priority": {"type": "integer", "minimum": 0},
        "model": {"type": "string", "description": "a variant by name"},
        **{name: {"description": "of the protocol's clients; asks nothing here"} for name in PASSED_OVER},
    },
    "patternProperties": {"^triton_": {"description": "Triton's own; asks nothing here"}},
    "additionalProperties": False,
}

_WHY = {
    "type": "object",
    "required": ["kind", "arrival", "deadline", "at", "late"],
    "properties": {
        "kind": {"enum": ["answered", "expired", "dropped", "rejected", "failed"]},
        "late": {"type": "boolean"},
        "arrival": _TIME,
        "deadline": _TIME,
        "at": _TIME,
        "reason": {"type": ["string", "null"]},
        "detail": {"type": ["string", "null"]},
        "variant": {"type": ["string", "null"]},
        "accuracy": {"type": "number", "minimum": 0, "maximum": 1},
        "device": {"type": ["string", "null"]},
        "slice": {"type": ["string", "null"]},
        "epoch": {"type": ["array", "null"], "items": {"type": "integer"}},
        "policy": {"type": ["string", "null"]},
        "batch_size": {"type": "integer"},
        "queue_s": {"type": "number"},
        "batch_s": {"type": "number"},
        "execution_s": {"type": "number"},
        "rows": {"type": "integer", "description": "of the query"},
    },
}


def _json_message(title: str, *required: str) -> dict[str, Any]:
    payload = {"type": "object", "required": list(required)} if required else _OBJECT
    return {"title": title, "contentType": "application/json", "payload": payload}


_SHARED_MESSAGES = {
    "hop": {
        "title": "a validated query between stages",
        "contentType": "application/octet-stream",
        "headers": {
            "type": "object",
            "required": ["sluice"],
            "properties": {"sluice": {"type": "string", "description": "JSON array of what admission has found out"}},
        },
        "payload": {"type": "string", "format": "binary", "description": "tensors, raw, one after the other"},
    },
    "demand": _json_message("queries counted in a window", "app", "count", "window"),
    "demand-windows": _json_message("queries counted by half seconds, totals", "app", "halves", "at"),
    "heartbeat": _json_message("state of a device", "seen", "at"),
    "turns": _json_message("turns that a router has given to the workers of an SLO class", "app", "slo", "count", "at"),
    "router": _json_message("a router of an app lives", "app"),
    "plan": _json_message("an epoch of the plan", "epoch", "created"),
    "state": _json_message("a compacted record"),
    "device-note": _json_message("a stage's note on a device", "device", "by", "withdrawn"),
    "acknowledgement": _json_message("what a device has staged for an epoch", "device", "epoch", "variants"),
    "announcement": _json_message("state of an app or device", "subject", "state", "detail"),
    "dead-letter": {
        "title": "what could not be understood, as it came",
        "headers": {
            "type": "object",
            "properties": {
                f"__dlq.errors.{name}": {"type": "string"}
                for name in (
                    "topic", "partition", "offset", "reason", "field", "message", "stage", "timestamp",
                    "record-timestamp",
                )
            },
        },
        "payload": {"type": "string", "format": "binary"},
    },
}  # fmt: skip
