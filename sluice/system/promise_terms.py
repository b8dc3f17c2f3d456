"""What each promise of a system comes to on its devices, term by term; what cannot be kept on any is refused."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.fleet.device import Device, profile_type
from sluicegate.domain.models.app import HOP_PART, App, Promise, QueryClass
from sluicegate.domain.models.profile import LatencyCurve, Profile
from sluicegate.domain.models.sustainable_rate import Sustainable, max_rate
from sluicegate.policies.admission.rows_taken import Taken, refused_rows
from sluicegate.policies.placement.hosted_variants import hosted_variant, profile_on
from sluicegate.policies.promises.keeper import Hops, Party, Share, Terms, terms
from sluicegate.profiles.catalogue.catalogue import Catalogue

ROWS = (1, 2, 4, 8)
_ROUNDED_UP = 1.001
"""So that what is told to four digits is enough."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A promise of ``app`` on slices of one ``kind``, beside the apps ``beside``, on ``variant``.

    ``share``: its turn there once many batches have run, ``first`` until then; ``blocking_s``: what a batch of best
    effort takes at most. ``theorem``: with batches that
    take exactly what the profile's median says, nothing beside it and no way to go; None where that keeps nothing.
    ``usual_s``: what its largest batch takes at the median.
    """

    app: str
    kind: str
    variant: str
    beside: tuple[str, ...]
    promise: Promise
    share: Share
    first: Share
    blocking_s: float
    usual_s: float
    theorem: Sustainable | None

    def bound(self, rows: int) -> int:
        """Queries of ``rows`` rows a window."""
        return self.share.bound(self.promise, rows)

    @property
    def rate(self) -> float:
        """Queries of one row a second that are announced."""
        return self.bound(1) / self.share.window_s

    @property
    def first_rate(self) -> float:
        """The same until many batches have run."""
        return self.first.bound(self.promise) / self.first.window_s


def kept(catalogue: Catalogue, devices: Iterable[Device], hops: Hops, app: str) -> tuple[Kept, ...]:
    """``app`` on each kind of slice that can host it: alone, and beside every other app that can be there too."""
    found: list[Kept] = []
    for kind, (device, part) in _kinds(devices).items():
        both = {name: party for name in catalogue.apps if (party := _party(catalogue, device, part, name))}
        parties = {name: shown for name, (_, shown) in both.items()}
        first = {name: sure for name, (sure, _) in both.items()}
        if app not in parties:
            continue
        loose = {n for n in catalogue.apps.keys() - parties.keys() if _fastest_first(catalogue, device, part, n)}
        groups: list[tuple[str, ...]] = [()]
        if others := tuple(sorted(parties.keys() - {app} | loose)):
            groups.append(others)
        for beside in groups:
            share = _terms(first, (app, *beside), hops).shares[app]
            found.append(_kept(catalogue, parties, share, (device, part), kind, beside, hops, app))
    return tuple(found)


def check_promises(catalogue: Catalogue, devices: Iterable[Device], hops: Hops, apps: Iterable[App]) -> None:
    """Raises ConfigurationError for a promise that no device keeps even where nothing is beside it."""
    devices = tuple(devices)
    for app in apps:
        alone = [one for one in kept(catalogue, devices, hops, app.name) if not one.beside]
        if alone and all(one.first.refused for one in alone):
            reasons = "; ".join(f"on {one.kind}, {one.first.refused}" for one in alone)
            least = min(2.0 * one.first.processing_s + one.first.hop_s for one in alone)
            raise ConfigurationError(
                f"promises.{app.name}: cannot be kept on any device: {reasons}. An SLO of {1e3 * least:.4g} ms could "
                "be; or give it a faster variant, or a shorter admission.hop_ms"
            )


def rows_refused(
    catalogue: Catalogue, devices: Iterable[Device], hops: Hops, apps: Iterable[App]
) -> tuple[Announce, ...]:
    """What is to be said of apps that declare to take larger queries than any device keeps their promise for, even
    where nothing is beside it. A plan that leaves an app less is spoken of by admission."""
    devices = tuple(devices)
    said: list[Announce] = []
    for app in apps:
        most = _most_taken(catalogue, devices, hops, app)
        if most is not None and most.rows < app.max_rows:
            slo = _slo_for_all(catalogue, devices, hops, app)
            if (one := refused_rows(app, most, slo=slo)) is not None:
                said.append(one)
    return tuple(said)


def _most_taken(catalogue: Catalogue, devices: Sequence[Device], hops: Hops, app: App) -> Taken | None:
    """On the device that takes the largest queries, before batches have shown how long they take."""
    alone = [one.first for one in kept(catalogue, devices, hops, app.name) if not one.beside and not one.first.refused]
    if not alone:
        return None
    share = max(alone, key=lambda one: (one.batch, -one.window_s))
    rows = min(share.batch, app.max_rows)
    return Taken(rows, share.bound(app.promise, max(1, rows)), share.window_s)


def _slo_for_all(catalogue: Catalogue, devices: Sequence[Device], hops: Hops, app: App) -> float | None:
    """Seconds with which queries of all sizes that ``app`` declares are taken; None where a longer SLO helps not."""
    found: list[float] = []
    for device, part in _kinds(devices).values():
        for profile in _fastest_first(catalogue, device, part, app.name):
            longest = max(profile.curve("sure", limit=app.max_rows).seconds[: app.max_rows])
            slo = 2.0 * longest / (1.0 - HOP_PART) if hops.seconds is None else 2.0 * longest + hops.seconds
            longer = replace(app, slo=_ROUNDED_UP * slo)
            most = _most_taken(_with(catalogue, longer), (device,), hops, longer)
            if most is not None and most.rows >= app.max_rows:
                found.append(longer.slo)
    return min(found, default=None)


def _with(catalogue: Catalogue, app: App) -> Catalogue:
    return replace(catalogue, apps={**catalogue.apps, app.name: app})


def _kinds(devices: Iterable[Device]) -> dict[str, tuple[Device, str]]:
    kinds: dict[str, tuple[Device, str]] = {}
    for device in devices:
        for part in device.slices:
            kinds.setdefault(profile_type(device.type, part.profile), (device, part.name))
    return kinds


def _fastest_first(catalogue: Catalogue, device: Device, part: str, app: str) -> list[Profile]:
    found = []
    for variant in catalogue.of_app(app):
        try:
            found.append(profile_on(catalogue, device, part, variant.name))
        except KeyError:
            continue
    return found


def _party(catalogue: Catalogue, device: Device, part: str, app: str) -> tuple[Party, Party] | None:
    """With the most accurate variant that fits its SLO twice, else the fastest: at first, and once it has shown what it
    takes."""
    known = catalogue.apps[app]
    profiles = _fastest_first(catalogue, device, part, app)
    if not profiles or (known.query_class is QueryClass.BEST_EFFORT and not known.promise.active):
        return None
    by_accuracy = sorted(profiles, key=lambda p: -catalogue.variants[p.variant].accuracy)
    hosted = [hosted_variant(catalogue, p, 1, "p95", burst=True) for p in by_accuracy]
    fitting = [one for one in hosted if 2.0 * one.longest[0] <= known.slo]
    one = fitting[0] if fitting else min(hosted, key=lambda one: one.longest)
    first = Party.of([one], known.slo, known.promise)
    shown = Party.of([one.shown(one.least)], known.slo, known.promise)
    return first, shown


def _terms(parties: Mapping[str, Party], names: Sequence[str], hops: Hops) -> Terms:
    """Of a slice with the apps ``names``; those that are no parties ask for best effort."""
    strict = {name: parties[name] for name in names if name in parties}
    return terms(strict, hops, loose=len(strict) < len(names))


def _kept(
    catalogue: Catalogue,
    parties: dict[str, Party],
    first: Share,
    place: tuple[Device, str],
    kind: str,
    beside: tuple[str, ...],
    hops: Hops,
    app: str,
) -> Kept:
    found = _terms(parties, (app, *beside), hops)
    share, own = found.shares[app], parties[app]
    by_variant = {p.variant: p for p in _fastest_first(catalogue, *place, app)}
    hosted = [hosted_variant(catalogue, p, 1, "p95", burst=True) for p in by_variant.values()]
    profile = by_variant[next(one.variant for one in hosted if one.times(one.least).longest == own.seconds[0])]
    usual = profile.curve("median").seconds
    theorem = max_rate(LatencyCurve(usual), own.slo, own.promise)
    longest = max(usual[: max(1, share.batch)])
    return Kept(app, kind, profile.variant, beside, own.promise, share, first, found.blocking_s, longest, theorem)
