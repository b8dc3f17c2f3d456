"""The catalogue: apps, variants and profiles, as one immutable value that planner, policies and reports read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from domain.app import App
from domain.errors import ConfigurationError
from domain.profile import Profile
from domain.variant import Variant


@dataclass(frozen=True)
class Catalogue:
    """What can be served, and how fast it is where.

    ``profiles`` is keyed by (variant, device type). Iteration order is sorted by name everywhere, so that equal
    catalogues give equal plans.
    """

    apps: Mapping[str, App]
    variants: Mapping[str, Variant]
    profiles: Mapping[tuple[str, str], Profile] = field(default_factory=dict)

    @staticmethod
    def of(apps: Iterable[App], variants: Iterable[Variant], profiles: Iterable[Profile]) -> "Catalogue":
        """Build from parts; a variant of an unknown app or a profile of an unknown variant is an error."""
        by_app = {a.name: a for a in sorted(apps, key=lambda a: a.name)}
        by_variant = {v.name: v for v in sorted(variants, key=lambda v: v.name)}
        by_pair = {(p.variant, p.device_type): p for p in sorted(profiles, key=lambda p: (p.variant, p.device_type))}
        for variant in by_variant.values():
            if variant.app not in by_app:
                raise ConfigurationError(f"variant {variant.name}: its app {variant.app!r} is not in the catalogue")
        for name, device_type in by_pair:
            if name not in by_variant:
                raise ConfigurationError(f"profile {name}@{device_type}: no such variant in the catalogue")
        return Catalogue(by_app, by_variant, by_pair)

    @cached_property
    def device_types(self) -> tuple[str, ...]:
        """Device types that anything is profiled on."""
        return tuple(sorted({device_type for _, device_type in self.profiles}))

    def of_app(self, app: str) -> tuple[Variant, ...]:
        """Variants of ``app``, most accurate first, ties by name."""
        mine = (v for v in self.variants.values() if v.app == app)
        return tuple(sorted(mine, key=lambda v: (-v.accuracy, v.name)))

    def best_accuracy(self, app: str) -> float:
        """Accuracy of the app's best variant; 1.0 where it has none."""
        return max((v.accuracy for v in self.variants.values() if v.app == app), default=1.0)
