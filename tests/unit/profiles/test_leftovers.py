"""What killed processes leave is removed by the next that makes such, and nothing else is."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sluicegate.profiles.catalogue.catalogue_folder import write_file
from sluicegate.profiles.catalogue.leftovers import folder_for_a_while

pytestmark = pytest.mark.virtual(False)

_MAKES = """
import time
from sluicegate.profiles.catalogue.leftovers import folder_for_a_while
with folder_for_a_while("{kind}") as folder:
    (folder / "large").write_bytes(b"of a model")
    print(folder, flush=True)
    time.sleep(600.0)
"""


def make(kind: str, place: Path) -> "tuple[subprocess.Popen[str], Path]":
    """A process that is in the middle of something, and its folder, an hour old."""
    process = subprocess.Popen(
        [sys.executable, "-c", _MAKES.format(kind=kind)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(place)},
    )  # fmt: skip
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert (folder / "large").exists()
    age(folder)
    return process, folder


def age(path: Path) -> None:
    os.utime(path, (1.0e9, 1.0e9))


def test_folders_of_killed_processes_are_removed_and_those_of_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, left = make("variants", tmp_path)
    serving, held = make("variants", tmp_path)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    young, other = tmp_path / "sluice-variants-young", tmp_path / "sluice-demand-other"
    link, elsewhere = tmp_path / "sluice-variants-link", tmp_path / "elsewhere"
    for folder in (young, other, elsewhere):
        folder.mkdir()
    age(other)
    link.symlink_to(elsewhere)
    os.utime(link, (1.0e9, 1.0e9), follow_symlinks=False)
    try:
        with folder_for_a_while("variants") as own:
            there = set(tmp_path.iterdir())
        assert there == {own, held, young, other, link, elsewhere}
        assert not own.exists() and not left.exists() and (held / "large").exists()
    finally:
        serving.kill()
        serving.communicate()


def test_a_file_that_was_half_written_is_removed_by_the_next_that_is_written_there(tmp_path: Path) -> None:
    half, foreign = tmp_path / ".writing-abc", tmp_path / ".kept"
    for path in (half, foreign):
        path.write_bytes(b"half of a mod")
        age(path)
    (tmp_path / ".writing-young").write_bytes(b"h")
    write_file(tmp_path / "model", b"model")
    assert {path.name for path in tmp_path.iterdir()} == {".kept", ".writing-young", "model"}
    assert (tmp_path / "model").read_bytes() == b"model"
