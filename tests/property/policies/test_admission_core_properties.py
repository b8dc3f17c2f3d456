"""Whatever comes in whatever order, each query at the door is let in once, ended once, or held and not yet due."""

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.domain.actions import Accept, End, WakeAt
from sluicegate.domain.query import Goal, Query
from sluicegate.policies.serving.admission import (
    AdmissionEvent,
    Came,
    DemandAsked,
    Duplicate,
    Looked,
    RouterHeard,
    Serve,
)
from sluicegate.policies.serving.routed import PATIENCE
from tests.property.examples import drawn
from tests.unit.policies.serving.test_admission_core import PROMISE, STEADY, Door, T, catalogue

APPS = st.sampled_from(["a", "b"])
STEPS = st.one_of(
    st.tuples(st.just("query"), APPS, st.floats(-0.5, 4.0)),
    st.tuples(st.just("again"), APPS, st.floats(0.1, 4.0)),
    st.tuples(st.just("router"), APPS, st.just(0.0)),
    st.tuples(st.just("serve"), st.sampled_from(["a", "b", "both", "promised"]), st.just(0.0)),
    st.tuples(st.just("demand"), st.just(""), st.just(0.0)),
)


class World:
    """A door with a shell that keeps one timer; the wall clock is ``skew`` off."""

    def __init__(self) -> None:
        self.door = Door(routed=False)
        self.steady, self.skew = STEADY, T - STEADY
        self.timer: float | None = None
        self.came: dict[Query, float] = {}
        self.ended: dict[Query, str] = {}
        self.order: list[Query] = []
        self._do(self.door.first)

    @property
    def wall(self) -> float:
        return self.steady + self.skew

    def told(self, event: AdmissionEvent) -> None:
        self._do(self.door.told(event, self.wall))

    def _do(self, actions: object) -> None:
        assert isinstance(actions, list)
        for action in actions:
            match action:
                case Accept(query) | End(query) | Duplicate(query):
                    assert query not in self.ended, "a second end"
                    self.ended[query] = type(action).__name__
                    if isinstance(action, Accept):
                        self.order.append(query)
                case WakeAt(at):
                    due = self.steady + max(0.0, at - self.wall)
                    self.timer = due if self.timer is None else min(self.timer, due)
                case _:
                    pass

    def until(self, at: float) -> None:
        while self.timer is not None and self.timer <= at:
            self.steady, self.timer = max(self.steady, self.timer), None
            self.told(Looked(self.steady))
        self.steady = at

    def check(self) -> None:
        for query, since in self.came.items():
            if query not in self.ended:
                assert self.steady < since + PATIENCE + 2e-3, "held for too long"
                assert self.timer is not None


@drawn(300)
@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(-50.0, 50.0), STEPS), max_size=40))
def test_each_query_has_one_end_whatever_happens(
    steps: list[tuple[float, float, tuple[str, str, float]]],
) -> None:
    world = World()
    for number, (waited, step, (what, app, wait)) in enumerate(steps):
        world.until(world.steady + waited)
        world.skew += step if number % 5 == 4 else 0.0
        match what:
            case "query" | "again":
                name = "same" if what == "again" else f"q{number}"
                goal = Goal(accuracy=0.99) if number % 7 == 3 else None
                query = Query(name, app, world.wall, world.wall + wait, goal=goal)
                world.came[query] = world.steady
                world.told(Came(query, number, world.steady))
            case "router":
                world.told(RouterHeard(app, world.steady))
            case "serve":
                known = catalogue(PROMISE) if app == "promised" else catalogue()
                kept = known.only({app}) if app in {"a", "b"} else known
                world.told(Serve(kept.registered, world.steady))
            case _:
                world.told(DemandAsked(0.5))
        world.check()
    world.until(world.steady + PATIENCE + 0.1)
    assert world.ended.keys() == world.came.keys()
    for app in ("a", "b"):
        mine = [q for q in world.order if q.app == app]
        assert mine == sorted(mine, key=list(world.came).index), "order kept"
