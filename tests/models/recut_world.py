"""GPUs whose workers cut them as plans say, in thought: the controller, the joint planner, and nothing between them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from sluicegate.domain.actions import Announce, Publish
from sluicegate.domain.events import DemandCounted, DeviceSeen, Ticked
from sluicegate.domain.fleet.device import Slice
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Plan
from sluicegate.planner.allocation.pipeline import AllocationPlanner
from sluicegate.planner.control.controller import Controller
from sluicegate.planner.control.controller_settings import ControllerSettings
from sluicegate.planner.control.replan_trigger import Solve, Solved
from sluicegate.planner.geometry.gpu_pools import sliced
from sluicegate.planner.geometry.joint_planner import JointGeometry
from sluicegate.planner.geometry.mig_tables import Geometry, parse_geometry, table_of
from sluicegate.planner.geometry.recut_tracker import ChangeSettings
from sluicegate.planner.problems.problem import Planner
from sluicegate.profiles.catalogue.catalogue import Catalogue

A100 = table_of("a100")
GB = 1 << 30
LIGHT_SECONDS = {"7g": 0.010, "4g": 0.011, "3g": 0.012, "2g": 0.014, "1g": 0.018}
HEAVY_SECONDS = {"7g": 0.040, "4g": 0.050, "3g": 0.056}


def catalogue() -> Catalogue:
    """``heavy`` needs 3g at least; ``light`` runs anywhere, and seven small slices do more than one large."""
    profiles = [
        Profile(
            variant=name,
            device_type=f"a100:{part}",
            points=(BatchLatency(1, s, s), BatchLatency(2, 1.9 * s, 1.9 * s)),
            memory_bytes=memory,
        )
        for name, seconds, memory in (("light", LIGHT_SECONDS, 2 * GB), ("heavy", HEAVY_SECONDS, 15 * GB))
        for part, s in seconds.items()
    ]
    return Catalogue.of(
        [App(name="light", slo=0.2), App(name="heavy", slo=0.4)],
        [Variant(name="light", app="light", accuracy=0.9), Variant(name="heavy", app="heavy", accuracy=0.9)],
        profiles,
    )


def shape(slices: tuple[Slice, ...]) -> Geometry:
    """Profiles of slices, largest first."""
    return A100.ordered([s.profile for s in slices])


@dataclass
class Gpu:
    """A worker as the planner sees it: it is cut ``cut_s`` seconds after a plan asked, or says why not."""

    name: str
    slices: tuple[Slice, ...]
    ready: float | None = None
    target: tuple[Slice, ...] = ()
    fault: str = ""
    seen: DeviceSeen = field(init=False)

    def __post_init__(self) -> None:
        self.seen = DeviceSeen(self.name, "a100", "i", slices=self.slices)

    def follow(self, plan: Plan, now: float, cut_s: float | None) -> None:
        asked = plan.geometries.get(self.name, ())
        if not asked or shape(asked) == shape(self.slices) or plan.of_device(self.name):
            self.ready = None
            return
        if self.ready is None and cut_s is not None:
            self.ready, self.target = now + cut_s, asked

    def beat(self, now: float, plan: Plan | None) -> DeviceSeen:
        if self.ready is not None and now >= self.ready:
            self.ready = None
            if self.fault:
                assert plan is not None
                self.seen = replace(self.seen, fault=self.fault, fault_epoch=plan.epoch)
            else:
                self.slices = self.target
                self.seen = replace(self.seen, slices=self.slices, fault="")
        return self.seen


class RecutWorld:
    """GPUs and a controller that has them cut. ``start``: geometry of each GPU. ``cut_s``: seconds that a cut takes;
    None: never ends.

    Checks what must hold of every plan: placements on slices that are there, GPUs being cut within the limit, none
    asked for a second cut before the first ended.
    """

    def __init__(
        self,
        start: Mapping[str, str],
        *,
        cut_s: float | None = 2.0,
        limit: int = 1,
        rule: Literal["joint", "protean"] = "joint",
        served: Catalogue | None = None,
        **changes: float,
    ) -> None:
        tables = {name: sliced(name, "a100", parse_geometry(text)).slices for name, text in start.items()}
        self.gpus = {name: Gpu(name, slices) for name, slices in tables.items()}
        settings = ControllerSettings(geometry=rule, changes=ChangeSettings(**changes))
        self.controller = Controller(served or catalogue(), settings=settings, term=1)
        self.planner: Planner = JointGeometry(AllocationPlanner()) if rule == "joint" else AllocationPlanner()
        self.cut_s = cut_s
        self.limit = limit
        self.now = 0.0
        self.plans: list[Plan] = []
        self.said: list[Announce] = []
        self.asked: dict[str, Geometry] = {}
        self.cuts = 0

    def run(self, seconds: float, **qps: float) -> None:
        """Half seconds of counts, heartbeats and ticks."""
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            for app, rate in qps.items():
                self.send(DemandCounted(app, round(rate / 2), 0.5))
            for gpu in self.gpus.values():
                self.send(gpu.beat(self.now, self.plans[-1] if self.plans else None))
            self.send(Ticked())

    def send(self, event: DemandCounted | DeviceSeen | Ticked | Solved) -> None:
        for action in self.controller.handle(event, self.now):
            match action:
                case Solve(problem=problem):
                    allocation = self.planner.allocate(problem)
                    self.send(Solved(allocation, action.reason, 0.01, action.number))
                case Publish(plan):
                    self.check(plan)
                    self.plans.append(plan)
                    for gpu in self.gpus.values():
                        gpu.follow(plan, self.now, self.cut_s)
                case Announce():
                    self.said.append(action)

    def check(self, plan: Plan) -> None:
        changing = {}
        for name, gpu in self.gpus.items():
            target = shape(plan.geometries.get(name, ()))
            if target and target != shape(gpu.slices):
                changing[name] = target
                assert not plan.of_device(name)
                assert self.asked.get(name, target) == target
                self.cuts += name not in self.asked
            there = {s.name for s in gpu.slices}
            assert {p.slice for p in plan.of_device(name)} <= there
        assert len(changing) <= self.limit
        self.asked = changing

    def shapes(self) -> list[str]:
        """Geometries as they are, sorted."""
        return sorted("+".join(shape(g.slices)) for g in self.gpus.values())

    def states(self) -> list[str]:
        """What was said of changes."""
        return [a.state for a in self.said if a.state.startswith("recut")]
