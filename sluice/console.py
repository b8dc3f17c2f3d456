"""What every command shares: the terminal, JSON output, errors as one line with a remedy, exit codes 0, 1 and 2."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from math import inf
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sluicegate.domain.errors import ConfigurationError, SluiceError
from sluicegate_client import ClientError

out = Console(emoji=False)  # an id may hold ":on:"
err = Console(stderr=True, emoji=False)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else.")]

MAX_SEED = 2**63 - 1
"""As of scenarios: a larger one could not be told as JSON."""

_TOLD_EVERY_S = 10.0
_NARROWEST = 20
EXIT_FAILED = 1
"""The command ran and found a fault (an audit that does not balance, say)."""
EXIT_USAGE = 2
"""The command could not run: its input, a setting or a missing component."""


def moment(at: float) -> str:
    """The time of a record, seconds since 1970, as it is shown in terminals."""
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):  # infinite, or whatever time a producer gave its record
        return "not known"


def visible(text: str) -> str:
    """``text`` in one line, and nothing in it that a terminal obeys: of strangers' words such as escape sequences."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_aside(text: str) -> None:
    """A dim paragraph, broken between words alone: names of variants have hyphens."""
    width = max(out.width, _NARROWEST)
    lines = wrap(text, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    for line in lines:
        out.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Write ``value`` as indented JSON to standard output. NaN becomes null. Dataclasses and numpy are understood."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    typer.echo(orjson.dumps(value, default=str, option=options).decode())


def require_plots() -> None:
    """Raise ConfigurationError where plots cannot be drawn: before the work that they would show, not after it."""
    if find_spec("matplotlib") is None:
        raise ConfigurationError("plots: matplotlib is not installed; pip install 'sluicegate[report]'")


def check_writable(path: Path, option: str) -> None:
    """Raise ConfigurationError where no file can be written at ``path``: before the work that goes there, not after it.

    Makes its folder.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        there = path.exists()
        with path.open("ab"):
            pass
        if not there:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{option} {path}: {error.strerror}; choose a path that can be written") from error


def write_whole(path: Path, data: bytes) -> None:
    """All of ``data`` or nothing, where ``path`` is a file or is not there: written beside it, then renamed.

    Makes its folder. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():  # a device, a pipe
        path.write_bytes(data)
        return
    path = path.resolve()
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def check_latency_ms(value: float | None) -> None:
    """Raise ConfigurationError for what no query can ask for; as JSON, NaN would be nothing that was asked."""
    if value is not None and not 0.0 < value < inf:
        raise ConfigurationError(f"--latency-ms {value:g}: give milliseconds, above 0 and finite")


@contextmanager
def steps(name: str) -> Iterator[Callable[[str, float], None]]:
    """Shows how far long work is, on standard error; what it gives is told what is being done, and how much is (0..1).

    A bar on a terminal, elsewhere a line now and then.
    """
    if err.is_terminal:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=err, transient=True) as progress:
            task = progress.add_task(name, total=1.0)
            yield lambda what, done: progress.update(task, description=what, completed=done)
        return
    last = time.monotonic()

    def told(what: str, done: float) -> None:
        nonlocal last
        if time.monotonic() - last >= _TOLD_EVERY_S:
            last = time.monotonic()
            err.print(f"{name}: {what}, {done:.0%}", markup=False, highlight=False, soft_wrap=True)

    yield told


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn errors raised on purpose into one line on standard error, their notes at its end, and exit code 2."""
    try:
        yield
    except (SluiceError, ClientError) as error:
        told = " ".join([str(error), *getattr(error, "__notes__", ())])
        err.print(f"[bold red]error[/] {escape(told)}", highlight=False, soft_wrap=True)
        raise typer.Exit(EXIT_USAGE) from error
