"""What ``sluice doctor`` says of programs is plain text, whatever they write."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from sluicegate.executors.onnx import runtime_options
from sluicegate.sluice.commands.doctor import _program, examine
from sluicegate.sluice.settings.settings import Settings


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


@pytest.mark.parametrize("plugin", [True, False])
def test_docker_is_there_for_compose_where_its_plugin_is(
    plugin: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "docker"
    there = "[ $1 = compose ] && echo Docker Compose version v5 || echo Docker version 29"
    program.write_text(f"#!/bin/sh\n{there if plugin else '[ $1 = --version ] && echo Docker version 29'}\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (docker,) = (one for one in examine(Settings(home=tmp_path)) if one.name == "docker")
    assert docker.ok is plugin and (docker.found == "Docker Compose version v5") is plugin


@pytest.mark.parametrize(
    ("installed", "ok", "told"),
    [
        ({"onnxruntime": "1.2"}, True, "onnxruntime 1.2"),
        ({"onnxruntime": "1.2", "onnxruntime-gpu": "1.3"}, False, "onnxruntime-gpu 1.3 and onnxruntime 1.2"),
        ({}, False, "not installed"),
    ],
)
def test_two_packages_of_onnx_runtime_lie_over_one_another(
    installed: dict[str, str], ok: bool, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(runtime_options, "version", version)
    (found,) = (one for one in examine(Settings(home=tmp_path)) if one.name == "ONNX Runtime")
    assert (found.ok, found.found) == (ok, told)
    assert ok or "install" in found.remedy
