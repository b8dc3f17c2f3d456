"""The audit of dependencies: pinned advisories are always held against lock and environment, a service where one is."""

import importlib.util
import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / ".ci" / "audit.py"


@pytest.fixture(scope="module")
def audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SOUND = {"name": "a", "version": "1", "vulns": []}
WEAK = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}
UNASKED = {"name": "c", "skip_reason": "not found"}
TODAY = date(2026, 11, 21)
PINNED = {
    "reviewed": "2026-11-01",
    "advisories": [{"package": "Some_Thing", "affected": ">=1.0,<1.4.2", "id": "CVE-1"}],
}


@pytest.mark.parametrize(("version", "code"), [("1.4.1", 1), ("1.4", 1), ("1.4.2", 0), ("0.9", 0)])
def test_a_pin_within_an_advisory_fails_and_is_named(audit: Any, version: str, code: int) -> None:
    found, lines = audit.pinned(PINNED, {"some-thing": version}, {}, TODAY)
    assert found == code
    assert any("locked: Some_Thing" in line and "CVE-1" in line for line in lines) is bool(code)


def test_what_is_installed_counts_even_where_the_lock_is_sound(audit: Any) -> None:
    code, lines = audit.pinned(PINNED, {"some-thing": "1.5"}, {"some-thing": "1.3"}, TODAY)
    assert code == 1 and "installed: Some_Thing 1.3: CVE-1" in lines[1]


def test_advisories_that_nobody_reviewed_for_a_year_fail(audit: Any) -> None:
    code, lines = audit.pinned({**PINNED, "reviewed": "2025-11-01"}, {"some-thing": "1.5"}, {}, TODAY)
    assert code == 1 and "385 days ago" in lines[1]


def test_a_lock_that_leaves_a_version_open_is_refused(audit: Any) -> None:
    assert audit.locked("a==1\n# why\nB.c[x]==2 ; python_version > '3'\n") == {"a": "1", "b-c": "2"}
    with pytest.raises(ValueError, match="pins no version: 'd>=3'"):
        audit.locked("d>=3")


def test_the_projects_own_lock_is_free_of_what_is_pinned(audit: Any) -> None:
    lock = audit.locked((ROOT / "requirements.lock").read_text())
    document = json.loads((ROOT / ".ci" / "advisories.json").read_text())
    code, lines = audit.pinned(document, lock, audit.installed(), date.fromisoformat(document["reviewed"]))
    assert code == 0, lines
    names = {audit.canonicalize_name(one["package"]) for one in document["advisories"]}
    assert names <= set(lock), "an advisory of a package that is not installed is of no use"


def test_a_known_weakness_fails_and_is_named_with_its_remedy(audit: Any) -> None:
    code, told = audit.verdict({"dependencies": [SOUND, WEAK, UNASKED]})
    assert code == 1
    assert "2 of 3 packages asked, 1 with known weaknesses" in told and "b 2: PYSEC-1" in told and "3" in told


def test_soundness_is_only_told_of_what_was_asked(audit: Any) -> None:
    told = "vulnerability service: 1 of 1 packages asked, 0 with known weaknesses"
    assert audit.verdict({"dependencies": [SOUND]}) == (0, told)


def test_offline_only_the_service_is_skipped_and_that_is_said(audit: Any) -> None:
    assert audit.verdict({"dependencies": [UNASKED]})[1].startswith("vulnerability service SKIPPED: none knows any")
    assert audit.verdict(None, "no route") == (0, "vulnerability service SKIPPED: no route")
