"""Figures 5 and 7 of INFaaS: orderings as published, on synthetic profiles; and the fluid they rest on."""

import numpy as np
import pytest

from reproduce.infaas import sharing, worlds
from reproduce.infaas.figures import CLIPPER, SM, baselines, ours
from reproduce.infaas.fluid import preloaded
from reproduce.infaas.traffic import Pool, Traffic, TrafficResult, poisson_counts
from sluicegate.planner.model_less.scaling_problem import ScalingVariant

RISE = np.concatenate([np.full(10, 0.05), np.linspace(0.05, 1.0, 60), np.full(30, 1.0), np.linspace(1.0, 0.7, 20)])


def test_the_world_of_figure_5_has_175_variants_of_22_architectures() -> None:
    variants = worlds.variants(whole_gpus=False)
    assert (len(variants), len({v.architecture for v in variants})) == (175, 22)
    assert sum(worlds.shares()[app] for app in worlds.POPULAR) == pytest.approx(0.8)


def test_model_less_serving_violates_least_at_the_least_cost_then_fixed_instances_then_replicas() -> None:
    rates = worlds.twitter(RISE, 10.0, 1000.0, 60_000)
    counts = poisson_counts(rates, worlds.shares(), np.random.default_rng(3))
    found = {name: run.run() for name, run in baselines(counts)}
    mine = ours(counts, rates[0]).run()
    assert mine.violations < found[CLIPPER].violations < found[SM].violations
    assert mine.violations < 0.06
    assert mine.answered > max(r.answered for r in found.values())
    assert 1.1 * mine.cost < min(r.cost for r in found.values())


def test_two_models_share_a_gpu_until_one_is_not_enough_and_cost_less_than_a_gpu_each() -> None:
    rates = worlds.twitter(RISE, 50.0, 500.0, 40_000)
    each, shared = (
        sharing.Gpus(rates, np.random.default_rng(3), exclusive=exclusive).run() for exclusive in (True, False)
    )
    assert (shared.gpus[0], max(shared.gpus)) == (1, 2)
    assert sharing.saved(shared, each) > 0.1
    assert shared.violations < 0.01


ONE = ScalingVariant(name="v", app="a", latency=0.02, capacity=10.0, cost=1.0, hardware="gpu", resources=1.0)
TWO = ScalingVariant(name="w", app="b", latency=0.02, capacity=10.0, cost=1.0, hardware="gpu", resources=1.0)


def served(a: int, b: int, *, shared: bool, slo: float = 0.02, seconds: int = 5) -> TrafficResult:
    """``a`` and ``b`` queries a window of two apps, an instance each on a GPU with room for four."""
    counts = {"a": np.full(10 * seconds, a), "b": np.full(10 * seconds, b)}
    pools = {"gpu": Pool(count=1, each=4.0, price=3600.0, shared=shared)}
    return Traffic(preloaded, (ONE, TWO), counts, {"a": slo, "b": slo}, pools, start={"v": 1, "w": 1}).run()


def test_what_is_beyond_an_instances_rate_is_violated_unless_the_worker_has_time_left() -> None:
    assert served(2, 0, shared=False).violations == pytest.approx(0.5)
    assert served(2, 0, shared=True).violations == pytest.approx(0.0)
    assert served(6, 2, shared=True).answered == pytest.approx(5 * 40.0)  # four resources of ten queries/s, no more


def test_queries_wait_as_long_as_their_slo_leaves_and_workers_are_paid_by_the_second() -> None:
    patient = served(2, 0, shared=False, slo=1.02, seconds=1)
    assert patient.violations == pytest.approx(0.5)  # ten answered; ten still wait, in time, when it ends
    assert patient.cost == pytest.approx(1.0)


def test_the_free_constants_of_figure_5_change_what_they_say_and_nothing_else() -> None:
    usual = {v.name: v for v in worlds.variants(whole_gpus=False)}
    dear = {v.name: v for v in worlds.variants(whole_gpus=False, free=worlds.Free(sharing_cost=0.2))}
    assert dear["a00-gpu-b4"].capacity == pytest.approx(usual["a00-gpu-b4"].capacity * 0.80 / 0.95)
    assert dear["a00-inf-b4"] == usual["a00-inf-b4"]
    whole = worlds.variants(whole_gpus=True)
    assert worlds.variants(whole_gpus=True, free=worlds.Free(sharing_cost=0.2)) == whole
    quick = {v.name: v for v in worlds.variants(whole_gpus=False, free=worlds.Free(inferentia=12.0))}
    assert quick["a00-inf-b1"].latency == pytest.approx(usual["a00-inf-b1"].latency / 2)
    assert quick["a00-gpu-b1"] == usual["a00-gpu-b1"]
