"""Smaller problems: the same one with fewer variants, batches of one, or devices that keep their app.

Each returns a Problem that any planner can answer; names of devices stay, so that the answer fits the original.
"""

from collections.abc import Iterable
from dataclasses import replace

from sluicegate.domain.fleet.device import WHOLE, Device, profile_type
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Placement
from sluicegate.planner.problems.problem import Problem
from sluicegate.planner.problems.throughput import throughput
from sluicegate.profiles.catalogue.catalogue import Catalogue


def with_variants(problem: Problem, chosen: Iterable[str]) -> Problem:
    """Only these variants."""
    kept = frozenset(chosen)
    catalogue = problem.catalogue
    profiles = {key: p for key, p in catalogue.profiles.items() if key[0] in kept}
    return replace(problem, catalogue=Catalogue(catalogue.apps, catalogue.variants, profiles))


def extreme_variants(problem: Problem, *, accurate: bool) -> list[str]:
    """The most (or least) accurate variant of each app among those that meet its SLO on some device there is."""
    chosen = []
    for app in sorted({d.app for d in problem.demands}):
        feasible = [v for v in problem.catalogue.of_app(app) if _feasible(problem, v)]
        if feasible:
            chosen.append(feasible[0 if accurate else -1].name)
    return chosen


def single_batches(problem: Problem) -> Problem:
    """Profiles that end at a batch of one."""
    catalogue = problem.catalogue
    profiles = {
        key: replace(p, points=(replace(p.points[0], batch=1),), shorter=()) for key, p in catalogue.profiles.items()
    }
    return replace(problem, catalogue=Catalogue(catalogue.apps, catalogue.variants, profiles))


def keeping_apps(problem: Problem) -> Problem:
    """Each device that serves an app serves that app only: its type becomes one that only the app is profiled on."""
    owner = {p.device: p.app for p in problem.previous}
    catalogue = problem.catalogue
    devices: list[Device] = []
    profiles = dict(catalogue.profiles)
    factors = dict(problem.latency_factor)
    for device in problem.devices:
        app = owner.get(device.name)
        if app is None:
            devices.append(device)
            continue
        own = f"{device.type}|{app}"
        devices.append(replace(device, type=own))
        for part in {s.profile for s in device.slices}:
            old, new = profile_type(device.type, part), profile_type(own, part)
            for variant in catalogue.of_app(app):
                if (variant.name, old) in catalogue.profiles:
                    profiles[variant.name, new] = replace(catalogue.profiles[variant.name, old], device_type=new)
                if (variant.name, old) in problem.latency_factor:
                    factors[variant.name, new] = problem.latency_factor[variant.name, old]
    return replace(
        problem,
        devices=tuple(devices),
        catalogue=Catalogue(catalogue.apps, catalogue.variants, dict(sorted(profiles.items()))),
        latency_factor=factors,
    )


def kept_placements(problem: Problem) -> tuple[Placement, ...]:
    """Placements in force on devices that are still there."""
    alive = {d.name for d in problem.devices}
    return tuple(p for p in problem.previous if p.device in alive)


def _feasible(problem: Problem, variant: Variant) -> bool:
    slo = max(d.slo for d in problem.demands if d.app == variant.app)
    kinds = {profile_type(d.type, s.profile) for d in problem.devices for s in d.slices or ()} or {WHOLE}
    for kind in sorted(kinds):
        profile = problem.catalogue.profiles.get((variant.name, kind))
        if profile is not None:
            factor = problem.latency_factor.get((variant.name, kind), 1.0)
            rate = throughput(profile, slo / 2, capacity=problem.capacity, quantile=problem.quantile, factor=factor)
            if rate.batch:
                return True
    return False
