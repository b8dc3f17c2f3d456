"""The messages of the Open Inference Protocol v2 over gRPC (service ``inference.GRPCInferenceService``), by number.

Declared here in place of generated code: a pool of their own, so that a client library of the same protocol may be in
the same process. Model configuration and repository index are Triton's extensions, as far as they say something here.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "inference"
SERVICE = f"{_PACKAGE}.GRPCInferenceService"

_Kinds = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Kinds.TYPE_BOOL,
    "bytes": _Kinds.TYPE_BYTES,
    "double": _Kinds.TYPE_DOUBLE,
    "float": _Kinds.TYPE_FLOAT,
    "int32": _Kinds.TYPE_INT32,
    "int64": _Kinds.TYPE_INT64,
    "string": _Kinds.TYPE_STRING,
    "uint32": _Kinds.TYPE_UINT32,
    "uint64": _Kinds.TYPE_UINT64,
}
_PARAMETERS = "map InferParameter"
_NAMED = {"name": (1, "string"), "version": (2, "string")}

_MESSAGES: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "ServerLiveRequest": {},
    "ServerLiveResponse": {"live": (1, "bool")},
    "ServerReadyRequest": {},
    "ServerReadyResponse": {"ready": (1, "bool")},
    "ModelReadyRequest": _NAMED,
    "ModelReadyResponse": {"ready": (1, "bool")},
    "ServerMetadataRequest": {},
    "ServerMetadataResponse": {**_NAMED, "extensions": (3, "repeated string")},
    "ModelMetadataRequest": _NAMED,
    "TensorMetadata": {"name": (1, "string"), "datatype": (2, "string"), "shape": (3, "repeated int64")},
    "ModelMetadataResponse": {
        "name": (1, "string"),
        "versions": (2, "repeated string"),
        "platform": (3, "string"),
        "inputs": (4, "repeated TensorMetadata"),
        "outputs": (5, "repeated TensorMetadata"),
    },
    "InferParameter": {
        "bool_param": (1, "one bool"),
        "int64_param": (2, "one int64"),
        "string_param": (3, "one string"),
        "double_param": (4, "one double"),
        "uint64_param": (5, "one uint64"),
    },
    "InferTensorContents": {
        "bool_contents": (1, "repeated bool"),
        "int_contents": (2, "repeated int32"),
        "int64_contents": (3, "repeated int64"),
        "uint_contents": (4, "repeated uint32"),
        "uint64_contents": (5, "repeated uint64"),
        "fp32_contents": (6, "repeated float"),
        "fp64_contents": (7, "repeated double"),
        "bytes_contents": (8, "repeated bytes"),
    },
    "InferTensor": {
        "name": (1, "string"),
        "datatype": (2, "string"),
        "shape": (3, "repeated int64"),
        "parameters": (4, _PARAMETERS),
        "contents": (5, "InferTensorContents"),
    },
    "InferRequestedOutputTensor": {"name": (1, "string"), "parameters": (2, _PARAMETERS)},
    "ModelInferRequest": {
        "model_name": (1, "string"),
        "model_version": (2, "string"),
        "id": (3, "string"),
        "parameters": (4, _PARAMETERS),
        "inputs": (5, "repeated InferTensor"),
        "outputs": (6, "repeated InferRequestedOutputTensor"),
        "raw_input_contents": (7, "repeated bytes"),
    },
    "ModelInferResponse": {
        "model_name": (1, "string"),
        "model_version": (2, "string"),
        "id": (3, "string"),
        "parameters": (4, _PARAMETERS),
        "outputs": (5, "repeated InferTensor"),
        "raw_output_contents": (6, "repeated bytes"),
    },
    "ModelStreamInferResponse": {"error_message": (1, "string"), "infer_response": (2, "ModelInferResponse")},
    "ModelConfigRequest": _NAMED,
    "ModelInput": {"name": (1, "string"), "data_type": (2, "int32"), "dims": (4, "repeated int64")},
    "ModelOutput": {"name": (1, "string"), "data_type": (2, "int32"), "dims": (3, "repeated int64")},
    "ModelConfig": {
        "name": (1, "string"),
        "platform": (2, "string"),
        "max_batch_size": (4, "int32"),
        "input": (5, "repeated ModelInput"),
        "output": (6, "repeated ModelOutput"),
        "backend": (17, "string"),
    },
    "ModelConfigResponse": {"config": (1, "ModelConfig")},
    "RepositoryIndexRequest": {"repository_name": (1, "string"), "ready": (2, "bool")},
    "ModelIndex": {**_NAMED, "state": (3, "string"), "reason": (4, "string")},
    "RepositoryIndexResponse": {"models": (1, "repeated ModelIndex")},
}
"""Message -> field -> (number, type). ``one``: of the only oneof; an enumeration is an int32, as it is on the wire."""

DATA_TYPES = (
    "INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
    "STRING",
)  # fmt: skip
"""Triton's enumeration of datatypes, in its order."""


def _add_field(message: Any, name: str, number: int, kind: str) -> None:
    label, _, base = kind.rpartition(" ")
    field = message.field.add(name=name, number=number, label=_Kinds.LABEL_OPTIONAL)
    if label == "map":
        entry = message.nested_type.add(name="".join(part.title() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string")
        _add_field(entry, "value", 2, base)
        base = f"{message.name}.{entry.name}"
    if label in {"repeated", "map"}:
        field.label = _Kinds.LABEL_REPEATED
    if label == "one":
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    if base in _SCALARS:
        field.type = _SCALARS[base]
    else:
        field.type = _Kinds.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{base}"


def _classes() -> Mapping[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="sluicegate/oip.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            _add_field(message, field, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


MESSAGES: Mapping[str, Any] = _classes()
"""Message -> its class."""
