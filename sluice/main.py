"""``sluice``: one command, its subcommands in ``sluicegate.sluice.commands``, one module each with
``register(app)``."""

import errno
import gc
import os
import sys
from contextlib import suppress
from importlib import import_module, metadata
from typing import Annotated

import typer
from typer._completion_classes import completion_init

app = typer.Typer(
    name="sluice",
    help="Machine-learning inference on Kafka topics that scales accuracy instead of hardware.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="rich",
)

COMMANDS = {
    "demo": "running.demo",
    "up": "running.up",
    "broker": "running.broker",
    "topics": "topics",
    "replay": "running.replay",
    "infer": "running.infer",
    "results": "reading.results",
    "audit": "reading.audit",
    "explain": "reading.explain",
    "dead-letters": "reading.dead_letters",
    "register": "models.register",
    "demo-apps": "models.demo_apps",
    "variants": "models.variants",
    "profile": "models.profile",
    "plan": "offline.plan",
    "policy": "offline.policy",
    "sustain": "offline.sustain",
    "simulate": "offline.simulate",
    "compare": "offline.compare",
    "devices": "devices",
    "doctor": "doctor",
    "describe": "describing.describe",
    "completion": "completion",
}
"""Where in ``sluicegate.sluice.commands`` each command is, in the order of the help page."""


_registered: set[str] = set()
_INTERRUPTED = 130
_UNWRITTEN = 2
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Of files that take no more, wherever they are written."""


def _say_version(asked: bool) -> None:
    if asked:
        print(f"sluice {metadata.version('sluicegate')}")  # noqa: T201 - what was asked for, without rich's wrapping
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Machine-learning inference on Kafka topics that scales accuracy instead of hardware."""


def register_all(asked: str | None = None) -> None:
    """Register the command that was asked for, or all of them: a stage starts faster without what it never runs."""
    if asked == "--version":
        return
    for name in (asked,) if asked in COMMANDS else COMMANDS:
        if name not in _registered:
            _registered.add(name)
            import_module(f"sluicegate.sluice.commands.{COMMANDS[name]}").register(app)


def run() -> None:
    """Entry point."""
    if "_SLUICE_COMPLETE" in os.environ:
        completion_init()
    # What is read at the start stays: visiting it now and again, and at the end, is a third of a short command.
    gc.disable()
    try:
        register_all(sys.argv[1] if len(sys.argv) > 1 else None)
    except KeyboardInterrupt:  # reading what the command needs takes seconds on a busy machine
        sys.exit(_INTERRUPTED)
    gc.freeze()
    gc.enable()
    try:
        app(prog_name="sluice")
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _end_where_nothing_can_be_written(error)


def _end_where_nothing_can_be_written(error: OSError) -> None:
    with suppress(OSError):
        place = error.filename or "standard output"
        print(f"error {place}: {error.strerror}; what was to be told is not", file=sys.stderr)  # noqa: T201
    # What is left of the output would be written, and fail, once more at the interpreter's end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(_UNWRITTEN)


if __name__ == "__main__":
    run()
