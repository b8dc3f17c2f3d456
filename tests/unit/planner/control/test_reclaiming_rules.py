"""What becomes of each record that a dead device left, at its deadline and at the fence, and when it is looked for."""

from typing import Any

import pytest

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.outcome import OutcomeKind, Reason
from sluicegate.domain.query import Query
from sluicegate.planner.control.events import (
    Bury,
    End,
    Leave,
    Left,
    LetIn,
    Move,
    Readmit,
    SafeMode,
    Sweep,
    SweepBegan,
    SweepFailed,
    Swept,
    TooLarge,
    WorkLeft,
)
from sluicegate.planner.control.reclaiming import MOST_READ, Reclaiming

NOW, WALL, PATIENCE = 300.0, 1.7e9, 3.0


def sweeping(device: str = "d3") -> Reclaiming:
    """From offset 40 to 45."""
    found = Reclaiming(["p"], PATIENCE)
    found.dead(device, NOW)
    assert found.due(NOW) == [Sweep(device)]
    assert found.handle(SweepBegan(device, 40, 45), NOW, WALL) == []
    return found


def query(app: str, deadline: float) -> Query:
    return Query("q1", app, WALL - 4.0, deadline)


def left(offset: int, app: str = "a", deadline: float = WALL + 1.0, **more: Any) -> Left:
    return Left(offset, query(app, deadline), **more)


def test_a_record_goes_back_while_it_has_time_and_has_none_at_its_deadline() -> None:
    found = sweeping()
    records = (
        left(40, deadline=WALL + 0.001),
        left(41, deadline=WALL),
        left(42, deadline=WALL - 9.0, answered=True),
        Left(43, None),
    )
    (move,) = found.handle(WorkLeft("d3", records), NOW + 1.0, WALL)
    assert isinstance(move, Move)
    back, ended, answered, buried = move.verdicts
    assert (move.device, back, answered, buried) == ("d3", Readmit(), Leave(), Bury())
    assert isinstance(ended, End)
    assert (ended.outcome.kind, ended.outcome.reason) == (OutcomeKind.EXPIRED, Reason.DEVICE_LOST)
    assert (ended.outcome.device, ended.outcome.at, ended.outcome.queue_s) == ("d3", WALL, 4.0)


def test_safe_mode_is_announced_once_for_a_promised_app_that_loses_a_query_and_ends_when_the_device_is_let_in() -> None:
    found = sweeping()
    in_time = WorkLeft("d3", (left(40, "p"), left(41, "a", WALL - 1.0)))
    assert [type(a) for a in found.handle(in_time, NOW, WALL)] == [Move]
    lost = WorkLeft("d3", (left(42, "p", WALL - 1.0), left(43, "p", WALL - 2.0)))
    mode, move = found.handle(lost, NOW, WALL)
    assert mode == SafeMode("p", "d3", True, "d3 was lost with queries of this app")
    assert isinstance(move, Move) and len(move.verdicts) == 2
    assert found.absent("d3")
    over = SafeMode("p", "d3", False, "d3 is back")
    assert found.handle(Swept("d3"), NOW, WALL) == [LetIn("d3"), over]
    assert not found.absent("d3")
    assert found.fences == {"d3": 45}


def test_who_takes_over_ends_safe_mode_that_another_leader_announced_once_its_device_is_back() -> None:
    found = Reclaiming(["p", "q", "r"], PATIENCE)
    for app, device in (("p", "d3"), ("r", "d3"), ("q", "d3"), ("q", "d4"), ("p", "d5")):
        found.read(app, device, on=True)
    found.read("r", "d3", on=False)
    assert found.begin({}, {}) == []
    found.dead("d3", NOW)
    there = ["d0", "d3", "d4", "d5"]
    over = [SafeMode("q", "d4", False, "d4 is back")]
    assert found.taken_over(["d0", "d3", "d4"], there) == over, "d3 waits for its sweep, d5 for its worker"
    assert found.taken_over(["d4"], there) == []
    assert found.taken_over(["d4"], there[:-1]) == [SafeMode("p", "d5", False, "d5 has no work topic any more")]
    found.due(NOW)
    found.absent("d3")
    over = [SafeMode(app, "d3", False, "d3 is back") for app in ("p", "q")]
    assert found.handle(SweepBegan("d3", 7, 7), NOW, WALL) == [LetIn("d3"), *over]


def test_safe_mode_ends_where_the_work_topic_of_its_device_is_gone() -> None:
    """Nobody lets a device in that was taken off, and nothing of it can be lost any more."""
    found = sweeping()
    found.read("q", "d4", on=True)
    found.handle(WorkLeft("d3", (left(40, "p", WALL - 1.0),)), NOW, WALL)
    over = SafeMode("p", "d3", False, "d3 has no work topic any more")
    assert found.handle(SweepFailed("d3", gone=True), NOW, WALL) == [over]
    assert found.taken_over(["d3"], ["d3", "d4"]) == []


@pytest.mark.parametrize("offsets", [(39,), (45,), (41, 41), (42, 41), (46,)])
def test_records_are_told_once_in_order_and_below_the_fence(offsets: tuple[int, ...]) -> None:
    with pytest.raises(IllegalEventError, match=r"where .* to 45 is to be decided"):
        sweeping().handle(WorkLeft("d3", tuple(left(offset) for offset in offsets)), NOW, WALL)
    (move,) = sweeping().handle(WorkLeft("d3", (left(40), left(44))), NOW, WALL)
    assert isinstance(move, Move)


def test_a_sweep_is_repeated_half_a_second_after_its_end_while_the_device_is_absent() -> None:
    found = sweeping()
    assert (found.next_due(), found.due(NOW + 9.0)) == (None, [])
    assert found.handle(Swept("d3"), NOW + 2.0, WALL) == []
    assert (found.next_due(), found.fences) == (NOW + 2.5, {"d3": 45})
    assert found.due(NOW + 2.4) == []
    assert found.due(NOW + 2.5) == [Sweep("d3")]
    assert found.handle(SweepBegan("d3", 45, 45), NOW + 3.0, WALL) == [], "nothing was left"
    assert found.next_due() == NOW + 3.5
    found.due(NOW + 3.5)
    assert found.absent("d3"), "it has to wait for the end"
    assert found.handle(SweepBegan("d3", 46, 45), NOW + 4.0, WALL) == [LetIn("d3")]
    assert not found.absent("d3")
    assert (found.next_due(), found.fences) == (None, {"d3": 45})


def test_who_is_let_in_and_never_heard_again_is_swept_as_if_it_had_not_been_back() -> None:
    found = sweeping()
    found.absent("d3")
    assert found.handle(Swept("d3"), NOW + 2.0, WALL) == [LetIn("d3")]
    assert (found.next_due(), found.due(NOW + 4.9)) == (NOW + 2.0 + PATIENCE, [])
    assert found.due(NOW + 5.0) == [Sweep("d3")]
    assert found.handle(SweepBegan("d3", 45, 47), NOW + 5.1, WALL) == []
    assert found.handle(Swept("d3"), NOW + 5.2, WALL) == [], "nobody is there to be let in"
    assert found.next_due() == pytest.approx(NOW + 5.7)
    found.due(NOW + 5.7)
    assert found.absent("d3"), "it waits again"
    assert found.handle(SweepBegan("d3", 47, 47), NOW + 5.8, WALL) == [LetIn("d3")]
    assert not found.absent("d3")
    assert found.next_due() is None


def test_a_sweep_that_was_cut_short_is_repeated_and_one_of_no_topic_is_not() -> None:
    found = sweeping("d1")
    found.dead("d2", NOW + 1.0)
    found.dead("d2", NOW + 5.0)
    assert found.next_due() == NOW + 1.0
    assert found.handle(SweepFailed("d1"), NOW + 0.25, WALL) == []
    assert found.due(NOW + 1.0) == [Sweep("d1"), Sweep("d2")]
    assert found.handle(SweepFailed("d2", gone=True), NOW + 1.0, WALL) == []
    assert not found.absent("d2")
    assert found.fences == {}
    found.end()
    assert not found.absent("d1")


def test_what_is_too_large_to_go_back_fails() -> None:
    (end,) = sweeping().handle(TooLarge("d3", query("a", WALL + 1.0), "x" * 501), NOW, WALL)
    assert isinstance(end, End)
    assert (end.outcome.kind, end.outcome.reason, end.outcome.device) == (OutcomeKind.FAILED, Reason.TOO_LARGE, "d3")
    assert (end.outcome.detail, end.outcome.queue_s) == ("x" * 500, 4.0)


def test_what_no_sweep_under_way_can_say_is_an_error() -> None:
    found = sweeping()
    with pytest.raises(IllegalEventError, match="the sweep of d3 to 45 begins twice"):
        found.handle(SweepBegan("d3", 40, 45), NOW, WALL)
    for event in (Swept("d4"), WorkLeft("d4", ())):
        with pytest.raises(IllegalEventError, match="while no sweep of d4 is under way"):
            found.handle(event, NOW, WALL)
    found.handle(Swept("d3"), NOW, WALL)
    with pytest.raises(IllegalEventError, match="while no sweep of d3 is under way"):
        found.handle(Swept("d3"), NOW + 0.1, WALL)
    found.due(NOW + 0.5)
    with pytest.raises(IllegalEventError, match="d3 is swept before its fence is known"):
        found.handle(Swept("d3"), NOW + 0.6, WALL)


def test_fences_of_the_plan_before_count_up_to_what_was_committed_and_those_of_ones_own_sweeps_stay() -> None:
    found = sweeping()
    found.handle(Swept("d3"), NOW, WALL)
    told = found.begin({"d3": 44, "d4": 7, "d5": 9, "d6": 3}, {"d3": 10, "d4": 7, "d5": 8})
    assert found.fences == {"d3": 45, "d4": 7}
    why = "the newest plan has its worker begin at {}; what lies below {} is done, and no more"
    assert told == [
        Announce("device:d5", "fence_refused", why.format(9, 8)),
        Announce("device:d6", "fence_refused", why.format(3, 0)),
    ]
    assert found.next_due() is None, "sweeps are begun anew"
    assert found.begin({"d3": 47}, {"d3": 47}) == []
    assert found.fences["d3"] == 47


def test_what_strangers_say_of_devices_that_never_were_is_kept_within_a_bound() -> None:
    found = Reclaiming(["p"], PATIENCE)
    found.read("p", "d3", on=True)
    for number in range(20_000):
        found.read("p", f"made-up-{number:05}", on=True)
    said = found.taken_over(["d3"], ["d3"])
    assert said[0] == SafeMode("p", "d3", False, "d3 is back")
    assert len(said) == MOST_READ
    assert not found.taken_over(["d3"], ["d3"])
