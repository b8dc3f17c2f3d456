"""A real browser for tests of pages: the Chromium of this machine, driven by Playwright."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest


def chromium() -> Path | None:
    """Where Chromium is, None where there is none. $SLUICE_CHROMIUM names another one."""
    named = os.environ.get("SLUICE_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    return None if found is None else Path(found)


@asynccontextmanager
async def browser() -> AsyncIterator[Any]:
    """A headless Chromium. Skips the test, saying what to install, where it cannot be had."""
    playwright = pytest.importorskip("playwright.async_api", reason="no Playwright: pip install -e '.[dev]'")
    program = chromium()
    if program is None:
        pytest.skip("no Chromium: install the package chromium, or set SLUICE_CHROMIUM to one")
    async with playwright.async_playwright() as driver:
        opened = await driver.chromium.launch(executable_path=str(program), args=["--no-sandbox"])
        try:
            yield opened
        finally:
            await opened.close()
