"""What tables promise holds in long simulations, and what is known in theory is found."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from reproduce.ramsis.round_robin_workers import Tally, serve_by_workers
from sluicegate.domain.events import Hosted
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.table import DROP, SelectionTable
from sluicegate.planner.mdp.generate_table import generate
from sluicegate.planner.mdp.mdp_model import Candidate, SelectionModel, pareto_front
from sluicegate.planner.mdp.table_sizing import fewest_workers
from sluicegate.planner.policy_tables.table_library import build_library, peak_rate
from sluicegate.planner.policy_tables.table_requests import LibraryRules
from sluicegate.policies.mdp_serving.table_policy import TableSelection

SLO = 0.15
CURVES = {"tiny": (0.55, 0.012, 0.010), "small": (0.7, 0.03, 0.02), "large": (0.85, 0.07, 0.05)}
VARIANTS = tuple(
    Candidate(name, accuracy, tuple(base + step * b for b in range(1, 17)))
    for name, (accuracy, base, step) in CURVES.items()
)
HOSTED = tuple(Hosted(v.name, v.accuracy, LatencyCurve(v.latency)) for v in reversed(VARIANTS))
SECONDS = {v.name: v.latency for v in VARIANTS}


def model(workers: int, per_worker: float, **rest: Any) -> SelectionModel:
    return SelectionModel(variants=VARIANTS, slo=SLO, workers=workers, qps=workers * per_worker, **rest)


def gamma_arrivals(qps: float, count: int, shape: float, seed: int) -> np.ndarray[Any, Any]:
    return np.cumsum(np.random.default_rng(seed).gamma(shape, 1.0 / (shape * qps), count))


def simulate(
    table: SelectionTable, *, shape: float = 1.0, seed: int = 0, random: bool = False, count: int = 60_000
) -> Tally:
    arrivals = gamma_arrivals(table.qps, count, shape, seed)
    dispatch = np.random.default_rng(seed + 1).integers(table.workers, size=count) if random else None
    return serve_by_workers(
        arrivals, slo=SLO, workers=table.workers, hosted=HOSTED, random_dispatch=dispatch,
        make_policy=lambda: TableSelection(tables=(table,), qps=table.qps),
        service=lambda variant, rows: SECONDS[variant][rows - 1],
    )  # fmt: skip


def to_the_letter(table: SelectionTable, shape: float, seed: int, *, random: bool, count: int = 60_000) -> Tally:
    """Every batch is what the table says, late or not."""
    arrivals = gamma_arrivals(table.qps, count, shape, seed)
    worker_of = np.random.default_rng(seed + 1).integers(table.workers, size=count) if random else np.arange(count)
    accuracy = {v.name: v.accuracy for v in VARIANTS}
    tally = Tally()
    for worker in range(table.workers):
        mine = arrivals[worker_of % table.workers == worker].tolist()
        now, head, seen = 0.0, 0, 0
        while head < len(mine):
            now = max(now, mine[head])
            while seen < len(mine) and mine[seen] <= now:
                seen += 1
            code, batch = table.lookup(seen - head, mine[head] + SLO - now)
            if code == DROP:
                tally.queries, head = tally.queries + 1, head + 1
                continue
            variant = table.variants[code]
            now += SECONDS[variant][batch - 1]
            if now <= mine[head] + SLO:  # as the model has it: a batch is as late as its head
                tally.on_time += batch
                tally.gained += batch * accuracy[variant]
            tally.batches += 1
            tally.queries += batch
            head += batch
    return tally


@pytest.mark.parametrize(
    ("workers", "per_worker", "shape", "dispatch"),
    [
        (1, 4.0, 1.0, "round_robin"),
        pytest.param(8, 12.0, 1.0, "round_robin", marks=pytest.mark.thorough),
        pytest.param(8, 25.0, 1.0, "round_robin", marks=pytest.mark.thorough),
        (6, 12.0, 0.4, "round_robin"),
        (5, 14.0, 2.7, "round_robin"),
        (8, 10.0, 1.0, "random"),
    ],
)
def test_promises_hold_for_workers_that_follow_the_table_to_the_letter(
    workers: int, per_worker: float, shape: float, dispatch: str
) -> None:
    """Slack is rounded down, so accuracy is a lower bound and violation an upper one; on a fine grid, close ones."""
    table = generate(model(workers, per_worker, arrival_shape=shape, dispatch=dispatch, grid=150)).table
    runs = [to_the_letter(table, shape, seed, random=dispatch == "random") for seed in range(4)]
    for found, promised, sign in (
        ([r.accuracy for r in runs], table.expected.accuracy, 1.0),
        ([r.violation for r in runs], table.expected.violation, -1.0),
    ):
        error = float(np.std(found, ddof=1)) / 2.0 + 1e-4
        above = sign * (float(np.mean(found)) - promised)
        assert -3.5 * error <= above <= 3.5 * error + 0.006


@pytest.mark.parametrize(
    ("batching", "times"),
    [
        ("maximal", 0.8),
        pytest.param("maximal", 1.5, marks=pytest.mark.thorough),
        pytest.param("maximal", 10.0, marks=pytest.mark.thorough),
        pytest.param("variable", 3.0, marks=pytest.mark.thorough),
        ("variable", 12.0),
    ],
)
def test_a_table_that_drops_promises_no_more_than_workers_can_answer_and_about_what_they_do(
    batching: str, times: float
) -> None:
    """Also where most queries come to a queue that is full."""
    asked = model(6, 1.0, batching=batching, late="drop", grid=60)
    peak = peak_rate(asked)
    table = generate(asked.at(times * peak)).table
    expected = table.expected
    assert (1.0 - expected.violation) * times <= 1.0
    run = to_the_letter(table, 1.0, 3, random=False, count=int(20_000 * max(1.0, times)))
    assert (1.0 - expected.violation) * times == pytest.approx((1.0 - run.violation) * times, abs=0.08)
    assert expected.accuracy == pytest.approx(run.accuracy, abs=0.01)


@pytest.mark.parametrize(
    ("batching", "times"),
    [
        ("maximal", 0.85),
        *(
            pytest.param(*one, marks=pytest.mark.thorough)
            for one in (("variable", 1.0), ("variable", 0.85), ("variable", 1.2), ("maximal", 1.0), ("maximal", 1.2))
        ),
    ],
)
def test_near_capacity_giving_heads_up_answers_more_than_serving_late(batching: str, times: float) -> None:
    """A head that is saved by a small batch has more behind it miss."""
    asked = model(8, 1.0, batching=batching, grid=60)
    asked = asked.at(times * peak_rate(asked))
    gains = []
    for late in ("serve", "drop"):
        table = generate(replace(asked, late=late)).table  # type: ignore[arg-type]
        run = to_the_letter(table, 1.0, 5, random=False, count=40_000)
        promised = table.expected.accuracy * (1.0 - table.expected.violation) - 0.5 * table.expected.violation
        gains.append((promised, run.gained / run.queries - 0.5 * run.violation))
    assert gains[1][0] >= gains[0][0] - 1e-6
    assert gains[1][1] >= gains[0][1] + (0.1 if times >= 1.0 else -0.002)


def test_a_worker_whose_queue_is_short_is_not_thought_to_serve_what_finds_it_full() -> None:
    """The accurate variant takes so long that more come meanwhile than the queue holds, again and again."""
    fast = Candidate("fast", 0.6, tuple(0.01 + 0.01 * b for b in range(1, 9)))
    slow = Candidate("slow", 0.9, tuple(0.28 + 0.02 * b for b in range(1, 9)))
    for batching in ("maximal", "variable"):
        for late in ("serve", "drop"):
            asked = SelectionModel(
                variants=(fast, slow), slo=0.5, workers=60, qps=60 * 75.0, grid=50, batching=batching, late=late
            )  # type: ignore[arg-type]
            table = generate(asked).table
            assert table.expected.accuracy == pytest.approx(0.6, abs=1e-3), (batching, late)
            assert table.expected.violation < 1e-9


@pytest.mark.parametrize(
    "per_worker", [*(pytest.param(load, marks=pytest.mark.thorough) for load in (4.0, 12.0, 25.0)), 40.0]
)
def test_the_policy_gains_at_least_what_its_table_promises(per_worker: float) -> None:
    """It saves what the table would serve late, so more is in time, at times less accurately."""
    for workers in (1, 8):
        table = generate(model(workers, per_worker, grid=100)).table
        run = simulate(table)
        promised = table.expected.accuracy * (1.0 - table.expected.violation)
        assert run.gained / run.queries >= promised - 0.003
        assert run.violation <= table.expected.violation + 1e-3


def test_mean_batch_and_utilisation_are_those_of_the_simulation() -> None:
    table = generate(model(6, 24.0, grid=150)).table
    run = simulate(table)
    assert run.queries / run.batches == pytest.approx(table.expected.mean_batch, rel=0.03)
    assert 0.5 < table.expected.utilisation <= 1.0


def test_random_dispatch_promises_less_than_round_robin() -> None:
    even = generate(model(20, 15.0, grid=60)).table.expected
    random = generate(model(20, 15.0, grid=60, dispatch="random")).table.expected
    assert random.accuracy < even.accuracy - 0.002
    assert random.violation >= even.violation


def test_a_weighted_share_of_one_in_k_is_round_robin_over_k() -> None:
    even = generate(model(8, 15.0, grid=40)).table
    weighted = generate(model(3, 40.0, grid=40, dispatch="weighted", share=0.125)).table
    assert weighted.actions == even.actions
    assert weighted.expected.accuracy == pytest.approx(even.expected.accuracy, abs=1e-9)
    uneven = generate(model(3, 40.0, grid=40, dispatch="weighted", share=0.3)).table
    assert uneven.assumptions["share_error"] == pytest.approx(3 * 0.3 - 1.0)


def test_the_criterion_per_query_is_never_worse_by_its_own_measure() -> None:
    for per_worker in (8.0, 20.0, 30.0, 45.0):
        by_query = generate(model(10, per_worker, grid=60, violation_price=0.5)).table.expected
        by_decision = generate(model(10, per_worker, grid=60, criterion="decision")).table.expected
        gains = [e.accuracy * (1.0 - e.violation) - 0.5 * e.violation for e in (by_query, by_decision)]
        assert gains[0] >= gains[1] - 1e-7


def test_a_higher_price_never_brings_more_violations() -> None:
    found = [
        generate(model(10, 42.0, grid=60, violation_price=c)).table.expected.violation for c in (0.0, 0.3, 1.0, 5.0)
    ]
    assert all(a >= b - 1e-9 for a, b in pairwise(found))


def test_variable_batches_and_phases_are_never_worse_than_without() -> None:
    base = generate(model(6, 26.0, grid=60, queue=10, violation_price=0.5)).table.expected
    phases = generate(model(6, 26.0, grid=60, queue=10, violation_price=0.5, phases=6)).table
    gain = [e.accuracy * (1.0 - e.violation) - 0.5 * e.violation for e in (base, phases.expected)]
    assert gain[1] >= gain[0] - 2e-4  # within what rounding of slacks is worth
    assert phases.longest == 10
    variable = generate(model(6, 26.0, grid=60, queue=10, batching="variable", late="drop")).table
    assert variable.batches
    run = simulate(variable)
    assert run.accuracy >= variable.expected.accuracy - 0.005
    assert run.violation <= variable.expected.violation + 1e-3


def test_model_based_bins_do_what_many_equal_bins_do() -> None:
    many = generate(model(8, 15.0, grid=300)).table.expected
    few = generate(model(8, 15.0, grid="model")).table
    assert len(few.slacks) < 60
    assert few.expected.accuracy <= many.accuracy + 1e-3
    assert simulate(few).accuracy >= few.expected.accuracy - 2e-3


def test_one_variant_one_worker_leaves_no_choice() -> None:
    only = SelectionModel(variants=VARIANTS[:1], slo=SLO, workers=1, qps=5.0, grid=30)
    table = generate(only).table
    assert set(table.actions) == {0}
    assert table.expected.accuracy == pytest.approx(0.55)


def test_zero_load_takes_the_most_accurate_that_is_in_time() -> None:
    expected = generate(model(4, 0.0, grid=30)).table.expected
    assert expected.accuracy == pytest.approx(0.85)
    assert expected.violation == pytest.approx(0.0, abs=1e-9)
    assert expected.mean_batch == pytest.approx(1.0, abs=1e-6)
    assert expected.utilisation < 1e-6


def test_far_above_capacity_a_table_is_still_a_table_and_promises_little() -> None:
    table = generate(model(4, 500.0, grid=30)).table
    assert table.expected.violation > 0.9
    assert generate(model(4, 5000.0, grid=30)).table.expected.accuracy == 0.0  # of none in time
    assert table.expected.utilisation == 1.0


def test_a_slo_that_nothing_meets_is_violated_not_refused() -> None:
    table = generate(SelectionModel(variants=VARIANTS, slo=0.01, workers=2, qps=5.0, grid=10)).table
    assert table.expected.violation == pytest.approx(1.0)
    assert set(table.actions) == {0}


def test_a_library_is_dense_and_ends_where_violations_do() -> None:
    rules = LibraryRules(spacing=0.02, max_violation=0.02)
    tables = build_library(model(4, 1.0, grid=40), rules=rules)
    loads = [t.qps for t in tables]
    assert loads == sorted(loads)
    assert loads[-1] <= peak_rate(model(4, 1.0))
    for a, b in pairwise(tables):
        close = b.qps - a.qps <= 0.0021 * loads[-1]
        assert close or abs(a.expected.accuracy - b.expected.accuracy) <= 0.02
    assert all(t.expected.violation <= 0.02 for t in tables)
    hopeless = SelectionModel(variants=VARIANTS, slo=0.01, workers=2, qps=5.0, grid=10)
    assert build_library(hopeless, lowest=1.0, highest=2.0) == ()


@pytest.mark.parametrize(("accuracy", "violation"), [(0.75, 1e-3), (0.62, 1e-4), (0.62, 1e-6), (0.0, 0.2)])
def test_sizing_finds_the_fewest_of_all_numbers_that_meet_its_targets(accuracy: float, violation: float) -> None:
    asked = SelectionModel(variants=VARIANTS, slo=SLO, workers=1, qps=100.0, grid=40)
    sized = fewest_workers(asked, accuracy=accuracy, violation=violation, most=30)
    assert sized is not None
    for workers in range(1, sized.workers + 1):
        found = generate(replace(asked, workers=workers)).table.expected
        meets = found.accuracy >= accuracy and found.violation <= violation
        assert meets == (workers == sized.workers), (workers, found)


def test_sizing_says_when_no_number_is_enough() -> None:
    asked = SelectionModel(variants=VARIANTS, slo=SLO, workers=1, qps=100.0, grid=40)
    assert fewest_workers(asked, accuracy=0.86, violation=1e-3, most=60) is None
    assert fewest_workers(replace(asked, slo=0.01), accuracy=0.1, violation=0.1, most=60) is None


def test_the_pareto_front_leaves_out_what_is_beaten() -> None:
    beaten = Candidate("beaten", 0.6, tuple(0.05 + 0.02 * b for b in range(1, 17)))
    twin = Candidate("twin", 0.7, VARIANTS[1].latency)
    assert [v.name for v in pareto_front((beaten, *VARIANTS, twin))] == ["tiny", "small", "large"]
