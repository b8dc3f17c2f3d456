"""What is registered in a scenario, from the start and while it runs."""

from dataclasses import replace
from math import inf

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.models.app import NO_PROMISE, App, Promise, QueryClass, WeaklyHard
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.simulator.engine.system_model import Registration
from sluicegate.simulator.scenario.scenario_fields import AppAsks, PromiseSpec, Scenario


def registry_of(scenario: Scenario, catalogue: Catalogue) -> tuple[Registration, ...]:
    """The registry at the start and after each change; () where all of ``catalogue`` is served throughout.

    Raises ConfigurationError.
    """
    specs = {name: spec for name, spec in (scenario.apps or {}).items() if spec is not None}
    served = catalogue
    for name, spec in specs.items():
        part = _part(catalogue, name, spec, f"apps.{name}")
        if not spec.at_start or spec.variants is not None:
            served = served.replacing(name, part if spec.at_start else None)
    found = [Registration(at=-inf, served=served)]
    for number, change in sorted(enumerate(scenario.registrations), key=lambda one: one[1].at_s):
        where = f"registrations.{number}"
        if change.app not in catalogue.apps:
            raise ConfigurationError(f"{where}.app: {change.app!r} is none of {', '.join(catalogue.apps)}")
        served = served.replacing(change.app, None if change.retired else _part(catalogue, change.app, change, where))
        found.append(Registration(at=change.at_s, served=served))
    ever = {name for one in found for name in one.served.apps}
    if never := sorted(catalogue.apps.keys() - ever):
        raise ConfigurationError(f"apps.{never[0]}.at_start: it is not registered at the start, nor later")
    return tuple(found) if len(found) > 1 or served != catalogue else ()


def _part(catalogue: Catalogue, app: str, spec: AppAsks, where: str) -> Catalogue:
    """``app`` alone, with the variants that are named."""
    known = {v.name: v for v in catalogue.of_app(app)}
    names = tuple(known) if spec.variants is None else spec.variants
    if unknown := sorted({*names} - known.keys()):
        raise ConfigurationError(f"{where}.variants: {unknown[0]!r} is none of {', '.join(known)}")
    profiles = [p for p in catalogue.profiles.values() if p.variant in names]
    asked = asking(catalogue.apps[app], spec)
    part = Catalogue.of([asked], [known[name] for name in names], profiles)
    if (least := asked.min_accuracy) > (best := part.best_accuracy(app)):
        raise ConfigurationError(
            f"{where}.min_accuracy: {least:g}, and its best variant has {best:.4g}: give that or less"
        )
    return part


def asking(app: App, spec: AppAsks | None) -> App:
    """``app``, as ``spec`` has it."""
    if spec is None:
        return app
    return replace(
        app,
        slo=app.slo if spec.slo_ms is None else spec.slo_ms / 1e3,
        query_class=app.query_class if spec.query_class is None else QueryClass(spec.query_class),
        min_accuracy=app.min_accuracy if spec.min_accuracy is None else spec.min_accuracy,
        weight=app.weight if spec.weight is None else spec.weight,
        promise=app.promise if spec.promise is None else _promise(spec.promise),
    )


def _promise(spec: PromiseSpec) -> Promise:
    promise = Promise(
        max_consecutive=spec.max_consecutive, weakly_hard=tuple(WeaklyHard(w.m, w.k) for w in spec.weakly_hard)
    )
    return promise if promise.active else NO_PROMISE
