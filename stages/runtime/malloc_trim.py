"""Memory that was freed goes back to the system where the C library would keep it for later."""

import ctypes
from collections.abc import Callable
from functools import cache


def release_freed() -> None:
    """Have the allocator give back what nobody holds. Behind work that takes much and seldom; it may take milliseconds.

    After one large block is freed, glibc keeps up to 64 MiB on top of each heap, so that a process looks as if it grew
    for minutes after a solve (mallopt(3), M_MMAP_THRESHOLD). Does nothing where the C library knows no ``malloc_trim``.
    """
    if (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Of glibc; None elsewhere."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):  # musl, macOS, Windows
        return None
