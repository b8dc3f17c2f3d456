"""Batching rules where executions vary and stall now and then and timers go off late, as on a busy machine."""

from collections.abc import Callable

import numpy as np
import pytest

from reproduce.spread_drop.trial import Trial, try_alone
from sluicegate.domain.events import Hosted
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.query import Query
from sluicegate.policies.batching.registry import batching
from sluicegate.policies.protocols import BatchingPolicy
from sluicegate.policies.serving.slice_scheduler import Station

SLO = 0.1
COUNT = 4000
MEDIANS = tuple(
    tuple((a + b * rows) / 1000 for rows in range(1, 65)) for a, b in ((0.9, 0.13), (0.5, 0.04), (0.2, 0.01))
)
SIGMA = 0.25


def served(make: Callable[[], BatchingPolicy], rate: float, rows: int, scale: float, seed: int) -> Trial:
    """Poisson arrivals after a hop of some milliseconds; 2 % of executions stall; timers are 1 ms late or more."""
    rng = np.random.default_rng([seed, 1])
    arrivals = np.cumsum(rng.exponential(1 / rate, COUNT))
    ready = np.maximum.accumulate(arrivals + rng.exponential(0.003, COUNT))
    queries = [Query("", "a", float(r), float(a) + SLO, rows) for a, r in zip(arrivals, ready, strict=True)]
    taken = np.random.default_rng([seed, 2])

    def execution(variant: str, size: int) -> float:
        stall = taken.exponential(0.03) if taken.random() < 0.02 else 0.0
        jitter = float(np.exp(SIGMA * taken.standard_normal()))
        return scale * MEDIANS[int(variant)][size - 1] * jitter + float(taken.exponential(0.0007)) + stall

    profiled = [LatencyCurve(m).scaled(scale * float(np.exp(1.64 * SIGMA))) for m in MEDIANS]
    hosted = tuple(Hosted(str(i), 0.9 - i / 10, curve) for i, curve in enumerate(profiled))
    late = np.random.default_rng([seed, 3])
    return try_alone(
        Station(make), queries, hosted, SLO, execution=execution, lag=lambda: 0.001 + float(late.exponential(0.0005))
    )


def missed(rule: str, rate: float, rows: int, scale: float, **options: float) -> float:
    """Mean violations over seeds, %."""
    make = batching(rule, **options)
    return float(np.mean([100 * served(make, rate, rows, scale, seed).violation_ratio for seed in range(3)]))


@pytest.mark.parametrize(
    ("rate", "rows", "scale"),
    [(200.0, 32, 1.0), pytest.param(300.0, 32, 1.0, marks=pytest.mark.thorough), (200.0, 1, 16.0)],
    ids=["near capacity", "over capacity", "long batches"],
)
def test_the_adaptive_rule_misses_no_more_than_those_that_neither_wait_nor_leave_room(
    rate: float, rows: int, scale: float
) -> None:
    ours = missed("adaptive", rate, rows, scale, guard_s=0.005)
    assert ours <= missed("eager", rate, rows, scale) + 0.1
    assert ours <= missed("early-drop", rate, rows, scale) + 0.1
    assert ours <= missed("deadline", rate, rows, scale, guard_s=0.005) + 0.1


def test_room_for_overruns_saves_queries_where_executions_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    with_room = missed("adaptive", 300.0, 32, 1.0, guard_s=0.005)
    monkeypatch.setattr("sluicegate.policies.batching.adaptive.MOST_MARGIN", 0.0)
    assert with_room < missed("adaptive", 300.0, 32, 1.0, guard_s=0.005)
