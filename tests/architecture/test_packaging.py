"""Our folders are import packages as they stand: nobody else may own their names."""

import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def test_no_installed_distribution_owns_one_of_our_names() -> None:
    owners = metadata.packages_distributions()
    taken = {name: set(owners.get(name, [])) - {"sluicegate"} for name in PACKAGES}
    assert {name: who for name, who in taken.items() if who} == {}


def test_every_top_level_package_is_shipped() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders - {"tests"} == set(PACKAGES)


def test_the_lock_file_pins_every_dependency() -> None:
    project = PROJECT["project"]
    pinned = {
        line.split("==")[0].strip().lower()
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if "==" in line and not line.lstrip().startswith("#")
    }
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    names = {d.split(">")[0].split("[")[0].strip().lower() for d in wanted}
    assert names <= pinned
