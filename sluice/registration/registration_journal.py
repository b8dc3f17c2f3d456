"""What a registration has done so far, on disk, so that one that was interrupted goes on where it stopped.

Rules. A folder for each job, named by a digest of everything that decides its result: other models, data, options or
libraries are another job. A step's result is there whole or not at all. Samples of the profiler are appended one a
line; a line that was cut short is passed over.
"""

import io
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

import numpy as np
from typing_extensions import override

from sluicegate.domain.errors import ConfigurationError
from sluicegate.profiles.catalogue.catalogue_folder import write_file
from sluicegate.profiles.catalogue.profiler import Effort, Measurement, Sample, Sweep
from sluicegate.profiles.registration.validation_set import UNREADABLE, Array


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """Raise ConfigurationError where the disk does not take what is written in the body."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"{folder} cannot be written ({error.strerror}); make room and register again: it goes on where it stopped"
        ) from error


class Journal:
    """In ``folder``, which is made. ``resumed``: something was in it already."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.resumed = folder.is_dir() and any(folder.iterdir())
        with _told(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def get(self, step: str) -> dict[str, Any] | None:
        """Result of ``step``, None where it has none (or was written by a machine that then lost power)."""
        try:
            found = json.loads((self.folder / f"{step}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def put(self, step: str, result: dict[str, Any]) -> None:
        """Keep the result of ``step``."""
        with _told(self.folder):
            write_file(self.folder / f"{step}.json", json.dumps(result).encode())

    def arrays(self, step: str) -> tuple[Array, ...] | None:
        """Arrays of ``step``, None where it has none that are whole."""
        try:
            with (self.folder / f"{step}.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return tuple(arrays[name] for name in arrays.files)
        except UNREADABLE:
            return None

    def put_arrays(self, step: str, arrays: Sequence[Array]) -> None:
        """Keep arrays of ``step``."""
        archive = io.BytesIO()
        np.savez(archive, *arrays)
        with _told(self.folder):
            write_file(self.folder / f"{step}.npz", archive.getvalue())

    def remove(self) -> None:
        """The job is done."""
        shutil.rmtree(self.folder, ignore_errors=True)


class KeptSweep(Sweep):
    """A sweep that keeps its samples in ``path``, and starts with those that are there."""

    def __init__(
        self,
        path: Path,
        variants: Sequence[str],
        batches: Sequence[int],
        effort: Effort | None = None,
        seed: int = 0,
        lengths: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        super().__init__(variants, batches, effort, seed, lengths)
        self._file: TextIO | None = None
        self.restored = 0
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                variant, batch, length, wall, cpu = json.loads(line)
            except ValueError:
                continue
            if Measurement(variant, batch, length) in self._pairs:
                super().record(Measurement(variant, batch, length), Sample(float(wall), float(cpu)))
                self.restored += 1
        self._folder = path.parent
        with _told(self._folder):
            begun = path.exists() and path.stat().st_size > 0
            self._file = path.open("a", encoding="utf-8")
            if begun:
                self._file.write("\n")  # a line that was cut short must not swallow the next
                self._file.flush()

    @override
    def record(self, measurement: Measurement, sample: Sample) -> None:
        """Take down and keep."""
        super().record(measurement, sample)
        if self._file is not None:
            of = (measurement.variant, measurement.batch, measurement.length)
            with _told(self._folder):
                self._file.write(json.dumps([*of, sample.wall, sample.cpu]) + "\n")
                self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with suppress(OSError):  # what could not be written was told then
                self._file.close()
