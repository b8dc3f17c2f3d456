"""Policies by name, made of options whose names and types are checked when they are given, not at the first query."""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any, TypeVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from sluicegate.domain.errors import ConfigurationError, shown
from sluicegate.profiles.formats.field_errors import meant

P = TypeVar("P")
_CONFIG = ConfigDict(arbitrary_types_allowed=True)


def factory_of(
    kind: str, known: Mapping[str, Callable[..., P]], name: str, options: Mapping[str, Any], *first: Any
) -> Callable[..., P]:
    """What makes policies called ``name`` of these options. ``first``: what it is called with beside them, for a trial.

    Raises ConfigurationError for a name or option that is unknown, and for a value that one does not take.
    """
    made = known.get(name)
    if made is None:
        near = meant(name, known)
        raise ConfigurationError(f"{kind} policy {name!r} is unknown; choose one of {', '.join(sorted(known))}{near}")
    allowed = list(signature(made).parameters)[len(first) :]
    types = get_type_hints(made.__init__) if options else {}
    for option in options:
        if option not in allowed:
            raise ConfigurationError(
                f"{kind} policy {name!r} has no option {option!r}; it takes {', '.join(allowed) or 'none'}"
                f"{meant(option, allowed)}"
            )
    make = partial(
        made,
        **{option: typed(f"{kind} policy {name!r}: {option}", types[option], options[option]) for option in options},
    )
    make(*first)  # a bad value is an error now
    return make


def typed(what: str, kind: Any, value: Any) -> Any:
    """``value`` itself, or what it says where that is of another type, such as a pair in YAML.

    Raises ConfigurationError that begins with ``what`` for one that is none of ``kind``.
    """
    try:
        read = TypeAdapter(kind, config=_CONFIG).validate_python(value)
    except ValidationError as error:
        raise ConfigurationError(f"{what}: {error.errors()[0]['msg']} (got {shown(value)})") from error
    return value if read == value else read
