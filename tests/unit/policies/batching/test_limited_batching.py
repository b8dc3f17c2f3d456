"""Published rules keep to half the SLO, or to the limit they have found, by themselves, whatever they are given."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reproduce.spread_drop.trial import Trial, try_alone
from sluicegate.domain.actions import Drop, Run, WakeAt
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import Arrived, Finished, Hosted, HostingChanged, Offered
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.outcome import Reason
from sluicegate.domain.query import Query
from sluicegate.policies.batching.aimd import AdditiveIncrease
from sluicegate.policies.batching.registry import batching
from sluicegate.policies.serving.slice_scheduler import Station

SLO = 0.04
WHOLE = tuple(0.009 + 0.001 * b for b in range(1, 32))
HALF = tuple(s for s in WHOLE if s <= SLO / 2 + 1e-12)


def served(rule: str, seconds: tuple[float, ...], gaps: list[float], **options: float) -> Trial:
    now, queries = 0.0, []
    for gap in gaps:
        now += gap
        queries.append(Query("", "a", now, now + SLO))
    hosted = (Hosted("v", 0.9, LatencyCurve(seconds)),)
    return try_alone(Station(batching(rule, **options)), queries, hosted, SLO)


@pytest.mark.parametrize("rule", ["deadline", "early-drop", "lazy-drop"])
@settings(max_examples=30, deadline=None)
@given(gaps=st.lists(st.sampled_from((0.0, 0.0, 0.0005, 0.001, 0.01)), min_size=1, max_size=80))
def test_a_longer_curve_changes_nothing(rule: str, gaps: list[float]) -> None:
    whole, half = served(rule, WHOLE, gaps), served(rule, HALF, gaps)
    assert (whole.fates, whole.batches) == (half.fates, half.batches)


@pytest.mark.parametrize("rule", ["deadline", "early-drop", "lazy-drop"])
def test_the_share_is_an_option(rule: str) -> None:
    burst = [0.0] * 31
    assert max(rows for _, rows, _ in served(rule, WHOLE, burst).batches) == len(HALF)
    assert max(rows for _, rows, _ in served(rule, WHOLE, burst, max_latency_share=1.0).batches) > len(HALF)


def test_eager_fills_batches_as_far_as_the_head_bears() -> None:
    burst = [0.0] * 32  # the first runs alone and takes 10 ms, which leaves the others 30 ms
    assert [rows for _, rows, _ in served("eager", WHOLE, burst).batches] == [1, 21]
    assert [rows for _, rows, _ in served("eager", WHOLE, burst, max_latency_share=0.5).batches] == [1, len(HALF), 1]


def test_a_query_of_more_rows_than_the_share_allows_runs_all_the_same() -> None:
    for rule in ("deadline", "early-drop", "lazy-drop", "eager"):
        hosted = (Hosted("v", 0.9, LatencyCurve(WHOLE)),)
        trial = try_alone(Station(batching(rule)), [Query("", "a", 0.0, SLO, len(HALF) + 5)], hosted, SLO)
        assert trial.misses == 0


@pytest.mark.parametrize("start", [0.0, 1.7e9])
def test_early_drop_runs_a_large_query_behind_heads_that_it_drops(start: float) -> None:
    """A batch within half the SLO holds two rows; the head is late in it, and who comes next has three, or five."""
    policy = batching("early-drop")()
    policy.handle(HostingChanged("a", (Hosted("v", 0.9, LatencyCurve((0.03, 0.05, 0.06, 0.065))),), 0.1), start)
    head, large, larger = (
        Query(name, "a", start, start + left, rows)
        for name, left, rows in (("1", 0.04, 1), ("3", 0.2, 3), ("5", 0.15, 5))
    )
    for query in (head, large, larger):
        policy.handle(Arrived(query), start)
    actions = policy.handle(Offered(), start)
    assert [a for a in actions if not isinstance(a, WakeAt)] == [
        Drop(head, Reason.SHED),
        Drop(larger, Reason.TOO_LARGE),
        Run("v", (large,), 3),
    ]


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_a_bad_share_is_refused(share: float) -> None:
    with pytest.raises(ConfigurationError, match="max_latency_share"):
        batching("early-drop", max_latency_share=share)


@pytest.mark.parametrize("start", [70.0, 1.7e9])
def test_the_limit_found_stands_while_the_same_variant_is_hosted_for_batches_of_its_size(start: float) -> None:
    """Peers come and go, and a slice says again what it hosts: nothing of that makes batches longer."""
    policy = AdditiveIncrease(step=2.0)
    long, short = (Hosted("v", 0.9, LatencyCurve(WHOLE[:most])) for most in (31, 2))
    other = Hosted("w", 0.8, LatencyCurve(WHOLE))
    policy.handle(HostingChanged("a", (long, other), SLO), start)
    policy.handle(Arrived(Query("q0", "a", start, start + SLO)), start)
    policy.handle(Offered(), start)
    policy.handle(Finished("a", "v", 1, WHOLE[0]), start + WHOLE[0])
    limits = []
    for hosted, peers in (((long, other), ("d0", "d1")), ((long,), ()), ((short,), ()), ((other, long), ())):
        policy.handle(HostingChanged("a", hosted, SLO, peers=tuple((peer, "whole") for peer in peers)), start + 1.0)
        limits.append(policy.limit)
    assert limits == [3.0, 3.0, 2.0, 1.0]
