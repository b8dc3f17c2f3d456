"""Measured latency need not grow with the batch: no rule may wait past what a smaller batch takes."""

import numpy as np
import pytest

from reproduce.spread_drop.trial import try_alone
from sluicegate.domain.events import Hosted
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.query import Query
from sluicegate.policies.batching.registry import batching
from sluicegate.policies.serving.slice_scheduler import Station

FLAT = (0.2727, 0.2740, 0.2737, 0.2733, 0.2731, 0.2730, 0.2729, 0.2727)
"""As measured: a batch of two takes 1 ms longer than one of eight."""
FALLING = (0.100, 0.099, 0.090, 0.080, 0.088, 0.095)
SLO = {FLAT: 0.63, FALLING: 0.25}


def _missed(rule: str, seconds: tuple[float, ...], qps: float) -> float:
    times = np.cumsum(np.random.default_rng(3).exponential(1.0 / qps, 1500)).tolist()
    slo = SLO[seconds]
    queries = [Query(id=str(i), app="a", arrival=t, deadline=t + slo) for i, t in enumerate(times)]
    hosted = (Hosted("v", 0.9, LatencyCurve(seconds)),)
    return try_alone(Station(batching(rule)), queries, hosted, slo).violation_ratio


@pytest.mark.parametrize("rule", ["adaptive", "deadline", "static"])
@pytest.mark.parametrize(("seconds", "qps"), [(FLAT, 3.0), (FLAT, 10.0), (FALLING, 8.0), (FALLING, 20.0)])
def test_waiting_costs_no_query_where_a_smaller_batch_takes_longer(
    rule: str, seconds: tuple[float, ...], qps: float
) -> None:
    at_once = _missed("eager", seconds, qps)
    assert _missed(rule, seconds, qps) <= at_once + 0.02
