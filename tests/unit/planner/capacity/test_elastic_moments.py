"""The moments at which workers that come and go change state: at each limit, just before it, and at two clocks."""

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.planner.capacity import spare_pool
from sluicegate.planner.capacity.events import Restore, Start, Stop, Withdraw
from sluicegate.planner.capacity.spare_pool import (
    ElasticFleet,
    TimePassed,
    Wanted,
    WorkerEnded,
    WorkerHeard,
)

MOMENT = 1 / 1024
"""Seconds, exact at both clocks."""
CLOCKS = pytest.mark.parametrize("start", [0.0, 1.7e9])


class Spares:
    """Two spare devices beside one that always serves."""

    def __init__(self, start: float) -> None:
        self.now = start
        self.fleet = ElasticFleet(1, ("s0", "s1"), settle=3.0, patience=8.0, start_timeout=5.0)

    def tell(self, event: spare_pool.ElasticEvent, after: float = 0.0) -> list[spare_pool.ElasticAction]:
        self.now += after
        return self.fleet.handle(event, self.now)

    def states(self) -> tuple[str, str]:
        return self.fleet.state("s0").value, self.fleet.state("s1").value


@CLOCKS
def test_spares_start_in_their_order_and_the_last_goes_first(start: float) -> None:
    world = Spares(start)
    assert world.tell(Wanted(1)) == [] and world.states() == ("off", "off")
    assert world.tell(Wanted(2)) == [Restore("s0"), Start("s0")]
    assert world.tell(Wanted(3)) == [Restore("s1"), Start("s1")]
    assert world.tell(WorkerHeard("s1", False)) == [] and world.states() == ("starting", "up")
    assert world.fleet.serving == 3
    assert world.tell(Wanted(2)) == [Withdraw("s1")] and world.states() == ("starting", "withdrawn")
    assert world.tell(Wanted(3)) == [Restore("s1")] and world.states() == ("starting", "up")
    assert world.tell(Wanted(0)) == [Withdraw("s1"), Withdraw("s0")]
    assert world.tell(Wanted(9)) == [Restore("s0"), Restore("s1")]
    assert world.tell(WorkerHeard("d9", True)) == [] and world.tell(WorkerEnded("d9")) == []


@CLOCKS
def test_a_withdrawn_worker_is_ended_once_idle_and_settled_or_out_of_patience(start: float) -> None:
    world = Spares(start)
    world.tell(WorkerHeard("s0", True))
    assert world.states() == ("withdrawn", "off")  # it ran before, and nobody wants it
    assert world.tell(WorkerHeard("s0", True), 3.0 - MOMENT) == []
    assert world.tell(WorkerHeard("s0", False), MOMENT) == []
    assert world.tell(WorkerHeard("s0", True, leaving=True)) == []
    assert world.tell(WorkerHeard("s0", True)) == [Stop("s0")] and world.states() == ("ending", "off")
    assert world.tell(WorkerHeard("s0", True)) == []
    world.tell(WorkerEnded("s0"))
    assert world.states() == ("off", "off")
    world.tell(WorkerHeard("s1", False))
    assert world.states() == ("off", "withdrawn")
    assert world.tell(TimePassed(), 8.0) == []
    assert world.tell(TimePassed(), MOMENT) == [Stop("s1")]


@CLOCKS
def test_a_worker_that_is_silent_is_started_again_and_one_that_is_heard_is_not(start: float) -> None:
    world = Spares(start)
    world.tell(Wanted(3))
    assert world.tell(WorkerHeard("s0", False), 4.0) == []
    assert world.tell(TimePassed(), 1.0) == []  # five seconds: not yet more
    assert world.tell(TimePassed(), MOMENT) == [Start("s1")]
    assert world.tell(TimePassed(), 4.0 - MOMENT) == [] and world.states() == ("up", "starting")
    assert world.tell(TimePassed(), MOMENT) == [Start("s0")] and world.states() == ("starting", "starting")


@CLOCKS
def test_a_start_that_failed_is_barred_for_as_long_as_a_start_may_take_and_another_is_taken(start: float) -> None:
    world = Spares(start)
    world.tell(Wanted(2))
    assert world.tell(WorkerEnded("s0", failed=True)) == [Restore("s1"), Start("s1")]
    assert world.tell(Wanted(3), 5.0 - MOMENT) == []
    world.tell(WorkerHeard("s1", False))
    assert world.tell(TimePassed(), MOMENT) == [Restore("s0"), Start("s0")]
    world.tell(WorkerHeard("s0", False))
    assert world.tell(WorkerEnded("s0")) == [] and world.states() == ("up", "up")  # nobody asked it to


@pytest.mark.parametrize(
    ("fixed", "spare", "settle", "fine"),
    [(0, ("a", "b"), 0.0, True), (1, (), 8.0, True), (-1, ("a",), 1.0, False), (1, ("a", "a"), 1.0, False),
     (1, ("a",), -MOMENT, False), (1, ("a",), 8.0 + MOMENT, False)],
)  # fmt: skip
def test_a_fleet_that_cannot_be_is_refused(fixed: int, spare: tuple[str, ...], settle: float, fine: bool) -> None:
    if fine:
        ElasticFleet(fixed, spare, settle=settle, patience=8.0)
        return
    with pytest.raises(InvalidInputError, match="spare"):
        ElasticFleet(fixed, spare, settle=settle, patience=8.0)


@CLOCKS
def test_a_worker_that_ended_is_started_again_at_once_where_it_is_wanted_and_one_that_failed_after_a_while(
    start: float,
) -> None:
    world = Spares(start)
    assert world.tell(Wanted(2)) == [Restore("s0"), Start("s0")]
    assert world.tell(WorkerEnded("s0"), 1.0) == [Restore("s0"), Start("s0")]
    assert world.tell(WorkerEnded("s0", failed=True), 1.0) == [Restore("s1"), Start("s1")], "the other is free"
    assert world.tell(WorkerEnded("s1", failed=True), 2.0) == []
    assert world.tell(TimePassed(), 3.0 - MOMENT) == []
    assert world.tell(TimePassed(), MOMENT) == [Restore("s0"), Start("s0")]
