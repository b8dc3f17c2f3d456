"""Which apps documents are about: those asked for, or those that `sluice up` serves."""

from collections.abc import Collection, Sequence

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.models.app import App
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import load_catalogue
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.profiles.demo.build_models import DEFAULT
from sluicegate.sluice.catalogue.open_catalogue import wanted_apps
from sluicegate.sluice.settings.settings import Settings
from sluicegate.streams.ports import TopicSpec
from sluicegate.streams.topics import Topics


def published_apps(settings: Settings, asked: Sequence[str]) -> tuple[App, ...]:
    """Apps by name. The demo's are known before their models are built. Raises ConfigurationError for unknown ones, and
    where none is served."""
    from sluicegate.profiles.demo import digits, langid, signals

    demo = {module.APP.name: module.APP for module in (digits, signals, langid)}
    mine = _at_hand(settings)
    own = dict(mine.apps) if mine is not None else {}
    known = {**demo, **own}
    served = tuple(own) if settings.catalogue is not None else wanted_apps(settings, (), mine) or DEFAULT
    names = tuple(asked) or settings.apps or served
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigurationError(f"app {unknown[0]!r} is unknown; known: {', '.join(sorted(known))}")
    return tuple(known[name] for name in dict.fromkeys(names))


def app_names(settings: Settings, asked: Sequence[str]) -> tuple[str, ...]:
    """Names alone: those asked for need not be served yet."""
    return tuple(dict.fromkeys(asked)) or tuple(app.name for app in published_apps(settings, ()))


def topic_specs(
    settings: Settings, apps: Sequence[str], devices: Sequence[str], promised: Collection[str] = ()
) -> tuple[TopicSpec, ...]:
    """The topics of ``apps`` and ``devices`` (the settings' where none are named), as the settings have them made.

    ``promised``: apps that bring a promise of their own, besides those of the catalogue at hand.
    """
    catalogue = _at_hand(settings)
    own = {name for name, app in catalogue.apps.items() if app.promise.active} if catalogue is not None else set()
    return Topics(settings.prefix).specs(
        apps,
        devices or [d.name for d in settings.all_devices()],
        partitions=settings.partitions_of(apps, own.union(promised)),
        demand_partitions=settings.planner.demand_partitions,
        policies=settings.topics.policies(),
    )


def _at_hand(settings: Settings) -> Catalogue | None:
    """The settings' catalogue, or what was registered here."""
    if settings.catalogue is not None:
        return load_catalogue(settings.catalogue, verify=False)
    return Registered(settings.home).catalogue(verify=False)
