"""Every block of the guide and the README is run or it is said why not: settings, Python, and commands that end.

What cannot be run here is named with the reason, and each such name must still be met. What takes minutes is
``thorough``.
"""

import ast
import inspect
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluicegate.sluice.settings.settings import load
from tests.outside.guide import (
    BLOCKS,
    NOT_RUN,
    OFFLINE,
    PYTHON,
    SHELL,
    SLOW_OFFLINE,
    Block,
    block,
    named_once,
    place,
    run,
)

__all__ = ["place"]


def test_every_block_is_run_or_it_is_said_why_not() -> None:
    def named(one: Block, names: Any) -> bool:
        return any(one.page == page and one.text.strip().startswith(start) for page, start in names)

    for one in BLOCKS:
        if one.language == "yaml":
            continue
        among = PYTHON if one.language == "python" else SHELL
        assert named(one, NOT_RUN) or named(one, among), f"{one.page}: nothing runs the block that begins {one.first!r}"
    for page, start in (*NOT_RUN, *SHELL, *PYTHON):
        assert named_once(page, start), f"{page}: no block begins with {start!r}"


@pytest.mark.parametrize("one", [b for b in BLOCKS if b.language == "yaml"], ids=lambda b: f"{b.page}-{b.first[:30]}")
def test_settings_of_the_guide_are_taken(one: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "settings.yaml"
    file.write_text(one.text)
    document = yaml.safe_load(one.text)
    read = load(file)
    assert document and all(hasattr(read, section) for section in document)


@pytest.mark.parametrize(("page", "start"), PYTHON, ids=lambda part: part[:20])
def test_python_of_the_guide_is_python(page: str, start: str) -> None:
    code = compile(block(page, start).text, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert code.co_code
    if "await" in block(page, start).text.replace("async def", ""):
        assert bool(code.co_flags & inspect.CO_COROUTINE) or "asyncio.run" in block(page, start).text


@pytest.mark.parametrize(("page", "start"), OFFLINE, ids=lambda part: part[:40])
def test_offline_commands_of_the_guide_run(page: str, start: str, place: tuple[Path, dict[str, str]]) -> None:
    assert run(block(page, start).text, place).stdout


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("page", "start"), SLOW_OFFLINE, ids=lambda part: part[:40])
def test_slow_offline_commands_of_the_guide_run(page: str, start: str, place: tuple[Path, dict[str, str]]) -> None:
    if "protean" in block(page, start).text and "SLUICE_DATA" not in os.environ:
        pytest.skip("the papers' data: set SLUICE_DATA")
    # How near live comes to simulated is the machine's matter here: tests/simulation/test_fidelity.py holds it.
    text = re.sub(r"^(.*--live.*?)( +#.*)?$", r"\1 || [ $? -eq 1 ]", block(page, start).text, flags=re.MULTILINE)
    assert run(text, place, within=1700.0).stdout
