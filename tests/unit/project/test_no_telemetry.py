"""ONNX Runtime tells nobody of its use, whichever of our modules loads it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "module",
    [
        "sluicegate.executors.onnx.sessions",
        "sluicegate.executors.onnx.variant_child",
        "sluicegate.sluice.registration.registration_candidates",
    ],
)
def test_telemetry_is_off_before_the_library_is_loaded(module: str, tmp_path: Path) -> None:
    code = f"""
import os, {module}
assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"
import onnxruntime
"""
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert [str(path) for path in tmp_path.rglob("*") if "onnxruntime" in path.name] == []


def test_no_other_module_loads_it_first() -> None:
    """Those that do are run after ``executors``, which says so; another one would have to be looked at."""
    folders = ("domain", "executors", "planner", "policies", "profiles", "simulator", "sluice", "stages", "streams")
    users = {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "import onnxruntime" in path.read_text() or "from onnxruntime" in path.read_text()
    }
    assert users == {
        "executors/onnx/sessions.py",
        "profiles/registration/recipes.py",
        "sluice/registration/registration_candidates.py",
    }
