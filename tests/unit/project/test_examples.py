"""Examples say how they are called to whoever calls them without what they need."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize(
    "name", [file.name for file in sorted(EXAMPLES.glob("*.py")) if "argv[1]," in file.read_text()]
)
def test_an_example_without_its_arguments_shows_how_it_is_called(name: str) -> None:
    ended = subprocess.run([sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert f"python examples/{name} " in ended.stderr
    assert "Traceback" not in ended.stderr
