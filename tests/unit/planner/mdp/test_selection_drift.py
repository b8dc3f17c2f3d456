"""Alarms where observations leave what a table promises, and only there, with the reason."""

from dataclasses import replace

import numpy as np
import pytest

from sluicegate.domain.table import SelectionTable
from sluicegate.planner.mdp.generate_table import generate
from sluicegate.planner.mdp.mdp_model import Candidate, SelectionModel
from sluicegate.planner.policy_tables.drift import Observed, check, surprising


@pytest.fixture(scope="module")
def table() -> SelectionTable:
    variants = (Candidate("a", 0.6, (0.01, 0.015, 0.02)), Candidate("b", 0.8, (0.04, 0.07, 0.1)))
    return generate(SelectionModel(variants=variants, slo=0.1, workers=4, qps=80.0, grid=40)).table


def as_promised(table: SelectionTable, queries: int = 100_000) -> Observed:
    on_time = round(queries * (1.0 - table.expected.violation))
    mean = table.expected.accuracy
    return Observed(
        queries=queries,
        on_time=on_time,
        accuracy_sum=mean * on_time,
        accuracy_squares=(mean**2 + 0.01) * on_time,
        qps=table.qps,
        gap_variation=0.25,
        latency_ratio=1.0,
    )


def test_what_is_as_promised_raises_no_alarm(table: SelectionTable) -> None:
    assert check(table, as_promised(table)) == ()
    assert check(table, replace(as_promised(table), queries=0, on_time=0)) == ()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"qps": 120.0}, "load 120"),
        ({"gap_variation": 1.0}, "gaps vary"),
        ({"latency_ratio": 1.3}, "latency is 1.3"),
        ({}, "as assumed"),
    ],
)
def test_too_many_violations_raise_an_alarm_with_the_reason(
    table: SelectionTable, changed: dict[str, float], said: str
) -> None:
    late = replace(as_promised(table), on_time=90_000, accuracy_sum=90_000 * table.expected.accuracy, **changed)
    (alarm,) = [a for a in check(table, late) if a.promise == "violation"]
    assert alarm.observed == pytest.approx(0.1)
    assert any(said in reason for reason in alarm.reasons)


def test_accuracy_below_the_promise_raises_an_alarm(table: SelectionTable) -> None:
    seen = as_promised(table)
    less = replace(seen, accuracy_sum=seen.accuracy_sum * 0.97)
    assert [a.promise for a in check(table, less)] == ["accuracy"]


def test_few_queries_prove_nothing(table: SelectionTable) -> None:
    assert check(table, replace(as_promised(table, 20), on_time=19)) == ()


def test_false_alarms_are_rare() -> None:
    rng = np.random.default_rng(0)
    late = rng.binomial(5000, 0.01, size=4000)
    assert np.mean([surprising(float(k), 5000.0, 0.01, 3.0) for k in late]) < 0.01
    assert not surprising(0.0, 0.0, 0.01, 3.0)
    assert surprising(5000.0, 5000.0, 0.9, 3.0)


@pytest.mark.parametrize(("spread", "alarms"), [(0.0, ["accuracy"]), (0.01, ["accuracy"]), (0.04, [])])
def test_accuracy_is_below_the_promise_where_its_own_spread_does_not_explain_that(
    table: SelectionTable, spread: float, alarms: list[str]
) -> None:
    """400 batches whose mean is .02 off: 3 standard errors are .15 times the root of the spread."""
    batch, mean = max(table.expected.mean_batch, 1.0), table.expected.accuracy - 0.02
    on_time = round(400 * batch)
    seen = replace(
        as_promised(table),
        queries=on_time,
        on_time=on_time,
        accuracy_sum=mean * on_time,
        accuracy_squares=(mean**2 + spread) * on_time,
    )
    assert [a.promise for a in check(table, seen)] == alarms
