"""Turns over GPUs and over slices: each class has its own, so that none is piled onto every second one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from reproduce.protean.baselines import strategy
from reproduce.protean.gpu_choice import RoundRobin
from sluicegate.policies.placement.slice_choice import SliceLoad
from sluicegate.policies.placement.slice_queue_port import Waiting
from sluicegate.profiles.catalogue.slowdown import SlowdownTable, VariantDemand

GB = 1 << 30
VARIANTS = {True: "strict", False: "other"}
TABLE = SlowdownTable(
    {
        name: VariantDemand(name=name, solo=0.1, memory_bytes=GB, rdf={"4g": 1.2, "3g": 1.5, "2g": 2.0}, fbr=0.1)
        for name in VARIANTS.values()
    }
)


@dataclass
class Gpu:
    takes: bool = True
    slices: Sequence[SliceLoad] = field(default_factory=list)
    waiting: int = 0


def by_turns(count: int) -> list[Waiting]:
    """Strict, best effort, strict, ..."""
    return [Waiting(i, VARIANTS[i % 2 == 0], i % 2 == 0) for i in range(count)]


@pytest.mark.parametrize("gpus", [7, 8])
def test_every_gpu_gets_as_many_strict_batches_as_best_effort_ones(gpus: int) -> None:
    dispatch, there = RoundRobin(), [Gpu() for _ in range(gpus)]
    found = Counter((dispatch.choose(item, there), item.strict) for item in by_turns(6 * gpus))
    assert found == {(at, strict): 3 for at in range(gpus) for strict in (True, False)}


def test_a_gpu_that_takes_nothing_is_passed_over_and_none_is_said_where_none_takes() -> None:
    dispatch, there = RoundRobin(), [Gpu(), Gpu(takes=False), Gpu()]
    assert [dispatch.choose(item, there) for item in by_turns(6)] == [0, 0, 2, 2, 0, 0]
    assert dispatch.choose(Waiting(9, "strict", True), [Gpu(takes=False)]) is None


@pytest.mark.parametrize(
    ("placement", "shares"),
    [("round-robin-shared", (12, 12)), ("round-robin-time-shared", (12, 12)), ("weighted-round-robin", (8, 16))],
)
def test_every_slice_gets_both_classes_in_the_same_shares(placement: str, shares: tuple[int, int]) -> None:
    # Of 10 and 20 GB: one class by turns is 1 to 1 or 1 to 2, of either.
    slices = [SliceLoad("2g", "2g", 10 * GB, 10 * GB), SliceLoad("4g", "4g", 20 * GB, 20 * GB)]
    queue = strategy(placement, TABLE)
    for item in by_turns(48):
        queue.arrived(item, slices)
    found: Counter[tuple[str, bool]] = Counter()
    while (assigned := queue.next(slices)) is not None:
        found[assigned.profile, assigned.item.strict] += 1
    assert found == {(s.profile, strict): n for s, n in zip(slices, shares, strict=True) for strict in (True, False)}
