"""Scenario files read: YAML to validated fields, with variables, overrides by dotted name, and paths made absolute.

Nothing of a file is trusted: its size and the number of its nodes are bounded (aliases multiply), keys may not repeat,
and every error is one line that names the field.
"""

import copy
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from typing_extensions import override

from sluicegate.domain.errors import ConfigurationError
from sluicegate.simulator.scenario.scenario_fields import Scenario

MAX_BYTES = 4 << 20
MAX_NODES = 500_000
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PATHS = (("catalogue", "path"), ("traces", "path"))
_VARIABLE_HELP = {"SLUICE_DATA": "set it to the folder that holds the papers' data"}


class _Loader(yaml.SafeLoader):
    """Refuses repeated keys: the last one would win without a word."""

    @override
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key in seen and key != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_scenario(path: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """The content of ``path`` with ``${NAME}`` expanded from ``environment`` and paths resolved beside the file.

    Not validated yet: overrides come first. Raises ConfigurationError, one line.
    """
    raw = _parse(path)
    expanded = _expanded(raw, environment, f"scenario {path}", _Budget())
    assert isinstance(expanded, dict)
    return _anchored(expanded, path.parent)


def scenario_of(document: Mapping[str, Any], what: str = "scenario") -> Scenario:
    """Validate. Raises ConfigurationError that names every wrong field in one line."""
    try:
        return Scenario.model_validate(document)
    except ValidationError as error:
        faults = []
        for fault in error.errors(include_url=False, include_input=False, include_context=False)[:8]:
            where = ".".join(str(part) for part in fault["loc"]) or "scenario"
            faults.append(f"{where}: {fault['msg']}")
        raise ConfigurationError(f"{what}: {'; '.join(faults)}") from error


def with_setting(document: Mapping[str, Any], assignment: str) -> dict[str, Any]:
    """``document`` with ``a.b=value`` (the value is YAML; list elements by index). Raises ConfigurationError."""
    name, sign, text = assignment.partition("=")
    if not sign or not name.strip():
        raise ConfigurationError(f"--set {assignment!r}: give name=value, such as policies.batching=eager")
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigurationError(f"--set {assignment!r}: {_one_line(error)}") from error
    return overridden(document, {name.strip(): value})


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
        if not key.isdigit() or int(key) >= len(target):
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


def _parse(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"scenario {path}: {error.strerror}; give a readable YAML file") from error
    if len(data) > MAX_BYTES:
        raise ConfigurationError(f"scenario {path}: more than {MAX_BYTES} bytes; is it a scenario?")
    try:
        raw = yaml.load(data, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigurationError(f"scenario {path}: not YAML ({_one_line(error)})") from error
    if not isinstance(raw, dict):
        raise ConfigurationError(f"scenario {path}: must be a mapping, is {type(raw).__name__}; see docs/guide")
    return raw


class _Budget:
    def __init__(self) -> None:
        self.left = MAX_NODES

    def spend(self, what: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise ConfigurationError(f"{what}: more than {MAX_NODES} values; aliases multiply")


def _expanded(value: Any, environment: Mapping[str, str], what: str, budget: _Budget, depth: int = 0) -> Any:
    budget.spend(what)
    if depth > 64:
        raise ConfigurationError(f"{what}: nested more than 64 deep")
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _variable(match.group(1), environment, what), value)
    if isinstance(value, dict):
        return {k: _expanded(v, environment, what, budget, depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        return [_expanded(v, environment, what, budget, depth + 1) for v in value]
    return value


def _variable(name: str, environment: Mapping[str, str], what: str) -> str:
    value = environment.get(name)
    if not value:
        remedy = _VARIABLE_HELP.get(name, "set it in the environment")
        raise ConfigurationError(f"{what}: ${{{name}}} is not set; {remedy}")
    return value


def _anchored(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    for section, field in _PATHS:
        part = document.get(section)
        if isinstance(part, dict) and isinstance(part.get(field), str):
            part[field] = str(folder / part[field])
    return document


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
