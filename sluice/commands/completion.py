"""``sluice completion``: what a shell needs to complete commands, printed; nobody's files are touched."""

from enum import StrEnum
from typing import Annotated

import typer
from typer._completion_shared import get_completion_script


class Shell(StrEnum):
    """A shell that can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("completion")(completion)


def completion(shell: Annotated[Shell, typer.Argument(help="Which shell.")]) -> None:
    """Print a shell's completion script: eval "$(sluice completion bash)" in this shell, or in its start-up file."""
    typer.echo(get_completion_script(prog_name="sluice", complete_var="_SLUICE_COMPLETE", shell=shell.value))
