"""What decisions are made of: variants that count, arrivals at one worker, what may be decided, a worker's curve."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.planner.mdp import load_curve
from sluicegate.planner.mdp.action_space import DROP, Options, enumerate_options
from sluicegate.planner.mdp.arrival_process import WorkerArrivals, worker_arrivals
from sluicegate.planner.mdp.generate_table import generate
from sluicegate.planner.mdp.load_curve import Piece, Promise, pieces, promises
from sluicegate.planner.mdp.mdp_model import Candidate, SelectionModel, non_decreasing, pareto_front
from sluicegate.planner.mdp.operators import build_chain
from sluicegate.planner.policy_tables.fingerprint import fingerprint

FAST = Candidate("fast", 0.6, (0.01, 0.03, 0.05))
GOOD = Candidate("good", 0.9, (0.04, 0.07, 0.09))


def model(**changes: Any) -> SelectionModel:
    usual: dict[str, Any] = {"variants": (FAST, GOOD), "slo": 0.1, "workers": 4, "qps": 60.0, "grid": 10, "queue": 3}
    return SelectionModel(**{**usual, **changes})


def test_a_model_takes_254_variants_and_no_more() -> None:
    many = tuple(Candidate(f"v{i}", 0.5, (0.01,)) for i in range(255))
    assert len(model(variants=many[:254]).variants) == 254
    with pytest.raises(InvalidInputError, match="255 of them; give 1 to 254"):
        model(variants=many)


def test_of_variants_alike_in_time_the_most_accurate_counts_and_of_those_alike_the_first_by_name() -> None:
    worse = Candidate("a", 0.7, (0.02, 0.02))
    better = Candidate("c", 0.8, (0.02, 0.05))
    alike = Candidate("b", 0.8, (0.02, 0.06))
    slower = Candidate("d", 0.8, (0.03,))
    best = Candidate("e", 0.85, (0.04,))
    assert pareto_front((best, worse, slower, better, alike)) == (alike, best)
    assert pareto_front(()) == ()


def test_a_batch_takes_no_longer_than_a_larger_one_does() -> None:
    assert non_decreasing((0.05, 0.03, 0.04, 0.06, 0.055)) == (0.03, 0.03, 0.04, 0.055, 0.055)


def test_a_fingerprint_is_16_hexadecimal_digits_of_all_but_the_load() -> None:
    found = fingerprint(model())
    assert len(found) == 16 and set(found) <= set("0123456789abcdef")
    assert fingerprint(model(qps=7.0)) == found
    changes: tuple[dict[str, Any], ...] = ({"workers": 5}, {"slo": 0.2}, {"grid": 11}, {"late": "drop"}, {"phases": 2})
    assert len({found, *(fingerprint(model(**change)) for change in changes)}) == 6


@pytest.mark.parametrize(
    ("change", "shape", "stage_rate", "share_error"),
    [
        ({"arrival_shape": 1.5}, 6.0, 90.0, 0.0),
        ({"dispatch": "random", "arrival_shape": 2.0}, 1.0 / 0.875, 15.0 / 0.875, 0.0),
        ({"dispatch": "weighted", "share": 0.3, "arrival_shape": 2.0}, 6.0, 108.0, -0.1),
        ({"dispatch": "weighted", "share": 0.8}, 1.0, 48.0, -0.2),
        ({"dispatch": "weighted", "share": 1.0 / 3500.0}, 3500.0, 60.0, 0.0),
        ({"dispatch": "weighted", "share": 1.0 / 8000.0}, 4000.0, 30.0, -0.5),
        ({"dispatch": "weighted", "share": 1.0 / 200.0, "arrival_shape": 50.0}, 4000.0, 1200.0, 0.0),
        ({"workers": 100, "arrival_shape": 100.0}, 4000.0, 2400.0, 0.0),
        ({"qps": 0.0}, 4.0, 1e-8, 0.0),
    ],
)
def test_a_worker_sees_its_part_of_the_arrivals_as_they_are_dealt(
    change: dict[str, Any], shape: float, stage_rate: float, share_error: float
) -> None:
    found = worker_arrivals(model(**change))
    assert (found.shape, found.stage_rate) == (pytest.approx(shape), pytest.approx(stage_rate))
    assert found.share_error == pytest.approx(share_error)
    assert found.gap == pytest.approx(shape / stage_rate)


@pytest.mark.parametrize("change", [{}, {"arrival_shape": 0.4}, {"workers": 50}, {"dispatch": "random"}])
def test_a_chain_is_no_larger_for_whatever_load_is_asked_for(change: dict[str, Any]) -> None:
    """From where the queue is full of what came on, nothing is told apart that another arrival would change."""
    high, absurd = (build_chain(model(**change, qps=qps)).kernel for qps in (1e6, 1e9))
    assert len(absurd.v_nodes) <= len(high.v_nodes) < 3000
    assert absurd.s_nodes <= high.s_nodes
    assert generate(model(**change, qps=1e9)).table.expected.violation == pytest.approx(1.0)


def test_gaps_vary_by_their_standard_deviation_but_by_no_more_than_a_mean_gap() -> None:
    smooth, bursty = WorkerArrivals(4.0, 10.0), WorkerArrivals(0.25, 10.0)
    assert (smooth.spread, bursty.spread) == (0.2, 0.025)
    assert (smooth.staged, bursty.staged) == (True, False)
    assert (smooth.longest_gap(), bursty.longest_gap()) == (pytest.approx(6.2), pytest.approx(4.475))


def at(options: Options, variant: int, batch: int) -> list[int]:
    """Slacks, in tenths of the SLO, at which that may be decided."""
    (option,) = np.flatnonzero((options.variant == variant) & (options.batch == batch))
    return [int(j) for j in np.flatnonzero(options.valid[:, option])]


def test_where_the_whole_queue_is_late_all_of_it_is_served_by_the_fastest() -> None:
    (one, _, three), taus = enumerate_options(model())
    assert list(taus) == [0.01, 0.03, 0.04, 0.05, 0.07, 0.09]
    assert (len(one), len(three)) == (2, 2)
    assert at(one, 0, 1) == at(three, 0, 3) == [*range(11)]
    assert at(one, 1, 1) == [4, 5, 6, 7, 8, 9, 10]
    assert at(three, 1, 3) == [9, 10]
    assert [list(np.flatnonzero(column)) for column in three.satisfied.T] == [[5, 6, 7, 8, 9, 10], [9, 10]]


def test_where_late_queries_are_dropped_the_largest_part_that_is_in_time_is_served_and_the_head_may_go_anywhere() -> (
    None
):
    (one, _, three), taus = enumerate_options(model(late="drop"))
    assert list(taus) == [0.0, 0.01, 0.03, 0.04, 0.05, 0.07, 0.09], "a drop takes no time"
    assert (at(one, 0, 1), at(one, DROP, 1)) == ([*range(1, 11)], [*range(11)])
    assert at(three, 0, 3) == [5, 6, 7, 8, 9, 10]
    assert at(three, 1, 3) == [9, 10]
    assert at(three, 0, 2) == [3, 4]
    assert at(three, 0, 1) == [1, 2]
    assert at(three, DROP, 1) == [*range(11)]
    assert len(three) == 5
    (_, two), _ = enumerate_options(model(late="drop", queue=2, slo=0.02))
    assert at(two, 0, 1) == [*range(5, 11)], "one of them is in time though both never are"


def test_where_any_part_may_be_served_each_that_is_in_time_may_be_and_a_drop_anywhere() -> None:
    (_, _, three), _ = enumerate_options(model(batching="variable", late="drop"))
    assert [at(three, 0, b) for b in (1, 2, 3)] == [[*range(1, 11)], [*range(3, 11)], [*range(5, 11)]]
    assert [at(three, 1, b) for b in (1, 2, 3)] == [[*range(4, 11)], [*range(7, 11)], [9, 10]]
    assert at(three, DROP, 1) == [*range(11)]
    assert len(three) == 7


def test_of_variants_that_take_as_long_the_most_accurate_may_be_chosen_and_what_never_fits_may_not() -> None:
    twin = replace(FAST, name="twin", accuracy=0.7)
    late = Candidate("late", 0.99, (0.11, 0.2, 0.3))
    (one, _, three), _ = enumerate_options(model(variants=(FAST, twin, late)))
    assert (list(one.variant), list(three.variant)) == ([1], [1])
    assert (list(one.accuracy), list(three.batch)) == ([0.7], [3])
    (one,), _ = enumerate_options(model(variants=(late, replace(late, name="later", accuracy=0.5)), queue=1))
    assert (list(one.variant), one.valid.all(), one.satisfied.any()) == ([0], True, False)


def test_a_worker_is_looked_at_for_parts_of_what_each_variant_can_do_in_time() -> None:
    asked = model(variants=(FAST, Candidate("slow", 0.95, (0.05, 0.08, 0.2)), Candidate("late", 0.99, (0.11,))))
    alone = replace(asked, workers=1)
    found = promises(alone)  # 100 and 25 queries/s alone; the third is never in time
    assert [p.qps for p in found] == pytest.approx([15.0, 21.25, 60.0, 80.0, 92.0])
    assert promises(replace(alone, qps=33.0)) is found, "whatever is asked for"
    assert promises(replace(alone, grid=9)) is not found


def test_of_many_loads_that_accurate_variants_can_serve_six_are_looked_at() -> None:
    slow = tuple(Candidate(f"s{i}", 0.7 + 0.05 * i, (1.0 / rate,)) for i, rate in enumerate((40, 30, 20, 10)))
    found = promises(model(variants=(replace(FAST, latency=(0.01,)), *slow), workers=1, slo=0.11, queue=1))
    each = [6.0, 8.5, 12.0, 17.0, 18.0, 24.0, 25.5, 34.0]
    assert [p.qps for p in found] == pytest.approx([each[i] for i in (0, 1, 2, 4, 5, 7)] + [60.0, 80.0, 92.0])


def test_workers_beyond_eight_count_as_eight_and_others_as_the_power_of_two_below() -> None:
    few = model(variants=(replace(FAST, latency=(0.01,)),), queue=1)
    eight = promises(replace(few, workers=8))
    assert promises(replace(few, workers=11)) is promises(replace(few, workers=64)) is eight
    assert promises(replace(few, workers=7)) is promises(replace(few, workers=4)) is not eight


@pytest.mark.parametrize(
    ("told", "curve"),
    [
        ((), ()),
        (((10.0, 0.8, 0.0), (20.0, 0.8, 0.0)), ((20.0, 1.0),)),
        (((10.0, 0.2, 0.0), (20.0, 0.8, 0.0)), ((20.0, 1.0),)),
        (((10.0, 0.8, 0.0), (20.0, 0.6, 0.05)), ((10.0, 1.0), (10.0, 0.325))),
        (((10.0, 0.8, 0.0), (20.0, 0.6, 0.051)), ((10.0, 1.0),)),
        (
            ((10.0, 0.8, 0.0), (20.0, 0.6, 0.05), (30.0, 0.1, 0.0), (40.0, 0.3, 0.0), (50.0, 0.2, 0.0)),
            ((10.0, 1.0), (10.0, 0.325), (20.0, 0.0875)),
        ),
    ],
)
def test_a_curve_is_the_concave_envelope_over_what_is_earned_up_to_where_more_load_earns_nothing(
    told: tuple[tuple[float, float, float], ...],
    curve: tuple[tuple[float, float], ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At 20 queries/s, .6 x .95 / .8 - .05 = .6625 a query: 13.25; at 40, .375 a query: 15; at 50, 12.5."""
    monkeypatch.setattr(load_curve, "promises", lambda _: tuple(Promise(*one) for one in told))
    found = pieces(model(), best=0.8, max_violation=0.05)
    assert found == tuple(Piece(pytest.approx(qps), pytest.approx(worth)) for qps, worth in curve)
