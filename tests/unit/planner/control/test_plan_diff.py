"""What of a plan stands when slices go, and which changes are worth an epoch: two apps on unequal slices."""

from dataclasses import replace

import pytest

from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.planner.control.plan_diff import differs, reduced

LEFT, RIGHT = Slice("4g.0", "4g", 20), Slice("3g.4", "3g", 10)
G0, G1 = Device(name="g0", type="gpu", slices=(LEFT, RIGHT)), Device(name="g1", type="gpu", slices=(LEFT,))
PLACED = (
    Placement("g0", "a", ("a-l",), 0.5, 4, LEFT.name),
    Placement("g0", "b", ("b-l",), 0.25, 2, RIGHT.name),
    Placement("g1", "a", ("a-s",), 0.3, 8, LEFT.name),
)
PLAN = Plan(
    epoch=Epoch(2, 7),
    created=1.7e9,
    placements=PLACED,
    served={"a": 0.8, "b": 0.5, "idle": 1.0},
    reason="period",
    solve_s=0.4,
)


def test_a_plan_all_of_whose_slices_are_there_stands_as_it_is() -> None:
    assert reduced(PLAN, (G0, G1, Device(name="g2", type="gpu")), "lost") is None


@pytest.mark.parametrize(
    ("devices", "kept", "served"),
    [
        ((G0,), PLACED[:2], {"a": 0.8 * 0.5 / 0.8, "b": 0.5, "idle": 1.0}),
        ((G1,), PLACED[2:], {"a": 0.8 * 0.3 / 0.8, "b": 0.0, "idle": 1.0}),
        ((replace(G0, slices=(RIGHT,)), G1), PLACED[1:], {"a": 0.8 * 0.3 / 0.8, "b": 0.5, "idle": 1.0}),
        ((), (), {"a": 0.0, "b": 0.0, "idle": 1.0}),
    ],
)
def test_what_is_left_serves_its_part_of_each_app(
    devices: tuple[Device, ...], kept: tuple[Placement, ...], served: dict[str, float]
) -> None:
    left = reduced(PLAN, devices, "g1 is lost")
    assert left is not None
    assert (left.placements, left.reason, left.solve_s) == (kept, "g1 is lost", 0.0)
    assert left.served == pytest.approx(served)
    assert (left.epoch, left.created) == (PLAN.epoch, PLAN.created)


@pytest.mark.parametrize(
    ("change", "is_other"),
    [
        ({}, False),
        ({"share": 0.3}, False),
        ({"share": 0.2}, False),
        ({"share": 0.31}, True),
        ({"share": 0.19}, True),
        ({"variants": ("b-s",)}, True),
        ({"max_batch": 3}, True),
        ({"slo": 0.4}, True),
        ({"slice": LEFT.name}, True),
        ({"device": "g1"}, True),
        ({"app": "a"}, True),
    ],
)
def test_another_plan_is_one_that_hosts_otherwise_or_moves_a_share_by_more_than_it_is_told(
    change: dict[str, object], is_other: bool
) -> None:
    other = (PLACED[0], replace(PLACED[1], **change), PLACED[2])  # type: ignore[arg-type]
    assert differs(PLACED, other, 0.05 + 1e-12) is is_other
    assert differs(other, PLACED, 0.05 + 1e-12) is is_other
    assert not differs(PLACED, tuple(reversed(PLACED)), 0.0)
    assert differs(PLACED, PLACED[:2], 1.0) and differs(PLACED[:2], PLACED, 1.0)
