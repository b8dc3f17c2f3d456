"""What must agree before a release: version, CHANGELOG, names of images. Its notes are the CHANGELOG's section."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from sluicegate_client import __version__

ROOT = Path(__file__).resolve().parents[3]
SOUND = "# Changelog\n\n## Unreleased\n\n## 1.2.0 - 2026-11-23\n\n### Added\n- New.\n\n## 1.1.0 - 2026-01-02\n- Old.\n"


@pytest.fixture(scope="module")
def release() -> Any:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_version_is_said_once_and_images_carry_it(release: Any) -> None:
    assert release.version_in(release.VERSION_FILE.read_text()) == __version__
    assert release.images(ROOT, __version__) == []
    assert any("sluicegate:" in line for line in release.images(ROOT, "9.9.9"))


def test_the_client_that_the_server_asks_for_is_of_this_version(release: Any) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert release.client(text, __version__) == []
    assert release.client(text, "9.9.9") == ["pyproject.toml: sluicegate-client<0.3,>=0.2; the version is 9.9.9"]


def test_the_changelog_has_a_section_of_this_version(release: Any) -> None:
    headings = [heading for heading, _ in release.sections((ROOT / "CHANGELOG.md").read_text())]
    assert headings[0] == "Unreleased"
    assert headings[1].startswith(f"{__version__} - ")


def test_notes_are_the_section_of_the_version_alone(release: Any) -> None:
    assert release.notes(SOUND, "1.2.0") == "Sluicegate 1.2.0\n\n### Added\n- New.\n"


@pytest.mark.parametrize(
    ("changelog", "version", "told"),
    [
        (SOUND, "1.3.0", "behind `## Unreleased` comes `## 1.3.0"),
        (SOUND.replace("Unreleased\n", "Unreleased\n\n- Newer.\n"), "1.2.0", "move what stands under"),
        (SOUND.replace("## Unreleased\n\n", ""), "1.2.0", "the first section"),
        (SOUND.replace(" - 2026-11-23", ""), "1.2.0", "YYYY-MM-DD"),
        ("# Changelog\n", "1.2.0", "the first section"),
    ],
)
def test_what_does_not_agree_is_refused(release: Any, changelog: str, version: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        release.notes(changelog, version)


@pytest.mark.parametrize("text", ["", '__version__ = "1.2"', '__version__ = "1.2.0.dev1"'])
def test_a_version_is_three_numbers(release: Any, text: str) -> None:
    with pytest.raises(ValueError, match="__version__"):
        release.version_in(text)
