"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def sluice_data() -> Path:
    """Folder of the papers' data, from $SLUICE_DATA or beside the checkout; skips where it is absent."""
    folder = Path(os.environ.get("SLUICE_DATA", _BESIDE))
    if not folder.is_dir():
        pytest.skip("the papers' data is absent: set SLUICE_DATA to its folder")
    return folder
