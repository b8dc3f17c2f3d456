"""What each promise of a system comes to on its devices, term by term; what cannot be kept on any is refused."""

from collections.abc import Iterable
from dataclasses import dataclass

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.fleet.device import Device, profile_type
from sluicegate.domain.models.app import App, Promise, QueryClass
from sluicegate.domain.models.profile import LatencyCurve, Profile
from sluicegate.domain.models.sustainable_rate import Sustainable, max_rate
from sluicegate.policies.placement.hosted_variants import hosted_variant, profile_on
from sluicegate.policies.promises.keeper import Hops, Party, Share, terms
from sluicegate.profiles.catalogue.catalogue import Catalogue

ROWS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Kept:
    """A promise of ``app`` on slices of one ``kind``, beside the apps ``beside``, on ``variant``.

    ``share``: its turn there; ``blocking_s``: what a batch of best effort takes at most. ``theorem``: with batches that
    take exactly what the profile's median says, nothing beside it and no way to go; None where that keeps nothing.
    ``usual_s``: what its largest batch takes at the median.
    """

    app: str
    kind: str
    variant: str
    beside: tuple[str, ...]
    promise: Promise
    share: Share
    blocking_s: float
    usual_s: float
    theorem: Sustainable | None

    def bound(self, rows: int) -> int:
        """Queries of ``rows`` rows a window."""
        return self.share.bound(self.promise, rows)

    @property
    def rate(self) -> float:
        """Queries of one row a second that are announced."""
        return self.bound(1) / self.share.spacing_s


def kept(catalogue: Catalogue, devices: Iterable[Device], hops: Hops, app: str) -> tuple[Kept, ...]:
    """``app`` on each kind of slice that can host it: alone, and beside every other app that can be there too."""
    found: list[Kept] = []
    for kind, (device, part) in _kinds(devices).items():
        parties = {name: party for name in catalogue.apps if (party := _party(catalogue, device, part, name))}
        if app not in parties:
            continue
        groups: list[tuple[str, ...]] = [()]
        if others := tuple(sorted(parties.keys() - {app})):
            groups.append(others)
        found += [_kept(catalogue, parties, (device, part), kind, app, beside, hops) for beside in groups]
    return tuple(found)


def check_promises(catalogue: Catalogue, devices: Iterable[Device], hops: Hops, apps: Iterable[App]) -> None:
    """Raises ConfigurationError for a promise that no device keeps even where nothing is beside it."""
    devices = tuple(devices)
    for app in apps:
        alone = [one for one in kept(catalogue, devices, hops, app.name) if not one.beside]
        if alone and all(one.share.refused for one in alone):
            reasons = "; ".join(f"on {one.kind}, {one.share.refused}" for one in alone)
            least = min(2.0 * one.share.processing_s + one.share.hop_s for one in alone)
            raise ConfigurationError(
                f"promises.{app.name}: cannot be kept on any device: {reasons}. An SLO of {1e3 * least:.4g} ms could "
                "be; or give it a faster variant, or a shorter admission.hop_ms"
            )


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


def _party(catalogue: Catalogue, device: Device, part: str, app: str) -> Party | None:
    """With the most accurate variant that fits its SLO twice, else the fastest."""
    known = catalogue.apps[app]
    profiles = _fastest_first(catalogue, device, part, app)
    if not profiles or (known.query_class is QueryClass.BEST_EFFORT and not known.promise.active):
        return None
    by_accuracy = sorted(profiles, key=lambda p: -catalogue.variants[p.variant].accuracy)
    seconds = [hosted_variant(catalogue, p, 1, "p95", burst=True).longest for p in by_accuracy]
    fitting = [each for each in seconds if 2.0 * each[0] <= known.slo]
    return Party((fitting[0] if fitting else min(seconds),), known.slo, known.promise)


def _kept(
    catalogue: Catalogue,
    parties: dict[str, Party],
    place: tuple[Device, str],
    kind: str,
    app: str,
    beside: tuple[str, ...],
    hops: Hops,
) -> Kept:
    found = terms({name: parties[name] for name in (app, *beside)}, hops)
    share, own = found.shares[app], parties[app]
    profiles = _fastest_first(catalogue, *place, app)
    profile = next(p for p in profiles if hosted_variant(catalogue, p, 1, "p95", burst=True).longest == own.seconds[0])
    usual = profile.curve("median").seconds
    theorem = max_rate(LatencyCurve(usual), own.slo, own.promise)
    longest = max(usual[: max(1, share.batch)])
    return Kept(app, kind, profile.variant, beside, own.promise, share, found.blocking_s, longest, theorem)
