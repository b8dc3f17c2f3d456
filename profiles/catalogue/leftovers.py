"""Files and folders for a while, and what processes that were killed have left of such.

Whoever makes one holds a lock on it, which ends with its process at the latest. What nobody holds is nobody's, but for
what is so young that its maker may not hold it yet.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_YOUNG = 60.0
"""Seconds, beyond which what is made is held."""


@contextmanager
def folder_for_a_while(kind: str) -> Iterator[Path]:
    """A folder of its own, gone at the end; before, those of this kind and user that were left are removed."""
    prefix = f"sluice-{kind}-"
    remove_left(Path(tempfile.gettempdir()), prefix)
    with tempfile.TemporaryDirectory(prefix=prefix) as name, ExitStack() as held:
        descriptor = os.open(name, os.O_RDONLY)
        held.callback(os.close, descriptor)
        hold(descriptor)
        yield Path(name)


def hold(descriptor: int) -> None:
    """What is open there is somebody's, until it is closed."""
    with suppress(OSError):  # a file system without locks: nothing of it is ever found to be nobody's either
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def remove_left(place: Path, prefix: str) -> None:
    """Remove what begins with ``prefix`` in ``place``, is this user's, and is held by nobody."""
    for path in place.glob(f"{prefix}*"):
        with suppress(OSError):  # gone meanwhile, or held
            info = path.lstat()
            if info.st_uid != os.geteuid() or time.time() - info.st_mtime < _YOUNG:
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            finally:
                os.close(descriptor)
