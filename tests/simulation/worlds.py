"""Small simulated worlds: one app, some equal devices, a plan that is fixed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.planner.capacity.procurement import Kind
from sluicegate.policies.batching.registry import batching
from sluicegate.policies.placement.model_staging import Staging
from sluicegate.policies.routing.registry import routing
from sluicegate.policies.serving.device_actions import Beat
from sluicegate.policies.serving.router import RouterRules
from sluicegate.policies.serving.slice_scheduler import Station
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.simulator.arrivals import Rates, SampledArrivals, zipf_shares
from sluicegate.simulator.engine.control_plane import ControlEvent, Plant
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.engine.system_model import RunResult, SystemModel


def one_app(seconds: Sequence[float], *, slo: float = 1e6, load: float = 0.0, accuracy: float = 0.9) -> Catalogue:
    """App "a" with variant "v", profiled on "cpu" for batches 1..len(seconds)."""
    points = tuple(BatchLatency(b, s, 1.5 * s) for b, s in enumerate(seconds, start=1))
    return Catalogue.of(
        [App(name="a", slo=slo)],
        [Variant(name="v", app="a", accuracy=accuracy)],
        [Profile(variant="v", device_type="cpu", points=points, load=load)],
    )


def world(
    catalogue: Catalogue, devices: int = 1, *, policy: str = "eager", slices: int = 1, **more: Any
) -> SystemModel:
    """``devices`` equal ones, each slice hosting v for a."""
    parts = tuple(Slice(f"s{i}") for i in range(slices)) if slices > 1 else (Slice(),)
    machines = tuple(Device(name=f"d{i}", type="cpu", slices=parts) for i in range(devices))
    top = catalogue.profiles["v", "cpu"].max_batch
    share = 1.0 / (devices * slices)
    placed = tuple(Placement(d.name, "a", ("v",), share, top, p.name) for d in machines for p in d.slices)
    make_policy = batching(policy)
    base = SystemModel(
        catalogue=catalogue,
        apps=tuple(catalogue.apps.values()),
        devices=machines,
        make_control=lambda: FixedPlan(Plan(epoch=Epoch(1, 1), created=0.0, placements=placed)),
        make_station=lambda: Station(make_policy),
        make_staging=Staging,
        routers=RouterRules(make_policy=routing("weighted")),
        batching=policy,
    )
    return replace(base, **more)


def poisson(rate: float, duration: float, seed: int, app: str = "a") -> SampledArrivals:
    """Poisson arrivals of one app."""
    rng = np.random.default_rng([seed, 1])
    return SampledArrivals(Rates.stepped([rate]).lasting(duration, repeat=True), [app], zipf_shares(1), rng)


class Waits:
    """An observer: mean time in the system, and mean wait, of answered queries."""

    def __init__(self, after: float = 0.0) -> None:
        self.after = after
        self.count = 0
        self.time = 0.0
        self.wait = 0.0

    def add(self, outcome: Any) -> None:
        """Fold one outcome in, unless it came during the warm-up of the queue."""
        if outcome.arrival >= self.after:
            self.count += 1
            self.time += outcome.at - outcome.arrival
            self.wait += outcome.queue_s

    @property
    def mean_time(self) -> float:
        """Seconds from arrival to answer."""
        return self.time / self.count

    @property
    def mean_wait(self) -> float:
        """Seconds from arrival to the start of service."""
        return self.wait / self.count


def simulate(system: SystemModel, source: SampledArrivals, seed: int, *observers: Any) -> RunResult:
    """One run."""
    return Engine(system, np.random.default_rng([seed, 2]), observers).run(source)


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """99.9 % confidence interval of the mean (Student, 7 degrees of freedom at least)."""
    values = np.asarray(samples)
    half = 5.41 * values.std(ddof=1) / np.sqrt(values.size)
    return float(values.mean() - half), float(values.mean() + half)


class FixedPlan:
    """One plan, published as soon as workers are heard of, and again whenever one starts: it names those that live."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._due = False
        self.solve_s: list[float] = []
        self.epochs = 0
        self.nondeterministic = 0
        self.cost: Mapping[Kind, float] = {}

    def start(self, plant: Plant, now: float) -> None:
        """Nobody is known to live yet."""
        del now
        self._plant = plant

    def heard(self, event: ControlEvent, now: float) -> None:
        """Heeds heartbeats alone."""
        if not isinstance(event, Beat):
            return
        device, incarnation = event.seen.device, event.seen.incarnation
        if self._plan.incarnations.get(device) != incarnation:
            self._plan = replace(self._plan, incarnations={**self._plan.incarnations, device: incarnation})
            if not self._due:
                self._due = True
                self._plant.timeline.at(now, self._publish)

    def _publish(self, _: object, now: float) -> None:
        self._due = False
        first = self._plan.epoch
        self._plant.publish(replace(self._plan, epoch=Epoch(first.term, first.number + self.epochs)), now)
        self.epochs += 1
