"""Draws mutants: a place in the code at random, and one of the changes that can be made there.

Left out is what changes no decision: annotations, docstrings, decorators, assertions for the type checker, and what
errors say.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOMS = (
    "policies",
    "planner",
    "simulator",
    "sluice/audit",
    "streams/records",
    "streams/memory",
    "stages/fronts/grpc_limits.py",
    "stages/fronts/grpc_tensors.py",
    "stages/fronts/http_auth.py",
    "stages/runtime/exactly_once.py",
    "stages/runtime/offset_tracker.py",
    "stages/runtime/outbox.py",
    "stages/telemetry/metrics.py",
    "executors/colocation.py",
    "executors/dtypes.py",
    "executors/evaluation.py",
)
"""Folders and files: of decisions, what simulates them, the auditor, the records' codecs, the embedded broker, and what
stages and executors have that decides by itself."""

Position = tuple[int, int]
"""Line and column."""
Place = tuple[Position, Position]

_KINDS = (
    {"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod"},
    {"BitOr", "BitAnd", "BitXor"},
    {"Eq", "NotEq", "Lt", "LtE", "Gt", "GtE"},
    {"Is", "IsNot"},
    {"In", "NotIn"},
)
"""Operators that take one another's operands."""


@dataclass(frozen=True)
class Mutant:
    """A change of one file. ``line``: the first that differs; ``before`` and ``after``: that line."""

    file: str
    line: int
    operator: str
    before: str
    after: str
    source: str

    @property
    def module(self) -> str:
        """That of the file, within the package."""
        return self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def name(self) -> str:
        """What it is known by, however lines move."""
        return f"{self.file}: {self.before} -> {self.after}"


def code_in(root: Path) -> list[str]:
    """The rooms' files, relative to ``root``."""
    files = (
        file
        for room in ROOMS
        for file in ([root / room] if room.endswith(".py") else sorted((root / room).rglob("*.py")))
    )
    return [str(file.relative_to(root)) for file in files]


def drawn(root: Path, count: int, rng: Random, files: Sequence[str] = ()) -> list[Mutant]:
    """``count`` of them, each at a place of its own; fewer where there are no more. ``files``: relative to ``root``."""
    chosen = list(files) or code_in(root)
    lines = {file: len((root / file).read_text().splitlines()) for file in chosen}
    places: dict[str, list[Place]] = {}
    found: list[Mutant] = []
    while len(found) < count and lines:
        (file,) = rng.choices(list(lines), list(lines.values()))
        source = (root / file).read_text()
        if file not in places:
            places[file] = sorted(_options(source))
            rng.shuffle(places[file])
        if places[file]:
            found += _one_at(file, source, places[file].pop(), rng)
        else:
            del lines[file]
    return found


def named(root: Path, names: Sequence[tuple[str, str, str]]) -> list[Mutant]:
    """Mutants by file, line before and line after, those that the code as it is still has."""
    found: dict[str, Mutant] = {}
    for file in sorted({file for file, _, _ in names}):
        source = (root / file).read_text()
        wanted = {(before, after) for of, before, after in names if of == file}
        told = {number for number, line in enumerate(source.splitlines(), 1) if line.strip() in dict(wanted)}
        for (first, last), options in _options(source).items():
            for operator, occurrence in options if told.intersection(range(first[0], last[0] + 1)) else ():
                for mutant in _made(file, source, operator, occurrence):
                    if (mutant.before, mutant.after) in wanted:
                        found.setdefault(mutant.name, mutant)
    return [*found.values()]


@cache
def _options(source: str) -> dict[Place, list[tuple[str, int]]]:
    """Of each place, operators and which of their occurrences it is."""
    dead = list(_without_effect(ast.parse(source)))
    nodes, lines = list(ast_nodes(get_ast(source))), source.splitlines()
    found: dict[Place, list[tuple[str, int]]] = {}
    for name in sorted(cosmic_ray.plugins.operator_names()):
        kind = cosmic_ray.plugins.get_operator(name)
        if kind.arguments() or not _is_telling(name.rpartition("/")[2]):
            continue
        operator = kind()
        everywhere = (at for node in nodes for at in operator.mutation_positions(node))
        for occurrence, (start, end) in enumerate(everywhere):
            place = (start[0], start[1]), (end[0], end[1])
            marker = lines[start[0] - 1][start[1] : start[1] + 2] in {"*,", "/,"}  # of parameters by name or place
            if not marker and not any(first <= place[0] and place[1] <= last for first, last in dead):
                found.setdefault(place, []).append((name, occurrence))
    return found


def _is_telling(operator: str) -> bool:
    """Whether what it makes is told from the original by what comes out, not by a TypeError at once."""
    _, _, pair = operator.partition("Operator_")
    if not pair or "_" not in pair:
        return operator != "RemoveDecorator"
    if operator.startswith("ReplaceUnary"):
        return pair in {"USub_UAdd", "Delete_Not", "Delete_USub"}
    old, new = pair.split("_")
    return any(old in kind and new in kind for kind in _KINDS)


def _one_at(file: str, source: str, place: Place, rng: Random) -> list[Mutant]:
    options = list(_options(source)[place])
    rng.shuffle(options)
    return next((made for name, occurrence in options if (made := _made(file, source, name, occurrence))), [])


def _made(file: str, source: str, operator: str, occurrence: int) -> list[Mutant]:
    """One, where it can be made and is another program."""
    try:
        mutated = mutate_code(source, cosmic_ray.plugins.get_operator(operator)(), occurrence)
    except AttributeError:  # the operator cannot read what is caught where its name has a dot
        return []
    if mutated is None:
        return []
    try:
        if ast.dump(ast.parse(mutated)) == ast.dump(ast.parse(source)):
            return []
    except SyntaxError:
        return []
    lines = zip(source.splitlines(), mutated.splitlines(), strict=False)
    number, (before, after) = next((i, pair) for i, pair in enumerate(lines, 1) if pair[0] != pair[1])
    return [Mutant(file, number, operator.rpartition("/")[2], before.strip(), after.strip(), mutated)]


def _without_effect(tree: ast.Module) -> Iterator[Place]:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield _span(node.annotation)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            yield _span(node.returns)
        if isinstance(node, ast.Assert | ast.Raise) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            yield _span(node)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                start, end = _span(decorator)
                yield (start[0], start[1] - 1), end
        if isinstance(node, ast.Assign) and _is_type(node.value):
            yield _span(node)


def _is_type(value: ast.expr) -> bool:
    """Whether it is a name of types alone: ``A | B``, ``Mapping[str, A]``."""
    if isinstance(value, ast.BinOp):
        return isinstance(value.op, ast.BitOr) and _is_type(value.left) and _is_type(value.right)
    if isinstance(value, ast.Subscript):
        return _is_type(value.value)
    if isinstance(value, ast.Constant):
        return value.value is None
    return isinstance(value, ast.Name) and (value.id[:1].isupper() or value.id in {"tuple", "dict", "list"})


def _span(node: ast.expr | ast.stmt) -> Place:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
