"""Freed memory goes back to the system."""

import platform
import subprocess
import sys

import pytest

KEEPS = """
import ctypes, os
from pathlib import Path
from sluicegate.stages.runtime.malloc_trim import release_freed

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

M_TRIM_THRESHOLD = -1
ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, 1 << 30)  # as glibc sets it by itself behind a large block
before = resident()
held = [bytes(4096) for _ in range(10_000)]
del held
kept = resident() - before
release_freed()
print(kept, resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps what was freed until it is told")
def test_what_was_freed_goes_back_at_once():
    said = subprocess.run([sys.executable, "-c", KEEPS], capture_output=True, text=True, check=True)
    kept, left = map(float, said.stdout.split())
    assert kept > 30.0
    assert left < 5.0
