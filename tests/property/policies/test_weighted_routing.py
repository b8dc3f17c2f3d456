"""Shares are met at every moment, smoothly and deterministically."""

from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.domain.actions import Drop, Send
from sluicegate.domain.errors import ConfigurationError, IllegalEventError
from sluicegate.domain.events import Arrived, DeviceReported, PlanActivated
from sluicegate.domain.outcome import Reason
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.domain.query import Query
from sluicegate.policies.routing.registry import routing
from sluicegate.policies.routing.weighted import ProportionalSequence, WeightedRouting

weights = st.lists(st.one_of(st.just(0.0), st.floats(1e-4, 1.0)), min_size=1, max_size=12)


def plan(*shares: float, number: int = 1, app: str = "a") -> Plan:
    placements = tuple(Placement(f"d{i}", app, ("v",), share, 8) for i, share in enumerate(shares))
    return Plan(epoch=Epoch(1, number), created=0.0, placements=placements)


def query(app: str = "a") -> Arrived:
    return Arrived(Query("1", app, 0.0, 1.0))


@settings(max_examples=60, deadline=None)
@given(weights=weights)
def test_every_prefix_is_within_one_query_of_the_shares(weights: list[float]) -> None:
    sequence = ProportionalSequence(weights)
    counts = [0] * len(weights)
    for n in range(1, 400):
        counts[sequence.next()] += 1
        assert max(abs(c - w * n) for c, w in zip(counts, sequence.shares, strict=True)) < 1.0 + 1e-6


def test_weights_that_are_none_count_for_nothing_and_where_all_are_all_are_equal() -> None:
    assert ProportionalSequence([-0.5, 1.0, nan, inf, 3.0, 0.0, -inf]).shares == (0.0, 0.25, 0.0, 0.0, 0.75, 0.0, 0.0)
    assert ProportionalSequence([-0.5, nan]).shares == (0.5, 0.5)


@settings(max_examples=40, deadline=None)
@given(weights=weights, scale=st.floats(0.01, 100.0))
def test_shares_need_not_sum_to_one_and_the_sequence_repeats_exactly(weights: list[float], scale: float) -> None:
    first = ProportionalSequence(weights)
    again = ProportionalSequence(weights)
    assert [first.next() for _ in range(100)] == [again.next() for _ in range(100)]
    assert sum(ProportionalSequence([w * scale for w in weights]).shares) == pytest.approx(1.0)


def test_placements_without_a_share_get_nothing_unless_none_has_one() -> None:
    assert {ProportionalSequence([0.0, 0.3, -1.0, float("nan")]).next() for _ in range(20)} == {1}
    sequence = ProportionalSequence([0.0, 0.0])
    assert sorted(sequence.next() for _ in range(10)) == [0] * 5 + [1] * 5


def test_the_counts_start_again_without_a_skew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.policies.routing.weighted._RESTART", 10)
    sequence = ProportionalSequence([0.2, 0.5, 0.3])
    counts = [0, 0, 0]
    for _ in range(11 * 100):
        counts[sequence.next()] += 1
    assert counts == [pytest.approx(1100 * w, abs=120) for w in (0.2, 0.5, 0.3)]


def test_queries_go_where_the_plan_says() -> None:
    router = routing("weighted")("a")
    router.handle(PlanActivated(plan(0.5, 0.25, 0.25)), 0.0)
    sent = [action for _ in range(8) for action in router.handle(query(), 0.0)]
    assert sorted(a.device for a in sent if isinstance(a, Send)) == ["d0"] * 4 + ["d1"] * 2 + ["d2"] * 2
    assert router.handle(DeviceReported("d0", "whole", 3, 0.1), 0.0) == []


def test_a_plan_with_the_same_placements_does_not_start_the_sequence_again() -> None:
    router = WeightedRouting("a")
    devices = []
    for number in range(1, 9):
        router.handle(PlanActivated(plan(0.5, 0.5, number=number)), 0.0)
        devices += [a.device for a in router.handle(query(), 0.0) if isinstance(a, Send)]
    assert devices == ["d0", "d1"] * 4
    assert router.shares == {("d0", "whole"): 0.5, ("d1", "whole"): 0.5}


def test_no_capacity_only_where_an_active_plan_hosts_nothing_for_the_app() -> None:
    router = WeightedRouting("a")
    with pytest.raises(IllegalEventError, match="before any plan"):
        router.handle(query(), 0.0)
    router.handle(PlanActivated(plan(1.0, app="b")), 0.0)
    (action,) = router.handle(query(), 0.0)
    assert isinstance(action, Drop) and action.reason is Reason.NO_CAPACITY
    router.handle(PlanActivated(plan(1.0, number=2)), 0.0)
    assert [type(a) for a in router.handle(query(), 0.0)] == [Send]


def test_unknown_routing_policies_and_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="weighted"):
        routing("wieghted")
    with pytest.raises(ConfigurationError, match="no option"):
        routing("weighted", app="a")


def test_each_slo_class_goes_round_its_own_placements() -> None:
    routing = WeightedRouting("app")
    placed = tuple(Placement(f"d{i}", "app", ("v",), 0.25, 8, slo=0.1 if i < 2 else 0.3) for i in range(4))
    routing.handle(PlanActivated(Plan(epoch=Epoch(1, 1), created=0.0, placements=placed)), 0.0)

    def sent(slo: float) -> str:
        (action,) = routing.handle(Arrived(Query("q", "app", 5.0, 5.0 + slo)), 5.0)
        assert isinstance(action, Send)
        return action.device

    assert [sent(slo) for slo in (0.1, 0.3, 0.05, 10.0, 0.299, 0.1)] == ["d0", "d2", "d1", "d3", "d0", "d1"]
    shared = (*placed[:1], *placed[2:3], Placement("any", "app", ("v",), 0.75, 8))
    routing.handle(PlanActivated(Plan(epoch=Epoch(1, 2), created=0.0, placements=shared)), 1.0)
    assert [sorted(sent(slo) for _ in range(4)) for slo in (0.1, 0.3)] == [["any"] * 3 + [d] for d in ("d0", "d2")]
