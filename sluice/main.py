"""``sluice``: one command, its subcommands in ``sluice.commands``, one module each with ``register(app)``."""

import sys
from importlib import import_module

import typer

app = typer.Typer(
    name="sluice",
    help="Machine-learning inference on Kafka topics that scales accuracy instead of hardware.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="rich",
)

COMMANDS: tuple[str, ...] = (
    "demo",
    "up",
    "broker",
    "replay",
    "infer",
    "results",
    "audit",
    "explain",
    "doctor",
    "metrics",
    "topics",
    "asyncapi",
    "acls",
    "register",
    "variants",
    "profile",
    "plan",
    "policy",
    "sustain",
    "simulate",
    "compare",
    "devices",
)
"""Modules of ``sluice.commands``, in the order of the help page."""


@app.callback()
def _root() -> None:
    """Machine-learning inference on Kafka topics that scales accuracy instead of hardware."""


def register_all(asked: str | None = None) -> None:
    """Register the command that was asked for, or all of them: a stage starts faster without what it never runs."""
    names = (asked,) if asked is not None and asked in COMMANDS else COMMANDS
    for name in names:
        import_module(f"sluice.commands.{name}").register(app)


def run() -> None:
    """Entry point."""
    register_all(sys.argv[1] if len(sys.argv) > 1 else None)
    app()


if __name__ == "__main__":
    run()
