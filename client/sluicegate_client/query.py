"""A query as it is asked, and its Open Inference Protocol body."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
        return json.dumps(body, separators=(",", ":")).encode(), b"".join(
            t.data for t in self.tensors.values() if isinstance(t, Tensor)
        )
