"""Measured latency need not grow with the batch: no rule may wait past what a smaller batch takes."""

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reproduce.spread_drop.trial import try_alone
from sluicegate.domain.actions import Drop, Run
from sluicegate.domain.events import Arrived, Hosted, HostingChanged, Offered
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


TICK = 1 / 1024
START = 1.7e9


def _runs_and_drops(
    rule: str, seconds: tuple[float, ...], queries: list[Query], slo: float = 1.0
) -> tuple[list[str], list[str], int]:
    """Queries run, queries dropped, and the batch's rows, where all are offered the executor at once."""
    policy = batching(rule, **({"max_latency_share": 1.0} if rule == "early-drop" else {}))()
    policy.handle(HostingChanged("a", (Hosted("v", 0.9, LatencyCurve(seconds)),), slo), START)
    for query in queries:
        policy.handle(Arrived(query), START)
    actions = policy.handle(Offered(), START)
    runs = [action for action in actions if isinstance(action, Run)]
    dropped = [action.query.id for action in actions if isinstance(action, Drop)]
    return [query.id for run in runs for query in run.queries], dropped, sum(run.rows for run in runs)


def _ticks(most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, most), min_size=1, max_size=8)


@settings(deadline=None)
@given(curve=_ticks(60), waiting=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 4)), min_size=1, max_size=10))
def test_early_drop_gives_up_no_more_heads_than_its_batch_needs_on_any_curve(
    curve: list[int], waiting: list[tuple[int, int]]
) -> None:
    waiting.sort(key=lambda each: each[0])
    queries = [Query(f"q{i}", "a", START, START + due * TICK, rows) for i, (due, rows) in enumerate(waiting)]
    ran, dropped, rows = _runs_and_drops("early-drop", tuple(ticks * TICK for ticks in curve), queries)
    expected: tuple[list[str], int] = ([], 0)
    for first, (due, head_rows) in enumerate(waiting):
        upto = list(accumulate(rows for _, rows in waiting[first:]))
        size = min(len(curve), upto[-1])
        fitting = [total for total in upto if total <= size]
        if head_rows <= len(curve) and all(curve[n - 1] <= due for n in (head_rows, size, fitting[-1])):
            expected = ([f"q{first + i}" for i in range(len(fitting))], fitting[-1])
            break
    assert (ran, rows) == expected
    assert dropped == [q.id for q in queries if not ran or int(q.id[1:]) < int(ran[0][1:])]


def test_early_drop_runs_nobody_late_where_the_batch_holds_fewer_rows_than_it_was_sized_for() -> None:
    """Three rows of four are sized for and take 10 ticks; the next query has two, so that two would run, in 30."""
    seconds = tuple(ticks * TICK for ticks in (5, 30, 10))
    head, second, third = (
        Query(f"q{i}", "a", START, START + due * TICK, rows)
        for i, (due, rows) in enumerate(((20, 1), (21, 1), (40, 2)))
    )
    assert _runs_and_drops("early-drop", seconds, [head, second, third]) == (["q1", "q2"], ["q0"], 3)


def test_adaptive_runs_the_batch_it_chose_though_its_head_could_not_be_saved_alone() -> None:
    """Two rows take 43 ticks, four 22, which saves all three queries from the third on; the fourth and fifth alone
    would be late."""
    waiting = ((10, 3), (14, 1), (22, 2), (23, 1), (37, 1), (43, 4), (56, 1), (63, 1))
    queries = [Query(f"q{i}", "a", START, START + due * TICK, rows) for i, (due, rows) in enumerate(waiting)]
    ran, dropped, rows = _runs_and_drops("adaptive", tuple(t * TICK for t in (8, 43, 18, 22)), queries, 100 * TICK)
    assert (ran, dropped, rows) == (["q2", "q3", "q4"], ["q0", "q1"], 4)
