"""Which apps documents are about: those asked for, what is served from the catalogue, or the demo's."""

from collections.abc import Sequence

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.models.app import App
from sluicegate.sluice.catalogue.open_catalogue import known_catalogue
from sluicegate.sluice.settings.settings import Settings
from sluicegate.streams.ports import TopicSpec
from sluicegate.streams.topics import Topics


def published_apps(settings: Settings, asked: Sequence[str]) -> tuple[App, ...]:
    """Apps by name. The demo's are known before their models are built. Raises ConfigurationError for unknown ones."""
    from sluicegate.profiles.demo import digits, langid, signals

    demo = {module.APP.name: module.APP for module in (digits, signals, langid)}
    catalogue = known_catalogue(settings) if settings.catalogue is not None or not set(asked) <= set(demo) else None
    known = {**demo, **(dict(catalogue.apps) if catalogue is not None else {})}
    served = list(catalogue.apps) if catalogue is not None else ["digits", "signals"]
    names = list(asked) or list(settings.apps) or served
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigurationError(f"app {unknown[0]!r} is unknown; known: {', '.join(sorted(known))}")
    return tuple(known[name] for name in dict.fromkeys(names))


def app_names(settings: Settings, asked: Sequence[str]) -> tuple[str, ...]:
    """Names alone: those asked for need not be served yet."""
    return tuple(dict.fromkeys(asked)) or tuple(app.name for app in published_apps(settings, ()))


def topic_specs(settings: Settings, apps: Sequence[str], devices: Sequence[str]) -> tuple[TopicSpec, ...]:
    """The topics of ``apps`` and ``devices`` (the settings' where none are named), as the settings have them made."""
    return Topics(settings.prefix).specs(
        apps,
        devices or [d.name for d in settings.all_devices()],
        partitions=settings.partitions_of(apps),
        demand_partitions=settings.planner.demand_partitions,
        policies=settings.topics.policies(),
    )
