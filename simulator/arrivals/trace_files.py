"""Trace files line by line, plain, .gz or .bz2, none of them trusted: every fault is one line that names the file.

Lines are read with a bound, so that a file without line breaks (or a decompression bomb) cannot fill the memory.
"""

import bz2
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sluicegate.domain.errors import InvalidInputError

MAX_LINE = 1 << 20
"""Bytes a line may have."""


def open_trace(path: Path) -> IO[bytes]:
    """Open ``path`` for reading bytes, decompressing by its suffix. Raises InvalidInputError."""
    if path.is_dir():
        raise InvalidInputError("trace", f"{path} is a folder; name a file in it")
    try:
        match path.suffix:
            case ".gz":
                return io.BufferedReader(gzip.open(path, "rb"))
            case ".bz2":
                return io.BufferedReader(bz2.open(path, "rb"))
            case _:
                return path.open("rb")
    except OSError as error:
        raise InvalidInputError("trace", f"{path} cannot be read: {error.strerror or error}") from error


def lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Line number (from 1) and content without surrounding blanks; None for a line longer than MAX_LINE.

    Raises InvalidInputError where the file cannot be read or its compression is broken.
    """
    with open_trace(path) as stream:
        number = 0
        try:
            while line := stream.readline(MAX_LINE + 1):
                number += 1
                if len(line) <= MAX_LINE:
                    yield number, line.strip()
                    continue
                while line and not line.endswith(b"\n"):
                    line = stream.readline(MAX_LINE)
                yield number, None
        except (OSError, EOFError, zlib.error) as error:
            where = f"after line {number}"
            raise InvalidInputError("trace", f"{path} is damaged {where}: {error}; fetch it again") from error


def shown(content: bytes | None) -> str:
    """A short printable form of a line, for messages."""
    if content is None:
        return f"(more than {MAX_LINE} bytes)"
    text = repr(content[:40].decode("utf-8", "replace"))
    return f"{text}..." if len(content) > 40 else text
