"""Scenario files read: YAML to validated fields, with variables, overrides by dotted name, and paths made absolute.

Nothing of a file is trusted: its size and the number of its nodes are bounded (aliases multiply), keys may not repeat,
and every error is one line that names the field.
"""

import copy
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sluicegate.domain.errors import ConfigurationError
from sluicegate.profiles.formats.bounded_yaml import expanded, parsed, read_mapping
from sluicegate.profiles.formats.field_errors import field_errors
from sluicegate.simulator.scenario.scenario_fields import Scenario

_PATHS = ("catalogue.path", "traces.path")


def read_scenario(path: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """The content of ``path`` with ``${NAME}`` expanded from ``environment`` and paths resolved beside the file.

    Not validated yet: overrides come first. Raises ConfigurationError, one line.
    """
    what = f"scenario {path}"
    read = read_mapping(path, what)
    if {"pools", "profiles"} <= read.keys():
        raise ConfigurationError(f"{what}: is a problem; sluice plan --problem {shlex.quote(str(path))} plans it")
    document = {key: expanded(value, environment, what) for key, value in read.items()}
    return _anchored(document, path.parent)


def scenario_of(document: Mapping[str, Any], what: str = "scenario") -> Scenario:
    """Validate. Raises ConfigurationError that names every wrong field in one line."""
    try:
        return Scenario.model_validate(document)
    except ValidationError as error:
        raise ConfigurationError(f"{what}: {field_errors(error, Scenario, 'scenario')}") from error


def with_setting(document: Mapping[str, Any], assignment: str) -> dict[str, Any]:
    """``document`` with ``a.b=value`` (the value is YAML; list elements by index). Raises ConfigurationError."""
    name, sign, text = assignment.partition("=")
    if not sign or not name.strip():
        raise ConfigurationError(f"--set {assignment!r}: give name=value, such as policies.batching=eager")
    return overridden(document, {name.strip(): parsed(text, f"--set {assignment!r}")})


def overridden(document: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """``document`` with each dotted name set: mappings are merged into mappings, everything else replaces.

    A name of the document's ``parameters`` stands for all the fields that it lists.
    """
    result = copy.deepcopy(dict(document))
    parameters = result.get("parameters")
    for name, value in overrides.items():
        targets = parameters.get(name) if isinstance(parameters, dict) else None
        for target in targets if isinstance(targets, list) else [name]:
            _assign(result, str(target).split("."), value, name)
    return result


def _assign(target: Any, parts: list[str], value: Any, name: str) -> None:
    key: Any = parts[0]
    if isinstance(target, list):
        if key not in map(str, range(len(target))):
            raise ConfigurationError(f"{name}: there is no element {key!r}; the list has {len(target)}")
        key = int(key)
    elif not isinstance(target, dict):
        raise ConfigurationError(f"{name}: {key!r} cannot be set inside a plain value")
    if len(parts) > 1:
        if isinstance(target, dict) and not isinstance(target.get(key), dict | list):
            # A policy given by its bare name takes options too.
            old = target.get(key)
            target[key] = {"name": old} if isinstance(old, str) else {}
        _assign(target[key], parts[1:], value, name)
        return
    old = target[key] if isinstance(target, list) else target.get(key)
    if isinstance(old, dict) and isinstance(value, Mapping):
        for inner, content in value.items():
            _assign(old, [str(inner)], content, f"{name}.{inner}")
    else:
        target[key] = copy.deepcopy(value)


def _anchored(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """``document`` with its paths beside its file, those that its systems override it with too."""
    parameters, systems = document.get("parameters"), document.get("systems")
    stand_for = parameters if isinstance(parameters, dict) else {}
    found = {name: _beside([name], value, folder) for name, value in document.items()}
    if isinstance(systems, dict):
        found["systems"] = {label: _overrides_beside(given, stand_for, folder) for label, given in systems.items()}
    return found


def _overrides_beside(overrides: Any, stand_for: Mapping[str, Any], folder: Path) -> Any:
    if not isinstance(overrides, dict):
        return overrides
    targets = {name: listed if isinstance(listed, list) else [name] for name, listed in stand_for.items()}
    return {name: _beside(targets.get(name, [name]), value, folder) for name, value in overrides.items()}


def _beside(targets: Sequence[Any], value: Any, folder: Path) -> Any:
    """The value of the fields ``targets``."""
    if isinstance(value, dict):
        return {key: _beside([f"{target}.{key}" for target in targets], inner, folder) for key, inner in value.items()}
    return str(folder / value) if isinstance(value, str) and not set(_PATHS).isdisjoint(targets) else value
