"""The controller under any order of heartbeats, silence, counts, slow answers and measurements."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluicegate.domain.actions import Publish, Reclaim
from sluicegate.domain.events import DemandCounted, DeviceSeen, LatencyMeasured, PlanAcknowledged, Ticked
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Epoch
from sluicegate.planner.control.controller import Controller
from sluicegate.planner.control.controller_settings import ControllerSettings
from sluicegate.planner.control.replan_trigger import Solve, Solved
from sluicegate.planner.greedy_fill import GreedyFill
from sluicegate.profiles.catalogue.catalogue import Catalogue

DEVICES = ("d0", "d1", "d2")
TIMEOUT = 2.0
CATALOGUE = Catalogue.of(
    [App(name="a", slo=0.3), App(name="b", slo=0.3)],
    [Variant(name=f"{app}{k}", app=app, accuracy=0.6 + 0.1 * k) for app in "ab" for k in range(3)],
    [
        Profile(
            variant=f"{app}{k}",
            device_type="cpu",
            points=(BatchLatency(1, 0.004 * 3**k, 0.004 * 3**k), BatchLatency(8, 0.02 * 3**k, 0.02 * 3**k)),
        )
        for app in "ab"
        for k in range(3)
    ],
)


class ControllerMachine(RuleBasedStateMachine):
    """Keeps its own books of who is alive and checks every plan against them."""

    def __init__(self) -> None:
        super().__init__()
        self.controller = Controller(CATALOGUE, settings=ControllerSettings(device_timeout=TIMEOUT), term=2)
        self.now = 100.0
        self.last_beat: dict[str, float] = {}
        self.leaving: set[str] = set()
        self.buried: set[str] = set()
        self.out: Solve | None = None
        self.epoch = Epoch(0, 0)
        self.published: Publish | None = None

    def feed(self, event: object) -> None:
        for action in self.controller.handle(event, self.now):  # type: ignore[arg-type]
            if isinstance(action, Solve):
                assert self.out is None
                self.out = action
                assert {d.name for d in action.problem.devices} <= self.known_alive()
            elif isinstance(action, Publish):
                assert action.plan.epoch > self.epoch
                self.epoch = action.plan.epoch
                self.published = action
                assert {p.device for p in action.plan.placements} <= self.known_alive()
            elif isinstance(action, Reclaim):
                assert self.now - self.last_beat[action.device] > TIMEOUT
                assert action.device not in self.buried
                self.buried.add(action.device)

    def known_alive(self) -> set[str]:
        """Devices the controller may believe in: not buried, not leaving."""
        return set(self.last_beat) - self.buried - self.leaving

    @rule(device=st.sampled_from(DEVICES), incarnation=st.sampled_from(("i", "j")), leaving=st.booleans())
    def heartbeat(self, device: str, incarnation: str, leaving: bool) -> None:
        self.last_beat[device] = self.now
        self.buried.discard(device)
        (self.leaving.add if leaving else self.leaving.discard)(device)
        self.feed(DeviceSeen(device, "cpu", incarnation, leaving=leaving))

    @rule(seconds=st.sampled_from((0.1, 0.5, 1.0, 2.5)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.feed(Ticked())

    @rule(app=st.sampled_from(("a", "b", "unknown")), count=st.sampled_from((0, 3, 50, 2000)))
    def count(self, app: str, count: int) -> None:
        self.feed(DemandCounted(app, count, 0.5))

    @rule(variant=st.sampled_from(("a2", "b0", "unknown")), seconds=st.sampled_from((0.004, 0.2)))
    def measure(self, variant: str, seconds: float) -> None:
        self.feed(LatencyMeasured(variant, "cpu", 1, seconds, 10))

    @rule(device=st.sampled_from(DEVICES), failed=st.sampled_from(((), ("a2",), ("a0", "a1", "a2"))))
    def acknowledge(self, device: str, failed: tuple[str, ...]) -> None:
        self.feed(PlanAcknowledged(device, self.epoch, (), failed))

    @precondition(lambda self: self.out is not None)
    @rule(delay=st.sampled_from((0.0, 0.3, 3.0)))
    def answer(self, delay: float) -> None:
        solve, self.out = self.out, None
        assert solve is not None
        self.now += delay
        self.feed(Solved(GreedyFill().allocate(solve.problem), solve.reason, delay, solve.number))

    @invariant()
    def a_plan_in_force_is_the_last_published(self) -> None:
        assert (self.controller.plan is None) == (self.published is None)
        if self.published is not None:
            assert self.controller.plan == self.published.plan


ControllerMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestController = ControllerMachine.TestCase
