"""Rooms and names: no folder too full to read, no basename twice, no import cycle, what a class is, first."""

import ast
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
FOLDERS = ("domain", "profiles", "policies", "planner", "streams", "executors", "stages", "simulator", "sluice")
CODE = [name for name in TRACKED if name.endswith(".py") and name.split("/")[0] in FOLDERS]
MOST = 15

TOO_FULL: dict[str, str] = {
    "docs/figures": "pictures, each with the page that shows it",
    "docs/adr": "decisions, one a page, by number",
}
"""Folders that may hold more, and why."""

ANATOMIES = {
    "core.py": "the core of a role",
    "events.py": "what cores hear",
    "registry.py": "policies and planners by name, one a kind",
    "stage.py": "the stage of a room of stages",
    "broker.py": "the port of each broker",
    "connection.py": "of each broker that has one",
    "consumer.py": "of each broker that has one",
    "producer.py": "of each library that writes to Kafka",
    "transactions.py": "of each library that writes to Kafka",
    "router.py": "core, shell and builder of a role",
    "admission.py": "core, shell and builder of a role",
    "worker.py": "core, shell and builder of a role",
    "planner.py": "core, shell and builder of a role",
}
"""Basenames that siblings share because they are built alike; whoever knows one knows all."""


def test_no_folder_holds_more_than_can_be_seen_at_once() -> None:
    entries: dict[str, set[str]] = defaultdict(set)
    for name in TRACKED:
        parts = Path(name).parts
        for depth in range(1, len(parts)):
            entries["/".join(parts[:depth])].add(parts[depth])
    full = {folder: len(held) for folder, held in entries.items() if len(held) > MOST and folder not in TOO_FULL}
    assert full == {}


def test_no_basename_is_there_twice() -> None:
    """Commands are named as they are typed, whatever else is named so."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in CODE:
        if not name.startswith("sluice/commands/"):
            found[Path(name).name].append(name)
    twice = {base: places for base, places in found.items() if len(places) > 1 and base not in ANATOMIES}
    twice.pop("__init__.py")
    assert twice == {}


def test_imports_make_no_cycle(parsed: Mapping[str, ast.Module]) -> None:
    """Those inside functions and for types alone count too."""
    graph = {module: imported(parsed[name]) - {module} for module, name in modules().items()}
    while leaves := [module for module, wanted in graph.items() if not wanted & graph.keys()]:
        for module in leaves:
            del graph[module]
    assert sorted(graph) == []


@cache
def modules() -> dict[str, str]:
    """By dotted name, packages by their own."""
    return {
        ".".join(("sluicegate", *Path(name).with_suffix("").parts)).removesuffix(".__init__"): name for name in CODE
    }


@pytest.fixture(scope="module")
def parsed() -> Mapping[str, ast.Module]:
    """Each file of ours, let go after these tests: held on to, it makes every full collection half a second longer."""
    return {name: ast.parse((ROOT / name).read_text()) for name in CODE}


def imported(tree: ast.Module) -> set[str]:
    """Our modules that a file imports."""
    known, found = modules(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            whole = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in whole.values()}
    return found & known.keys()


def test_a_class_docstring_says_first_what_the_class_is(parsed: Mapping[str, ast.Module]) -> None:
    begin_with_a_parameter = [
        f"{name}: {node.name}"
        for name, tree in parsed.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and (ast.get_docstring(node) or "").startswith("``")
    ]
    assert begin_with_a_parameter == []


def test_comments_are_no_banners() -> None:
    banners = [
        f"{path}:{number}"
        for path in CODE
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1)
        if line.strip().startswith(("# --", "# ==", "####", "# **"))
    ]
    assert banners == []
