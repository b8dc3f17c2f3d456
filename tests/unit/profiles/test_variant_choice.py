"""Which candidates are served: collapse, domination beyond the noise, and what cannot be told apart."""

from collections.abc import Sequence
from zlib import crc32

import numpy as np
import pytest

from sluicegate.profiles.catalogue.profiler import Sample, spread_of
from sluicegate.profiles.registration import task_metrics
from sluicegate.profiles.registration.pareto_choice import Candidate, verdicts
from sluicegate.profiles.registration.task_metrics import Score, chance, difference, score


def candidate(
    name: str,
    accuracy: float,
    ms: float | tuple[float, float],
    *,
    gap_se: float = 0.0,
    noise: float = 0.01,
    finite: bool = True,
    model: str = "",
    spells: Sequence[float] = (1.0,) * 50,
    cpu: float = 0.0,
) -> Candidate:
    """Rounds at batch 1 and 8, each off by up to ``noise``. ``spells``: how slow the machine was in each round.

    ``cpu``: milliseconds of processor time, the same at both."""
    times = ms if isinstance(ms, tuple) else (ms, 4 * ms)
    rng = np.random.default_rng(crc32(name.encode()))
    rounds = {
        b: tuple(Sample(t * spell * (1.0 + rng.uniform(-noise, noise)), cpu) for spell in spells)
        for b, t in zip((1, 8), times, strict=True)
    }
    return Candidate(
        name=name, score=Score(accuracy, 0.01), gap=Score(0.0, gap_se), rounds=rounds, finite=finite, model=model
    )


def served(*candidates: Candidate, base: float = 0.1) -> list[str]:
    return [name for name, why in verdicts(candidates, base).items() if not why]


def test_trades_of_accuracy_for_time_are_all_served() -> None:
    assert served(candidate("a", 0.9, 10), candidate("b", 0.8, 5), candidate("c", 0.95, 20)) == ["a", "b", "c"]


def test_what_is_slower_and_less_accurate_is_not() -> None:
    why = verdicts([candidate("a", 0.9, 10), candidate("b", 0.8, 12)], 0.1)
    assert why["a"] == ""
    assert why["b"] == "dominated by a, which is 10.0 points more accurate, and 1.20x as fast at batch 8"


def test_the_registered_model_is_not_served_where_another_is_as_accurate_and_faster() -> None:
    assert served(candidate("a", 0.9, 10), candidate("b", 0.9, 5)) == ["b"]


def test_being_slower_at_a_single_batch_size_is_enough_to_stay() -> None:
    assert served(candidate("a", 0.9, (10, 40)), candidate("b", 0.9, (5, 50))) == ["a", "b"]


def test_what_the_noise_does_not_tell_apart_is_served_once_and_as_it_was_registered() -> None:
    noisy = [candidate(name, 0.9, 10 + 0.1 * i, noise=0.2) for i, name in enumerate("cba")]
    assert served(*noisy) == ["c"]
    assert served(candidate("a", 0.900, 10), candidate("b", 0.905, 10, gap_se=0.01)) == ["a"]
    assert served(candidate("a", 0.900, 10), candidate("b", 0.905, 10, gap_se=0.001)) == ["b"]


def test_accuracy_lost_within_the_noise_is_still_lost_where_a_later_one_claims_to_be_as_good() -> None:
    assert served(candidate("a", 0.900, 10), candidate("b", 0.895, 5, gap_se=0.01)) == ["a", "b"]


def test_collapse_is_told_by_skill_beyond_chance_not_by_accuracy() -> None:
    original = candidate("a", 0.95, 10)
    why = verdicts([original, candidate("b", 0.60, 1)], 0.5)
    assert why["b"] == "collapsed: 60.0 % where the registered model reaches 95.0 % and chance 50.0 %"
    assert served(original, candidate("b", 0.60, 1), base=0.1) == ["a", "b"]
    assert "not finite" in verdicts([original, candidate("b", 0.95, 1, finite=False)], 0.1)["b"]


def test_of_different_models_what_is_clearly_faster_stays_however_little_it_is_told_apart_in_accuracy() -> None:
    small = candidate("s", 0.895, 5, gap_se=0.02, model="small")
    large = candidate("l", 0.900, 10, gap_se=0.02, model="large")
    assert served(small, large) == ["s", "l"]
    assert served(large, small) == ["l", "s"], "the order in which they are given decides nothing"
    slow = candidate("s", 0.895, 10, gap_se=0.02, model="small")
    why = verdicts([slow, large], 0.1, lambda one, other: 0.01)
    assert why == {
        "s": "dominated by l, which is as accurate within the noise (+0.5 ± 2.0 points), and as fast within the noise",
        "l": "",
    }
    assert served(large, slow) == ["l"]


def test_a_machine_that_is_slow_by_spells_hides_no_difference_that_each_round_shows() -> None:
    rng = np.random.default_rng(3)
    spells = np.where(rng.random(50) < 0.5, 1.0, 3.0).tolist()
    small = candidate("s", 0.8, 9, noise=0.05, spells=spells, model="small")
    large = candidate("l", 0.9, 10, noise=0.05, spells=spells, model="large")
    medians = [spread_of(one.rounds[8]) for one in (small, large)]
    assert medians[0].high > medians[1].low, "by themselves the medians say nothing"
    assert served(small, large) == ["s", "l"]
    alike = candidate("s", 0.8, 10, noise=0.05, spells=spells, model="small")
    assert served(alike, large) == ["l"]


def test_what_computes_clearly_less_is_faster_however_noisy_the_machine() -> None:
    large = candidate("l", 0.9, 10, noise=0.9, model="large", cpu=6.0)
    assert served(candidate("s", 0.8, 10, noise=0.9, model="small", cpu=4.0), large) == ["s", "l"]
    assert served(candidate("s", 0.8, 10, noise=0.9, model="small", cpu=5.97), large) == ["l"], "by too little"
    few = (1.0,) * 7
    large = candidate("l", 0.9, 10, noise=0.5, spells=few, model="large", cpu=6.0)
    assert served(candidate("s", 0.8, 10, noise=0.5, spells=few, model="small", cpu=4.0), large) == ["s", "l"]


def test_of_few_rounds_all_must_say_the_same() -> None:
    few = (1.0,) * 7
    large = candidate("l", 0.9, 10, noise=0.1, spells=few, model="large")
    assert served(candidate("s", 0.8, 7, noise=0.1, spells=few, model="small"), large) == ["s", "l"]
    assert served(candidate("s", 0.8, 9.5, noise=0.1, spells=few, model="small"), large) == ["l"]
    slow = candidate("s", 0.8, 7, noise=0.1, spells=(*few[1:], 2.0), model="small")
    assert served(slow, large) == ["l"], "one round of seven says otherwise"


def test_of_different_models_equal_in_all_the_first_is_served() -> None:
    twins = [candidate(name, 0.9, 10, model=name) for name in "ba"]
    assert served(*twins) == ["b"]
    assert served(candidate("slow", 0.9, 10, model="x"), candidate("fast", 0.9, 5, model="y")) == ["fast"]


def test_a_small_model_does_not_collapse_because_a_large_one_knows_more_but_what_is_made_of_it_may() -> None:
    large, small = candidate("l", 0.95, 10, model="l"), candidate("s", 0.40, 1, model="s")
    spoilt = candidate("s8", 0.15, 0.5, model="s")
    halved = candidate("l8", 0.40, 2, model="l")
    assert served(large, small, spoilt) == ["l", "s"]
    why = verdicts([large, halved, small, spoilt], 0.1)
    assert why["s8"] == "collapsed: 15.0 % where the registered model reaches 40.0 % and chance 10.0 %"
    assert why["l8"].startswith("collapsed: 40.0 %")


def test_one_that_is_measured_at_fewer_batch_sizes_dominates_none() -> None:
    short = Candidate(name="b", score=Score(0.9, 0.01), gap=Score(0.0, 0.0), rounds={1: (Sample(1.0, 0.0),) * 9})
    assert served(candidate("a", 0.9, 10), short) == ["a", "b"]


def test_the_interval_of_a_median_covers_it_in_about_95_per_cent_of_cases() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        spread = spread_of([Sample(float(t), 0.0) for t in rng.lognormal(0.0, 1.0, 30)])
        assert spread.low <= spread.middle <= spread.high
        covered += spread.low <= 1.0 <= spread.high
    assert 0.93 <= covered / 400 <= 1.0


def test_the_error_of_an_accuracy_is_that_of_repeating_the_measurement() -> None:
    rng = np.random.default_rng(1)
    truth = np.zeros(200, np.int64)
    found = [score("accuracy", (rng.random(200) > 0.8).astype(np.int64), truth) for _ in range(300)]
    spread = float(np.std([s.value for s in found]))
    assert np.mean([s.se for s in found]) == pytest.approx(spread, rel=0.15)
    assert score("accuracy", truth, truth).se > 0.0, "all right in 200 rows does not prove that all always are"


@pytest.mark.parametrize("name", ["accuracy", "f1", "balanced_accuracy"])
def test_a_difference_on_the_same_rows_is_known_better_than_its_two_sides(name: str) -> None:
    rng = np.random.default_rng(2)
    truth = rng.integers(0, 3, 500)
    first = np.where(rng.random(500) < 0.8, truth, (truth + 1) % 3)
    second = np.where(rng.random(500) < 0.02, (first + 1) % 3, first)
    gap = difference(name, first, second, truth)
    assert gap.se < 0.5 * score(name, first, truth).se
    assert abs(gap.value) < 5 * gap.se


def test_metrics_are_what_their_names_say() -> None:
    truth = np.array([0, 0, 0, 1])
    answers = np.array([0, 0, 1, 1])
    assert task_metrics.accuracy(answers, truth) == 0.75
    assert task_metrics.balanced_accuracy(answers, truth) == pytest.approx((2 / 3 + 1) / 2)
    assert task_metrics.f1(answers, truth) == pytest.approx((0.8 + 2 / 3) / 2)
    assert task_metrics.r2(np.array([1.0, 2.0]), np.array([1.0, 2.0])) == 1.0
    assert task_metrics.r2(np.array([5.0, -5.0]), np.array([1.0, 2.0])) == 0.0
    assert chance("accuracy", truth) == 0.75
    assert chance("balanced_accuracy", truth) == 0.5
