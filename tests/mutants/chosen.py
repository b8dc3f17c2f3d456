"""A pytest plugin: of what is collected only the tests that a file lists, in its order."""

import json
import os
from pathlib import Path

import pytest

TESTS = "MUTANTS_TESTS"
"""Variable that names the file, a list of ids; those that are not there any more are passed over."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep those."""
    place = {name: number for number, name in enumerate(json.loads(Path(os.environ[TESTS]).read_text()))}
    items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])
