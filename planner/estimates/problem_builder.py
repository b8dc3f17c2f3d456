"""What a plan is made for: demand as it is expected, and what is known of variants beyond their profiles.

Rules:
- Demand of each app in the catalogue, by SLO class as counted where it has classes. Unknown apps are ignored.
- Latencies measured otherwise than profiled count by their factor.
- Each batch on a starved host takes its delay longer, whatever its size: that much of what was measured there is no
  factor on its profile. An app with strain is planned for so many times its demand
  (``sluicegate.planner.estimates.host_strain``).
- What failed to load on a device is left out on its type, however that is cut, for ``load_failure_hold``, unless its
  app has nothing else, or the device loads nothing (``sluicegate.planner.estimates.load_refusals``).
- What was measured leaves no app without a variant for good: who is not planned with is not timed any more. Where all
  that fit by their profiles are measured too slow, those that still answer within the SLO count as just fitting, and
  the others as profiled once they were not timed for ``load_failure_hold``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from sluicegate.domain.events import DemandCounted, LatencyMeasured
from sluicegate.domain.fleet.device import Device, profile_type
from sluicegate.domain.plan import Placement
from sluicegate.planner.control.controller_settings import ControllerSettings
from sluicegate.planner.estimates.demand_estimate import DemandEstimator, Estimate
from sluicegate.planner.estimates.host_strain import HostStrain
from sluicegate.planner.estimates.profile_drift import LatencyFactors
from sluicegate.planner.problems.plan_limits import limits_of
from sluicegate.planner.problems.problem import Allocation, AppDemand, Problem
from sluicegate.profiles.catalogue.catalogue import Catalogue

_MOST_TOGETHER = 8
"""Variants of different apps on one unit, at most."""


class Outlook:
    """Fold in what is heard, ask for a problem. Pure: time comes with the calls."""

    def __init__(self, catalogue: Catalogue, settings: ControllerSettings) -> None:
        self._catalogue = catalogue
        self._settings = settings
        self._demand = DemandEstimator(settings.demand)
        self._classes = DemandEstimator(settings.demand)
        self._factors = LatencyFactors(catalogue, settings.quantile, settings.latency)
        self.strain = HostStrain(settings.strain)
        self._failed: dict[tuple[str, str], float] = {}
        self._timed: dict[tuple[str, str], float] = {}
        self._hosts: dict[str, tuple[frozenset[tuple[str, str, tuple[str, ...]]], float]] = {}

    @property
    def catalogue(self) -> Catalogue:
        """What is served."""
        return self._catalogue

    def registered(self, catalogue: Catalogue) -> list[str]:
        """Other apps or variants are served from now on; the apps for which that makes a difference."""
        changed = [
            name
            for name in sorted({*self._catalogue.apps, *catalogue.apps})
            if self._catalogue.only({name}) != catalogue.only({name})
        ]
        self._catalogue = catalogue
        self._factors.registered(catalogue)
        filed = {_of_device(key) for key in catalogue.profiles}
        self._failed = {key: until for key, until in self._failed.items() if key in filed}
        self._timed = {key: at for key, at in self._timed.items() if key in catalogue.profiles}
        return changed

    def counted(self, event: DemandCounted, now: float) -> None:
        """Queries came."""
        if event.app in self._catalogue.apps:
            self._demand.handle(event, now)
            for slo, count in event.classes:
                self._classes.handle(replace(event, app=_class_name(event.app, slo), count=count, classes=()), now)

    def measured(self, event: LatencyMeasured, now: float) -> float | None:
        """A batch was timed; the new factor on its profile where it must be acted on."""
        key = (event.variant, event.device_type)
        if key in self._catalogue.profiles:
            self._timed[key] = now
        return self._factors.handle(event, self.strain.delay)

    def failed(self, variant: str, device_type: str, now: float) -> bool:
        """A variant could not be loaded; whether that is news."""
        key = (variant, device_type)
        fresh = self._failed.get(key, -inf) < now
        self._failed[key] = now + self._settings.load_failure_hold
        return fresh

    def forgive(self, variant: str, device_type: str) -> None:
        """It was the device that could not load it."""
        self._failed.pop((variant, device_type), None)

    def is_all_there_is(self, variant: str, now: float) -> bool:
        """Whether its app has nothing that did not fail to load, so that it is planned with all the same."""
        app = self._catalogue.variants[variant].app if variant in self._catalogue.variants else None
        of_app = [key for key in self._catalogue.profiles if self._catalogue.variants[key[0]].app == app]
        return bool(of_app) and all(self._failed.get(_of_device(key), -inf) > now for key in of_app)

    def bursting(self, now: float) -> tuple[str, ...]:
        """Apps that get more than their plan covers."""
        return self._demand.bursting(now)

    def estimates(self, now: float) -> Mapping[str, Estimate]:
        """Demand of each app in the catalogue as it would be planned for now."""
        return {app: self._demand.estimate(app, now) for app in sorted(self._catalogue.apps)}

    def planned(self, problem: Problem, allocation: Allocation) -> dict[str, float]:
        """``problem`` was answered: demand by app, which is covered from now on with its headroom."""
        demand: dict[str, float] = {}
        for d in problem.demands:
            demand[d.app] = demand.get(d.app, 0.0) + d.qps
            self._demand.cover(d.app, demand[d.app] * allocation.headroom.get(d.app, d.headroom))
        return demand

    def problem(self, devices: Sequence[Device], previous: tuple[Placement, ...], now: float) -> Problem:
        """What would be asked of the planner now."""
        s = self._settings
        together = s.variants_per_device or self._enough(devices)
        return Problem(
            demands=tuple(self._demands(now)),
            devices=tuple(devices),
            catalogue=self._usable_catalogue(now),
            previous=previous,
            capacity=s.capacity,
            quantile=s.quantile,
            latency_factor=self._believed(devices, 1.0 / (together + 1), now),
            variants_per_device=together,
            **limits_of(s),
            stood=self._stood(previous, now),
            tables=s.tables,
        )

    def _believed(self, devices: Sequence[Device], share: float, now: float) -> Mapping[tuple[str, str], float]:
        """Factors on profiles. ``share``: of the SLO, that a batch may take."""
        found = dict(self._factors.factors)
        served = self._catalogue
        kinds = {profile_type(device.type, part.profile) for device in devices for part in device.slices}
        slow = {served.variants[variant].app for (variant, _), factor in found.items() if factor > 1.0}
        for app in sorted(slow):
            slo = min(served.apps[app].slo_classes, default=served.apps[app].slo)
            rows = {
                key: profile.curve(self._settings.quantile, 1)(1)
                for key, profile in served.profiles.items()
                if served.variants[key[0]].app == app and key[1] in kinds
            }
            if any(row * found.get(key, 1.0) <= share * slo for key, row in rows.items()):
                continue
            for key, row in rows.items():
                if row <= share * slo and row * found[key] <= slo:
                    found[key] = share * slo / row * (1.0 - 1e-9)
                elif row <= share * slo and now - self._timed.get(key, -inf) >= self._settings.load_failure_hold:
                    del found[key]
        return found

    def _stood(self, previous: tuple[Placement, ...], now: float) -> dict[str, float]:
        """Seconds since each app was seen with other hosts than ``previous`` has."""
        hosts: dict[str, set[tuple[str, str, tuple[str, ...]]]] = {app: set() for app in self._catalogue.apps}
        for p in previous:
            hosts.setdefault(p.app, set()).add((p.device, p.slice, p.variants))
        for app, mine in hosts.items():
            if app not in self._hosts or self._hosts[app][0] != mine:
                self._hosts[app] = (frozenset(mine), now)
        self._hosts = {app: self._hosts[app] for app in sorted(hosts)}
        return {app: now - since for app, (_, since) in self._hosts.items()}

    def _enough(self, devices: Sequence[Device]) -> int:
        """Variants a unit must hold for every app to be hosted: one where there are as many units as apps."""
        units = sum(len(device.slices) for device in devices)
        return min(_MOST_TOGETHER, max(1, -(-len(self._catalogue.apps) // max(1, units))))

    def _demands(self, now: float) -> list[AppDemand]:
        uniform = self._settings.headroom
        demands = []
        strains = self.strain.strains
        for app, estimate in self.estimates(now).items():
            goal = self._catalogue.apps[app]
            strain = strains.get(app, 1.0)
            demands += [
                AppDemand(
                    app=app,
                    qps=estimate.qps * part,
                    slo=slo,
                    headroom=strain * (estimate.headroom if uniform is None else uniform),
                    spread=estimate.spread if uniform is None and strain == 1.0 else 0.0,
                    min_accuracy=goal.min_accuracy,
                    weight=goal.weight,
                    query_class=goal.query_class,
                )
                for slo, part in self._slo_parts(app, now)
            ]
        return demands

    def _slo_parts(self, app: str, now: float) -> list[tuple[float, float]]:
        """(SLO, part of the demand) of each SLO class, as counted; an app without classes is one."""
        goal = self._catalogue.apps[app]
        if not goal.slo_classes:
            return [(goal.slo, 1.0)]
        counted = [self._classes.estimate(_class_name(app, slo), now).qps for slo in goal.slo_classes]
        return [(slo, qps / sum(counted)) for slo, qps in zip(goal.slo_classes, counted, strict=True)]

    def _usable_catalogue(self, now: float) -> Catalogue:
        """Without what failed to load a short while ago, unless the app has nothing else; batches as late as hosts."""
        barred = {key for key, until in self._failed.items() if until > now}
        known = self._delayed()
        if not barred:
            return known
        profiles = {key: p for key, p in known.profiles.items() if _of_device(key) not in barred}
        left = {self._catalogue.variants[variant].app for variant, _ in profiles}
        profiles |= {key: p for key, p in known.profiles.items() if self._catalogue.variants[key[0]].app not in left}
        return Catalogue(self._catalogue.apps, self._catalogue.variants, dict(sorted(profiles.items())))

    def _delayed(self) -> Catalogue:
        """Each batch as late as starved hosts are, as far as the app's fastest variant still answers."""
        delay, served = self.strain.delay, self._catalogue
        if not delay:
            return served
        factors = self._factors.factors
        fastest: dict[str, float] = {}
        for key, profile in served.profiles.items():
            app = served.variants[key[0]].app
            row = profile.curve(self._settings.quantile, 1)(1) * factors.get(key, 1.0)
            fastest[app] = min(row, fastest.get(app, inf))
        most = {app: 0.5 * served.apps[app].slo - 1.5 * row for app, row in fastest.items()}
        profiles = {
            key: p.later(min(delay, most[served.variants[key[0]].app]) / factors.get(key, 1.0))
            for key, p in served.profiles.items()
        }
        return replace(served, profiles=profiles)


def _of_device(key: tuple[str, str]) -> tuple[str, str]:
    """The variant and the device type of a profile, which may be one of slices (``profile_type``)."""
    variant, kind = key
    return variant, kind.partition(":")[0]


def _class_name(app: str, slo: float) -> str:
    return f"{app} {slo!r}"
