"""Whatever comes in whatever order, each query of a router is routed once, ended once, or held and not yet due."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.domain.actions import End, Send, WakeAt
from sluicegate.domain.events import Arrived, DeviceReported, PlanAcknowledged, PlanPublished, Woke
from sluicegate.domain.outcome import OutcomeKind
from sluicegate.domain.plan import Epoch
from sluicegate.domain.query import Goal, Query
from sluicegate.policies.serving.router import LookedUp, LookUp, RouterAction, RouterEvent
from tests.property.examples import drawn
from tests.unit.policies.serving.test_router_core import PROMISE, Router, T, catalogue, plan

DEVICES = st.sampled_from(["d0", "d1", "d2", "stranger"])
VARIANTS = st.sampled_from(["good", "quick", "missing"])
PLACED = st.lists(st.tuples(DEVICES, VARIANTS, st.floats(0.1, 1.0)), max_size=3, unique_by=lambda p: p[0])
EPOCHS = st.integers(1, 6)
GOALS = st.sampled_from([None, None, None, Goal(accuracy=0.8), Goal(model="quick"), Goal(accuracy=0.99)])

STEPS = st.one_of(
    st.tuples(st.just("query"), st.floats(-0.1, 3.0), GOALS),
    st.tuples(st.just("plan"), PLACED, EPOCHS),
    st.tuples(st.just("empty"), st.just([]), EPOCHS),
    st.tuples(st.just("ack"), DEVICES, EPOCHS),
    st.tuples(st.just("report"), DEVICES, st.integers(0, 50)),
    st.tuples(st.just("registered"), st.booleans(), st.just(0)),
    st.tuples(st.just("looked"), st.just(0), st.just(0)),
)


@dataclass
class World:
    """A router with a shell that keeps one timer, as the live one does."""

    router: Router
    now: float = T
    timer: float | None = None
    asked: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.came: list[Query] = []
        self.ended: dict[Query, str] = {}

    def told(self, event: RouterEvent) -> None:
        for action in self.router.told(event, self.now):
            self._do(action)

    def _do(self, action: RouterAction) -> None:
        match action:
            case Send(query) | End(query):
                assert query not in self.ended, "a second end"
                self.ended[query] = "sent" if isinstance(action, Send) else action.kind.value
                if isinstance(action, End) and action.kind is OutcomeKind.EXPIRED:
                    assert query.deadline <= self.now
            case WakeAt(at):
                self.timer = at if self.timer is None else min(self.timer, at)
            case LookUp(devices):
                self.asked |= {*devices}
            case _:
                pass

    def until(self, at: float) -> None:
        while self.timer is not None and self.timer <= at:
            self.now, self.timer = max(self.now, self.timer), None
            self.told(Woke())
        self.now = at

    def check(self) -> None:
        held = [query for query in self.came if query not in self.ended]
        assert len(held) == self.router.core.held
        assert all(query.deadline > self.now for query in held), "held past its deadline"
        assert not held or self.timer is not None


@drawn(300)
@given(st.lists(st.tuples(st.floats(0.0, 2.0), STEPS), max_size=30), st.booleans(), st.booleans())
def test_each_query_has_one_end_whatever_happens(
    steps: list[tuple[float, tuple[str, object, object]]], promised: bool, on_demand: bool
) -> None:
    start = PROMISE if promised else catalogue().apps["a"].promise
    world = World(Router(start, on_demand=on_demand, proven="d0"))
    for waited, (what, one, two) in steps:
        world.until(world.now + waited)
        match what, one, two:
            case "query", float(ahead), goal:
                assert goal is None or isinstance(goal, Goal)
                query = Query(f"q{len(world.came)}", "a", world.now, world.now + ahead, goal=goal)
                world.came.append(query)
                world.told(Arrived(query))
            case (("plan" | "empty"), list(placed), int(number)):
                world.told(PlanPublished(plan(*placed, number=number)))
            case "ack", str(device), int(number):
                world.told(PlanAcknowledged(device, Epoch(1, number), ("good", "quick")))
            case "report", str(device), int(queued):
                world.told(DeviceReported(device, "whole", queued, 0.1))
            case "registered", bool(with_promise), _:
                world.told(catalogue(PROMISE if with_promise else catalogue().apps["a"].promise).registered)
            case _:
                world.told(LookedUp(tuple(sorted(world.asked - {"stranger"}))))
        world.check()
    world.until(world.now + 10.0)
    assert len(world.ended) == len(world.came)


@drawn(100)
@given(st.lists(st.floats(0.5, 3.0), min_size=1, max_size=20), st.floats(0.0, 2.9))
def test_what_was_held_leaves_in_its_order(ahead: list[float], waited: float) -> None:
    router = Router()
    queries = [Query(str(i), "a", T, T + a) for i, a in enumerate(ahead)]
    for query in queries:
        router.told(Arrived(query), T)
    router.told(Woke(), T + waited)
    actions = router.planned(T + waited, ("d0", "good", 0.5), ("d1", "good", 0.5))
    assert [a.query for a in actions if isinstance(a, Send)] == [q for q in queries if q.deadline > T + waited]
