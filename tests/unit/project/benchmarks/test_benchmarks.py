"""Benchmarks can be started as `make bench` starts them: by file, with nothing but installed packages on the path."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
_EACH = """
import ast, runpy, sys
known = list(sys.path)
for file in sys.argv[1:]:
    sys.path[:] = [file.rpartition("/")[0], *known]  # what Python does for a script
    for name in [n for n in sys.modules if n.split(".")[0] in {"bench", "reproduce", "tests"}]:
        del sys.modules[name]
    try:
        runpy.run_path(file, run_name="not main")
        for function in ast.walk(ast.parse(open(file).read())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for line in ast.walk(function):
                    if isinstance(line, ast.Import | ast.ImportFrom):
                        exec(ast.unparse(line), {})
    except ImportError as error:
        print(f"{file}: {error}")
"""


@pytest.mark.thorough
def test_each_finds_what_it_imports_at_once_or_later(tmp_path: Path) -> None:
    files = sorted(map(str, [*(ROOT / "bench").glob("*.py"), *(ROOT / "bench").glob("*/*.py")]))
    assert len(files) > 20
    path = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place and Path(place) != ROOT]
    # -P: the folder that Python runs in is not on the path either.
    ran = subprocess.run(
        [sys.executable, "-P", "-c", _EACH, *files],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": os.pathsep.join(path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
