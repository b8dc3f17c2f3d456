"""A query as it is asked, and its Open Inference Protocol body."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sluicegate_client.errors import InvalidQueryError
from sluicegate_client.tensors import Reference, Tensor

_MOST = 256
_SURROGATE = re.compile("[\ud800-\udfff]")


def check_name(field: str, value: object) -> None:
    """Raises InvalidQueryError for an id or a source that the system takes from nobody."""
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value.encode()) <= _MOST:
        raise InvalidQueryError(field, f"is {value!r:.80}; give a text of 1 to {_MOST} bytes, all printable")


def _check_stream(value: object) -> None:
    if value is not None and (not isinstance(value, str) or _SURROGATE.search(value)):
        raise InvalidQueryError("stream", f"is {value!r:.80}; give a text")


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked. ``stream``: key whose order promises count on, None: the query's id.

    Raises InvalidQueryError for an id or a stream that can be none.
    """

    id: str
    tensors: Mapping[str, Tensor | Reference]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    stream: str | None = None

    def __post_init__(self) -> None:
        check_name("query_id", self.id)
        _check_stream(self.stream)

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
