"""``sluice``: one command, its subcommands in ``sluice.commands``, one module each with ``register(app)``."""

from importlib import import_module

import typer

app = typer.Typer(
    name="sluice",
    help="Machine-learning inference on Kafka topics that scales accuracy instead of hardware.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="rich",
)

COMMANDS: tuple[str, ...] = ("broker",)
"""Modules of ``sluice.commands``, in the order of the help page."""

for _name in COMMANDS:
    import_module(f"sluice.commands.{_name}").register(app)


def run() -> None:
    """Entry point."""
    app()
