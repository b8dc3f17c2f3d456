"""Examples say how they are called to whoever calls them without what they need, and that nothing answers."""

import socket
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


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("ask.py", ["clouds", "http://{}"], []),
        ("large_input.py", ["clouds", "http://{}"], ["{}"]),
        ("ask.py", ["clouds", "kafka://{}"], []),
        ("kafka_producer.py", ["{}"], ["clouds", "point", "16"]),
    ],
)
def test_an_example_says_where_nothing_answers(tmp_path: Path, name: str, before: list[str], after: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    arguments = [*(one.format(address) for one in before), *(one.format(tmp_path / "in") for one in after)]
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert address in ended.stderr.splitlines()[-1] and "answers at" in ended.stderr
    assert "Traceback" not in ended.stderr
