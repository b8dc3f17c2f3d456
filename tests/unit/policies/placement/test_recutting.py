"""Following plans that cut a GPU otherwise: drained, cut, served again; called off, failed, overtaken."""

import pytest

from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import PlanPublished
from sluicegate.domain.fleet.device import Slice
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.policies.placement.repartition import Cut, CutEnded, CutState, Drain, Drained, Recutting, Serve, Stay

WHOLE = (Slice("7g.0", "7g", 40),)
HALVES = (Slice("4g.0", "4g", 20), Slice("3g.4", "3g", 20))
PLACED = (Placement("g", "a", ("v",), 1.0, 1, "7g.0"),)


def plan(number: int, parts: tuple[Slice, ...] = (), placed: tuple[Placement, ...] = ()) -> PlanPublished:
    geometries = {"g": parts} if parts else {}
    return PlanPublished(Plan(epoch=Epoch(1, number), created=0.0, placements=placed, geometries=geometries))


def test_a_gpu_is_drained_cut_and_serves_with_the_slices_it_then_has() -> None:
    cutting = Recutting("g", WHOLE)
    assert cutting.handle(plan(1, HALVES)) == [Drain()]
    assert cutting.handle(Drained()) == [Cut(("4g", "3g"))]
    assert cutting.handle(CutEnded(HALVES)) == [Serve(HALVES)]
    assert (cutting.state, cutting.slices, cutting.fault) == (CutState.SERVING, HALVES, "")
    renamed = (Slice("3g.0", "3g"), Slice("4g.1", "4g"))
    assert cutting.handle(plan(2, renamed)) == []  # the same cut under other names


def test_slices_that_are_placed_on_stay_whatever_a_plan_calls_them() -> None:
    cutting = Recutting("g", WHOLE)
    assert cutting.handle(plan(1, HALVES, PLACED)) == []


def test_a_drain_is_called_off_by_a_plan_that_asks_no_more_and_old_plans_are_refused() -> None:
    cutting = Recutting("g", WHOLE)
    cutting.handle(plan(2, HALVES))
    assert cutting.handle(plan(1, WHOLE, PLACED)) == []
    assert cutting.handle(plan(3, WHOLE, PLACED)) == [Stay()]
    assert cutting.state is CutState.SERVING


def test_another_target_is_drained_for_and_what_comes_while_it_is_cut_counts_afterwards() -> None:
    cutting = Recutting("g", WHOLE)
    thirds = (Slice("2g.0", "2g"),) * 3
    cutting.handle(plan(1, HALVES))
    assert cutting.handle(plan(2, thirds)) == []
    assert cutting.handle(Drained()) == [Cut(("2g", "2g", "2g"))]
    assert cutting.handle(plan(3, HALVES)) == []
    assert cutting.handle(CutEnded(thirds)) == [Serve(thirds), Drain()]


def test_a_cut_that_failed_is_told_and_tried_again_for_a_later_plan_alone() -> None:
    cutting = Recutting("g", WHOLE)
    cutting.handle(plan(1, HALVES))
    cutting.handle(Drained())
    assert cutting.handle(CutEnded(WHOLE, "in use")) == [Serve(WHOLE)]
    assert (cutting.fault, cutting.fault_epoch) == ("in use", Epoch(1, 1))
    assert cutting.handle(plan(2, HALVES)) == [Drain()]
    assert cutting.fault == "in use"
    cutting.handle(Drained())
    assert cutting.fault == ""


def test_a_cut_that_failed_is_not_begun_anew_for_a_plan_that_came_while_it_was_cut() -> None:
    """That says nothing new of it, and who asked would never hear of the fault."""
    cutting = Recutting("g", WHOLE)
    cutting.handle(plan(3, HALVES))
    cutting.handle(Drained())
    assert cutting.handle(plan(4, HALVES[::-1])) == []
    assert cutting.handle(CutEnded(WHOLE, "in use")) == [Serve(WHOLE)]
    assert (cutting.state, cutting.fault, cutting.fault_epoch) == (CutState.SERVING, "in use", Epoch(1, 4))
    assert cutting.handle(plan(5, HALVES)) == [Drain()]
    cutting.handle(Drained())
    cutting.handle(plan(6, (Slice("2g.0", "2g"),) * 3))
    assert cutting.handle(CutEnded(WHOLE, "in use")) == [Serve(WHOLE), Drain()], "another cut is worth a try"
    assert (cutting.fault, cutting.fault_epoch) == ("in use", Epoch(1, 5))


def test_events_out_of_order_are_refused() -> None:
    cutting = Recutting("g", WHOLE)
    with pytest.raises(IllegalEventError):
        cutting.handle(Drained())
    with pytest.raises(IllegalEventError):
        cutting.handle(CutEnded(HALVES))
