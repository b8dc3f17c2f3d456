"""Profiles that turn out wrong: the factor between measured and profiled latency, by variant and device type.

Rules:
- Each report is a mean over batches of one size; its ratio to the profile's curve counts with the number of batches,
  and old reports fade.
- A factor is believed after enough batches, and acted on when it is off by more than ``threshold`` and has moved by
  more than that since it was last acted on. Otherwise the profile stands: plans do not follow noise.
- Where all variants that were timed on a device type take less than profiled, those that were never timed there count
  with the largest of these factors, ``lent`` at the least: profiles that were taken on a busy machine are too slow for
  all, and what only those who serve are corrected by would have plans pass over the rest. Never the other way: what is
  thought slower than profiled would not be tried, and so never timed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sluicegate.domain.events import LatencyMeasured
from sluicegate.domain.models.profile import LatencyCurve, Quantile
from sluicegate.profiles.catalogue.catalogue import Catalogue


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySettings:
    """When a measured latency is believed. ``threshold``: relative deviation acted on. ``batches``: needed before any
    belief. ``fade``: by batch. ``lent``: least factor of variants that were never timed."""

    threshold: float = 0.2
    batches: float = 10.0
    fade: float = 0.98
    lowest: float = 0.2
    highest: float = 20.0
    lent: float = 0.5


@dataclass(slots=True)
class _Evidence:
    batches: float = 0.0
    weight: float = 0.0
    total: float = 0.0
    acted: float = 1.0


class LatencyFactors:
    """Fold measurements in; ``factors`` are those to plan with."""

    def __init__(self, catalogue: Catalogue, quantile: Quantile, settings: LatencySettings | None = None) -> None:
        self._catalogue = catalogue
        self._quantile = quantile
        self._settings = settings or LatencySettings()
        self._evidence: dict[tuple[str, str], _Evidence] = {}
        self._curves: dict[tuple[str, str], LatencyCurve] = {}

    def handle(self, event: LatencyMeasured, late: float = 0.0) -> float | None:
        """Fold a report in; the new factor where it must be acted on, else None. Unknown pairs are ignored.

        ``late``: seconds by which its host is late: no fault of the profile, as far as they explain what exceeds it.
        """
        key = (event.variant, event.device_type)
        curve = self._curves.get(key) or self._curve(key)
        if curve is None or event.rows < 1 or event.batches < 1 or not event.execution_s > 0:
            return None
        expected = curve(min(event.rows, curve.max_batch))
        s = self._settings
        seen = self._evidence.get(key) or self._evidence.setdefault(key, _Evidence())
        keep = s.fade**event.batches
        seen.weight = seen.weight * keep + (1.0 - keep)
        took = max(event.execution_s - late, min(event.execution_s, expected))
        ratio = min(max(took / expected, s.lowest), s.highest)
        seen.total = seen.total * keep + (1.0 - keep) * ratio
        seen.batches += event.batches
        factor = seen.total / seen.weight
        if seen.batches < s.batches or abs(factor / seen.acted - 1.0) <= s.threshold:
            return None
        # Back within the threshold of the profile means that the profile is right after all.
        seen.acted = factor if abs(factor - 1.0) > s.threshold else 1.0
        return seen.acted

    def registered(self, catalogue: Catalogue) -> None:
        """Other variants are served from now on; what was measured of those that stay unchanged counts."""
        kept = {k for k, p in catalogue.profiles.items() if self._catalogue.profiles.get(k) == p}
        self._evidence = {key: e for key, e in self._evidence.items() if key in kept}
        self._curves.clear()
        self._catalogue = catalogue

    def _curve(self, key: tuple[str, str]) -> LatencyCurve | None:
        profile = self._catalogue.profiles.get(key)
        if profile is None:
            return None
        curve = self._curves[key] = profile.curve(self._quantile)
        return curve

    @property
    def factors(self) -> Mapping[tuple[str, str], float]:
        """Factors acted on, and those that are lent to variants that were never timed; other than 1."""
        timed = {key: e.acted for key, e in self._evidence.items() if e.batches >= self._settings.batches}
        found = {key: e.acted for key, e in self._evidence.items() if e.acted != 1.0}
        for kind in {kind for _, kind in timed}:
            largest = max(acted for (_, on), acted in timed.items() if on == kind)
            if largest < 1.0:
                lent = max(largest, self._settings.lent)
                found |= {key: lent for key in self._catalogue.profiles if key[1] == kind and key not in timed}
        return dict(sorted(found.items()))
