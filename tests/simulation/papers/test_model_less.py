"""Model-less scaling over time: at rest under a constant load, ahead of the baselines' cost, loading is paid for."""

import numpy as np
import pytest

from reproduce.infaas.fluid import fixed_for, horizontal, model_less, preloaded, simulate
from sluicegate.planner.model_less.scaling_problem import ScalingVariant

TABLE_2 = (
    ScalingVariant(name="A", app="a", latency=0.200, capacity=5.0, cost=1.0, load=1.0),
    ScalingVariant(name="B", app="a", latency=0.020, capacity=100.0, cost=3.0, load=3.0),
    ScalingVariant(name="C", app="a", latency=0.015, capacity=800.0, cost=16.0, load=6.0),
)
SLO = {"a": 0.3}


@pytest.mark.parametrize("load", [0.5, 4.0, 37.0, 420.0, 950.0, 3000.0])
def test_a_constant_load_of_ten_minutes_is_scaled_in_its_first_half_minute_and_never_again(load: float) -> None:
    found = simulate(model_less(), TABLE_2, {"a": [load] * 600}, SLO)
    assert max(found.changes) < 30
    assert found.answered >= 0.98 * 600 * load


def test_noise_within_the_slack_does_not_make_it_oscillate() -> None:
    rng = np.random.default_rng(0)
    load = [float(q) for q in 400.0 * (1.0 + rng.uniform(-0.02, 0.02, 600))]
    assert len(simulate(model_less(), TABLE_2, {"a": load}, SLO).changes) <= 6


@pytest.mark.parametrize(("load", "ratio"), [((4.0, 4.0), 16.0), ((4.0, 80.0), 3.0), ((650.0, 700.0), 1.0)])
def test_gpus_cost_as_much_more_at_low_load_as_their_price_says_and_no_more_at_high(
    load: tuple[float, float], ratio: float
) -> None:
    series = {"a": [float(q) for q in np.linspace(*load, 900)]}
    ours = simulate(model_less(), TABLE_2, series, SLO, start={"C": 1} if load[0] > 100 else {"A": 1})
    scaled = simulate(horizontal({"a": "C"}), TABLE_2, series, SLO, start={"C": 1})
    fixed = simulate(preloaded, TABLE_2, series, SLO, start={"C": 1})
    assert ours.violations < 0.005
    assert scaled.cost / ours.cost >= ratio * 0.99
    assert fixed.cost / ours.cost >= ratio * 0.99


def test_what_loads_costs_at_once_and_answers_when_it_is_loaded() -> None:
    found = simulate(lambda fleet: {"B": 1} if not fleet.count("B") else {}, TABLE_2, {"a": [50.0] * 10}, SLO)
    assert found.answered == pytest.approx(50.0 * 7)
    assert found.cost == pytest.approx(3.0 * 10 / 3600)


@pytest.mark.parametrize(("name", "load", "wait"), [("C", 700.0, 6), ("B", 90.0, 3)])
def test_replicas_are_given_back_after_the_same_while_of_idleness_as_by_the_greedy(
    name: str, load: float, wait: int
) -> None:
    (only,) = (v for v in TABLE_2 if v.name == name)
    series = {"a": [load] * 20 + [2 * load] * 20 + [load] * 20}
    for rule in (horizontal({"a": name}), model_less()):
        assert simulate(rule, [only], series, SLO, start={name: 1}).changes == (20, 40 + wait - 1)


def test_fixed_instances_hold_the_peak_and_take_the_next_fastest_where_hardware_ends() -> None:
    assert fixed_for(TABLE_2, {"a": 1000.0}, SLO) == {"A": 0, "B": 0, "C": 2}
    gpu = (*TABLE_2[:2], ScalingVariant(name="G", app="a", latency=0.01, capacity=800.0, cost=16.0, hardware="gpu"))
    assert fixed_for(gpu, {"a": 1000.0}, SLO, {"gpu": 1.0}) == {"A": 0, "B": 3, "G": 1}
