"""Batching rules against known figures: latency b + 10 ms up to 45, SLO 100 ms, capacity 818/s, Poisson arrivals."""

import numpy as np
import pytest

from reproduce.spread_drop.trial import Trial, try_alone
from sluicegate.domain.events import Hosted
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.query import Query
from sluicegate.policies.batching.registry import batching
from sluicegate.policies.serving.slice_scheduler import Station

SLO = 0.1
CURVE = LatencyCurve(tuple((b + 10) / 1000 for b in range(1, 46)))
RATES = (800, 900, 1200)


def served(rule: str, rate: float, count: int = 20_000) -> Trial:
    arrivals = np.cumsum(np.random.default_rng(7).exponential(1 / rate, count)).tolist()
    queries = [Query("", "a", at, at + SLO) for at in arrivals]
    return try_alone(Station(batching(rule)), queries, (Hosted("v", 0.9, CURVE),), SLO)


@pytest.mark.parametrize(
    ("rule", "expected", "within"),
    [("lazy-drop", (22, 17, 11), 2.0), ("early-drop", (97, 90, 69), 2.5), ("aimd", (52, 4, 0.2), 10.0)],
)
def test_shares_served_in_time_are_those_of_the_reference(
    rule: str, expected: tuple[float, ...], within: float
) -> None:
    for rate, share in zip(RATES, expected, strict=True):
        assert 100 * (1 - served(rule, rate).violation_ratio) == pytest.approx(share, abs=within)


@pytest.mark.parametrize("rate", RATES)
def test_the_adaptive_rule_misses_fewer_than_every_published_one(rate: float) -> None:
    ours = served("adaptive", rate).violation_ratio
    for rule in ("static", "deadline", "aimd", "early-drop", "lazy-drop", "spread-drop"):
        assert ours <= served(rule, rate).violation_ratio


def test_no_rule_but_aimd_runs_what_comes_late() -> None:
    for rule in ("adaptive", "static", "deadline", "eager", "early-drop", "lazy-drop", "spread-drop", "balanced"):
        assert served(rule, 900, 5_000).wasted_s == 0.0
    assert served("aimd", 900, 5_000).wasted_s > 0.0


@pytest.mark.parametrize("rate", [1200, 2000])
def test_under_lasting_overload_the_adaptive_rule_keeps_batches_large_and_eager_does_not(rate: float) -> None:
    ours, eager = served("adaptive", rate), served("eager", rate)
    assert ours.mean_batch > 20 > 2 * eager.mean_batch
    on_time = (20_000 - ours.misses) / ours.ended
    assert on_time > 0.9 * 818 > 4 * (20_000 - eager.misses) / eager.ended
