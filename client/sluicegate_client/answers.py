"""What comes back: the end of a query and why, its outputs, and what the system announces."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a query ended. Times are seconds since the epoch, durations seconds.

    ``kind``: answered, expired, dropped, rejected or failed; ``reason`` and ``detail`` say why. ``accuracy``: of the
    variant as it was profiled, 0..1; ``best_accuracy``: of the app's best. ``parameters``: all that the result says.
    """

    query_id: str
    app: str
    kind: str
    late: bool
    reason: str | None = None
    detail: str | None = None
    variant: str | None = None
    accuracy: float = 0.0
    best_accuracy: float = 1.0
    device: str | None = None
    slice: str | None = None
    policy: str | None = None
    batch_size: int = 0
    arrival: float = 0.0
    deadline: float = 0.0
    at: float = 0.0
    source: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def on_time(self) -> bool:
        """Answered within its deadline."""
        return self.kind == "answered" and not self.late


_TAKEN = frozenset(Outcome.__dataclass_fields__) - {"query_id", "app", "parameters"}


def outcome_of(body: Mapping[str, Any]) -> Outcome:
    """Of a result's body. Raises KeyError, TypeError or ValueError for what is no result."""
    parameters = body["parameters"]
    if isinstance(promise := parameters.get("promise"), str):  # over HTTP parameters are texts, numbers and booleans
        parameters = {**parameters, "promise": json.loads(promise)}
    told = {name: value for name, value in parameters.items() if name in _TAKEN and value is not None}
    return Outcome(query_id=body["id"], app=body["model_name"], parameters=parameters, **told)


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a query. ``outputs`` by name, empty where it was not answered; ``body``: the result as it came.

    ``retry_after``: seconds after which a front that refused it may take it, None where it does not say.
    """

    outcome: Outcome
    outputs: Mapping[str, Any]
    body: bytes = field(repr=False)
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """An announcement: ``state`` of ``subject`` ("app:digits", "device:cpu0"), and why."""

    subject: str
    state: str
    detail: str
