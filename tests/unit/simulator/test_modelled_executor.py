"""What runs batches and loads on one slice in a run: when each ends, to whom it is told, and what dies with it."""

from typing import Any

import pytest

from sluicegate.domain.actions import Run
from sluicegate.domain.models.profile import LatencyCurve, LengthCurves
from sluicegate.domain.query import Query
from sluicegate.policies.serving.device_actions import LoadVariant, ReloadVariant
from sluicegate.policies.serving.device_events import (
    BatchEnded,
    BatchFailed,
    DeviceEvent,
    ExecutorEnded,
    ExecutorStarted,
    Failure,
    Loaded,
    Reloaded,
)
from sluicegate.simulator.engine.processor_sharing import SharedProcessor
from sluicegate.simulator.engine.slice_model import ModelledExecutor, SharingModel, SliceModel
from sluicegate.simulator.engine.timeline import Timeline

START = 1000.0
TAKES = {("big", 1): 0.5, ("big", 3): 2.0, ("small", 1): 0.25}
LOADS = {"big": 4.0, "small": 0.75}


class World:
    """Seat 1 of slice "3g.0" and all that it tells, by seconds since the start."""

    def __init__(self, timeline: Timeline | None = None, **changes: Any) -> None:
        self.timeline = timeline or Timeline(START)
        self.told: list[tuple[float, DeviceEvent]] = []
        model: dict[str, Any] = {
            "service": lambda variant, rows: TAKES[variant, rows],
            "load": LOADS.__getitem__,
            "by_length": {},
            "slowdown": None,
            "processor": None,
            "exclusive_loads": False,
            "start_s": 0.5,
        }
        self.executor = ModelledExecutor("3g.0", 1, SliceModel(**{**model, **changes}), self.timeline, self._tell)

    def _tell(self, event: DeviceEvent, now: float) -> None:
        self.told.append((now - START, event))

    def run(self, at: float, variant: str, rows: int = 1, length: int = 0) -> None:
        query = Query("q", "a", START, START + 9.0, rows, length=length)
        self.timeline.at(START + at, lambda _, now: self.executor.run(Run(variant, (query,), rows), now))

    def load(self, at: float, variant: str, *, again: bool = False) -> None:
        asked = (ReloadVariant if again else LoadVariant)("3g.0", variant, 3, None, 1)
        self.timeline.at(START + at, lambda _, now: self.executor.load(asked, now))

    def dies(self, at: float) -> None:
        self.timeline.at(START + at, lambda _, now: self.executor.dies(now))

    def restart(self, at: float, after: float) -> None:
        self.timeline.at(START + at, lambda _, now: self.executor.restart(after, now))

    def all(self) -> list[tuple[float, DeviceEvent]]:
        self.timeline.run_until(START + 99.0)
        return self.told


def ended(seconds: float) -> BatchEnded:
    return BatchEnded("3g.0", seconds, seconds, 1)


def loaded(variant: str, seconds: float) -> Loaded:
    return Loaded("3g.0", variant, True, seconds, 1)


def test_a_load_goes_on_beside_a_batch_unless_loads_hold_the_executor_up() -> None:
    beside, alone = World(), World(exclusive_loads=True)
    for world in (beside, alone):
        world.run(1.0, "big", 3)
        world.load(1.5, "small")
    assert beside.all() == [(2.25, loaded("small", 0.75)), (3.0, ended(2.0))]
    assert alone.all() == [(3.0, ended(2.0)), (3.75, loaded("small", 0.75))]


def test_a_batch_waits_for_a_load_under_way_where_loads_hold_the_executor_up_and_the_next_load_for_both() -> None:
    beside, alone = World(), World(exclusive_loads=True)
    for world in (beside, alone):
        world.load(1.0, "small")
        world.run(1.5, "big", 3)
        world.load(2.0, "small", again=True)
    again = Reloaded("3g.0", "small", True, 0.75, 1)
    assert beside.all() == [(1.75, loaded("small", 0.75)), (2.75, again), (3.5, ended(2.0))]
    # The load ends at 1.75, the batch at 3.75 after 2.25 s in all, the other load at 4.5.
    assert alone.all() == [(1.75, loaded("small", 0.75)), (3.75, ended(2.25)), (4.5, again)]


def test_a_batch_takes_less_by_as_much_as_its_length_takes_less_than_the_longest() -> None:
    """What was drawn is of the longest inputs: three short rows take 0.1 of what three of the longest take."""
    curve = LatencyCurve((0.5, 0.7, 1.0), LengthCurves((8, 32), ((0.1, 0.1, 0.1), (0.5, 0.7, 1.0))))
    world = World(by_length={"big": curve})
    world.run(1.0, "big", 3, length=8)
    world.run(2.0, "big", 3, length=32)
    world.run(5.0, "big", 3)
    world.run(8.0, "small", 1, length=8)
    found = world.all()
    assert [at for at, _ in found] == pytest.approx([1.0 + 0.2, 2.0 + 2.0, 5.0 + 2.0, 8.0 + 0.25])
    assert [e.seconds for _, e in found if isinstance(e, BatchEnded)] == pytest.approx([0.2, 2.0, 2.0, 0.25])


def test_a_batch_is_slowed_by_the_factor_of_the_moment_at_which_it_begins() -> None:
    world = World(slowdown=lambda now: 3.0 if now >= START + 2.0 else 1.0)
    world.run(1.75, "big")
    world.run(2.5, "small")
    assert world.all() == [(2.25, ended(0.5)), (3.25, ended(0.75))]


def test_batches_on_a_shared_processor_take_their_part_of_it_or_all_where_none_is_given() -> None:
    timeline = Timeline(START)
    shared = SharedProcessor(timeline)
    parts = {"small": 0.5}
    first, second = (World(timeline, processor=shared, parts=parts) for _ in range(2))
    first.run(1.0, "small")
    second.run(1.0, "small")  # halves fit beside one another
    first.run(2.0, "big")
    second.run(2.0, "big")  # both take all: each twice as long
    assert first.all() == second.all() == [(1.25, ended(0.25)), (3.0, ended(1.0))]


def test_a_batch_on_a_shared_processor_waits_for_the_load_before_it_too() -> None:
    timeline = Timeline(START)
    world = World(timeline, processor=SharedProcessor(timeline), exclusive_loads=True)
    world.load(1.0, "small")
    world.run(1.5, "big", 3)
    assert world.all() == [(1.75, loaded("small", 0.75)), (3.75, ended(2.25))]


def test_a_batch_whose_process_dies_slows_those_beside_it_no_longer() -> None:
    timeline = Timeline(START)
    shared = SharedProcessor(timeline)
    first, second = (World(timeline, processor=shared) for _ in range(2))
    first.run(1.0, "big", 3)
    second.run(1.0, "big")
    first.dies(1.5)  # a quarter second of each is done
    assert second.all() == [(1.75, ended(0.75))]
    assert [at for at, _ in first.told] == [0.5 + 1.0] * 2


def test_what_runs_and_loads_fails_with_the_process_and_nothing_of_it_ends_later() -> None:
    world = World()
    world.run(1.0, "big", 3)
    world.load(1.5, "big")
    world.dies(2.0)
    world.dies(2.25)
    gone = [
        ExecutorEnded("3g.0", 1),
        BatchFailed("3g.0", "the executor's process is gone", Failure.BLAMELESS, 1),
        Loaded("3g.0", "big", False, 0.0, 1),
    ]
    assert world.all() == [(2.0, event) for event in gone]


def test_an_idle_process_that_dies_fails_nothing_and_a_reload_is_told_as_one() -> None:
    idle, reloading = World(), World()
    idle.run(1.0, "small")
    idle.dies(2.0)
    assert idle.all() == [(1.25, ended(0.25)), (2.0, ExecutorEnded("3g.0", 1))]
    reloading.load(1.0, "small", again=True)
    reloading.dies(1.5)
    assert reloading.all() == [
        (1.5, ExecutorEnded("3g.0", 1)),
        (1.5, Reloaded("3g.0", "small", False, 0.0, 1)),
    ]


def test_a_process_starts_again_after_the_wait_and_its_start_and_is_held_up_by_nothing_from_before() -> None:
    world = World(exclusive_loads=True)
    world.run(1.0, "big", 3)
    world.dies(1.25)
    world.restart(1.25, 0.25)
    world.load(2.125, "small")  # at once: the batch that would have run until 3.0 is gone
    world.run(2.5, "big")
    found = world.all()
    assert found[2:] == [
        (2.0, ExecutorStarted("3g.0", 1)),
        (2.875, loaded("small", 0.75)),
        (3.375, ended(0.875)),
    ]
    world.dies(100.0)
    world.timeline.run_until(START + 101.0)
    assert world.told[5:] == [(100.0, ExecutorEnded("3g.0", 1))]


def test_an_executor_that_is_no_more_tells_nothing() -> None:
    world = World()
    world.run(1.0, "big", 3)
    world.load(1.0, "small")
    world.restart(1.0, 0.5)
    world.timeline.at(START + 1.25, lambda _, now: world.executor.close())
    world.dies(1.5)
    assert world.all() == []


def test_what_is_not_said_of_sharing_is_that_nothing_is_cut_or_shared_and_cutting_takes_no_time() -> None:
    plain = SharingModel()
    assert (plain.cuttable, plain.step_s, plain.instances) == (frozenset(), 0.0, {})
    assert (plain.parts, plain.executors) == ({}, {})
