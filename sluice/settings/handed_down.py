"""Settings of child processes: a file says all that was resolved here, and the environment nothing but secrets."""

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from sluicegate.sluice.settings.settings import Settings
from sluicegate.sluice.settings.unknown_names import PREFIX

_LISTENING = frozenset({"http", "grpc", "web", "metrics"})
"""A port is one process's."""


def write_down(settings: Settings, file: Path) -> None:
    """Write what a child reads with ``--settings``: all but what listens, and secrets."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(settings.model_dump_json(exclude=set(_LISTENING)), encoding="utf-8")


def child_environment(settings: Settings) -> dict[str, str]:
    """Ours, without what stands above a settings file, and with the secrets, which no such file may hold."""
    ours = {name: said for name, said in os.environ.items() if not _sets(name)}
    for section, held in settings:
        if section not in _LISTENING:
            ours |= _secrets(f"{PREFIX}{section.upper()}", held)
    return ours


def _sets(variable: str) -> bool:
    upper = variable.upper()
    return upper.startswith(PREFIX) and upper.removeprefix(PREFIX).split("__")[0].lower() in Settings.model_fields


def _secrets(place: str, held: object) -> Iterator[tuple[str, str]]:
    if not isinstance(held, BaseModel):
        return
    for name, field in type(held).model_fields.items():
        value = getattr(held, name)
        if field.exclude and value is not None:
            yield f"{place}__{name.upper()}", value
        yield from _secrets(f"{place}__{name.upper()}", value)
