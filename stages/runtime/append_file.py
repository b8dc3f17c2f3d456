"""A file that is appended to whole or not at all, so that a full disk leaves no torn line behind."""

import os
from contextlib import suppress
from io import FileIO
from pathlib import Path

_CHUNK = 64 << 10


class Appending:
    """A file of lines, appended whole or not at all. ``path``, made where it is absent; ``new``: it must be absent. A
    line cut short at its end is cut off."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        self.path = path
        self._file = FileIO(path, "x+" if new else "a+")
        self.end = self._cut_off()

    def append(self, data: bytes) -> None:
        """All of ``data`` behind what is there. Raises OSError, and then nothing is."""
        rest = memoryview(data)
        try:
            self._file.truncate(self.end)  # what an attempt before this may have left
            self._file.seek(self.end)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            with suppress(OSError):
                self._file.truncate(self.end)
            raise
        self.end += len(data)

    def close(self) -> None:
        """Close it."""
        self._file.close()

    def _cut_off(self) -> int:
        at = kept = self._file.seek(0, os.SEEK_END)
        while at:
            at = max(0, at - _CHUNK)
            self._file.seek(at)
            newline = self._file.read(_CHUNK).rfind(b"\n")
            if newline >= 0:
                kept = at + newline + 1
                break
            kept = 0
        self._file.truncate(kept)
        return kept
