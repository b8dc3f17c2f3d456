"""An executor whose process ends, on two slices that are not alike: what waits, what is done again, and when."""

from collections.abc import Iterable

import pytest

from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.outcome import OutcomeKind
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
