"""Whatever happens to a device in whatever order: each query that was read has one end, and rules of slices hold."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluicegate.policies.placement.repartition import CutState
from sluicegate.policies.serving.device_actions import RestartExecutor
from sluicegate.policies.serving.device_events import Failure, Fenced, Suspended
from tests.property.examples import drawn
from tests.simulation.device_world import BIG, SMALL, WHOLE, World

PLACED = (
    ("a", "a-large", BIG),
    ("a", "a-small", BIG),
    ("a", "a-large", SMALL),
    ("b", "b-only", SMALL),
    ("b", "b-only", BIG),
    ("a", "a-small", WHOLE),
    ("b", "b-only", WHOLE),
)


class Steps:
    """Draws what happens next among what may happen."""

    def __init__(self, data: st.DataObject, world: World) -> None:
        self.data = data
        self.world = world

    def step(self) -> None:
        world = self.world
        kinds = ["query"] * 5 + ["plan", "wake", "wake", "suspend", "cut", "dead", "die"]
        kinds += ["end", "end", "fail"] if world.runs else []
        kinds += ["die apart"] if self.alone else []
        kinds += ["load", "load", "load fails"] if world.loads() else []
        kinds += ["finish cut", "cut fails"] if world.cut is not None else []
        kinds += ["mend", "mend"] if world.down else []
        kinds += ["caught up"] if world.catching_up else []
        kind = self.data.draw(st.sampled_from(kinds))
        match kind:
            case "query":
                slices = st.sampled_from([BIG.name, SMALL.name, WHOLE.name])
                late, content = self.data.draw(st.booleans()), self.data.draw(st.sampled_from(["", "x", "y"]))
                world.query(self.data.draw(st.sampled_from("ab")), self.data.draw(slices), late=late, content=content)
            case "end" | "fail":
                seconds = self.data.draw(st.sampled_from([0.0, 0.04, 0.7]))
                world.end(self.data.draw(st.sampled_from(sorted(world.runs))), seconds, fails=kind == "fail")
            case "load" | "load fails":
                world.load(self.data.draw(st.sampled_from(world.loads())), ok=kind == "load")
            case "finish cut" | "cut fails":
                world.finish_cut("in use" if kind == "cut fails" else "")
            case "wake":
                world.wake()
            case "caught up":
                world.caught_up()
            case "die apart":
                failure = self.data.draw(st.sampled_from([Failure.APART, Failure.BLAMELESS]))
                world.die_apart(self.data.draw(st.sampled_from(self.alone)), failure)
            case "mend":
                world.mend(self.data.draw(st.sampled_from(sorted(world.down))))
            case "die":
                restarts = {part for part, asked in world.down.items() if isinstance(asked, RestartExecutor)}
                alive = sorted({*world.places()} - restarts)
                if alive:
                    world.die(self.data.draw(st.sampled_from(alive)))
            case _:
                self.control(kind)

    @property
    def alone(self) -> list[str]:
        """Slices where one query of a batch that failed runs."""
        return sorted(part for part, run in self.world.runs.items() if run.again)

    def control(self, kind: str) -> None:
        """What planner and machine do to it."""
        world, draw = self.world, self.data.draw
        match kind:
            case "plan":
                named = {p.name for p in ([BIG, SMALL] if BIG.name in world.core.slices else [WHOLE])}
                chosen = draw(st.lists(st.sampled_from(PLACED), unique_by=lambda p: (p[0], p[2].name), max_size=3))
                world.plan([p for p in chosen if p[2].name in named])
            case "cut":
                world.plan((), geometries={"gpu0": draw(st.sampled_from([(BIG, SMALL), (WHOLE,)]))})
            case "dead":
                if draw(st.booleans()):
                    world.tell(Fenced())
                else:
                    world.plan((), incarnations=draw(st.sampled_from([{}, {"gpu0": "other"}])))
            case "suspend":
                world.tell(Suspended(draw(st.sampled_from([1.0, 2.0]))))


@pytest.mark.parametrize(
    ("shared", "executors"),
    [
        *(pytest.param(shared, {}, marks=pytest.mark.thorough) for shared in (False, True)),
        pytest.param(False, {"gpu": 2, "gpu:3g": 3}, marks=pytest.mark.thorough),
        (True, {"gpu:4g": 3}),
    ],
)
@settings(drawn(120), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_each_query_that_was_read_has_one_end(shared: bool, executors: dict[str, int], data: st.DataObject) -> None:
    world = World(shared=shared, bound=("b",), executors=executors)
    world.plan((("a", "a-large", BIG), ("b", "b-only", SMALL), ("a", "a-small", SMALL)))
    steps = Steps(data, world)
    for _ in range(data.draw(st.integers(1, 60))):
        steps.step()
        assert all(count <= 1 for count in world.ends.values())
        assert all(not world.ends[query] for query in world.core.queries)
    world.settle()
    assert {query for query in world.read if world.ends[query] != 1} == set()
    assert not list(world.core.queries)
    cut = world.core._slices.recutting
    assert cut is not None and (cut.state is not CutState.CUTTING or world.cut is not None)
