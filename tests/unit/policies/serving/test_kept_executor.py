"""An executor whose process ends, on two slices that are not alike: what waits, what is done again, and when."""

from collections import deque
from collections.abc import Iterable

import pytest

from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.outcome import OutcomeKind
from sluicegate.policies.routing.known_poison import KnownPoison
from sluicegate.policies.serving.device_actions import (
    Answer,
    DeviceAction,
    End,
    LoadVariant,
    ReloadVariant,
    RestartExecutor,
    RunBatch,
    UnloadVariant,
)
from sluicegate.policies.serving.device_events import (
    BatchEnded,
    ExecutorEnded,
    ExecutorStarted,
    Loaded,
    Reloaded,
)
from sluicegate.policies.serving.kept_executor import KeptExecutor
from tests.simulation.device_world import BIG, SMALL, World

PLACED = (("a", "a-large", BIG), ("b", "b-only", SMALL))
SHELL = (RestartExecutor, ReloadVariant, LoadVariant, UnloadVariant, RunBatch, Answer, End)


def serving() -> World:
    """Both variants loaded, minutes after the start."""
    world = World()
    world.plan(PLACED)
    while world.loads():
        world.load(world.loads()[0])
    world.now += 300.0
    return world


def done(actions: Iterable[DeviceAction]) -> list[DeviceAction]:
    """What concerns executors and answers."""
    return [action for action in actions if isinstance(action, SHELL)]


def test_one_that_ends_while_idle_is_started_at_once_and_holds_what_it_held_and_the_other_goes_on() -> None:
    world = serving()
    assert done(world.die(BIG.name)) == [RestartExecutor(BIG.name, 0.0)]
    world.query("a")
    assert BIG.name not in world.runs, "it waits"
    other = world.query("b", SMALL.name)
    world.now = world.wakes[SMALL.name]
    world.wake()
    assert other in world.runs[SMALL.name].run.queries
    big = next(a for a in world.said if isinstance(a, LoadVariant) and a.part == BIG.name)
    assert big.within == 5.0 * 0.75
    assert done(world.mend(BIG.name)) == [ReloadVariant(BIG.name, big.variant, big.max_batch, big.within)]
    (run,) = done(world.mend(BIG.name))
    assert isinstance(run, RunBatch) and run.part == BIG.name and run.run.variant == "a-large"


def test_a_batch_that_it_ended_under_is_gone_on_with_query_by_query_once_it_is_whole() -> None:
    world = serving()
    first = world.query("a")
    second, third = world.query("a"), world.query("a")
    world.end(BIG.name)
    assert set(world.runs[BIG.name].run.queries) == {second, third} and first
    assert done(world.die(BIG.name)) == [RestartExecutor(BIG.name, 0.0)]
    world.mend(BIG.name)
    (again,) = done(world.mend(BIG.name))
    assert isinstance(again, RunBatch) and again.again and again.run.queries == (second,)
    assert third is not None and third.deadline > world.now
    # The one that kills it fails alone; the other expires while it is started again, as its deadline is over by then.
    assert not [a for a in done(world.die(BIG.name)) if not isinstance(a, RestartExecutor)]
    world.now = third.deadline + 0.01
    world.mend(BIG.name)
    ends = [a for a in world.mend(BIG.name) if isinstance(a, End)]
    assert [(e.query, e.kind) for e in ends] == [(second, OutcomeKind.FAILED), (third, OutcomeKind.EXPIRED)]


@pytest.mark.parametrize(("lived", "after"), [(0.25, 0.75), (1.0, 0.0), (50.0, 0.0), (-40.0, 1.0)])
def test_what_lived_for_less_than_a_second_is_started_again_only_when_that_is_over(lived: float, after: float) -> None:
    world = serving()
    world.die(BIG.name)
    world.now += 5.0
    world.mend(BIG.name)
    world.mend(BIG.name)
    world.now += lived  # below 0: the clock was set back
    (restart,) = done(world.die(BIG.name))
    assert isinstance(restart, RestartExecutor) and restart.after == pytest.approx(after)


def test_one_that_ends_while_it_is_made_whole_is_started_once_more() -> None:
    world = serving()
    world.die(BIG.name)
    world.now += 2.0
    world.mend(BIG.name)
    world.now += 0.4
    (restart,) = done(world.die(BIG.name))
    assert isinstance(restart, RestartExecutor) and restart.after == pytest.approx(0.6)
    world.mend(BIG.name)
    world.query("a")
    del world.down[BIG.name]
    (run,) = done(world.tell(Reloaded(BIG.name, "a-large", False)))  # what cannot be loaded again is done without
    assert isinstance(run, RunBatch)


@pytest.mark.parametrize("loaded", [True, False])
def test_a_load_that_it_ended_under_is_tried_once_more_and_then_has_failed(loaded: bool) -> None:
    world = serving()
    (load,) = done(world.plan((("a", "a-small", BIG), ("b", "b-only", SMALL))))
    assert isinstance(load, LoadVariant) and load.variant == "a-small"
    assert done(world.die(BIG.name)) == [RestartExecutor(BIG.name, 0.0)]
    assert done(world.mend(BIG.name)) == [ReloadVariant(BIG.name, "a-large", load.max_batch, load.within)]
    assert done(world.mend(BIG.name)) == [load]
    world.load(BIG.name, ok=loaded)
    assert ("a-small" in world.core.slices[BIG.name].loaded) == loaded
    with pytest.raises(IllegalEventError, match="where None is under way"):
        world.tell(Loaded(BIG.name, "a-small", True))


def test_a_load_that_the_executor_refuses_is_not_tried_again() -> None:
    world = serving()
    world.plan((("a", "a-small", BIG), ("b", "b-only", SMALL)))
    world.die(SMALL.name)  # another's end is none of its own
    assert not [a for a in world.tell(Loaded(BIG.name, "a-small", False)) if isinstance(a, LoadVariant)]
    assert "a-small" not in world.core.slices[BIG.name].loaded


def test_answers_that_nobody_waits_for_are_illegal() -> None:
    world = serving()
    with pytest.raises(IllegalEventError, match="and runs"):
        world.tell(ExecutorStarted(BIG.name))
    with pytest.raises(IllegalEventError, match="nobody asked for"):
        world.tell(Reloaded(BIG.name, "a-large", True))


def test_an_answer_that_was_on_the_way_counts() -> None:
    world = serving()
    answered = world.query("a")
    del world.runs[BIG.name]
    world.tell(ExecutorEnded(BIG.name))
    (answer,) = [a for a in world.tell(BatchEnded(BIG.name, 0.04, 0.04)) if isinstance(a, Answer)]
    assert answer.queries == (answered,)


@pytest.mark.parametrize("other", ["a-aside", "z-last"])
def test_an_end_of_a_load_that_is_not_under_way_is_illegal_whatever_it_is_called(other: str) -> None:
    world = World()
    world.plan(PLACED)
    assert set(world.loads()) == {BIG.name, SMALL.name}
    with pytest.raises(IllegalEventError, match=f"{other} ended loading on {BIG.name}"):
        world.tell(Loaded(BIG.name, other, True))
    world.load(BIG.name)
    with pytest.raises(IllegalEventError, match="where None is under way"):
        world.tell(Loaded(BIG.name, "a-large", True))


def test_what_waits_ends_in_time_although_executors_come_back_while_a_timer_is_due() -> None:
    world = World(executors={"gpu:3g": 3})
    world.plan((("b", "b-only", SMALL),))
    world.load("3g.4")
    world.load("3g.4#1")  # the third loads still: nothing is hosted
    world.die("3g.4")
    world.die("3g.4#1")
    waits = world.query("b", SMALL.name)
    late = world.query("a", SMALL.name, late=True)
    assert waits is not None
    assert late is not None
    for place in ("3g.4", "3g.4", "3g.4#1", "3g.4#1"):
        world.mend(place)
    while not world.ends[waits]:
        assert world.wake(), "nobody looks at it any more"
    assert (world.ends[late], world.ends[waits]) == (1, 1)


T = 500.0


def test_an_executor_is_the_first_of_its_slice_unless_said_otherwise() -> None:
    load = LoadVariant(BIG.name, "a-large", 4, 3.0)
    for seat, made in ((0, KeptExecutor(BIG.name, T, KnownPoison())), (2, KeptExecutor(BIG.name, T, KnownPoison(), 2))):
        made.load(load, [])
        assert made.loaded("a-large", True, T + 6.0, [])
        assert made.told(ExecutorEnded(BIG.name, seat), (), T + 0.25) == (RestartExecutor(BIG.name, 0.75, seat),)
        assert made.told(ExecutorStarted(BIG.name, seat), ("a-large",), T + 1.5) == (
            ReloadVariant(BIG.name, "a-large", 4, 3.0, seat),
        )
        assert made.told(Reloaded(BIG.name, "a-large", True, 0.2, seat), ("a-large",), T + 1.75) == ()
        assert made.whole


def test_what_it_holds_is_loaded_again_one_after_the_other_in_order() -> None:
    made = KeptExecutor(SMALL.name, T, KnownPoison())
    for variant, rows in (("x", 4), ("y", 8)):
        made.load(LoadVariant(SMALL.name, variant, rows, None), [])
        assert made.loaded(variant, True, T + 6.0, [])
    made.told(ExecutorEnded(SMALL.name), ("y", "x"), T + 9.0)
    assert made.told(ExecutorStarted(SMALL.name), ("y", "x"), T + 9.5) == (ReloadVariant(SMALL.name, "y", 8, None),)
    assert not made.whole
    assert made.told(Reloaded(SMALL.name, "y", False), ("y", "x"), T + 9.75) == (
        ReloadVariant(SMALL.name, "x", 4, None),
    )
    assert made.told(Reloaded(SMALL.name, "x", True, 0.1), ("x",), T + 9.875) == ()
    assert made.whole


@pytest.mark.parametrize(("last", "often"), [(60.0, True), (60.001, False)])
def test_the_sixth_end_by_a_variant_within_a_minute_is_once_too_often(last: float, often: bool) -> None:
    made = KeptExecutor(BIG.name, T, KnownPoison())
    assert [made.killed("x", T + after) for after in (0.0, 1.0, 20.0, 21.0, 59.0)] == [False] * 5
    assert not made.killed("y", T + 59.5), "another has ended it once"
    assert made.killed("x", T + last) is often


def test_what_ended_it_too_often_may_do_so_again_as_often_before_that_is_said_once_more() -> None:
    made = KeptExecutor(BIG.name, T, KnownPoison())
    said = [made.killed("x", T + number) for number in range(13)]
    assert [number for number, often in enumerate(said) if often] == [5, 11]


def test_ends_count_for_all_executors_of_a_slice() -> None:
    kills: dict[str, deque[float]] = {}
    first, other = (KeptExecutor(BIG.name, T, KnownPoison(), seat, kills) for seat in (0, 1))
    alone = KeptExecutor(SMALL.name, T, KnownPoison())
    said = [(first if number % 2 else other).killed("x", T + number) for number in range(6)]
    assert said == [False] * 5 + [True]
    assert not alone.killed("x", T + 6)


def test_a_load_that_fails_with_a_second_death_has_failed() -> None:
    made = KeptExecutor(BIG.name, T, KnownPoison())
    load = LoadVariant(BIG.name, "x", 4, 3.0)
    actions: list[DeviceAction] = []
    made.load(load, actions)
    made.told(ExecutorEnded(BIG.name), (), T + 5.0)
    assert not made.loaded("x", False, T + 6.0, actions)
    assert actions == [load], "it waits until the executor is whole"
    assert made.told(ExecutorStarted(BIG.name), (), T + 5.5) == (load,)
    made.told(ExecutorEnded(BIG.name), (), T + 8.0)
    assert made.loaded("x", False, T + 6.0, actions), "that is its end"
    assert made.told(ExecutorStarted(BIG.name), (), T + 8.5) == ()
    assert actions == [load]


def test_a_load_that_is_told_to_have_failed_only_once_the_executor_is_whole_is_tried_again_at_once() -> None:
    made = KeptExecutor(BIG.name, T, KnownPoison())
    load = LoadVariant(BIG.name, "x", 4, 3.0)
    actions: list[DeviceAction] = []
    made.load(load, actions)
    made.told(ExecutorEnded(BIG.name), (), T + 5.0)
    assert made.told(ExecutorStarted(BIG.name), (), T + 5.5) == (), "it may be that it went well"
    assert not made.loaded("x", False, T + 6.0, actions)
    assert actions == [load, load]


def test_a_batch_of_a_variant_that_is_to_leave_is_run_again_with_it() -> None:
    world = serving()
    _, second, third = world.query("a"), world.query("a"), world.query("a")
    world.end(BIG.name)
    assert world.runs[BIG.name].run.variant == "a-large"
    world.plan((("a", "a-small", BIG), ("b", "b-only", SMALL)))
    world.load(world.loads()[0])
    world.die(BIG.name)
    reloaded, actions = [], done(world.mend(BIG.name))
    while isinstance(actions[0], ReloadVariant):
        reloaded.append(actions[0].variant)
        actions = done(world.mend(BIG.name))
    assert reloaded == ["a-small", "a-large"]
    for query in (second, third):
        assert (world.runs[BIG.name].run.variant, world.runs[BIG.name].run.queries) == ("a-large", (query,))
        actions = done(world.end(BIG.name))
    assert [a.variant for a in actions if isinstance(a, UnloadVariant)] == ["a-large"]
