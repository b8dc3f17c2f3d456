"""``sluice describe asyncapi``: the AsyncAPI 3 document of all topics, for code generators and people."""

from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
import yaml

from sluicegate.domain.errors import ConfigurationError
from sluicegate.sluice.catalogue.documented_apps import published_apps
from sluicegate.sluice.console import JsonOption, one_line_errors, print_json
from sluicegate.sluice.settings.settings import load
from sluicegate.streams.describe.asyncapi import document
from sluicegate.streams.topics import Topics


def asyncapi(
    app: Annotated[list[str] | None, typer.Option("--app", help="For this app; may be given again.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write it here.")] = None,
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the AsyncAPI document of what is served: every topic, its key, headers and payload."""
    with one_line_errors():
        chosen = load(settings)
        host = chosen.broker.removeprefix("kafka://") if chosen.broker.startswith("kafka://") else "127.0.0.1:9092"
        secured = chosen.kafka.protocol
        apps = published_apps(chosen, app or ())
        told = document(
            Topics(chosen.prefix),
            apps,
            version=metadata.version("sluicegate"),
            url=host,
            protocol=secured,
            mechanism=chosen.kafka.sasl_mechanism,
        )
        text = yaml.safe_dump(told, sort_keys=False, width=120, allow_unicode=True)
        if output is not None:
            try:
                output.write_text(text, encoding="utf-8")
            except OSError as error:
                raise ConfigurationError(f"{output}: {error.strerror}; choose a writable file") from error
    if as_json:
        print_json(told)
    elif output is None:
        typer.echo(text, nl=False)
