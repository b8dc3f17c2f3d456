"""A release: what must agree before one is tagged, its notes, and its tag.

The version stands in `client/sluicegate_client/__init__.py`, for server and client. `CHANGELOG.md` has a section of it,
with its day, as the first under an empty `## Unreleased`. `make release` builds the wheels, runs all tests against
them on each supported Python, and only then calls this with `--tag`: an annotated tag `v<version>` whose message is
that section. Nothing is published: `dist/` holds the wheels and `release-notes.md`, and the tag is pushed by hand.

Exit code 1, with what is wrong, where something does not agree, the tree is not clean, or the tag is there already.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
VERSION_FILE = ROOT / "client" / "sluicegate_client" / "__init__.py"
_VERSION = re.compile(r'^__version__ = "(\d+\.\d+\.\d+)"', re.MULTILINE)
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_RELEASE = re.compile(r"(\d+\.\d+\.\d+) - (\d{4}-\d{2}-\d{2})")
_CLIENT = "sluicegate-client"
_IMAGE = re.compile(r"\bsluicegate(?:-gpu)?:(\d+\.\d+\.\d+)\b")


def version_in(text: str) -> str:
    """The version. Raises ValueError where none is said, or one that is no release's."""
    found = _VERSION.search(text)
    if found is None:
        raise ValueError(f'{VERSION_FILE.name} says no __version__ = "X.Y.Z"')
    return found[1]


def sections(changelog: str) -> list[tuple[str, str]]:
    """(heading, text) of each, newest first."""
    parts = _SECTION.split(changelog)[1:]
    return [(heading.strip(), text.strip()) for heading, text in zip(parts[::2], parts[1::2], strict=True)]


def notes(changelog: str, version: str) -> str:
    """The section of ``version``. Raises ValueError where it is not the newest release's, or is behind what is not
    released."""
    found = sections(changelog)
    if not found or found[0][0] != "Unreleased":
        raise ValueError("CHANGELOG.md: the first section is `## Unreleased`")
    if found[0][1]:
        raise ValueError(f"CHANGELOG.md: move what stands under `## Unreleased` under `## {version} - YYYY-MM-DD`")
    newest = _RELEASE.fullmatch(found[1][0]) if len(found) > 1 else None
    if newest is None or newest[1] != version:
        raise ValueError(f"CHANGELOG.md: behind `## Unreleased` comes `## {version} - YYYY-MM-DD`")
    return f"Sluicegate {version}\n\n{found[1][1]}\n"


def images(root: Path, version: str) -> list[str]:
    """What is wrong of the images' names: they carry the version that they are built from."""
    return [
        f"{path.relative_to(root)}: {found[0]}; the version is {version}"
        for path in sorted(root.glob("compose/**/*.y*ml"))
        for found in _IMAGE.finditer(path.read_text())
        if found[1] != version
    ]


def client(pyproject: str, version: str) -> list[str]:
    """What is wrong of the client that the server asks for: pip must take the one of the same version."""
    (asked,) = (r for r in map(Requirement, tomllib.loads(pyproject)["project"]["dependencies"]) if r.name == _CLIENT)
    return [] if version in asked.specifier else [f"pyproject.toml: {asked}; the version is {version}"]


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main(arguments: Sequence[str]) -> int:
    """Check; with ``--tag`` also write the notes and make the tag."""
    try:
        version = version_in(VERSION_FILE.read_text())
        told = notes((ROOT / "CHANGELOG.md").read_text(), version)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    tag = f"v{version}"
    wrong = images(ROOT, version) + client((ROOT / "pyproject.toml").read_text(), version)
    wrong += ["the tree is not clean: commit first"] if _git("status", "--porcelain", "--untracked-files=no") else []
    wrong += (
        [f"{tag} is tagged already: raise __version__ in {VERSION_FILE.relative_to(ROOT)}"]
        if _git("tag", "-l", tag)
        else []
    )
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    if "--tag" not in arguments:
        print(f"{tag} can be released")
        return 0
    file = ROOT / "dist" / "release-notes.md"
    file.write_text(told, encoding="utf-8")
    _git("tag", "--annotate", "--cleanup=verbatim", "--file", str(file), tag)
    print(f"{tag} is tagged; publish dist/*.whl with {file.relative_to(ROOT)}, and push the tag")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
