"""What a slice can run of what a plan gives it: each variant with its latency curve there.

Plans count on batches that take at most half the SLO (``Placement.max_batch``): a query that has just missed one is
answered by the next. A slice loads and hosts for whatever is answered within the SLO, so that a rule may serve a burst
in larger batches; rules that must not do that keep the limit themselves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from sluicegate.domain.events import Hosted, HostedOn, MarginsTold
from sluicegate.domain.fleet.device import WHOLE, Device, Slice, profile_type
from sluicegate.domain.models.profile import AnyQuantile, Profile, Quantile
from sluicegate.domain.plan import Placement, Plan
from sluicegate.policies.promises.margins import MOST, UNKNOWN
from sluicegate.profiles.catalogue.catalogue import Catalogue, KnownCatalogue

_EARNED: tuple[AnyQuantile, ...] = ("shown", "paced")


def profile_on(catalogue: Catalogue, device: Device, part: str, variant: str) -> Profile:
    """Of ``variant`` on a slice, or on the whole device where its profile says nothing of slices. Raises KeyError."""
    kind = next((p.profile for p in device.slices if p.name == part), WHOLE)
    sliced = catalogue.profiles.get((variant, profile_type(device.type, kind))) if kind != WHOLE else None
    return sliced if sliced is not None else catalogue.profiles[variant, device.type]


def is_known(catalogue: Catalogue, device: Device, part: str, variant: str) -> bool:
    """Whether all is known that loading and running ``variant`` on a slice takes."""
    try:
        profile_on(catalogue, device, part, variant)
    except KeyError:
        return False
    return variant in catalogue.variants


def profiled_as(catalogue: Catalogue, device: Device, part: Slice) -> str:
    """What profiles call a slice: by its own name where anything is profiled on it, else its device's."""
    kind = profile_type(device.type, part.profile)
    return kind if kind in catalogue.device_types else device.type


def largest_batch(catalogue: Catalogue, profile: Profile, quantile: Quantile) -> int:
    """Rows that are answered within the longest SLO of the variant's app; 0 where none are."""
    app = catalogue.apps[catalogue.variants[profile.variant].app]
    return profile.curve(quantile).largest_within(max((app.slo, *app.slo_classes)))


def hosted_variant(
    catalogue: Catalogue, profile: Profile, max_batch: int, quantile: Quantile, *, burst: bool = False
) -> Hosted:
    """``profile``'s variant for batches of ``max_batch`` rows; with ``burst`` as large as the SLO bears."""
    limit = max(max_batch, largest_batch(catalogue, profile, quantile)) if burst else max_batch
    curve = profile.curve(quantile, limit=max(1, limit))
    sure = profile.curve("sure", limit=max(1, limit)).seconds
    least, pace = (_most(profile.curve(q, limit=max(1, limit)).seconds, sure) for q in _EARNED)
    accuracy = catalogue.variants[profile.variant].accuracy
    return Hosted(profile.variant, accuracy, curve, sure, least, pace, profile.executors, profile.fbr)


@lru_cache(maxsize=4096)  # a slice's variants are the same in most plans
def _most(seconds: tuple[float, ...], sure: tuple[float, ...]) -> float:
    """Of ``sure``, by size, the largest part that ``seconds`` takes."""
    return max(a / b for a, b in zip(seconds, sure, strict=True))


def hosted_on(
    catalogue: Catalogue, device: Device, placement: Placement, quantile: Quantile, *, burst: bool
) -> HostedOn:
    """What ``placement`` can run. Variants without a profile there are left out."""
    hosted = []
    for name in placement.variants:
        try:
            profile = profile_on(catalogue, device, placement.slice, name)
        except KeyError:
            continue
        hosted.append(hosted_variant(catalogue, profile, placement.max_batch, quantile, burst=burst))
    return HostedOn(placement.device, placement.slice, tuple(hosted))


class Hosting:
    """What slices run of each plan, by the devices and variants that are known. It learns of both, and forgets none."""

    __slots__ = ("_devices", "_margins", "_quantile", "catalogue")

    def __init__(self, catalogue: Catalogue, devices: Iterable[Device], quantile: Quantile) -> None:
        self.catalogue = KnownCatalogue(catalogue)
        self._devices = {device.name: device for device in devices}
        self._quantile = quantile
        self._margins: dict[tuple[str, str], dict[str, float]] = {}

    @property
    def devices(self) -> tuple[Device, ...]:
        """As they are cut now."""
        return tuple(self._devices.values())

    def cut(self, device: str, slices: tuple[Slice, ...]) -> bool:
        """``device`` states its slices, () where it cannot be cut; whether they are others than was known."""
        known = self._devices.get(device)
        if known is None or not slices or known.slices == slices:
            return False
        self._devices[device] = replace(known, slices=slices)
        return True

    def margins(self, told: MarginsTold) -> bool:
        """How long batches of a slice take at most was told; whether that is news. Of unknown slices it is not."""
        device = self._devices.get(told.device)
        if device is None or all(part.name != told.slice for part in device.slices):
            return False
        known = self._margins.get((told.device, told.slice), {})
        self._margins[told.device, told.slice] = margins = dict(told.margins)
        return any(margins.get(v, UNKNOWN) != known.get(v, UNKNOWN) for v in {*margins, *known})

    def as_shown(self, device: str, part: str, hosted: Hosted) -> Hosted:
        """``hosted`` as its batches have shown there that they take."""
        margin = self._margins.get((device, part), {}).get(hosted.variant, UNKNOWN)
        return hosted if margin == UNKNOWN else hosted.shown(max(hosted.least, min(MOST, margin)))

    def fit(self, held: Placement, coming: Sequence[Placement]) -> bool:
        """Whether its slice has memory for ``held`` and ``coming`` at once. Where that is not known it has not."""
        device = self._devices.get(held.device)
        part = next((s for s in device.slices if s.name == held.slice), None) if device is not None else None
        if device is None or part is None:
            return False
        room = part.memory_bytes or device.memory_bytes
        together = {v for placement in (held, *coming) for v in placement.variants} if room else ()
        try:
            need = sum(profile_on(self.catalogue, device, held.slice, v).memory_bytes for v in together)
        except KeyError:
            return False
        return need <= room

    def of(self, app: str, plan: Plan, *, burst: bool = False) -> tuple[HostedOn, ...]:
        """What ``plan`` has each slice run of ``app``; ``burst``: in batches as large as the SLO bears."""
        cut = plan.geometries
        return tuple(
            hosted_on(
                self.catalogue,
                replace(device, slices=cut[device.name]) if device.name in cut else device,
                placed,
                self._quantile,
                burst=burst,
            )
            for placed in plan.of_app(app)
            if (device := self._devices.get(placed.device)) is not None
        )
