"""Transitions: the factored kernel equals the paper's formulas written out, and is a Markov chain for any question."""

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betaincc, gammaln, xlogy

from sluicegate.planner.mdp.mdp_model import Array, Batching, Candidate, Dispatch, Late, SelectionModel
from sluicegate.planner.mdp.operators import Chain, build_chain
from tests.models.selection_oracle import Oracle

SLO = 0.15


def candidates(*base_ms: float, longest: int = 6) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(f"m{i}", 0.5 + 0.1 * i, tuple(1e-3 * ms * (0.4 + 0.6 * b) for b in range(1, longest + 1)))
        for i, ms in enumerate(base_ms)
    )


def rows(chain: Chain, level: int, option: int) -> Array:
    """P(next | state, option) for every slack: (J, Q, J), by applying the chain to distributions."""
    result = np.empty((chain.shape[1], *chain.shape))
    for j in range(chain.shape[1]):
        start = np.zeros(chain.shape)
        start[level, j] = 1.0
        result[j] = chain.step(start, np.full(chain.shape, option))
    return result


@pytest.mark.parametrize(
    ("workers", "qps", "bins"),
    [(1, 8.0, 20), (1, 60.0, 20), (7, 300.0, 25), (60, 2000.0, 30), (60, 9000.0, 20), (400, 13000.0, 15)],
)
def test_rows_equal_the_formulas_of_the_paper(workers: int, qps: float, bins: int) -> None:
    variants = candidates(23.7, 61.3)
    model = SelectionModel(variants=variants, slo=SLO, workers=workers, qps=qps, grid=bins, queue=6)
    chain = build_chain(model)
    oracle = Oracle(workers, qps, SLO, bins, 6)
    for level in (0, 1, 3, 5):
        options = chain.options_at(level)
        for option in range(len(options)):
            tau = float(chain.kernel.taus[options.tau[option]])
            found = rows(chain, level, option)
            for j in (0, 1, bins // 2, bins - 1, bins):
                if level and j == bins:
                    continue  # two queries cannot have come at the same instant
                assert np.abs(found[j] - oracle.row(level + 1, j, tau)).max() < 1e-8, (level, option, j)


def poisson(counts: Array, mean: float) -> Array:
    """How likely each of ``counts`` is."""
    likely: Array = np.exp(xlogy(counts, mean) - gammaln(counts + 1) - mean)
    return likely


def test_what_is_left_behind_and_what_comes_meanwhile_is_that_of_arrivals_without_memory() -> None:
    """One worker, gaps that are exponential: what comes is Poisson's whatever came before, and the next head lies among
    the others as the least but so many of uniform ones do; ages are rounded up to the grid."""
    qps, bins = 40.0, 20
    model = SelectionModel(
        variants=candidates(23.7, 61.3), slo=SLO, workers=1, qps=qps, grid=bins, queue=6, batching="variable"
    )
    chain = build_chain(model)
    assert chain.partial is not None
    for tau, come in chain.partial.come.items():
        most = come.shape[2] - 1
        exact = poisson(np.arange(most), qps * chain.kernel.taus[tau])
        assert np.abs(come[:, :, :most] - exact).max() < 1e-6
        assert come.sum(axis=2) == pytest.approx(1.0)
    ages = SLO - chain.kernel.slacks
    assert len(chain.partial.heads) >= 10 and chain.partial.come
    for (n, b), heads in chain.partial.heads.items():
        for j in range(0, bins - 1, 3):
            younger = np.cumsum(heads[j][::-1])[::-1]  # from the oldest bin, slack 0, to full slack
            exact = betaincc(b, n - b, 1.0 - np.minimum(1.0, ages / ages[j]))
            assert np.abs(younger - exact).max() < 1e-3, (n, b, j)


@pytest.mark.parametrize("per_worker", [150.0, 600.0])
def test_a_queue_is_full_after_more_than_it_holds_have_come_also_where_queries_were_left_behind(
    per_worker: float,
) -> None:
    """Arrivals so regular that all of them come while a batch of one or five runs, and none of the lengths in between
    is as likely as a rounding error."""
    model = SelectionModel(
        variants=candidates(23.7, 61.3), slo=SLO, workers=400, qps=400 * per_worker, grid=20, queue=6,
        batching="variable",
    )  # fmt: skip
    chain = build_chain(model)
    assert chain.partial is not None
    options = chain.options_at(5)
    values = np.random.default_rng(2).random(chain.shape)
    tried = 0
    for option in np.flatnonzero(options.batch < 6):
        seconds, left = chain.kernel.taus[options.tau[option]], 6 - options.batch[option]
        if left + seconds * per_worker < 8.5:
            continue
        tried += 1
        found = rows(chain, 5, int(option))[10]
        assert found[5, 0] == pytest.approx(1.0, abs=1e-9), (left, seconds)
        assert chain.expected(values)[5, option, 10] == pytest.approx(values[5, 0], abs=1e-9)
    assert tried >= 4


@pytest.mark.parametrize("batching", ["maximal", "variable"])
@pytest.mark.parametrize("qps", [40.0, 150.0, 4000.0])
def test_what_comes_to_a_full_queue_is_lost_where_late_queries_are_dropped(batching: Batching, qps: float) -> None:
    """One worker, exponential gaps: Poisson's mean of what exceeds the places left."""
    model = SelectionModel(
        variants=candidates(23.7, 61.3), slo=SLO, workers=1, qps=qps, grid=20, queue=6, batching=batching, late="drop"
    )
    chain = build_chain(model)
    assert chain.lost is not None
    counts = np.arange(1500)
    for queued, options in enumerate(chain.options, 1):
        for option, (batch, tau) in enumerate(zip(options.batch, options.tau, strict=True)):
            come = poisson(counts, qps * chain.kernel.taus[tau])
            mean = float(come @ np.maximum(queued - batch + counts - 6, 0))
            assert chain.lost[queued - 1, option] == pytest.approx(mean, rel=1e-6, abs=1e-9), (queued, batch)
    assert build_chain(replace(model, late="serve")).lost is None


questions = st.builds(
    dict[str, Any],
    workers=st.integers(1, 40),
    load=st.floats(0.0, 3.0),
    grid=st.one_of(st.integers(1, 25), st.just("model")),
    arrival_shape=st.sampled_from([1.0, 1.0, 0.3, 2.0, 2.7]),
    dispatch=st.sampled_from(get_args(Dispatch)),
    batching=st.sampled_from(get_args(Batching)),
    late=st.sampled_from(get_args(Late)),
    queue=st.integers(1, 6),
)


def ask(workers: int, load: float, dispatch: str, **rest: Any) -> SelectionModel:
    share = 1.3 / (workers + 0.3) if dispatch == "weighted" else None
    return SelectionModel(
        variants=candidates(20.0, 60.0), slo=SLO, workers=workers, qps=load * workers * 40.0, share=share,
        dispatch=dispatch, **rest,  # type: ignore[arg-type]
    )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(questions)
def test_every_row_is_a_distribution_and_values_agree_with_it(question: dict[str, Any]) -> None:
    chain = build_chain(ask(**question))
    values = np.random.default_rng(1).random(chain.shape)
    expected = chain.expected(values)
    assert chain.kernel.density.min() >= 0.0
    for level in range(chain.shape[0]):
        for option in range(len(chain.options_at(level))):
            for j in {0, chain.shape[1] // 2, chain.shape[1] - 1}:
                start = np.zeros(chain.shape)
                start[level, j] = 1.0
                row = chain.step(start, np.full(chain.shape, option))
                assert row.min() > -1e-8
                assert row.sum() == pytest.approx(1.0, abs=1e-6)
                assert float((row * values).sum()) == pytest.approx(expected[level, option, j], abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(
    workers=st.integers(1, 30), load=st.floats(0.1, 2.0), shape=st.sampled_from([0.5, 1.0, 3.0]), n=st.integers(1, 6)
)
def test_more_slack_never_makes_the_best_worse(workers: int, load: float, shape: float, n: int) -> None:
    """With reward only for what is served now, a head with more time left may choose from more."""
    chain = build_chain(ask(workers, load, "round_robin", arrival_shape=shape, queue=6, grid=20))
    options = chain.options_at(n - 1)
    best = np.where(options.valid & options.satisfied, options.accuracy, 0.0).max(axis=1)
    assert (np.diff(best) >= 0.0).all()
    assert (np.diff(options.valid.sum(axis=1)) >= 0).all()


def test_phases_refine_the_chain_and_fold_back_into_it() -> None:
    coarse = build_chain(SelectionModel(variants=candidates(30.0), slo=SLO, workers=12, qps=400.0, grid=15, queue=5))
    fine = build_chain(
        SelectionModel(variants=candidates(30.0), slo=SLO, workers=12, qps=400.0, grid=15, queue=5, phases=4)
    )
    counts = fine.kernel.counts.reshape(5, 4, -1).sum(axis=1)
    assert counts == pytest.approx(coarse.kernel.counts, abs=1e-12)
    starts = np.append((np.arange(5)[:, None] * 12 + np.arange(4)[None, :] * 3).ravel(), 60.0)
    ages = SLO - coarse.kernel.slacks
    shares = fine.kernel.arrivals.counts(starts, ages).reshape(5, 4, -1)
    for n, j in ((1, 15), (1, 8), (2, 3), (4, 1)):
        start, started = np.zeros(coarse.shape), np.zeros((5, 4, 16))
        start[n - 1, j] = 1.0
        started[n - 1, :, j] = shares[n - 1, :, j] / shares[n - 1, :, j].sum()
        after = coarse.step(start, np.zeros(coarse.shape, dtype=np.int64))
        refined = fine.step(started.reshape(20, 16), np.zeros(fine.shape, dtype=np.int64))
        assert refined.reshape(5, 4, -1).sum(axis=1) == pytest.approx(after, abs=1e-9)
