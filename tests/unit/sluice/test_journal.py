"""The journal of a registration on a full disk: one line says so, and what was kept before is there afterwards."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.profiles.catalogue.profiler import Measurement, Sample
from sluicegate.sluice.registration.registration_journal import Journal, KeptSweep

FIRST, SECOND, THIRD = (Measurement("v", batch, 0) for batch in (1, 2, 4))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_told_in_one_line_and_nothing_kept_before_is_gone(disk: Path) -> None:
    journal = Journal(disk / "job")
    journal.put("one", {"a": 1})
    for write in (
        lambda: journal.put("one", {"a": "x" * 200_000}),
        lambda: journal.put_arrays("two", [np.zeros(50_000)]),
    ):
        with pytest.raises(ConfigurationError, match=r"No space left .* goes on where it stopped"):
            write()
    assert journal.get("one") == {"a": 1}
    assert journal.arrays("two") is None


def test_samples_that_were_kept_before_the_disk_was_full_are_there_again(disk: Path) -> None:
    file = disk / "samples"
    sweep = KeptSweep(file, ["v"], [1, 2, 4])
    sweep.record(FIRST, Sample(0.5, 0.25))
    (disk / "filler").write_bytes(bytes(4096))
    with pytest.raises(OSError, match="No space left"), (disk / "filler").open("ab", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    with pytest.raises(ConfigurationError, match="make room"):
        for _ in range(1000):
            sweep.record(SECOND, Sample(0.75, 0.5))
    sweep.close()
    (disk / "filler").unlink()
    again = KeptSweep(file, ["v"], [1, 2, 4])
    assert again.restored > 1
    before = again.restored
    again.record(THIRD, Sample(1.0, 0.5))
    again.close()
    last = KeptSweep(file, ["v"], [1, 2, 4])
    assert last.restored == before + 1
    last.close()


def test_a_first_line_that_was_cut_short_does_not_swallow_the_next(tmp_path: Path) -> None:
    file = tmp_path / "samples"
    file.write_text('["v", 1, 0, 0.')
    sweep = KeptSweep(file, ["v"], [1, 2, 4])
    sweep.record(SECOND, Sample(0.75, 0.5))
    sweep.close()
    again = KeptSweep(file, ["v"], [1, 2, 4])
    assert again.restored == 1
    again.close()


def test_arrays_that_are_not_whole_are_none(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "job")
    journal.put_arrays("answers", [np.arange(1000), np.ones((2, 3))])
    found = journal.arrays("answers")
    assert found is not None and [a.shape for a in found] == [(1000,), (2, 3)]
    file = journal.folder / "answers.npz"
    whole = file.read_bytes()
    scribbled = whole.replace(bytes(np.arange(500, 510)), bytes(80))
    assert scribbled != whole
    for damaged in (b"", whole[:10], whole[: len(whole) // 2], whole[:-1], bytes(len(whole)), scribbled):
        file.write_bytes(damaged)
        assert journal.arrays("answers") is None
