"""What ``sluice doctor`` says of programs is plain text, whatever they write."""

from pathlib import Path

import pytest

from sluicegate.sluice.commands.doctor import _program


@pytest.mark.parametrize("stream", ["1", "2"])
def test_the_first_line_of_a_program_is_told_without_its_colours(
    stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "mvn"
    program.write_text(f"#!/bin/sh\nprintf '\\033[1mApache Maven 3.8\\033[m\\nMaven home: /x\\n' >&{stream}\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = _program("mvn", ["--version"], "install it")
    assert found.ok and found.found == "Apache Maven 3.8"
