"""Variables of the environment that set nothing, with what was meant, and those that cannot be read."""

import re
from collections.abc import Mapping

from pydantic import BaseModel
from pydantic_settings import SettingsError

from sluicegate.profiles.formats.field_errors import meant, model_at

PREFIX = "SLUICE_"
ELSEWHERE = frozenset({"SLUICE_DATA", "SLUICE_REQUIRE_KAFKA", "SLUICE_CHROMIUM", "SLUICE_APP", "SLUICE_TOKEN"})
"""Read by scenarios, tests, examples and Compose, not by settings."""

_LINK = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$")
"""What Kubernetes and Docker put into the environment of a service called ``sluice-...``; its ``..._PORT`` is a URL."""

_FIELD = re.compile(r'for field "(\w+)"')


def unknown_variables(environment: Mapping[str, str], model: type[BaseModel]) -> list[str]:
    """What is wrong with each variable of our prefix that sets nothing, with the nearest that does."""
    every = _names(model)
    wrong = []
    for name, value in environment.items():
        upper = name.upper()
        if not upper.startswith(PREFIX) or upper in ELSEWHERE or _LINK.search(upper) or "://" in value[:8]:
            continue
        ours = upper.removeprefix(PREFIX)
        if ours.split("__")[0].lower() not in model.model_fields:
            wrong.append(f"{name} sets nothing{meant(ours, every, PREFIX)}")
    return wrong


def unreadable_variables(environment: Mapping[str, str], error: SettingsError) -> list[str]:
    """Names of the variables that ``error``, raised as the environment was read, is about."""
    field = _FIELD.search(str(error))
    ours = PREFIX + field[1].upper() if field else PREFIX
    text = getattr(error.__cause__, "doc", None)
    return [name for name, value in environment.items() if name.upper().split("__")[0] == ours and value == text]


def _names(model: type[BaseModel]) -> list[str]:
    names = []
    for name, field in model.model_fields.items():
        names.append(name.upper())
        inner = model_at(field.annotation)
        if inner is not None:
            names += [f"{name.upper()}__{below}" for below in _names(inner)]
    return names
