"""The catalogue: apps, variants and profiles, as one immutable value that planner, policies and reports read."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import Registered
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import Profile
from sluicegate.domain.models.variant import Variant


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

    @property
    def registered(self) -> Registered:
        """As the event that tells cores of it; ``of`` makes it a catalogue again."""
        return Registered(tuple(self.apps.values()), tuple(self.variants.values()), tuple(self.profiles.values()))

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

    def relative_accuracy(self, variant: str) -> float:
        """Accuracy of ``variant`` over that of its app's best: 1 for the best, whatever the app's metric.

        Where every variant of the app has 0 all are as good as the best.
        """
        mine = self.variants[variant]
        best = self.best_accuracy(mine.app)
        return mine.accuracy / best if best > 0.0 else 1.0

    def only(self, apps: Collection[str]) -> "Catalogue":
        """What it says of ``apps``."""
        variants = {name: v for name, v in self.variants.items() if v.app in apps}
        return Catalogue(
            {name: a for name, a in self.apps.items() if name in apps},
            variants,
            {pair: p for pair, p in self.profiles.items() if pair[0] in variants},
        )

    def replacing(self, app: str, part: "Catalogue | None") -> "Catalogue":
        """With ``part``, a catalogue of ``app`` alone, in the place of what was said of it; None: without it."""
        rest = self.only(self.apps.keys() - {app})
        if part is None:
            return rest
        return Catalogue.of(
            [*rest.apps.values(), *part.apps.values()],
            [*rest.variants.values(), *part.variants.values()],
            [*rest.profiles.values(), *part.profiles.values()],
        )


class KnownCatalogue(Catalogue):
    """Everything that was ever served by this process: it grows, and forgets nothing that may still run.

    For those who look single variants up: a worker answers with a variant for a while after it was retired. What is
    served at present is a ``Catalogue`` of its own. Grows within one event loop.
    """

    def __init__(self, first: Catalogue) -> None:
        super().__init__(dict(first.apps), dict(first.variants), dict(first.profiles))

    def add(self, more: Catalogue) -> None:
        """Know this too; what has the same name is replaced."""
        for mine, theirs in ((self.apps, more.apps), (self.variants, more.variants), (self.profiles, more.profiles)):
            assert isinstance(mine, dict)
            mine.update(theirs)
        self.__dict__.pop("device_types", None)
