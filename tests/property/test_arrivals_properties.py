"""Arrivals: order, counts and determinism for any rates."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.simulator.arrivals import Rates, SampledArrivals, collect, zipf_shares

_RATES = st.lists(st.floats(0.0, 300.0), min_size=1, max_size=20).filter(lambda r: sum(r) > 1.0)


@settings(max_examples=60, deadline=None)
@given(
    qps=_RATES,
    apps=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
    process=st.sampled_from(["poisson", "gamma", "uniform"]),
)
def test_arrivals_are_sorted_within_the_trace_and_repeatable(
    qps: list[float], apps: int, seed: int, process: str
) -> None:
    names = [f"a{i}" for i in range(apps)]

    def drawn() -> list[tuple[float, int]]:
        source = SampledArrivals(
            Rates.stepped(qps), names, zipf_shares(apps), np.random.default_rng(seed), process=process, shape=0.5
        )
        return [(t, i) for times, index in source.chunks() for t, i in zip(times.tolist(), index.tolist(), strict=True)]

    first, second = drawn(), drawn()
    assert first == second
    times = [t for t, _ in first]
    assert times == sorted(times)
    assert all(0.0 <= t <= len(qps) for t in times)


@settings(max_examples=30, deadline=None)
@given(qps=_RATES, seed=st.integers(0, 2**32 - 1))
def test_no_arrival_falls_where_the_rate_is_zero(qps: list[float], seed: int) -> None:
    holes = [q if i % 2 else 0.0 for i, q in enumerate([*qps, 50.0])]
    source = SampledArrivals(Rates.stepped([*holes, 10.0]), ["a"], zipf_shares(1), np.random.default_rng(seed))
    for t in collect(source)["a"]:
        assert [*holes, 10.0][int(t)] > 0.0


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), high=st.floats(50.0, 400.0))
def test_poisson_arrivals_come_as_often_as_expected(seed: int, high: float) -> None:
    rates = Rates.stepped([high, high / 2, high]).lasting(60.0, repeat=True)
    count = collect(SampledArrivals(rates, ["a", "b"], zipf_shares(2), np.random.default_rng(seed)))
    total = sum(t.size for t in count.values())
    assert abs(total - rates.expected) < 6.0 * np.sqrt(rates.expected)
