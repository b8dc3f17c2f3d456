"""Import rules that a layer check cannot say."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMPURE = {"asyncio", "time", "random", "threading", "socket", "subprocess", "datetime", "multiprocessing", "secrets"}
PURE = sorted(
    path for folder in ("domain", "policies", "planner", "simulator") for path in (ROOT / folder).rglob("*.py")
)


def test_decisions_import_no_clock_randomness_or_io() -> None:
    assert len(PURE) > 200
    guilty = {str(path.relative_to(ROOT)): found for path in PURE if (found := imported(path) & IMPURE)}
    assert guilty == {}


def imported(path: Path) -> set[str]:
    """Packages."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_no_pickle_anywhere() -> None:
    guilty = [
        str(path.relative_to(ROOT))
        for path in ROOT.glob("*/**/*.py")
        if not {".venv", "build"} & set(path.relative_to(ROOT).parts)
        and path != Path(__file__)
        and any(word in path.read_text() for word in ("import pickle", "allow_pickle=True", "import marshal"))
    ]
    assert guilty == []
