"""Every setting there is, read off the models that validate them, and the reference page of them."""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sluicegate.sluice.settings.settings import Settings

_EACH: dict[Any, str] = {tuple: "<n>", dict: "<app>"}
"""How one of a list is called, and one of a mapping: sections by name are apps'."""


@dataclass(frozen=True, slots=True)
class Described:
    """One setting. ``name``: dotted, as in the file; ``variable``: of the environment; ``kind``: what it takes."""

    name: str
    variable: str
    kind: str
    default: str


@dataclass(frozen=True, slots=True)
class Group:
    """Settings of one section, "" for those at the top. ``about``: what the section's model says of them."""

    name: str
    about: str
    settings: tuple[Described, ...]


def groups() -> tuple[Group, ...]:
    """All of them, the top first, then sections in their order."""
    return tuple(_groups(Settings, ""))


def as_markdown() -> str:
    """The reference page."""
    lines = [
        "# Settings",
        "",
        "Written by `sluice describe settings --markdown` from the models that validate them; a test keeps them alike.",
        "One YAML file (`--settings FILE`) and the environment (the variable), which wins. Unknown names are refused",
        "with the nearest that is known. Variables of lists and mappings take the whole as JSON.",
    ]
    for group in groups():
        heading = f"`{group.name}`" if "<" in group.name else group.name or "At the top"
        lines += ["", f"## {heading}", ""]
        if group.about:
            lines += [group.about, ""]
        lines += ["| setting | takes | default | variable |", "|---|---|---|---|"]
        lines += [f"| `{s.name}` | {s.kind} | {s.default} | `{s.variable}` |" for s in group.settings]
    return "\n".join([*lines, ""])


def _groups(model: type[BaseModel], name: str) -> Iterator[Group]:
    inner: list[Group] = []
    own: list[Described] = []
    for field, info in model.model_fields.items():
        dotted = f"{name}.{field}" if name else field
        section = _section(info.annotation)
        if section is None:
            kind, variable = info.annotation, f"SLUICE_{dotted.replace('.', '__').upper()}"
            held, each = _held(kind), f"{dotted}.{_EACH.get(get_origin(kind), '')}"
            own.append(Described(dotted, variable, _kind(kind, each), _default(field, info)))
            if held is not None:
                inner.append(Group(each, _about(held), tuple(_fields(held, each, variable))))
        else:
            inner += _groups(section, dotted)
    yield Group(name, _about(model), tuple(own))
    yield from inner


def _fields(model: type[BaseModel], name: str, variable: str) -> Iterator[Described]:
    """Of what a list or mapping holds: its variable is that of the whole."""
    for field, info in model.model_fields.items():
        yield Described(f"{name}.{field}", variable, _kind(info.annotation), _default(field, info))


def _held(kind: Any) -> type[BaseModel] | None:
    """The model of what a list or mapping holds, where that is a section."""
    held = [one for one in get_args(kind) if inspect.isclass(one) and issubclass(one, BaseModel)]
    return held[0] if held and get_origin(kind) in _EACH else None


def _section(kind: Any) -> type[BaseModel] | None:
    """The model of a section, None for what is a value, or a list or mapping of sections."""
    for one in (kind, *get_args(kind)):
        if inspect.isclass(one) and issubclass(one, BaseModel):
            return one if kind is one or type(None) in get_args(kind) else None
    return None


def _kind(kind: Any, each: str = "") -> str:
    """``each``: how what a list or mapping holds is called, where that is a section."""
    arguments = get_args(kind)
    if hasattr(kind, "__metadata__"):
        return _kind(arguments[0])
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return ", ".join(f"`{member.value}`" for member in kind)
    if kind is type(None):
        return "nothing"
    if inspect.isclass(kind) and issubclass(kind, BaseModel):
        return f"`{each}`"
    if inspect.isclass(kind) and not arguments:
        return {"str": "text", "int": "integer", "float": "number", "bool": "true, false", "Path": "path"}.get(
            kind.__name__, kind.__name__
        )
    if arguments and all(isinstance(one, str | int | float) for one in arguments):
        return ", ".join(f"`{one}`" for one in arguments)
    origin = getattr(kind, "__origin__", None)
    if origin is dict:
        return f"{_kind(arguments[1], each)} by name"
    if origin is tuple:
        return f"list of {_kind(arguments[0], each)}"
    parts = [part for one in arguments if (part := _kind(one)) != "nothing"]
    return " or ".join(dict.fromkeys(parts)) or "text"


def _default(name: str, info: FieldInfo) -> str:
    if info.default_factory is not None and info.default is PydanticUndefined:
        return "`{}`" if info.default_factory is dict else "`~/.sluicegate`" if name == "home" else "made at the start"
    value = info.default
    if value is PydanticUndefined:
        return "needed"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`"


def _about(model: type[BaseModel]) -> str:
    """What the model says of its fields and, a paragraph each, those that it has more of from."""
    told = [one.__doc__ or "" for one in model.__mro__ if one is model or _has_fields(one)]
    return "\n\n".join(" ".join(one.replace("``", "`").replace("|", "\\|").split()) for one in told)


def _has_fields(base: type) -> bool:
    """Whether it declares any itself."""
    return issubclass(base, BaseModel) and not inspect.get_annotations(base).keys().isdisjoint(base.model_fields)
