"""The catalogue that a command serves from: the settings' folder, registered apps, or the demo's, built where absent.

Rules. A catalogue named in the settings is the whole of it. Else apps that are asked for by name come from where they
are, registered or of the demo, or both; where none is asked for, what was registered is served, and the demo's apps as
`sluice demo-apps` says: where it says nothing, by those who have registered nothing.
"""

from collections.abc import Sequence
from pathlib import Path

from sluicegate.domain.errors import ConfigurationError, InvalidInputError, SluiceError
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import load_catalogue, read_model, save_model
from sluicegate.profiles.catalogue.registered_apps import Registered, merged
from sluicegate.profiles.demo.build_models import DEFAULT, FAMILIES, HEAVY
from sluicegate.sluice.console import err
from sluicegate.sluice.settings.settings import Settings


def known_catalogue(settings: Settings) -> Catalogue | None:
    """The catalogue if it is there already; nothing is built for it."""
    from sluicegate.executors.demo_catalogue import demo_apps, demo_folder

    try:
        mine = Registered(settings.home).catalogue(verify=False) if settings.catalogue is None else None
        names = wanted_apps(settings, (), mine)
        if mine is not None and mine.apps and set(names) <= set(mine.apps):
            return mine
        strange = tuple(name for name in names if mine is None or name not in mine.apps)
        demo = load_catalogue(settings.catalogue or demo_folder(settings.home, demo_apps(strange)), verify=False)
        return demo if mine is None or not set(names) & set(mine.apps) else merged([mine, demo])
    except SluiceError:
        return None


def open_catalogue(settings: Settings, asked: Sequence[str] = ()) -> tuple[Catalogue, Path]:
    """The catalogue and the folder of its models. The demo's is built and profiled on this machine where absent.

    ``asked``: apps that the command is about, where the settings name none. Raises InvalidInputError for unknown ones.
    """
    if settings.catalogue is not None:
        return load_catalogue(settings.catalogue), settings.catalogue
    registered = Registered(settings.home)
    mine = registered.catalogue()
    names = wanted_apps(settings, asked, mine)
    if mine is not None and mine.apps and set(names) <= set(mine.apps):
        return mine, registered.folder
    own = tuple(mine.apps) if mine is not None else ()
    strange = tuple(name for name in names if name not in own)
    for name in strange:
        if name not in FAMILIES and name not in HEAVY:  # before anything is built for it
            known = ", ".join((*own, *DEFAULT))
            raise InvalidInputError(
                "apps" if settings.apps else "--app",
                f"{name!r:.80} is not one of {known}; `sluice register` makes an app of your models",
            )
    demo, folder = _demo(settings, strange)
    if mine is None or not set(names) & set(mine.apps):
        return demo, folder
    try:
        # One folder has the models of both: they are named by their content.
        for variant in demo.variants.values():
            save_model(registered.folder, variant.digest, read_model(folder, variant))
    except OSError as error:
        raise ConfigurationError(f"cannot write in {registered.folder}: {error.strerror}; set SLUICE_HOME") from error
    return merged([mine, demo]), registered.folder


def wanted_apps(settings: Settings, asked: Sequence[str], mine: Catalogue | None) -> tuple[str, ...]:
    """Apps by name that are served, empty where that is left to what there is. ``mine``: what is registered.

    Raises ConfigurationError where there is none.
    """
    if settings.apps or asked:
        return settings.apps or tuple(asked)
    own = tuple(mine.apps) if mine is not None else ()
    said = Registered(settings.home).demo
    if said is False and not own:
        raise ConfigurationError("no app is served: register one, or `sluice demo-apps on`")
    return (*own, *DEFAULT) if own and said else own


def _demo(settings: Settings, names: tuple[str, ...]) -> tuple[Catalogue, Path]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from sluicegate.executors.demo_catalogue import (  # slow to import, and only for the demo's models
        demo_apps,
        demo_folder,
        ensure_demo_catalogue,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("demo models", total=None)

        said = err.is_terminal

        def told(what: str, done: float) -> None:
            nonlocal said
            if not said:  # a bar that nobody sees
                err.print("the demo's models are being made, once: under a minute on two idle cores")
                said = True
            progress.update(task, description=what, total=1.0, completed=done)

        apps = demo_apps(names)
        catalogue = ensure_demo_catalogue(settings.home, told, apps=apps)
    return catalogue, demo_folder(settings.home, apps)
