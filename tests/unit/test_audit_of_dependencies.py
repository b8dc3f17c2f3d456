"""What the audit of dependencies says and returns: weak, sound, or not asked at all."""

import importlib.util
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[2] / ".ci" / "audit.py"


def verdict(*arguments: Any) -> tuple[int, str]:
    spec = importlib.util.spec_from_file_location("audit", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: tuple[int, str] = module.verdict(*arguments)
    return found


SOUND = {"name": "a", "version": "1", "vulns": []}
WEAK = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}
UNASKED = {"name": "c", "skip_reason": "not found"}


def test_a_known_weakness_fails_and_is_named_with_its_remedy() -> None:
    code, told = verdict({"dependencies": [SOUND, WEAK, UNASKED]})
    assert code == 1
    assert "2 of 3 packages asked, 1 with known weaknesses" in told and "b 2: PYSEC-1" in told and "3" in told


def test_soundness_is_only_told_of_what_was_asked() -> None:
    assert verdict({"dependencies": [SOUND]}) == (0, "dependency audit: 1 of 1 packages asked, 0 with known weaknesses")


def test_offline_it_says_that_it_was_skipped() -> None:
    assert verdict({"dependencies": [UNASKED]})[1].startswith("dependency audit SKIPPED: no vulnerability service")
    assert verdict(None, "no route") == (0, "dependency audit SKIPPED: no route")
