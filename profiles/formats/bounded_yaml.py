"""YAML that somebody wrote, read within bounds: of its bytes, its values (aliases multiply) and its depth.

An error is one line that names the place and shows nothing of the content: the file may be another than was meant.
"""

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml
from typing_extensions import override

from sluicegate.domain.errors import ConfigurationError

MAX_BYTES = 4 << 20
MAX_VALUES = 500_000
MAX_DEPTH = 64
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_VARIABLE_HELP = {"SLUICE_DATA": "set it to the folder that holds the papers' data"}
_BOOLEAN = "tag:yaml.org,2002:bool"
_MERGE = "tag:yaml.org,2002:merge"
_TWICE = "a key is given twice"
_TOO_MANY = f"more than {MAX_VALUES} values; aliases multiply"


class _Loader(yaml.SafeLoader):
    """Refuses repeated keys: the last one would win without a word. ``true`` and ``false`` alone are booleans, as YAML
    1.2 has it: ``off`` is the name of a choice, and ``no`` a country's. Merged keys (``<<``) are counted before they
    are: lists of aliases multiply there, too, and are no values yet.
    """

    _merged = 0
    yaml_implicit_resolvers = {  # noqa: RUF012 - as the class above has it
        first: [(tag, pattern) for tag, pattern in known if tag != _BOOLEAN]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    @override
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen and key != "<<":
                raise yaml.constructor.ConstructorError(None, None, _TWICE, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)

    @override
    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        for key, value in node.value:
            if key.tag == _MERGE:
                for one in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    self._count_merged(one)
        super().flatten_mapping(node)

    def _count_merged(self, node: yaml.Node) -> None:
        if isinstance(node, yaml.MappingNode):
            self.flatten_mapping(node)
            self._merged += len(node.value)
            if self._merged > MAX_VALUES:
                raise yaml.constructor.ConstructorError(None, None, _TOO_MANY, node.start_mark)


_Loader.add_implicit_resolver(_BOOLEAN, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def read_mapping(path: Path, what: str, *, empty: bool = False) -> dict[str, Any]:
    """The mapping in the file at ``path``. ``what``: begins errors; ``empty``: nothing is {}.

    Raises ConfigurationError.
    """
    found = parsed(read_bytes(path, what), what)
    if found is None and empty:
        return {}
    if not isinstance(found, dict):
        is_now = (
            "the file is empty" if found is None else "is a list" if isinstance(found, list) else "is a plain value"
        )
        raise ConfigurationError(f"{what}: must be a mapping, name: value; {is_now}")
    unnamed = next((key for key in found if not isinstance(key, str)), "")
    if unnamed != "":
        raise ConfigurationError(
            f"{what}: {unnamed!r:.40} is no name of a field; put it in quotes if it is meant as one"
        )
    return found


def read_bytes(path: Path, what: str) -> bytes:
    """The file's content. Raises ConfigurationError where it cannot be read or is too large."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{what}: {error.strerror}; give a readable YAML file") from error
    if len(data) > MAX_BYTES:
        raise ConfigurationError(f"{what}: more than {MAX_BYTES} bytes; give another file")
    return data


def parsed(text: str | bytes, what: str) -> Any:
    """The value that ``text`` is. Raises ConfigurationError."""
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        raise ConfigurationError(f"{what}: not YAML{_place(error)}") from None  # its text shows the content
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{what}: not YAML ({type(error).__name__})") from None
    _count(value, what)
    return value


def _place(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
    return f"{where}: {error.problem}" if error.problem in (_TWICE, _TOO_MANY) else where


def _count(value: Any, what: str) -> None:
    left = MAX_VALUES
    rest = [(value, 0)]
    while rest:
        one, depth = rest.pop()
        left -= 1
        if left < 0:
            raise ConfigurationError(f"{what}: {_TOO_MANY}")
        if depth > MAX_DEPTH:
            raise ConfigurationError(f"{what}: nested more than {MAX_DEPTH} deep")
        inside = one.values() if isinstance(one, dict) else one if isinstance(one, list | tuple | set) else ()
        rest += [(part, depth + 1) for part in inside]


def expanded(value: Any, environment: Mapping[str, str], what: str) -> Any:
    """``value`` with each ``${NAME}`` in its texts from ``environment``. Raises ConfigurationError."""
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _variable(match.group(1), environment, what), value)
    if isinstance(value, dict):
        return {k: expanded(v, environment, what) for k, v in value.items()}
    if isinstance(value, list):
        return [expanded(v, environment, what) for v in value]
    return value


def _variable(name: str, environment: Mapping[str, str], what: str) -> str:
    value = environment.get(name)
    if not value:
        remedy = _VARIABLE_HELP.get(name, "set it in the environment")
        raise ConfigurationError(f"{what}: ${{{name}}} is not set; {remedy}")
    return value
