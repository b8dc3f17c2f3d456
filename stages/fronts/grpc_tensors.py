"""Requests of gRPC as bodies of the protocol's JSON, and results as responses of gRPC. Pure.

Rules. Tensors come raw (``raw_input_contents``, one for each input) or typed (``contents``; BYTES are made raw, for
JSON has no bytes), never both; they always go back raw.
Only the outputs that a request lists come back, all where it lists none. A parameter that is empty is left out.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import orjson

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import BYTES, DATATYPE_BYTES, joined
from sluicegate.stages.fronts.grpc_messages import MESSAGES
from sluicegate.stages.fronts.oip_responses import check_form, plain_parameters
from sluicegate.streams.records import codec

_CONTENTS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}


def body_of(request: Any) -> tuple[bytes, str]:
    """A request's body as HTTP's clients send it, and the bytes of JSON that it begins with.

    Raises InvalidInputError for tensors that are neither raw nor typed, or hold what would not be read, and parameters
    that are no JSON.
    """
    given: Sequence[bytes] = request.raw_input_contents
    if given and len(given) != len(request.inputs):
        raise InvalidInputError(
            "raw_input_contents", f"has {len(given)} tensors for {len(request.inputs)} inputs; give one for each"
        )
    raw: list[bytes] = []
    inputs = []
    for index, tensor in enumerate(request.inputs):
        told: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        contents = "" if given else _contents_of(index, tensor.datatype)
        for field, _ in tensor.contents.ListFields():
            if field.name != contents:
                why = f"{tensor.datatype} has {contents}" if contents else "raw_input_contents has them; give one"
                raise InvalidInputError(f"inputs[{index}].contents.{field.name}", f"holds values, but {why}")
        if given or tensor.datatype == BYTES:
            raw.append(given[index] if given else joined(tensor.contents.bytes_contents))
            told["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            told["data"] = list(getattr(tensor.contents, contents))
        inputs.append(told)
    parameters = _values(request.parameters)
    if request.model_version:
        parameters["model"] = request.model_version
    try:
        head = orjson.dumps({"id": request.id, "parameters": parameters, "inputs": inputs})
    except orjson.JSONEncodeError as error:
        raise InvalidInputError(
            "parameters", f"cannot be taken ({error}); give numbers, strings and booleans"
        ) from error
    return b"".join((head, *raw)), str(len(head))


def _contents_of(index: int, datatype: str) -> str:
    """Where the values of an input of this datatype stand. Raises InvalidInputError where it has no such place."""
    contents = _CONTENTS.get(datatype)
    if contents is None:
        known = ", ".join(DATATYPE_BYTES)
        raise InvalidInputError(
            f"inputs[{index}].datatype", f"{datatype!r:.40} has no typed contents; send it raw, as one of {known}"
        )
    return contents


def wanted_of(request: Any, app: App) -> frozenset[str] | None:
    """Outputs that a request lists, None where it lists none. Raises InvalidInputError for one that there is not, or
    not in the form asked."""
    known = [spec.name for spec in app.outputs]
    for index, asked in enumerate(request.outputs):
        if known and asked.name not in known:
            raise InvalidInputError(
                f"outputs[{index}].name", f"{asked.name!r:.80} is no output; there are {', '.join(known)}"
            )
        check_form(f"outputs[{index}]", _values(asked.parameters))
    return frozenset(asked.name for asked in request.outputs) or None


def response_of(result: codec.OutcomeMessage, request_id: str, wanted: frozenset[str] | None) -> Any:
    """The response for a result. Raises InvalidInputError where some of it lies elsewhere."""
    body = orjson.loads(result.body)
    response = MESSAGES["ModelInferResponse"](
        model_name=body["model_name"], model_version=body.get("model_version", ""), id=request_id or body["id"]
    )
    for name, value in plain_parameters(body.get("parameters", {})).items():
        _set(response.parameters[name], value)
    tensors = result.outputs()
    if len(tensors) < len(body.get("outputs", ())):
        raise InvalidInputError("outputs", "lie in an object store that this front does not read; see objects.results")
    for tensor in tensors:
        if wanted is None or tensor.name in wanted:
            response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            response.raw_output_contents.append(bytes(tensor.data))
    return response


def _values(parameters: Any) -> dict[str, Any]:
    found = {
        name: getattr(held, choice)
        for name, held in parameters.items()
        if (choice := held.WhichOneof("parameter_choice")) is not None
    }
    for name, value in found.items():
        if isinstance(value, float) and not isfinite(value):  # as JSON it would be null, and count as not given
            raise InvalidInputError(f"parameters.{name:.60}", f"is {value}; give a finite number")
    return found


def _set(parameter: Any, value: str | float | bool) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value
