"""Options that were given and would do nothing, which commands refuse."""

from collections.abc import Collection

import typer

from sluicegate.domain.errors import InvalidInputError


def given(context: typer.Context, name: str) -> bool:
    """Whether the parameter ``name`` was on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def check_given(context: typer.Context, mode: str, *taken: str) -> None:
    """Raises InvalidInputError for what was given besides ``taken``: it would do nothing."""
    refuse_given(context, mode, {p.name for p in context.command.params if p.name} - set(taken))


def refuse_given(context: typer.Context, mode: str, names: Collection[str], remedy: str = "leave it out") -> None:
    """Raises InvalidInputError for what was given of ``names``: it would do nothing."""
    for parameter in context.command.params:
        if parameter.name in names and given(context, parameter.name):
            shown = max(parameter.opts, key=len)
            if parameter.param_type_name == "argument":
                shown = "MODEL" if parameter.name == "models" else shown.upper()
            raise InvalidInputError(shown, f"means nothing {mode}; {remedy}")
