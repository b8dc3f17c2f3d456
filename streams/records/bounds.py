"""Reading records into domain dataclasses with every number bounded: 64-bit, finite, and no larger than anything real.

A number that a reader could not count with is refused where it is decoded, by its field's name, so that nothing behind
has to expect it; so is a text longer than any that is written, since readers keep some. Bounds are by name of field; a
value inside a mapping or list has those of the field that holds it.
"""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from sluicegate.domain.errors import InvalidInputError, shown
from sluicegate.domain.plan import MAX_TERM

T = TypeVar("T")

INT64 = 2**63 - 1
LAST_TIME = 253_402_300_799.0
"""Wall seconds of the end of the year 9999."""
MAX_ROWS = 10**9
_MAX_FLOAT = 1e18
_MAX_COUNT = 2**53 - 1
_MAX_TEXT = 1 << 16

_BOUNDS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("at", "created", "expires", "start"), (0.0, LAST_TIME)),
    **dict.fromkeys(("arrival", "deadline"), (-1e12, 1e12)),
    **dict.fromkeys(("slo", "age", "overdue", "busy_for", "execution_s", "solve_s", "window", "late"), (0.0, 1e9)),
    **dict.fromkeys(("demand", "served", "price", "qps", "peak", "slowdown"), (0.0, 1e12)),
    **dict.fromkeys(("share", "utilisation"), (0.0, 1e3)),
    **dict.fromkeys(("rows", "classes", "batches", "batch_size", "max_batch"), (0, MAX_ROWS)),
    **dict.fromkeys(("count", "queued", "number", "on_time", "missed"), (0, _MAX_COUNT)),
    **dict.fromkeys(("memory_bytes", "fences"), (0, INT64)),
    "term": (0, MAX_TERM),
}


class Reader(Generic[T]):
    """Of records of one kind. ``adapter``: as pydantic has it, for writing."""

    def __init__(self, kind: Any) -> None:
        self.adapter: TypeAdapter[T] = TypeAdapter(kind)
        self._validator = SchemaValidator(_bounded(self.adapter.core_schema, ""))

    def json(self, what: str, value: bytes) -> T:
        """From JSON. Raises InvalidInputError that names the field of ``what``."""
        try:
            read: T = self._validator.validate_json(value)
        except ValidationError as error:
            raise _named(what, error) from error
        return read

    def python(self, what: str, value: object) -> T:
        """From what JSON was parsed into. Raises InvalidInputError."""
        try:
            read: T = self._validator.validate_python(value)
        except ValidationError as error:
            raise _named(what, error) from error
        return read


def _named(what: str, error: ValidationError) -> InvalidInputError:
    fault = error.errors(include_url=False)[0]
    place = ".".join((what, *(str(part)[:80] for part in fault["loc"])))
    return InvalidInputError(place, f"{fault['msg']} (got {shown(fault['input'])})")


def _bounded(schema: Any, name: str) -> Any:
    """``schema`` of pydantic's core, with bounds on each number in it; ``name``: of the field that holds it."""
    if isinstance(schema, list | tuple):
        return type(schema)(_bounded(one, name) for one in schema)
    if not isinstance(schema, dict):
        return schema
    if "schema" in schema and isinstance(schema.get("name"), str):
        name = schema["name"]
    made = {key: _bounded(value, name) if isinstance(value, dict | list) else value for key, value in schema.items()}
    if schema.get("type") == "int":
        low, high = _BOUNDS.get(name, (-INT64, INT64))
        made |= {"ge": int(low), "le": int(high)}
    elif schema.get("type") == "str":
        made.setdefault("max_length", _MAX_TEXT)
    elif schema.get("type") == "float":
        low, high = _BOUNDS.get(name, (-_MAX_FLOAT, _MAX_FLOAT))
        made |= {"allow_inf_nan": False, "ge": low, "le": high}
    return made
