"""How we are packaged: folders at the top, imported under one name."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from sluicegate.sluice.commands.doctor import SUPPORTED
from sluicegate_client import __version__

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCE = ROOT / "src"
OUTSIDE = {"reproduce", "tests"}
FOLDERS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name not in OUTSIDE)
CODE = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def test_everything_is_shipped_under_one_name() -> None:
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/sluicegate"]
    links = {path.name: path.readlink().as_posix() for path in (SOURCE / "sluicegate").iterdir() if path.is_symlink()}
    assert links == {name: f"../../{name}" for name in FOLDERS}
    assert (SOURCE / "sluicegate" / "py.typed").is_file()


def test_our_folders_cannot_be_imported_by_their_bare_names() -> None:
    code = "import importlib.util, sys; print([n for n in sys.argv[1:] if importlib.util.find_spec(n)])"
    asked = subprocess.run([sys.executable, "-P", "-c", code, *FOLDERS], capture_output=True, text=True, check=True)
    assert asked.stdout.strip() == "[]"


def test_no_file_imports_them_so_where_the_root_is_on_the_path() -> None:
    likely = re.compile(rf"^\s*(from|import)\s+({'|'.join(FOLDERS)})\b", re.MULTILINE)
    texts = {path: text for path in CODE if likely.search(text := (ROOT / path).read_text())}
    guilty = [
        f"{path}: {name}"
        for path, text in texts.items()
        for name in imported(ast.parse(text))
        if name.split(".")[0] in FOLDERS
    ]
    assert guilty == []


def test_who_imports_the_client_alone_loads_neither_way_of_asking() -> None:
    code = "import sluicegate_client, sys; print([n for n in ('aiohttp', 'aiokafka') if n in sys.modules])"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout.strip() == "[]"


def imported(tree: ast.Module) -> Iterator[str]:
    """Modules by their whole names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


PYTHONS = ("3.11", "3.12", "3.13")


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_file_pins_every_dependency_once_and_within_what_is_asked_for(python: str) -> None:
    at = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux", "extra": ""}
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line]
    pins = [pin for pin in map(Requirement, lines) if pin.marker is None or pin.marker.evaluate(at)]
    project = PROJECT["project"]
    own = [d for d in project["dependencies"] if not d.startswith("sluicegate-client")]
    wanted = [*own, *(d for extra in project["optional-dependencies"].values() for d in extra)]
    for one in map(Requirement, wanted):
        pinned = [str(pin.specifier).removeprefix("==") for pin in pins if pin.name.lower() == one.name.lower()]
        assert len(pinned) == 1, one
        assert one.specifier.contains(pinned[0], prereleases=True), one


@pytest.mark.parametrize("project", ["pyproject.toml", "client/pyproject.toml"])
def test_of_aiokafka_whose_private_parts_are_used_the_tested_minor_version_alone_is_asked_for(project: str) -> None:
    told = tomllib.loads((ROOT / project).read_text())["project"]["dependencies"]
    (asked,) = (one.specifier for one in map(Requirement, told) if one.name == "aiokafka")
    (pinned,) = re.findall(r"^aiokafka==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    major, minor, _ = map(int, pinned.split("."))
    near = [pinned, *(f"{major}.{number}.0" for number in (minor - 1, minor + 1)), f"{major + 1}.0.0"]
    assert [one for one in near if one in asked] == [pinned]


def test_the_pythons_that_are_asked_for_are_those_that_are_looked_for_and_named() -> None:
    project = PROJECT["project"]
    asked = SpecifierSet(project["requires-python"])
    assert [minor for minor in range(5, 30) if f"3.{minor}.5" in asked] == [11, 12, 13]
    named = {found[1] for line in project["classifiers"] if (found := re.fullmatch(r".* :: (3\.\d+)", line))}
    assert named == set(PYTHONS)
    assert SUPPORTED == ((3, 11), (3, 13))
    assert all(f"python{python}" in (ROOT / "Makefile").read_text() for python in PYTHONS)


def test_the_licence_is_in_the_tree_and_in_what_is_shipped() -> None:
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert PROJECT["project"]["license-files"] == ["LICENSE"]
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "9. Accepting Warranty" in text
    assert "!LICENSE" in (ROOT / ".dockerignore").read_text().splitlines(), "the image builds from the project file"


def test_the_command_says_its_version() -> None:
    asked = subprocess.run(
        [sys.executable, "-m", "sluicegate.sluice.main", "--version"], capture_output=True, text=True, check=True
    )
    assert asked.stdout == f"sluice {__version__}\n"


def test_the_client_needs_nothing_of_the_server_and_has_its_version() -> None:
    document = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())
    own, where = document["project"], [d["tool"]["hatch"]["version"]["path"] for d in (document, PROJECT)]
    assert own["dynamic"] == PROJECT["project"]["dynamic"] == ["version"]
    (said,) = {(ROOT / "client" / where[0]).resolve(), (ROOT / where[1]).resolve()}
    assert f'__version__ = "{__version__}"' in said.read_text()
    assert len(own["dependencies"]) <= 5
    (asked,) = (d for d in PROJECT["project"]["dependencies"] if d.startswith("sluicegate-client"))
    assert Requirement(asked).specifier.contains(__version__)
    for path in (ROOT / "client" / "sluicegate_client").glob("*.py"):
        assert not re.search(r"^\s*(from|import) sluicegate\b", path.read_text(), re.MULTILINE), path


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_and_no_file_is_touched(shell: str, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "sluicegate", "completion", shell]
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert "_SLUICE_COMPLETE" in said
    assert list(tmp_path.iterdir()) == []


def test_commands_are_completed() -> None:
    env = {"_SLUICE_COMPLETE": "complete_bash", "COMP_WORDS": "sluice re", "COMP_CWORD": "1"}
    command = [sys.executable, "-m", "sluicegate"]
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["replay", "results", "register"]
