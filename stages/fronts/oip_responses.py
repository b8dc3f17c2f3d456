"""What the Open Inference Protocol lets a client say of its answer, and answers made so. Pure.

Rules. The client's own ``id`` comes back as it was given (ids of queries are the front's). Only the outputs that it
lists come back, all where it lists none, each raw after the JSON where it asked so: ``binary_data`` of an output, or
``binary_data_output`` for all. Whoever asks for a form that is not served (``NOT_SERVED``) is refused: he would read
what comes as if it were that. Parameters of a response are strings, numbers and booleans, as the protocol wants them:
what is empty is left out, the epoch is "term.number", the state of a promise JSON as a text. A request that cannot be
read is left to admission, which says what is wrong with it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import orjson

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.app import App
from sluicegate.streams.records import codec, oip

_MAX_ID = 1024
_MAX_DETAIL = 1000
SERVER: Mapping[str, Any] = {
    "name": "sluicegate",
    "version": metadata.version("sluicegate"),
    "extensions": ["binary_tensor_data", "model_configuration", "model_repository"],
}
"""What the server says of itself."""
NOT_SERVED: Mapping[str, str] = {
    "classification": "leave it out and rank the output's values",
    "shared_memory_region": "leave it out and read the output from the response",
}
"""Parameters of an output by which Triton's clients ask for another form of it, and what to do instead."""
OUTCOME_HEADER = "Sluice-Outcome"
"""Of a response without an answer."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request says of its response. ``outputs``: name -> raw or not, None for all there are."""

    id: str | None = None
    outputs: Mapping[str, bool] | None = None
    binary: bool = False

    @property
    def takes_raw(self) -> bool:
        """Whether some of the answer is to be raw."""
        return self.binary if self.outputs is None else any(self.outputs.values())


def read_request(body: bytes, json_length: str | None, app: App) -> Asked:
    """Of the JSON part of ``body``. Raises InvalidInputError for outputs that there are not so."""
    try:
        request, _ = oip.parse(body, None if json_length is None else json_length.encode(errors="replace"))
    except InvalidInputError:
        return Asked()
    given = request.get("id")
    parameters = request.get("parameters")
    binary = isinstance(parameters, dict) and parameters.get("binary_data_output") is True
    known = [spec.name for spec in app.outputs]
    listed = request.get("outputs")
    if listed is not None and not isinstance(listed, list):
        raise InvalidInputError("outputs", f"is a {type(listed).__name__}; give a list of outputs")
    outputs: dict[str, bool] = {}
    for i, entry in enumerate(listed or ()):
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or (known and name not in known):
            raise InvalidInputError(f"outputs[{i}].name", f"{name!r:.80} is no output; there are {', '.join(known)}")
        own = entry.get("parameters")
        if isinstance(own, dict):
            check_form(f"outputs[{i}]", own)
        asked = own.get("binary_data") if isinstance(own, dict) else None
        outputs[name] = binary if asked is None else asked is True
    return Asked(given[:_MAX_ID] if isinstance(given, str) else None, outputs or None, binary)


def check_form(field: str, parameters: Mapping[str, Any]) -> None:
    """Raise InvalidInputError where the parameters of an output ask for a form that is not served."""
    for name, remedy in NOT_SERVED.items():
        if parameters.get(name):
            raise InvalidInputError(f"{field}.parameters.{name}", f"is not served; {remedy}")


def with_model(body: bytes, json_length: str | None, model: str) -> tuple[bytes, str | None]:
    """The request, its parameters naming ``model``, and the length of its JSON. Raises InvalidInputError."""
    request, raw = oip.parse(body, None if json_length is None else json_length.encode(errors="replace"))
    parameters = request.get("parameters")
    request["parameters"] = {**(parameters if isinstance(parameters, dict) else {}), "model": model}
    try:
        head = orjson.dumps(request)
    except TypeError as error:  # it reads what it does not write
        raise InvalidInputError("body", f"cannot be taken ({error!s:.60}); nest it less deep") from error
    if raw is None:
        return head, None
    return head + bytes(raw), str(len(head))


def respond(result: codec.OutcomeMessage, asked: Asked) -> tuple[bytes, int | None]:
    """The response's body for a result, and the length of its JSON where raw tensors follow."""
    body = orjson.loads(result.body)
    body["id"] = asked.id if asked.id is not None else body["id"]
    body["parameters"] = plain_parameters(body.get("parameters", {}))
    outputs = body.get("outputs", [])
    if asked.outputs is not None:
        outputs = [o for o in outputs if o["name"] in asked.outputs]
    here = [o["name"] for o in outputs if not isinstance(o.get("data"), dict)]
    raw = [name for name in here if (asked.outputs or {}).get(name, asked.binary)]
    body["outputs"] = outputs
    if not raw and result.raw is None:
        return orjson.dumps(body), None
    tensors = {t.name: t for t in result.outputs()}
    body["outputs"] = [
        oip.binary_tensor(tensors[o["name"]])
        if o["name"] in raw
        else o
        if "data" in o
        else oip.json_tensor(tensors[o["name"]])
        for o in outputs
    ]
    head = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    if not raw:
        return head, None
    return b"".join((head, *(bytes(tensors[name].data) for name in raw))), len(head)


def refusal_header(result: bytes) -> str:
    """How a query without an answer ended, as ASCII JSON: an error of the protocol has room for a text alone."""
    body = orjson.loads(result)
    parameters = plain_parameters(body.get("parameters", {}))
    if isinstance(detail := parameters.get("detail"), str):
        parameters["detail"] = detail[:_MAX_DETAIL]
    return json.dumps({"model_name": body["model_name"], "id": body["id"], "parameters": parameters})


def plain_parameters(parameters: Mapping[str, Any]) -> dict[str, str | float | bool]:
    """As the protocol wants them: strings, numbers and booleans."""
    found: dict[str, str | float | bool] = {}
    for name, value in parameters.items():
        if isinstance(value, list):
            found[name] = ".".join(str(part) for part in value)
        elif isinstance(value, dict):
            found[name] = orjson.dumps(value).decode()
        elif value is not None:
            found[name] = value
    return found
