"""Routing by accuracy and slack: estimates of completion, margins, what happens under load and without latencies."""

from collections import Counter

import pytest

from sluicegate.domain.actions import Drop, Send
from sluicegate.domain.errors import ConfigurationError, IllegalEventError
from sluicegate.domain.events import Arrived, DeviceReported, Hosted, HostedOn, PartRead, PlanActivated
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.outcome import Reason
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.domain.query import Query
from sluicegate.policies.routing.accuracy_first import AccuracyFirst
from sluicegate.policies.routing.backlog_estimate import Backlog
from sluicegate.policies.routing.registry import routing

SLOW = LatencyCurve((0.1, 0.12))
FAST = LatencyCurve((0.01, 0.012, 0.014, 0.016))


def activated(*hosts: tuple[str, float, LatencyCurve], shares: tuple[float, ...] = ()) -> PlanActivated:
    shares = shares or (1.0,) * len(hosts)
    placements = tuple(
        Placement(device, "a", (f"v-{device}",), share, curve.max_batch)
        for (device, _, curve), share in zip(hosts, shares, strict=True)
    )
    curves = tuple(HostedOn(d, "whole", (Hosted(f"v-{d}", accuracy, curve),)) for d, accuracy, curve in hosts)
    return PlanActivated(Plan(epoch=Epoch(1, 1), created=0.0, placements=placements), curves)


def sent(router: AccuracyFirst, now: float, slo: float = 0.3, count: int = 1) -> str:
    devices = []
    for _ in range(count):
        (action,) = router.handle(Arrived(Query("1", "a", now, now + slo)), now)
        assert isinstance(action, Send)
        devices.append(action.device)
    return " ".join(devices)


def two(name: str = "accuracy-first") -> AccuracyFirst:
    router = routing(name)("a")
    assert isinstance(router, AccuracyFirst)
    router.handle(activated(("good", 0.9, SLOW), ("quick", 0.7, FAST)), 0.0)
    return router


def test_the_most_accurate_slice_is_used_until_it_would_be_late() -> None:
    assert sent(two(), 0.0, count=5) == "good good good quick quick"


def test_what_was_sent_is_worked_off_as_time_goes_on() -> None:
    router = two()
    sent(router, 0.0, count=3)
    assert sent(router, 0.05, count=3) == "good good quick"
    assert sent(router, 0.5) == "good"


def test_a_tight_deadline_goes_to_a_fast_slice_at_once() -> None:
    assert sent(two(), 0.0, slo=0.05) == "quick"


def test_where_none_is_in_time_the_earliest_completion_is_taken() -> None:
    assert sent(two(), 0.0, slo=0.005) == "quick"


def test_a_heartbeat_replaces_the_estimate() -> None:
    router = two()
    router.handle(DeviceReported("good", "whole", 6, 0.1), 0.0)
    router.handle(DeviceReported("elsewhere", "whole", 6, 0.1), 0.0)
    assert sent(router, 0.0) == "quick"
    router.handle(DeviceReported("good", "whole", 0, 0.0), 0.1)
    assert sent(router, 0.1) == "good"


def test_equally_accurate_slices_share_by_completion() -> None:
    router = AccuracyFirst("a")
    router.handle(activated(("one", 0.9, SLOW), ("two", 0.9, SLOW)), 0.0)
    assert sent(router, 0.0, count=4) == "one two one two"


@pytest.mark.parametrize("count", [2, 3, 8, 11, 16])
@pytest.mark.parametrize("name", ["accuracy-first", "slack-blend"])
def test_idle_equals_take_turns(name: str, count: int) -> None:
    """However few queries come: each is done before the next is asked."""
    router = routing(name)("a")
    assert isinstance(router, AccuracyFirst)
    router.handle(activated(*((f"d{i}", 0.9, FAST) for i in range(count)), ("poor", 0.5, FAST)), 7.0)
    times = Counter(sent(router, 10.0 + i) for i in range(count * count))
    assert times == {f"d{i}": count for i in range(count)}


def test_of_equals_in_turn_the_one_that_is_done_first_is_taken() -> None:
    router = AccuracyFirst("a")
    router.handle(activated(("slow", 0.9, SLOW), ("fast", 0.9, FAST)), 0.0)
    assert [sent(router, 10.0 + i) for i in range(4)] == ["fast"] * 4


def test_a_new_plan_keeps_what_is_known_of_slices_that_stay() -> None:
    router = two()
    sent(router, 0.0, count=3)
    router.handle(activated(("good", 0.9, SLOW), ("quick", 0.7, FAST), ("third", 0.8, FAST)), 0.01)
    assert sent(router, 0.01) == "third"


def test_the_blend_keeps_a_margin_under_load_and_none_without() -> None:
    idle, loaded = two("slack-blend"), two("slack-blend")
    assert sent(idle, 0.0, slo=0.24, count=2) == "good good"
    for i in range(150):
        sent(loaded, 0.4 + i / 1000, slo=0.011)
    assert sent(loaded, 1.0, slo=0.24, count=1) == "good"
    for i in range(400):
        sent(loaded, 2.0 + i / 1000, slo=0.011)
    assert sent(loaded, 2.4, slo=0.18, count=1) == "quick"


def test_the_blend_falls_back_on_the_shares_of_the_plan() -> None:
    router = routing("slack-blend", share=0.99, steepness=0.001)("a")
    router.handle(activated(("a", 0.9, FAST), ("b", 0.8, FAST), shares=(0.25, 0.75)), 0.0)
    devices = []
    for i in range(40):
        (action,) = router.handle(Arrived(Query("1", "a", i / 10, i / 10 + 0.05)), i / 10)
        assert isinstance(action, Send)
        devices.append(action.device)
    assert devices.count("b") == 30


@pytest.mark.parametrize("known", [0, 1])
@pytest.mark.parametrize("name", ["accuracy-first", "slack-blend"])
def test_unless_latencies_of_all_slices_are_known_the_shares_decide(name: str, known: int) -> None:
    router = routing(name)("a")
    assert isinstance(router, AccuracyFirst)
    told = activated(("x", 0.9, FAST), ("y", 0.5, FAST), shares=(0.25, 0.75))
    router.handle(PlanActivated(told.plan, told.curves[:known]), 0.0)
    devices = sent(router, 0.0, slo=1.0, count=8).split()
    assert (devices.count("x"), devices.count("y")) == (2, 6)


def test_no_plan_is_an_error_and_an_empty_one_drops() -> None:
    router = AccuracyFirst("a")
    query = Arrived(Query("1", "a", 0.0, 1.0))
    with pytest.raises(IllegalEventError):
        router.handle(query, 0.0)
    router.handle(activated(), 0.0)
    (action,) = router.handle(query, 0.0)
    assert isinstance(action, Drop) and action.reason is Reason.NO_CAPACITY


def test_the_estimate_forms_batches_as_the_slice_does() -> None:
    backlog = Backlog((Hosted("v", 0.9, FAST),))
    assert backlog.done_at(1, 0.0) == 0.01
    backlog.send(1, 0.0)
    for _ in range(5):
        backlog.send(1, 0.0)
    assert backlog.done_at(1, 0.0) == pytest.approx(0.01 + 0.016 + 0.012)
    backlog.advance(0.011)
    assert backlog.queued == 1
    assert backlog.busy_until == pytest.approx(0.026)
    backlog.advance(1.0)
    assert (backlog.queued, backlog.busy_until) == (0, 1.0)


def test_bad_options_of_the_blend_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="share"):
        routing("slack-blend", share=1.0)


def test_a_router_that_reads_a_part_counts_what_the_others_send_as_well() -> None:
    whole, half = two(), two()
    half.handle(PartRead(0.5), 0.0)
    assert sent(whole, 0.0, count=5) == "good good good quick quick"
    assert sent(half, 0.0, count=3) == "good good quick"


def test_the_blend_sees_the_same_load_in_a_part_of_the_queries() -> None:
    routers = {part: two("slack-blend") for part in (1.0, 0.25)}
    for part, router in routers.items():
        router.handle(PartRead(part), 0.0)
        for i in range(round(400 * part)):
            sent(router, 2.0 + i / 1000 / part, slo=0.011)
    margins = [router.margin(Query("1", "a", 2.4, 2.6), 2.4) for router in routers.values()]
    assert margins[1] == pytest.approx(margins[0], rel=0.05)
    assert margins[0] > 0.1


def test_after_a_clock_is_set_back_the_blend_sees_the_load_there_is_and_keeps_no_more_of_what_came() -> None:
    stands, set_back = two("slack-blend"), two("slack-blend")
    for router, first in ((stands, 70.0), (set_back, 900.0)):
        for i in range(400):
            sent(router, first + i / 1000, slo=0.011)
        for i in range(20):
            sent(router, 80.0 + i / 10, slo=0.011)
    margins = [router.margin(Query("1", "a", 82.0, 82.2), 82.0) for router in (stands, set_back)]
    assert margins[1] == margins[0] > 0.0
    assert len(set_back._recent) == len(stands._recent) < 10


def test_of_many_alike_some_are_looked_at_in_turn_and_all_are_used() -> None:
    many = AccuracyFirst("a")
    hosts = tuple((f"d{i:02}", 0.9, SLOW) for i in range(19))
    many.handle(activated(*hosts, ("quick", 0.7, FAST)), 0.0)
    used = sent(many, 0.0, count=19).split()
    assert len(set(used[:3])) == 3
    assert "quick" not in used
    assert set(sent(many, 0.0, slo=9.0, count=60).split()) == {name for name, _, _ in hosts}


ALIKE = (("d0", 0.9, FAST), ("d1", 0.9, FAST), ("d2", 0.9, FAST))


def test_packing_fills_one_slice_before_it_uses_the_next_and_comes_back_to_it() -> None:
    router = routing("packing", margin=0.0)("a")
    router.handle(activated(*ALIKE), 0.0)
    assert isinstance(router, AccuracyFirst)
    devices = sent(router, 0.0, slo=0.042, count=22).split()  # one runs alone, two batches of four follow in time
    assert devices == [*["d0"] * 9, *["d1"] * 9, *["d2"] * 4]
    assert set(sent(router, 1.0, slo=0.042, count=9).split()) == {"d0"}


def test_packing_keeps_a_margin_and_takes_the_earliest_end_where_none_does() -> None:
    router = routing("packing", margin=0.5)("a")
    router.handle(activated(("quick", 0.7, FAST), ("good", 0.9, SLOW)), 0.0)
    assert isinstance(router, AccuracyFirst)
    assert sent(router, 0.0, slo=0.3) == "good"  # the most accurate of those without work
    assert sent(router, 1.0, slo=0.15) == "quick"  # the other takes 0.1 s of 0.15
    assert sent(router, 2.0, slo=0.01) == "quick"
    with pytest.raises(ConfigurationError, match="margin"):
        routing("packing", margin=1.0)
