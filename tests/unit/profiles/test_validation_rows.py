"""Labelled rows in an archive or folder that is damaged, locked or holds something else are refused in one line."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.profiles.registration.batch_axis import Port
from sluicegate.profiles.registration.validation_set import read_validation
from tests.models.registration_models import FEATURES, labelled_rows, write_rows

LOCAL, DIRECTORY = b"PK\x03\x04", b"PK\x01\x02"


def with_byte(path: Path, offsets: dict[bytes, int], value: int) -> Path:
    """One byte of each header of an archive is another."""
    data = bytearray(path.read_bytes())
    for header, offset in offsets.items():
        at = -1
        while (at := data.find(header, at + 1)) >= 0:
            data[at + offset] = value
    path.write_bytes(data)
    return path


def encrypted(folder: Path) -> Path:
    return with_byte(write_rows(folder), {LOCAL: 6, DIRECTORY: 8}, 1)


def packed_otherwise(folder: Path) -> Path:
    return with_byte(write_rows(folder), {DIRECTORY: 10}, 99)


def damaged_lzma(folder: Path) -> Path:
    with (
        zipfile.ZipFile(write_rows(folder)) as plain,
        zipfile.ZipFile(folder / "lzma.npz", "w", zipfile.ZIP_LZMA) as to,
    ):
        for name in plain.namelist():
            to.writestr(name, plain.read(name))
    data = bytearray((folder / "lzma.npz").read_bytes())
    data[80:120] = bytes(40)
    (folder / "lzma.npz").write_bytes(data)
    return folder / "lzma.npz"


def no_arrays(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "rows.npz", "w") as archive:
        archive.writestr("x.npy", "plain text")
        archive.writestr("label.npy", "and more of it")
    return folder / "rows.npz"


def of_files(make: Callable[[Path], object]) -> Callable[[Path], Path]:
    """A folder of labels, and of rows that ``make`` makes of a path."""

    def rows(folder: Path) -> Path:
        np.save(folder / "label.npy", labelled_rows()[1])
        make(folder / "x.npy")
        return folder

    return rows


def archive_by_another_name(path: Path) -> None:
    write_rows(path.parent).rename(path)


def of_header(text: str) -> Callable[[Path], None]:
    """A .npy file with this header, and next to nothing behind it."""

    def written(path: Path) -> None:
        path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(64))

    return written


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (encrypted, "encrypted"),
        (packed_otherwise, "compression method is not supported"),
        (damaged_lzma, "cannot be read"),
        (no_arrays, "'x' is no array"),
        (of_files(os.mkfifo), "x.npy is not a plain file"),
        (of_files(Path.mkdir), "x.npy is not a plain file"),
        (of_files(of_header("{'descr': '<f8', 'shape': (2,")), "cannot be read"),
        (
            of_files(of_header("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), 1: 2, 'a': 3}\n")),
            "cannot be read",
        ),
        (of_files(of_header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({1 << 70},)}}\n")), "cannot be read"),
        (of_files(of_header("{'descr': ('f8',), 'fortran_order': False, 'shape': (1,)}\n")), "cannot be read"),
        (of_files(archive_by_another_name), "does not hold plain arrays"),
    ],
)
def test_what_holds_no_rows_is_refused_in_one_line(make: Callable[[Path], Path], told: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=told) as refused:
        read_validation(make(tmp_path), [Port("x", "FP32", (FEATURES,))])
    assert refused.value.field == "validation"
    assert "\n" not in str(refused.value)
