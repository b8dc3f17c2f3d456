"""Arrivals as they are drawn, and one queue for all workers: by hand, and with margins that no seed reaches."""

import math

import numpy as np
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.events import Hosted
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.simulator.arrivals import Rates, SampledArrivals
from sluicegate.simulator.scenario.central_queue import Served, capable_loads, serve_centrally


def sampled(**options: object) -> SampledArrivals:
    shares = options.pop("shares", np.array([0.25, 0.75]))
    rng = np.random.default_rng(2)
    return SampledArrivals(Rates.stepped([200.0]).lasting(50.0, repeat=True), ["a", "b"], shares, rng, **options)  # type: ignore[arg-type]


def test_arrivals_come_in_the_shares_that_are_asked_for_and_nonsense_is_refused() -> None:
    for process, shape in (("poisson", 1.0), ("gamma", 1e6), ("gamma", 0.5), ("uniform", 1.0)):
        times, apps = (
            np.concatenate(each) for each in zip(*sampled(process=process, shape=shape).chunks(), strict=True)
        )
        assert times.size == pytest.approx(10_000, rel=0.05) and (np.diff(times) >= 0.0).all()
        assert (apps == 1).mean() == pytest.approx(0.75, abs=0.02)
        assert times[0] >= 0.0 and times[-1] <= 50.0
    for shape in (1e-3, 1e6):
        sampled(process="gamma", shape=shape)
    for shape in (0.9e-3, 1.1e6, 0.0, math.nan):
        with pytest.raises(InvalidInputError, match="shape"):
            sampled(process="gamma", shape=shape)
    with pytest.raises(InvalidInputError, match="process"):
        sampled(process="erlang")
    for shares in (np.array([1.0]), np.array([0.25, 0.7499]), np.array([0.25, 0.7501])):
        with pytest.raises(InvalidInputError, match="shares"):
            sampled(shares=shares)


def hosted(variant: str, *seconds: float) -> Hosted:
    return Hosted(variant, 0.5, LatencyCurve(seconds))


def test_a_variant_is_capable_of_the_highest_load_that_it_serves_with_few_late() -> None:
    """100, 25 and 2.5 a second; 22, or in pairs 40, where a pair takes no more than half of the SLO."""
    each = {"quick": (0.01,), "slow": (0.04,), "never": (0.4,), "pairs": (0.045, 0.05), "large": (0.045, 0.11)}
    curves = [hosted(name, *seconds) for name, seconds in each.items()]
    loads = [5.0, 12.0, 30.0, 60.0, 150.0, 300.0]
    rng = np.random.default_rng(4)
    found = capable_loads(curves, loads, rng, slo=0.2, workers=1, service=lambda v, n: each[v][n - 1], seconds=200.0)
    assert found == {"quick": 60.0, "slow": 12.0, "never": 0.0, "pairs": 12.0, "large": 5.0}
    two = capable_loads(curves[1:2], loads, rng, slo=0.2, workers=2, service=lambda v, n: each[v][n - 1], seconds=200.0)
    assert two == {"slow": 30.0}


def test_one_queue_is_served_first_come_first_served_in_batches_of_what_waits() -> None:
    """Four come at once and one later; two workers, two a batch, 0.1 s each and 0.15 s a pair; one is late."""
    arrivals = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.3])
    served = {True: Served("v", 0.8, 2), False: Served("w", 0.4, 2)}
    seconds = {"v": (0.1, 0.15), "w": (0.1, 0.15)}
    result = serve_centrally(
        arrivals, slo=0.2, workers=2, rule=lambda at: served[at < 0.1], service=lambda v, n: seconds[v][n - 1]
    )
    assert (result.queries, result.on_time, result.batches) == (6, 5, 4)
    assert result.accuracy == pytest.approx((4 * 0.8 + 1 * 0.4) / 5) and result.violation == pytest.approx(1 / 6)
    none = serve_centrally(np.array([]), slo=0.2, workers=1, rule=lambda _: served[True], service=lambda v, n: 1.0)
    assert (none.queries, none.violation) == (0, 0.0) and math.isnan(none.accuracy)
