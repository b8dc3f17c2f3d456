"""What scaling decides over: variants with their costs, what runs, what is asked.

Costs are money an hour of an instance; rates queries a second; times seconds. Resources are of one kind a hardware
(cores, or device memory), in any unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from sluicegate.domain.errors import InvalidInputError

SLACK = 1.05
"""Capacity over load that scaling keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingVariant:
    """A variant as scaling sees it. ``latency``: of a batch of one; ``capacity``: queries/s of an instance; ``load``:
    to load one.

    ``accuracy``: 0..1, for aims that ask for it.
    """

    name: str
    app: str
    latency: float
    capacity: float
    cost: float
    load: float = 0.0
    architecture: str = ""
    hardware: str = "cpu"
    resources: float = 1.0
    accuracy: float = 0.0

    def __post_init__(self) -> None:
        for what, value in (("latency", self.latency), ("capacity", self.capacity), ("resources", self.resources)):
            if not 0.0 < value < inf:
                raise InvalidInputError(f"{self.name}.{what}", f"{value}; give a positive number")
        if not (0.0 <= self.cost < inf and 0.0 <= self.load < inf):
            raise InvalidInputError(f"{self.name}.cost", f"{self.cost}, load {self.load}; give numbers from 0 on")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Load of one app, queries/s, and the time that its answers may take."""

    load: float
    slo: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Variants, how many instances of each run, what each app asks, what there is of each hardware (absent: any)."""

    variants: tuple[ScalingVariant, ...]
    asked: Mapping[str, Asked]
    running: Mapping[str, int] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)

    def of_app(self, app: str) -> tuple[ScalingVariant, ...]:
        """Variants of ``app`` that keep its SLO, by name."""
        slo = self.asked[app].slo
        return tuple(sorted((v for v in self.variants if v.app == app and v.latency <= slo), key=lambda v: v.name))

    def count(self, name: str) -> int:
        """Instances that run."""
        return self.running.get(name, 0)

    def capacity(self, app: str) -> float:
        """Queries/s that running instances answer within the SLO: others do not count."""
        return sum(v.capacity * self.count(v.name) for v in self.of_app(app))

    def free(self, hardware: str) -> float:
        """Resources that are left."""
        used = sum(v.resources * self.count(v.name) for v in self.variants if v.hardware == hardware)
        return self.resources.get(hardware, inf) - used

    def cost(self) -> float:
        """Money an hour of all that runs."""
        return sum(v.cost * self.count(v.name) for v in self.variants)

    def after(self, changes: Mapping[str, int]) -> "Fleet":
        """With ``changes`` to the number of instances."""
        running = {v.name: self.count(v.name) + changes.get(v.name, 0) for v in self.variants}
        return Fleet(variants=self.variants, asked=self.asked, running=running, resources=self.resources)

    def faults(self, slack: float = SLACK) -> list[str]:
        """What of constraints (1), (3) and (4) does not hold; (2) is in how capacity counts."""
        found = [f"{app}: {self.capacity(app):g} queries/s for {asked.load:g}" for app, asked in self.asked.items()
                 if self.capacity(app) < slack * asked.load * (1 - 1e-9)]  # fmt: skip
        found += [f"{h}: {-self.free(h):g} too much" for h in self.resources if self.free(h) < -1e-9]
        return found + [f"{v.name}: {self.count(v.name)} instances" for v in self.variants if self.count(v.name) < 0]
