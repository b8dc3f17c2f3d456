"""``sluice demo-apps``: whether the demo's apps are served beside one's own."""

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from sluicegate.domain.errors import InvalidInputError
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.profiles.demo.build_models import DEFAULT
from sluicegate.sluice.catalogue.open_catalogue import open_catalogue
from sluicegate.sluice.console import JsonOption, err, one_line_errors, out, print_json
from sluicegate.sluice.registration.publish_registration import announce
from sluicegate.sluice.settings.settings import Settings, load


class State(StrEnum):
    """What is said of them."""

    ON = "on"
    OFF = "off"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo-apps")(demo_apps)


def demo_apps(
    state: Annotated[State | None, typer.Argument(help="on or off; without it, what holds is said.")] = None,
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Serve the demo's apps beside your own, or not. A system that runs follows within seconds.

    Where nothing is said, they are served while nothing is registered.
    """
    with one_line_errors():
        chosen = load(settings)
        registered = Registered(chosen.home)
        if state is not None:
            if chosen.catalogue is not None or chosen.apps:
                named = "catalogue" if chosen.catalogue is not None else "apps"
                raise InvalidInputError(named, "the settings say what is served; take it out of them first")
            registered.serve_demo(state is State.ON)
            _tell(chosen, on=state is State.ON)
        own = registered.apps()
        on = registered.demo if registered.demo is not None else not own
    served = [*own, *(DEFAULT if on else ())]
    if as_json:
        print_json({"demo_apps": on, "said": registered.demo, "served": served})
        return
    out.print(f"demo apps {'on' if on else 'off'}; served: {', '.join(served) or 'nothing'}")


def _tell(settings: Settings, *, on: bool) -> None:
    """A system that runs, through its registry."""
    held = open_catalogue(settings)[0] if on else Catalogue.of((), (), ())
    for name in DEFAULT:
        told = asyncio.run(announce(settings, name, wait=0.0, held=held))
        if told is not None and told.why:
            err.print(f"[dim]not told to {escape(told.why)}; `sluice up` reads it when it starts[/]")
            return
