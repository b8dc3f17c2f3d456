"""Every field of settings, scenarios, problems and registered models, tried at its bounds, inside and beyond them.

``tests/models/data/bounds.json`` says what each field takes, and what it is where it is not given. A field that is not
in it, or is bounded otherwise, fails.
"""

import json
import math
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

MODULES = (
    "sluice.settings.settings",
    "simulator.scenario.scenario_fields",
    "simulator.scenario.fault_fields",
    "simulator.arrivals.trace_fields",
    "planner.capacity.capacity_fields",
    "planner.model_less.planner_choice",
    "planner.problems.plan_limits",
    "planner.policy_tables.table_fields",
    "profiles.catalogue.registered_apps",
    "profiles.formats.ramsis_json",
    "sluice.offline.problem_file",
    "stages.planner.table_process",
)
TABLE = Path(__file__).parents[2] / "models" / "data" / "bounds.json"
BOUNDS: dict[str, dict[str, str]] = json.loads(TABLE.read_text())

KEPT = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
SIGNS = dict(zip(KEPT, (">=", ">", "<=", "<"), strict=True))
SIZES = {
    "minItems": "at least",
    "maxItems": "at most",
    "minLength": "at least",
    "maxLength": "at most",
    "minProperties": "at least",
    "maxProperties": "at most",
}
LONG = 5000
"""More than any text may have."""

JUDGED = {
    "PromiseSettings.weakly_hard": ([[0, 1], [3, 100_000]], [[-1, 2], [1, 1], [3, 100_001]]),
    "PromiseLoadSpec.mk": ([[0, 1], [3, 100_000]], [[-1, 2], [1, 1], [3, 100_001]]),
    "PromiseLoadSpec.rows": ([1, 64, [1, 8], [3, 3]], [0, 65, [0, 2], [5, 2], [1, 65], [1]]),
    "KafkaOAuthSection.token_url": (
        ["https://id.example/t", "http://127.0.0.1:8/t", "http://[::1]/t", "http://localhost/t"],
        ["http://id.example/t", "https://", "id.example", "ftp://localhost/"],
    ),
    "TracingSettings.endpoint": (
        ["http://127.0.0.1:4318/v1/traces", "https://otel.example/v1/traces", "http://[::1]:4318/v1/traces"],
        ["127.0.0.1:4318", "localhost:4318/v1/traces", "otel", "http://", "http://otel:99999/", "grpc://otel:4317"],
    ),
    "ObjectSettings.prefixes": (
        [["s3://b/in/"], []],
        [["a"], ["http://h/in/"], ["s3://b"], ["s3://b/"] * 2, ["s3://b/"] * 65],
    ),
    "ObjectSettings.results": (["file:///srv/out/", "gs://b/"], ["a", "", "https://h/out/", "file:///"]),
    "Settings.broker": (["memory://", "kafka://h:1", "memory+http://h:1", "file:///f"], ["ftp://h", "memory:/"]),
    "Settings.fake_gpu": (["a100", "h100x2"], ["a100x0", "v8", "a100x1025"]),
    "SliceSettings.geometry": (["4g+3g", "1gx7"], ["+", "1gx0", "1gx17", "1gxx"]),
    "ProcurementSettings.notices": (["notices.json", "http://127.0.0.1:8/n"], ["  "]),
    "PlannerSpec.latency_s": ([0.0, 2.5, "measured"], [-1e-9, math.nan, math.inf, "soon"]),
    "TablesSpec.make_s": ([0.0, 2.5, "measured"], [-1e-9, math.nan, math.inf, "soon"]),
    "InlineVariant.latency_ms": (
        [{"cpu": {"1": 2.0, "4096": [2.0, 3.0]}}, {"cpu": {}}],
        [
            {"cpu": {"0": 2.0}},
            {"cpu": {"4097": 2.0}},
            {"cpu": {"1": 0.0}},
            {"cpu": {"1": [2.0]}},
            {"cpu": {"1": [2.0, math.inf]}},
        ],
    ),
    "InlineVariant.shorter_latency_ms": (
        [{"1": {"cpu": {"1": 2.0}}}, {"16777216": {"cpu": {"1": [2.0, 3.0]}}}],
        [{"0": {"cpu": {"1": 2.0}}}, {"16777217": {"cpu": {"1": 2.0}}}, {"8": {"cpu": {"1": [0.0, 1.0]}}}, {"8": 1.0}],
    ),
}
"""Where more is asked of a field than its bounds: values that it takes, and that it refuses. Of lists: elements."""

READ_BACK = "written by ourselves and read back"
FREE = {
    **dict.fromkeys(("Record", "CandidateDocument", "SpreadDocument", "_File.pareto_used{}[]"), READ_BACK),
    "Scenario.description": "is only shown",
    "ExecutorFailureSpec.slice": "empty: all slices",
    "EndpointSettings.token": "an empty one is refused where it would expose something",
    "SigningSettings.key": "too short a key is refused where it is used",
    "KafkaSection.key_password": "the broker's to judge",
    "KafkaOAuthSection.client_secret": "the provider's to judge, and refused where it is missing",
    "KafkaSection.password": "the broker's to judge, and not empty where the protocol needs one",
    "TensorSpecDocument.datatype": "one of those that are known; see the catalogue's tests",
}
"""What has no bounds, and why. By class or field."""


@cache
def classes() -> dict[str, type[BaseModel]]:
    """Every class of fields by its name."""
    for module in MODULES:
        import_module(f"sluicegate.{module}")
    found: dict[str, type[BaseModel]] = {}
    waiting: list[type[BaseModel]] = [BaseModel]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            waiting.append(kind)
            if kind.__module__.startswith("sluicegate.") and own(kind):
                assert found.setdefault(kind.__name__, kind) is kind, f"two classes are called {kind.__name__}"
    return found


def own(kind: type[BaseModel]) -> list[str]:
    """Fields that a class declares itself."""
    return [name for name in kind.__annotations__ if name in kind.model_fields]


@cache
def schema_of(kind: type[BaseModel]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Properties by the name that files give them, and definitions."""
    schema = kind.model_json_schema()
    definitions = schema.get("$defs", {})
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    return schema, definitions


Step = int | str
Leaf = tuple[tuple[Step, ...], dict[str, Any]]


def leaves(schema: dict[str, Any], definitions: dict[str, Any], at: tuple[Step, ...] = ()) -> Iterator[Leaf]:
    """Each plain value and each collection in a field. A step: a place, "[]" any place, "{}" any key."""
    if "$ref" in schema:
        found = definitions[schema["$ref"].rpartition("/")[2]]
        if found.get("type") != "object":
            yield from leaves(found, definitions, at)
        return
    for other in ("allOf", "anyOf"):
        for one in schema.get(other, ()):
            yield from leaves(one, definitions, at)
    if schema.get("type") in ("number", "integer", "string", "array", "object"):
        yield at, schema
    for number, one in enumerate(schema.get("prefixItems", ())):
        yield from leaves(one, definitions, (*at, number))
    if isinstance(schema.get("items"), dict):
        yield from leaves(schema["items"], definitions, (*at, "[]"))
    values = [schema.get("additionalProperties"), *schema.get("patternProperties", {}).values()]
    for one in values:
        if isinstance(one, dict):
            yield from leaves(one, definitions, (*at, "{}"))


def said(leaf: dict[str, Any]) -> str:
    """Its bounds in words."""
    kind = leaf["type"]
    words = [kind]
    words += [f"{sign} {leaf[name]:g}" for name, sign in SIGNS.items() if name in leaf]
    words += [f"{words_} {leaf[name]}" for name, words_ in SIZES.items() if name in leaf]
    if "pattern" in leaf:
        words.append(f"like {leaf['pattern']}")
    if "enum" in leaf or "const" in leaf:
        words.append("of " + "|".join(map(str, leaf.get("enum", [leaf.get("const")]))))
    return ", ".join(words)


def fields() -> Iterator[tuple[str, str, str, tuple[Step, ...], dict[str, Any]]]:
    """(class, field as files name it, leaf, steps to the leaf, its schema)."""
    for name, kind in sorted(classes().items()):
        schema, definitions = schema_of(kind)
        for field in own(kind):
            given = kind.model_fields[field].alias or field
            for steps, leaf in leaves(schema["properties"][given], definitions):
                where = given + "".join(f"[{s}]" if isinstance(s, int) else s for s in steps)
                yield name, given, where, steps, leaf


def told() -> dict[str, dict[str, str]]:
    """The table, as the classes have it."""
    table: dict[str, dict[str, str]] = {}
    for name, _, where, _, leaf in fields():
        row = table.setdefault(name, {})
        row[where] = f"{row[where]}; or {said(leaf)}" if where in row else said(leaf)
    for name, kind in classes().items():
        properties = schema_of(kind)[0]["properties"]
        for given in (kind.model_fields[field].alias or field for field in own(kind)):
            if "default" in properties[given]:
                table.setdefault(name, {})[f"{given} not given"] = json.dumps(properties[given]["default"])
    return table


def test_every_field_is_in_the_table_as_it_is_bounded_and_with_what_it_is_where_it_is_not_given() -> None:
    table = told()
    for name in sorted(table.keys() | BOUNDS.keys()):
        assert table.get(name) == BOUNDS.get(name), f"{name}: mend the field, or {TABLE.name} where it is meant"


OTHERS_FILES = {"_Batch": "ignore", "_File": "ignore", "_Model": "ignore"}
"""What others write, where what is unknown is left unread."""
OPTIONS = {"_PolicyFields": "allow"}
"""Options of a policy, which are refused where the policy is made."""


@pytest.mark.parametrize("name", sorted(classes()))
def test_fields_stay_as_they_were_given_and_a_field_too_many_is_refused(name: str) -> None:
    kind = classes()[name]
    assert kind.model_config.get("frozen")
    assert kind.model_config.get("extra") == {**OTHERS_FILES, **OPTIONS}.get(name, "forbid")


PLAIN = [("a" * n) for n in (1, 2, 64)] + ["7g", "a/b", "memory://", "sluice-catalogue/1", ""]


def example(schema: dict[str, Any], definitions: dict[str, Any]) -> Any:
    """Something that it takes."""
    if "$ref" in schema:
        return example(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "default" in schema:
        return schema["default"]
    for other in ("allOf", "anyOf"):
        if other in schema:
            return example(schema[other][0], definitions)
    if "enum" in schema or "const" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    match schema.get("type"):
        case "number" | "integer":
            return inside(schema)[0]
        case "string":
            return texts(schema)[0]
        case "array":
            parts = [example(one, definitions) for one in schema.get("prefixItems", ())]
            return parts or [example(schema["items"], definitions)] * schema.get("minItems", 0)
        case "object" if "properties" in schema:
            return {name: example(schema["properties"][name], definitions) for name in schema.get("required", ())}
        case "object" if schema.get("minProperties") or "additionalProperties" not in schema:
            return {"1": example(schema["additionalProperties"], definitions)}
        case "boolean":
            return True
        case _:
            return {}


def wrapped(value: Any, steps: tuple[Step, ...], schema: dict[str, Any], definitions: dict[str, Any]) -> Any:
    """``value`` in the collections around it."""
    if not steps:
        return value
    rest = wrapped(value, steps[1:], schema, definitions)
    if isinstance(steps[0], int):
        return [rest, rest]
    return [rest] if steps[0] == "[]" else {"1": rest}


def inside(leaf: dict[str, Any]) -> list[float]:
    """At each bound that it takes, and inside."""
    low, high = leaf.get("minimum", leaf.get("exclusiveMinimum")), leaf.get("maximum", leaf.get("exclusiveMaximum"))
    whole = leaf["type"] == "integer"
    taken = [leaf[name] for name in ("minimum", "maximum") if name in leaf]
    if low is not None:
        taken.append(low + (1 if whole else 2.0**-20 * max(1.0, abs(low))))
    if high is not None:
        taken.append(high - (1 if whole else 2.0**-20 * max(1.0, abs(high))))
    return taken or [1, -1, 0]


def beyond(leaf: dict[str, Any]) -> list[float]:
    """Just beyond each bound, and what is no number."""
    whole = leaf["type"] == "integer"
    wrong: list[float] = [math.nan, math.inf, -math.inf]
    if "minimum" in leaf:
        wrong.append(leaf["minimum"] - (1 if whole else 2.0**-40 * max(1.0, abs(leaf["minimum"]))))
    if "maximum" in leaf:
        wrong.append(leaf["maximum"] + (1 if whole else 2.0**-40 * max(1.0, abs(leaf["maximum"]))))
    wrong += [leaf[name] for name in ("exclusiveMinimum", "exclusiveMaximum") if name in leaf]
    return wrong if leaf["type"] == "number" else [*wrong, 1.5]


def texts(leaf: dict[str, Any]) -> list[str]:
    """What it takes: of the shortest and greatest length, and some between."""
    if "enum" in leaf or "const" in leaf:
        return list(leaf.get("enum", [leaf.get("const")]))
    most = leaf.get("maxLength")
    tried = PLAIN + ([] if most is None else ["a" * most])
    fits = [t for t in tried if re.search(leaf.get("pattern", ""), t)]
    return [t for t in fits if leaf.get("minLength", 0) <= len(t) <= (LONG if most is None else most)]


def no_texts(leaf: dict[str, Any]) -> list[str]:
    """What it must refuse: nothing, too much, and characters that cannot name a topic, a folder or a label."""
    if "enum" in leaf or "const" in leaf:
        return ["", "a" * LONG, "nothing of the kind"]
    wrong = ["a" * LONG]
    if leaf.get("minLength", 0) > 0 or ("pattern" in leaf and not re.search(leaf["pattern"], "")):
        wrong.append("")
    if most := leaf.get("maxLength"):
        wrong.append("a" * (most + 1))
    if "pattern" in leaf:
        wrong += [f"a{c}" for c in "\n\0é*?\\" if not re.fullmatch(leaf["pattern"].strip("^$"), f"a{c}")]
    return wrong


def faults(kind: type[BaseModel], field: str, value: Any) -> list[str]:
    """What is wrong with the field."""
    schema, definitions = schema_of(kind)
    document = {**example({**schema, "type": "object"}, definitions), field: value}
    try:
        kind.model_validate_json(json.dumps(document))
    except ValidationError as error:
        return [
            fault["msg"]
            for fault in error.errors(include_url=False, include_context=False, include_input=False)
            if fault["loc"][:1] == (field,)
        ]
    return []


def free(name: str, field: str, where: str) -> bool:
    return any(key in FREE for key in (name, f"{name}.{field}", f"{name}.{where}"))


ALL = [
    pytest.param(name, field, where, steps, leaf, id=f"{name}.{where}-{leaf['type']}")
    for name, field, where, steps, leaf in fields()
    if leaf["type"] in ("number", "integer", "string") and "format" not in leaf
]


@pytest.mark.parametrize(("name", "field", "where", "steps", "leaf"), ALL)
def test_a_field_takes_what_is_within_its_bounds_and_refuses_the_rest(
    name: str, field: str, where: str, steps: tuple[Step, ...], leaf: dict[str, Any]
) -> None:
    kind = classes()[name]
    definitions = schema_of(kind)[1]
    judged = f"{name}.{field}" in JUDGED
    number = leaf["type"] != "string"
    if not judged and not free(name, field, where):
        bounded = any(k in leaf for k in (*SIGNS, "maxLength", "pattern", "enum", "const"))
        assert bounded or leaf["type"] == "number", "nothing bounds it: give it a type of field_types, or a reason"
    for value in [] if judged else (inside(leaf) if number else texts(leaf)):
        assert faults(kind, field, wrapped(value, steps, {}, definitions)) == [], f"{value!r:.50} is within"
    if free(name, field, where) and not number:
        return
    for value in beyond(leaf) if number else no_texts(leaf):
        if "; or " in BOUNDS[name][where]:
            assert judged, "one of several: say what it takes and refuses"
            continue
        assert faults(kind, field, wrapped(value, steps, {}, definitions)), f"{value!r:.50} is beyond"


SIZED = [
    pytest.param(name, field, steps, leaf, id=f"{name}.{where}")
    for name, field, where, steps, leaf in fields()
    if leaf["type"] in ("array", "object") and any(size in leaf for size in SIZES) and f"{name}.{field}" not in JUDGED
]


@pytest.mark.parametrize(("name", "field", "steps", "leaf"), SIZED)
def test_a_collection_takes_no_fewer_and_no_more_than_it_says(
    name: str, field: str, steps: tuple[Step, ...], leaf: dict[str, Any]
) -> None:
    kind = classes()[name]
    definitions = schema_of(kind)[1]
    of = leaf.get("items") or leaf.get("additionalProperties") or {}
    one = example(leaf["prefixItems"][0] if "prefixItems" in leaf else of, definitions)
    least, most = leaf.get("minItems", leaf.get("minProperties")), leaf.get("maxItems", leaf.get("maxProperties"))

    def of_size(size: int) -> Any:
        made = [one] * size if leaf["type"] == "array" else {str(i + 1): one for i in range(size)}
        return wrapped(made, steps, {}, definitions)

    if least:
        assert faults(kind, field, of_size(least - 1))
        assert faults(kind, field, of_size(least)) == []
    if most:
        assert faults(kind, field, of_size(most + 1))
        assert not any("at most" in fault for fault in faults(kind, field, of_size(most)))


@pytest.mark.parametrize("place", JUDGED)
def test_what_more_is_asked_of_a_field(place: str) -> None:
    name, _, field = place.partition(".")
    kind = classes()[name]
    good, bad = JUDGED[place]
    listed = schema_of(kind)[0]["properties"][field].get("type") == "array" and not isinstance(good[0], list | dict)
    for value in good:
        given = [value] if listed or place.endswith(("weakly_hard", ".mk")) else value
        assert faults(kind, field, given) == []
    for value in bad:
        given = [value] if listed or place.endswith(("weakly_hard", ".mk")) else value
        assert faults(kind, field, given)


if __name__ == "__main__":
    TABLE.write_text(json.dumps(told(), indent=1) + "\n")
