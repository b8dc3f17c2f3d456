"""What is wrong with the fields of a document that was refused, in one line; of unknown names the nearest known."""

import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_MOST = 8
"""Fields that are told of one document."""

_BRANCH = re.compile(r"(constrained-\w+|\w+\[.*\])")
"""What stands in a place for one of the types that a field may be of, behind the field's name."""

_PLAIN = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping, name: value",
    "model_type": "must be a mapping, name: value",
    "list_type": "must be a list, [a, b]",
    "tuple_type": "must be a list, [a, b]",
    "path_type": "must be a path",
}
"""What is wrong, by the kind of error, where its own text speaks of types of Python."""


def field_errors(error: ValidationError, model: type[BaseModel], whole: str = "value") -> str:
    """The first wrong fields of ``model``, each with what is wrong with it. ``whole``: the name of all of them."""
    told: dict[str, list[str]] = {}
    for fault in error.errors(include_url=False, include_input=False, include_context=False)[:_MOST]:
        place = ".".join(str(part) for part in fault["loc"] if not _BRANCH.fullmatch(str(part))) or whole
        told.setdefault(place, []).append(field_error(fault, model))
    return "; ".join(f"{place}: {', or '.join(dict.fromkeys(faults))}" for place, faults in told.items())


def meant(name: str, known: Collection[str], before: str = "") -> str:
    """The end of a sentence that asks for the nearest known name, with ``before``; nothing where none is near."""
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {before}{near[0]}?" if near else ""


def field_error(fault: "ErrorDetails", model: type[BaseModel]) -> str:
    """What is wrong with this field of ``model``."""
    if fault["type"] != "extra_forbidden":
        if fault["type"].endswith("too_short") and "at least 1 " in fault["msg"]:
            return "must not be empty"
        if fault["type"] == "string_pattern_mismatch":
            return f"is not written in letters, digits, . _ and - as names are ({fault['msg'].split(chr(39))[1]})"
        return _PLAIN.get(fault["type"], fault["msg"].removeprefix("Value error, "))
    *place, name = fault["loc"]
    inner = model_at(model, place)
    known = [field.alias or own for own, field in inner.model_fields.items()] if inner is not None else []
    return f"is unknown{meant(str(name), known)}"


def model_at(annotation: Any, place: Sequence[int | str] = ()) -> type[BaseModel] | None:
    """The model of what lies at ``place``, behind fields, keys and indices, in a value of type ``annotation``; None:
    there is none. Without a place: the first that such values are, or hold."""
    origin = get_origin(annotation)
    if origin is not None:
        inside = place if origin in (Union, UnionType, Annotated) else place[1:]
        return next((found for one in get_args(annotation) if (found := model_at(one, inside)) is not None), None)
    if not isinstance(annotation, type) or not issubclass(annotation, BaseModel):
        return None
    if not place:
        return annotation
    field = annotation.model_fields.get(str(place[0]))
    return model_at(field.annotation, place[1:]) if field is not None else None
