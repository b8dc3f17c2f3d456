"""A query as it is asked, and its Open Inference Protocol body."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sluicegate_client.errors import InvalidQueryError
from sluicegate_client.tensors import Reference, Tensor


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked. ``stream``: key whose order promises count on, None: the query's id."""

    id: str
    tensors: Mapping[str, Tensor | Reference]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    stream: str | None = None

    def body(self, *, with_id: bool = True) -> tuple[bytes, bytes]:
        """Its JSON, and the raw tensors that follow it."""
        inputs = [
            {
                "name": name,
                "datatype": t.datatype,
                "shape": t.shape,
                **(
                    {"data": t.document()}
                    if isinstance(t, Reference)
                    else {"parameters": {"binary_data_size": len(t.data)}}
                ),
            }
            for name, t in self.tensors.items()
        ]
        body: dict[str, Any] = {"id": self.id} if with_id else {}
        if self.parameters:
            body["parameters"] = dict(self.parameters)
        body["inputs"] = inputs
        try:
            head = json.dumps(body, separators=(",", ":"), default=_plain, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise InvalidQueryError("parameters", f"{error}; give texts and finite numbers") from error
        return head, b"".join(t.data for t in self.tensors.values() if isinstance(t, Tensor))


def _plain(value: Any) -> Any:
    """NumPy's scalars as Python's."""
    if callable(item := getattr(value, "item", None)):
        return item()
    raise TypeError(f"{value!r:.60} is no JSON")
