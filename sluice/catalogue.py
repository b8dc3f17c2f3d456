"""The catalogue that a command serves from: the settings' folder, or the demo's, built where it is absent."""

from pathlib import Path

from domain.errors import SluiceError
from profiles.catalogue import Catalogue
from profiles.folder import load_catalogue
from sluice.console import err
from sluice.settings import Settings


def known_catalogue(settings: Settings) -> Catalogue | None:
    """The catalogue if it is there already; nothing is built for it."""
    from executors.prepare import demo_apps, demo_folder

    folder = settings.catalogue or demo_folder(settings.home, demo_apps(settings.apps))
    try:
        return load_catalogue(folder, verify=False)
    except SluiceError:
        return None


def open_catalogue(settings: Settings) -> tuple[Catalogue, Path]:
    """The catalogue and the folder of its models. The demo's is built and profiled on this machine where absent."""
    if settings.catalogue is not None:
        return load_catalogue(settings.catalogue), settings.catalogue
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from executors.prepare import (
        demo_apps,
        demo_folder,
        ensure_demo_catalogue,
    )  # slow to import, and only for the demo's models

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task("demo models", total=None)

        def told(what: str, done: float) -> None:
            progress.update(task, description=what, total=1.0, completed=done)

        apps = demo_apps(settings.apps)
        catalogue = ensure_demo_catalogue(settings.home, told, apps=apps)
    return catalogue, demo_folder(settings.home, apps)
