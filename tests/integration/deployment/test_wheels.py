"""The wheels: installed beside packages of a project that is named as our folders are; the client without the server.

Nothing is downloaded: what the wheels need is taken from this environment, which an editable install of ours is not
part of there.
"""

import os
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from sluicegate_client import __version__

ROOT = Path(__file__).resolve().parents[3]
OWN = ("domain", "streams", "planner", "stages", "client", "sluice")
"""Packages of the project that we are installed beside."""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By distribution, as ``make dist`` builds them."""
    folder = tmp_path_factory.mktemp("dist")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--wheel-dir", folder, ROOT, ROOT / "client"], check=True)
    return {path.name.split("-")[0]: path for path in folder.glob("*.whl")}


def project(folder: Path, *installed: Path) -> tuple[Path, Path]:
    """A project with packages of these names and a fresh environment that the wheels are installed in: its Python."""
    for name in OWN:
        package = folder / "project" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"MINE = {name!r}\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    site = next((folder / "env" / "lib").glob("python*")) / "site-packages"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", site, *installed], check=True)
    packages = [path for path in map(Path, sys.path) if path.name == "site-packages"]
    for entry in (entry for path in packages for entry in path.iterdir()):  # what they depend on, but nothing of ours
        if "sluicegate" not in entry.name and entry.suffix != ".pth" and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    return folder / "project", folder / "env" / "bin" / "python"


def ran(python: Path, code: str, cwd: Path) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SLUICE"))}
    done = subprocess.run([python, "-c", code], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


MINE = f"import {', '.join(OWN)}; assert [m.MINE for m in ({', '.join(OWN)})] == list({OWN!r})\n"


def test_the_client_is_small_and_needs_little(wheels: dict[str, Path]) -> None:
    assert wheels["sluicegate_client"].stat().st_size <= 100_000
    with zipfile.ZipFile(wheels["sluicegate_client"]) as held:
        assert {name.split("/")[0].split("-")[0] for name in held.namelist()} == {"sluicegate_client"}
        told = next(name for name in held.namelist() if name.endswith("METADATA"))
        required = HeaderParser().parsestr(held.read(told).decode()).get_all("Requires-Dist") or []
    needed = [one for one in map(Requirement, required) if one.marker is None]
    assert {one.name for one in needed} == {"aiohttp", "aiokafka"}


def test_the_client_works_in_a_project_that_owns_packages_named_as_our_folders(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    folder, python = project(tmp_path, wheels["sluicegate_client"])
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        + MINE
        + "from sluicegate_client import Client, Tensor, ClientError\n"
        "import asyncio, importlib.util\n"
        "assert importlib.util.find_spec('sluicegate') is None\n"
        "assert not [n for n in sys.modules if n.startswith(('pydantic', 'orjson', 'sluicegate.'))]\n"
        "assert Tensor.of('INT8', [[1, -2], [3, 4]]).tolist() == [[1, -2], [3, 4]]\n"
        "async def ask():\n"
        "    try:\n"
        "        async with Client('http://127.0.0.1:9'): pass\n"
        "    except ClientError as error: print(error)\n"
        "asyncio.run(ask())"
    )
    assert "nothing answers at http://127.0.0.1:9" in ran(python, code, folder)


@pytest.mark.thorough
def test_the_server_is_installed_beside_packages_of_these_names(wheels: dict[str, Path], tmp_path: Path) -> None:
    folder, python = project(tmp_path, wheels["sluicegate"], wheels["sluicegate_client"])
    where = ran(python, MINE + "import sluicegate.sluice.main as ours; print(ours.__file__)", folder)
    assert where.startswith(str(tmp_path / "env"))
    command = "import runpy, sys; sys.argv = ['', '--version']; runpy.run_module('sluicegate', run_name='__main__')"
    assert ran(python, MINE + command, folder) == f"sluice {__version__}"
    planned = "import sys; sys.argv = ['sluice', 'plan', '--help']\nfrom sluicegate.sluice.main import run\nrun()"
    assert "--problem" in ran(python, MINE + planned, folder)
