"""What the system of a seed is: how many of each stage, on which devices, planned and asked how."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Literal

from sluicegate.domain.models.app import App, Promise, WeaklyHard
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.settings.settings import (
    DeviceSettings,
    PlannerSettings,
    PromiseSettings,
    Settings,
    WorkerSettings,
)

Delivery = Literal["at_least_once", "exactly_once"]

PREFIX = "x"
PIXELS = 4
SLO = 0.6
SOURCES = ("ann", "bob")
"""Who asks. Both count their queries alike, so that an id alone says nothing."""
GREEDY = "eve"
"""Who asks for all that there is."""
POISON = 1e6
"""What begins with that or more ends the process that runs it."""
APPS = {"toy": Promise(), "vow": Promise(weakly_hard=(WeaklyHard(3, 12),))}
"""What is promised of each app."""
SLOWER = {"cpu": 1.0, "old": 1.8}
"""Types of device, and how much longer all takes on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Processes by name and roles, and what is asked of them. ``rates``: queries a second of each app."""

    devices: tuple[tuple[str, str], ...]
    roles: tuple[tuple[str, tuple[str, ...]], ...]
    planner: str
    period: float
    rates: tuple[tuple[str, float], ...]

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of the devices, which are those of their workers' processes."""
        return tuple(name for name, _ in self.devices)

    @property
    def processes(self) -> tuple[str, ...]:
        """All names."""
        return (*(name for name, _ in self.roles), *self.workers)


def drawn_shape(rng: Random) -> Shape:
    """Two or three unequal devices, one or two of each stage that scales out; two planners but for one seed in six.

    In half of the worlds admission and routers share processes, as far as there is one of each, and are chained.
    """
    own = Random(rng.getstate()[1][1])  # without a draw: the other half of the worlds stay as they are
    kinds = ("cpu", "cpu", "old") if rng.random() < 0.75 else ("cpu", "old")
    counts = {
        "admission": rng.choice((1, 1, 2)),
        "router": rng.choice((1, 2)),
        "planner": rng.choice((1, 2, 2, 2, 2, 2)),
        "sink": rng.choice((0, 0, 0, 1)),
    }
    return Shape(
        devices=tuple((f"d{number}", kind) for number, kind in enumerate(kinds)),
        roles=_processes(counts, shared=min(counts["admission"], counts["router"]) if own.random() < 0.5 else 0),
        planner=rng.choice(("allocation", "greedy-fill", "greedy-fill")),
        period=rng.choice((1.0, 2.0)),
        rates=(("toy", rng.uniform(8.0, 25.0)), ("vow", rng.uniform(6.0, 14.0))),
    )


def _processes(counts: Mapping[str, int], shared: int) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """One a role, but for ``shared`` ones of admission and router together."""
    gates = tuple((f"gate{number}", ("admission", "router")) for number in range(shared))
    alone = tuple(
        (f"{role}{number}", (role,))
        for role, count in counts.items()
        for number in range(shared if role in {"admission", "router"} else 0, count)
    )
    return (*gates, *alone)


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """Two apps of two unequal variants, profiled on both types of device."""
    apps, variants, profiles = [], [], []
    for number, (name, promise) in enumerate(APPS.items()):
        apps.append(
            App(
                name=name,
                slo=SLO,
                promise=promise,
                inputs=(TensorSpec("image", "FP32", (PIXELS,)),),
                outputs=(TensorSpec("label", "INT64", ()),),
                max_rows=4,
            )
        )
        for level, fastest in enumerate((0.004, 0.03)):
            variant = f"{name}-v{level}"
            variants.append(Variant(name=variant, app=name, accuracy=0.7 + 0.17 * level - 0.05 * number))
            for kind, slower in SLOWER.items():
                first = fastest * (1 + 0.3 * number) * slower
                points = tuple(
                    BatchLatency(b, first * (1 + 0.2 * (b - 1)), 1.3 * first * (1 + 0.2 * (b - 1))) for b in (1, 4, 16)
                )
                profiles.append(Profile(variant=variant, device_type=kind, points=points, load=0.1 + 0.1 * level))
    return Catalogue.of(apps, variants, profiles)


def settings_of(shape: Shape, delivery: Delivery, folder: Path) -> Settings:
    """What all its processes are told. Two doors share the partitions of what was promised, for which settings promise
    it; else the catalogue does, so that it may be registered otherwise."""
    doors = sum("admission" in roles for _, roles in shape.roles)
    return Settings(
        broker="memory://",
        prefix=PREFIX,
        home=folder / "home",
        runs=folder / "runs",
        partitions=2,
        promises={"vow": PromiseSettings(weakly_hard=((3, 12),), partitions=doors)} if doors > 1 else {},
        delivery=delivery,
        devices=tuple(DeviceSettings(name=name, type=kind) for name, kind in shape.devices),
        worker=WorkerSettings(executor="emulated", heartbeat_s=0.3),
        planner=PlannerSettings(name=shape.planner, period_s=shape.period, device_timeout_s=1.0, lease_s=1.0),
    )
