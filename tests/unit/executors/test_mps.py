"""MPS daemons: directories of their own, the environment of their clients, clear errors."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CalledProcessError

import pytest

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.executors.devices.mps import CONTROL, MpsDaemon, run_command


class Recorder:
    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[tuple[tuple[str, ...], dict[str, str], str]] = []
        self.error = error

    def __call__(self, command: Sequence[str], environment: Mapping[str, str], said: str) -> None:
        self.calls.append((tuple(command), dict(environment), said))
        if self.error is not None:
            raise self.error


def test_each_daemon_has_its_slice_and_its_directories(tmp_path: Path) -> None:
    run = Recorder()
    one, two = (MpsDaemon(f"MIG-{i}", tmp_path, threads=t) for i, t in ((1, None), (2, 60)))
    one.start(run)
    two.start(run)
    one.stop(run)
    assert [(c, s) for c, _, s in run.calls] == [((CONTROL, "-d"), ""), ((CONTROL, "-d"), ""), ((CONTROL,), "quit\n")]
    first, second = run.calls[0][1], run.calls[1][1]
    assert first["CUDA_VISIBLE_DEVICES"] == "MIG-1"
    assert first["CUDA_MPS_PIPE_DIRECTORY"] != second["CUDA_MPS_PIPE_DIRECTORY"]
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in first
    assert second["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "60"
    assert one.pipes.is_dir()
    assert two.logs.is_dir()


@pytest.mark.parametrize("error", [FileNotFoundError(CONTROL), CalledProcessError(1, CONTROL), PermissionError("no")])
def test_a_daemon_that_cannot_be_reached_is_one_clear_line(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(ConfigurationError):
        MpsDaemon("MIG-1", tmp_path).start(Recorder(error))


@pytest.mark.parametrize("uuid", ["", "0", "MIG-../../etc", "MIG-a b", "x" * 300])
def test_uuids_are_not_paths_or_options(uuid: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError):
        MpsDaemon(uuid, tmp_path)


def test_thread_percentages_are_percentages(tmp_path: Path) -> None:
    for threads in (0, 101, -5):
        with pytest.raises(InvalidInputError):
            MpsDaemon("MIG-1", tmp_path, threads=threads)


def test_the_daemons_program_is_found_by_our_path_and_gets_nothing_else_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia" / "controls-mps"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n{ echo "$@"; cat; env | sort; } > "$WHERE"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("A_SECRET", "told to nobody")
    run_command(["controls-mps", "-d"], {"WHERE": str(tmp_path / "told")}, "quit\n")
    arguments, said, *rest = (tmp_path / "told").read_text().splitlines()
    assert (arguments, said) == ("-d", "quit")
    assert f"PATH=/usr/local/bin:/usr/bin:/bin:{program.parent}" in rest
    assert not any(line.startswith("A_SECRET") for line in rest)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(FileNotFoundError):
        run_command(["controls-mps", "-d"], {}, "")
