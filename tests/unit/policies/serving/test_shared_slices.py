"""Several executors on a slice: batches at the same time, loads on all, deaths alone, and what plans may count on."""

from dataclasses import replace

import pytest

from sluicegate.domain.actions import Acknowledge, Run, StationAction
from sluicegate.domain.errors import ConfigurationError, IllegalEventError
from sluicegate.domain.events import Arrived, Finished, Hosted, HostingChanged
from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.models.profile import BatchLatency, LatencyCurve, Profile
from sluicegate.domain.query import Query
from sluicegate.planner.problems.throughput import throughput
from sluicegate.policies.batching.registry import batching, check_shared
from sluicegate.policies.placement.hosted_variants import hosted_variant
from sluicegate.policies.routing.backlog_estimate import Backlog
from sluicegate.policies.serving.device_actions import Answer, LoadVariant, RestartExecutor, RunBatch, UnloadVariant
from sluicegate.policies.serving.device_events import BatchEnded, Loaded
from sluicegate.policies.serving.slice_scheduler import Station
from sluicegate.profiles.catalogue.slice_profiles import crowd, shared
from tests.simulation.device_world import BIG, GB, SMALL, World, world_catalogue

CURVE = LatencyCurve((0.010, 0.012, 0.014, 0.016))


def query(name: str, app: str, at: float, deadline: float, *, strict: bool = True) -> Query:
    return Query(name, app, at, deadline, query_class=QueryClass.STRICT if strict else QueryClass.BEST_EFFORT)


def station(rule: str, executors: int, *apps: str) -> Station:
    made = Station(batching(rule))
    for app in apps:
        made.handle(HostingChanged(app, (Hosted(f"{app}-v", 0.9, CURVE, executors=executors),), 0.1), 7.0)
    return made


def ran(actions: list[StationAction]) -> list[list[str]]:
    return [[q.id for q in action.queries] for action in actions if isinstance(action, Run)]


def test_as_many_batches_run_as_there_are_executors_and_what_comes_then_forms_the_next() -> None:
    made = station("eager", 3, "a", "b")
    started = [ran(made.handle(Arrived(query(f"{i}", "ab"[i % 2], 7.0, 7.1)), 7.0)) for i in range(5)]
    assert started == [[["0"]], [["1"]], [["2"]], [], []]
    made.handle(Arrived(query("5", "b", 7.0, 7.1)), 7.0)
    assert made.queued == 3
    assert ran(made.handle(Finished("a", "a-v", 1, 0.01), 7.01)) == [["4"]]
    assert ran(made.handle(Finished("b", "b-v", 1, 0.01), 7.02)) == [["3", "5"]]
    assert ran(made.handle(Finished("a", "a-v", 1, 0.01), 7.02)) == []
    with pytest.raises(IllegalEventError, match="a-c"):
        made.handle(Finished("a", "a-c", 1, 0.01), 7.03)


def test_one_event_may_start_several_batches() -> None:
    made = station("eager", 1, "a")
    for i in range(9):
        made.handle(Arrived(query(f"{i}", "a", 7.0, 7.1)), 7.0)
    made.handle(HostingChanged("a", (Hosted("a-v", 0.9, CURVE, executors=3),), 0.1), 7.001)
    assert made.queued == 9 - 1 - 4 - 4


def test_best_effort_runs_while_strict_queries_gather_and_leaves_an_executor_to_them() -> None:
    made = station("deadline", 2, "a", "b")
    assert ran(made.handle(Arrived(query("strict", "a", 7.0, 7.1)), 7.0)) == []
    loose = [ran(made.handle(Arrived(query(f"loose{i}", "b", 7.0, 7.0121, strict=False)), 7.0)) for i in range(3)]
    assert [batch for batches in loose for batch in batches] == [["loose0", "loose1"]]
    assert made.queued_of("b") == 1
    for i in range(3):
        started = ran(made.handle(Arrived(query(f"more{i}", "a", 7.001, 7.1)), 7.001))
    assert started == [["strict", "more0", "more1", "more2"]], "at once, beside it"


def test_best_effort_waits_for_strict_queries_where_one_executor_is_left() -> None:
    made = station("deadline", 1, "a", "b")
    made.handle(Arrived(query("strict", "a", 7.0, 7.1)), 7.0)
    assert ran(made.handle(Arrived(query("loose", "b", 7.0, 7.0121, strict=False)), 7.0)) == []


def serving(executors: dict[str, int]) -> World:
    """App a on both slices, minutes after the start."""
    world = World(executors=executors)
    world.plan((("a", "a-large", BIG), ("a", "a-small", SMALL)))
    while world.loads():
        world.load(world.loads()[0])
    world.now += 300.0
    return world


def test_a_variant_is_loaded_once_all_executors_have_loaded_it() -> None:
    world = World(executors={"gpu:4g": 2})
    world.plan((("a", "a-large", BIG),))
    assert world.loads() == ["4g.0", "4g.0#1"]
    world.load("4g.0#1")
    assert not any(isinstance(said, Acknowledge) for said in world.said) and not world.core.slices["4g.0"].loaded
    world.load("4g.0")
    assert Acknowledge(world.core._plan.epoch, ("a-large",), ()) in world.said  # type: ignore[union-attr]


def test_what_one_executor_cannot_load_is_forgotten_by_the_others() -> None:
    world = World(executors={"gpu:4g": 3})
    world.plan((("a", "a-large", BIG),))
    world.load("4g.0")
    world.load("4g.0#1", ok=False)
    world.load("4g.0#2")
    gone = [said for said in world.said if isinstance(said, UnloadVariant)]
    assert gone == [UnloadVariant("4g.0", "a-large"), UnloadVariant("4g.0", "a-large", 2)]
    assert Acknowledge(world.core._plan.epoch, (), ("a-large",)) in world.said  # type: ignore[union-attr]


def test_an_executor_that_dies_is_made_whole_alone_and_batches_run_on_the_other() -> None:
    world = serving({"gpu:4g": 2})
    for _ in range(2):
        world.query("a")
        world.now = world.wakes[BIG.name]
        world.wake()
    assert sorted(world.runs) == ["4g.0", "4g.0#1"]
    world.end("4g.0")
    assert RestartExecutor("4g.0", 0.0) in world.die("4g.0")
    third = world.query("a")
    world.now += 0.2
    world.end("4g.0#1")
    for _ in range(3):
        if not world.runs:
            world.wake()
    assert world.runs["4g.0#1"].run.queries == (third,), "on the one that runs"
    world.mend("4g.0")
    world.mend("4g.0")
    world.settle()


def test_a_load_that_went_well_before_the_executor_died_is_done_again() -> None:
    world = World(executors={"gpu:4g": 2})
    world.plan((("a", "a-large", BIG),))
    world.load("4g.0")
    world.die("4g.0")
    again = world.mend("4g.0")
    assert [(a.part, a.variant, a.seat) for a in again if not isinstance(a, LoadVariant | RunBatch)] == [  # type: ignore[union-attr]
        ("4g.0", "a-large", 0)
    ]
    world.mend("4g.0")
    world.load("4g.0#1")
    world.query("a")
    world.settle()
    assert any(isinstance(said, Answer) for said in world.said)


def test_an_event_of_an_executor_that_is_not_there_is_illegal() -> None:
    world = serving({"gpu:4g": 2})
    for event in (
        BatchEnded("4g.0", 0.1, 0.1, 2),
        BatchEnded("3g.4", 0.1, 0.1, 1),
        Loaded("4g.0", "a-large", True, seat=5),
    ):
        with pytest.raises(IllegalEventError):
            world.core.handle(event, world.now)


def test_a_slice_is_overdue_only_when_no_executor_is_left_that_is_not() -> None:
    world = serving({"gpu:4g": 2})
    for _ in range(2):
        world.query("a")
        world.now = world.wakes[BIG.name]
        world.wake()
        world.now += 0.001
    slices = world.core.slices[BIG.name]
    world.now += 2.0
    slices.report(world.now)
    assert slices.report(world.now).overdue > 1.0
    world.end("4g.0#1")
    slices.report(world.now)
    assert slices.report(world.now).overdue == 0.0


def test_a_shared_profile_says_what_each_takes_while_all_run_and_all_hold() -> None:
    known = world_catalogue()
    known = replace(known, profiles={k: replace(p, fbr=0.4) for k, p in known.profiles.items()})
    by_kind = shared(known, {"gpu:4g": 5, "gpu": 2})
    alone = known.profiles["a-large", "gpu:4g"]
    five, two = by_kind.profiles["a-large", "gpu:4g"], by_kind.profiles["a-large", "gpu:3g"]
    assert [p.median for p in five.points] == pytest.approx([2.0 * p.median for p in alone.points])
    assert (five.memory_bytes, five.executors) == (5 * GB, 5)
    assert two.points == known.profiles["a-large", "gpu:3g"].points
    assert shared(by_kind, {"gpu:4g": 5, "gpu": 2}) == by_kind, "once is enough"
    assert [p.median for p in crowd(five, 1).points] == pytest.approx([p.median for p in alone.points])


@pytest.mark.parametrize(("fbr", "times"), [(0.2, 3.0), (0.5, 2.0), (1.0, 1.0)])
def test_plans_and_routers_count_on_what_executors_end_together(fbr: float, times: float) -> None:
    points = (BatchLatency(1, 0.01, 0.012), BatchLatency(4, 0.02, 0.024))
    alone = Profile(variant="a-large", device_type="gpu:4g", points=points, fbr=fbr)
    together = crowd(alone, 3)
    assert throughput(together, 1.0).qps == pytest.approx(times * throughput(alone, 1.0).qps)
    one = Backlog([hosted_variant(world_catalogue(), alone, 4, "median")])
    three = Backlog([hosted_variant(world_catalogue(), together, 4, "median")])
    assert three.capacity == pytest.approx(times * one.capacity)
    for backlog in (one, three):
        backlog.report(100, 0.0, 50.0)
    assert three.done_at(1, 50.0) - 50.0 == pytest.approx((one.done_at(1, 50.0) - 50.0) / times, rel=0.1)


def test_what_counts_on_one_batch_at_a_time_is_refused() -> None:
    check_shared("table", {"cpu": 1}, ["a"])
    check_shared("adaptive", {"cpu": 2}, [])
    with pytest.raises(ConfigurationError, match="table"):
        check_shared("table", {"cpu": 2}, [])
    with pytest.raises(ConfigurationError, match="app1"):
        check_shared("adaptive", {"cpu": 2}, ["app1"])
