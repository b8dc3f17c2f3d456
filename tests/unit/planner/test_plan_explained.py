"""Why a plan is as it is, of two apps of unlike metric on two pools of unlike speed and price, counted by hand."""

from dataclasses import replace

import pytest

from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Placement
from sluicegate.planner.problems.explain import capacity_of, explain
from sluicegate.planner.problems.problem import Allocation, AppDemand, Problem
from sluicegate.planner.registry import planner
from sluicegate.profiles.catalogue.catalogue import Catalogue

SECONDS = {
    ("cat-l", "cpu"): 0.100, ("cat-l", "gpu"): 0.025, ("cat-s", "cpu"): 0.040, ("cat-s", "gpu"): 0.010,
    ("find-l", "gpu"): 0.050, ("find-s", "cpu"): 0.080, ("find-s", "gpu"): 0.020,
}  # fmt: skip
"""Of one query; no batch gains anything. The large detector runs on GPUs alone."""
ACCURACY = {"cat-l": 0.96, "cat-s": 0.72, "find-l": 0.40, "find-s": 0.30}
CATALOGUE = Catalogue.of(
    [App(name="cat", slo=0.3, max_rows=1), App(name="find", slo=0.5, max_rows=1)],
    [Variant(name=name, app=name.split("-")[0], accuracy=a) for name, a in ACCURACY.items()],
    [Profile(variant=v, device_type=k, points=(BatchLatency(1, s, 2.0 * s),)) for (v, k), s in SECONDS.items()],
)
DEVICES = (
    Device(name="c0", type="cpu", price=1.0),
    Device(name="c1", type="cpu", price=1.0),
    Device(name="g0", type="gpu", price=3.0),
)
POOLS = {"c0": "cheap", "c1": "cheap", "g0": "fast"}


def asked(cat: float, find: float, **more: object) -> Problem:
    demands = (
        AppDemand(app="cat", qps=cat, slo=0.3, headroom=1.25),
        AppDemand(app="find", qps=find, slo=0.5, headroom=1.0),
    )
    return replace(Problem(demands=demands, devices=DEVICES, catalogue=CATALOGUE, quantile="median"), **more)  # type: ignore[arg-type]


def placed(*hosts: tuple[str, str, float]) -> Allocation:
    """Of (device, variant, share)."""
    placements = tuple(Placement(d, v.split("-")[0], (v,), share, 1) for d, v, share in hosts)
    served = {app: sum(p.share for p in placements if p.app == app) for app in ("cat", "find")}
    return Allocation(placements=placements, served=served, objective=0.0, bound=1.0)


def test_an_apps_account_is_its_own_hosts_demand_and_metric() -> None:
    answer = placed(("c0", "cat-l", 0.75), ("c1", "cat-s", 0.25), ("g0", "find-l", 0.9))
    cat, find = explain(asked(8.0, 15.0), answer, POOLS).apps
    assert (cat.app, cat.demand_qps, cat.headroom, cat.served) == ("cat", 8.0, 1.25, 1.0)
    assert cat.accuracy == pytest.approx(0.75 * 0.96 + 0.25 * 0.72)
    assert cat.best_accuracy == 0.96 and cat.of_best == pytest.approx(cat.accuracy / 0.96)
    assert cat.capacity_qps == pytest.approx(10.0 + 25.0)
    assert cat.spare == pytest.approx(35.0 / (8.0 * 1.25) - 1.0)
    assert (find.app, find.served, find.accuracy, find.of_best) == ("find", 0.9, 0.4, pytest.approx(1.0))
    assert find.capacity_qps == pytest.approx(20.0) and find.spare == pytest.approx(20.0 / 15.0 - 1.0)
    assert cat.servable and find.servable


def test_an_app_that_nobody_asks_for_or_hosts_has_spare_without_end_and_no_accuracy() -> None:
    account = explain(asked(0.0, 5.0), placed(("g0", "find-l", 1.0)), POOLS).apps[0]
    assert (account.headroom, account.capacity_qps, account.accuracy, account.of_best) == (1.0, 0.0, 0.0, 0.0)
    assert account.spare == float("inf")


def test_capacity_is_that_of_the_fastest_variant_of_the_type_by_its_factor_within_half_the_tightest_slo() -> None:
    problem = asked(1.0, 1.0, latency_factor={("cat-s", "gpu"): 5.0})
    assert capacity_of(problem, "cat", ("cat-l",), "cpu") == pytest.approx(10.0)
    assert capacity_of(problem, "cat", ("cat-l", "cat-s"), "cpu") == pytest.approx(25.0)
    assert capacity_of(problem, "cat", ("cat-l", "cat-s"), "gpu") == pytest.approx(
        40.0
    )  # the small one takes 0.05 s now
    assert capacity_of(problem, "find", ("find-l",), "cpu") == 0.0
    tight = replace(problem, demands=(*problem.demands, replace(problem.demands[0], slo=0.09)))
    assert capacity_of(tight, "cat", ("cat-l", "cat-s"), "cpu") == pytest.approx(25.0)
    assert capacity_of(tight, "cat", ("cat-l",), "cpu") == 0.0
    assert capacity_of(replace(problem, quantile="p95"), "cat", ("cat-l",), "gpu") == pytest.approx(20.0)


def test_a_pool_says_what_one_more_of_it_would_buy_as_planning_with_one_more_does() -> None:
    problem = asked(260.0, 14.0)
    answer = planner("allocation").allocate(problem)
    cheap, fast = explain(problem, answer, POOLS).pools
    assert (cheap.pool, cheap.count, fast.pool, fast.count) == ("cheap", 2, "fast", 1)
    served = sum(answer.served[d.app] * d.qps for d in problem.demands)
    for pool, kind in ((cheap, "cpu"), (fast, "gpu")):
        more = replace(problem, devices=(*DEVICES, Device(name="new", type=kind, price=1.0 if kind == "cpu" else 3.0)))
        better = planner("allocation").allocate(more)
        gained = sum(better.served[d.app] * d.qps for d in more.demands) - served
        assert pool.binding and pool.used == pool.count
        assert pool.gain_qps == pytest.approx(gained, abs=0.15 * sum(d.qps for d in problem.demands))
    assert fast.gain_qps > cheap.gain_qps + 1.0


def lines(problem: Problem, answer: Allocation) -> str:
    return "\n".join(explain(problem, answer, POOLS).binding)


def test_what_binds_is_said_of_the_app_the_pool_the_budget_and_the_floor_that_does() -> None:
    idle = asked(2.0, 3.0)
    assert lines(idle, planner("allocation").allocate(idle)).startswith("nothing binds")
    busy = asked(200.0, 14.0)
    said = lines(busy, planner("allocation").allocate(busy))
    assert "shortage: cat is served" in said and "of 200.0 rows/s" in said
    assert "pool fast: all 1 devices are needed; one more serves" in said
    assert "pool cheap: all 2 devices are needed; one more serves" in said
    assert "within half its SLO" not in said and "budget" not in said and "min_accuracy" not in said
    detecting = asked(2.0, 30.0)
    said = lines(detecting, planner("allocation").allocate(detecting))
    assert said.startswith("pool fast: all 1 devices are needed; one more adds") and "pool cheap" not in said
    poor = asked(60.0, 14.0, budget=4.0)
    assert "the budget of 4 an hour binds; one more serves" in lines(poor, planner("allocation").allocate(poor))
    floored = replace(busy, demands=(replace(busy.demands[0], min_accuracy=0.8), busy.demands[1]))
    said = lines(floored, planner("allocation").allocate(floored))
    assert "min_accuracy 0.8 bars the faster variants of cat" in said
    low = replace(busy, demands=(replace(busy.demands[0], min_accuracy=0.5), busy.demands[1]))
    assert "min_accuracy" not in lines(low, planner("allocation").allocate(low))


def test_an_app_that_is_served_whole_but_for_rounding_lacks_nothing() -> None:
    idle = asked(2.0, 3.0)
    answer = planner("allocation").allocate(idle)
    assert "shortage" not in lines(idle, replace(answer, served={"cat": 1.0 + 1e-12, "find": 1.0}))
    assert [a.served for a in explain(idle, replace(answer, served={"find": 0.5}), POOLS).apps] == [0.0, 0.5]
    assert "shortage: cat is served 99.0% of 2.0" in lines(idle, replace(answer, served={"cat": 0.99, "find": 1.0}))
    assert "shortage: cat is served 99.9% of 2.0" in lines(idle, replace(answer, served={"cat": 0.9997, "find": 1.0}))


def test_an_app_that_no_variant_serves_in_half_its_slo_is_told_so() -> None:
    problem = asked(5.0, 5.0)
    hopeless = replace(problem, demands=(problem.demands[0], replace(problem.demands[1], slo=0.03)))
    cat, find = explain(hopeless, placed(("c0", "cat-l", 1.0)), POOLS).apps
    assert cat.servable and not find.servable
    said = lines(hopeless, placed(("c0", "cat-l", 1.0)))
    assert "shortage: find is served 0.0% of 5.0 rows/s; no variant answers within half its SLO" in said
    assert "cat" not in said


def test_pools_of_unlike_gpus_that_are_cut_alike_are_called_by_both_and_their_slice() -> None:
    cut = (Slice("4g.0", "4g", 20), Slice("3g.4", "3g", 10))
    devices = (
        Device(name="a", type="gpu", slices=cut),
        Device(name="b", type="gpu", slices=cut),
        Device(name="c0", type="cpu"),
    )
    profiles = [
        Profile(variant=v, device_type=k, points=(BatchLatency(1, s, s),))
        for v, k, s in (("cat-l", "gpu:4g", 0.05), ("cat-l", "gpu:3g", 0.07), ("cat-s", "cpu", 0.04))
    ]
    catalogue = Catalogue.of([CATALOGUE.apps["cat"]], [CATALOGUE.variants[v] for v in ("cat-l", "cat-s")], profiles)
    problem = Problem(
        demands=(AppDemand(app="cat", qps=30.0, slo=0.3),), devices=devices, catalogue=catalogue, quantile="median"
    )
    answer = planner("allocation").allocate(problem)
    pools = explain(problem, answer, {"a": "left", "b": "right", "c0": "cpu"}).pools
    assert {(p.pool, p.count) for p in pools} == {("left + right:4g", 2), ("left + right:3g", 2), ("cpu", 1)}


def test_a_unit_more_holds_nothing_and_is_no_load_in_anothers_place() -> None:
    """Both CPUs hold the small classifier; none of them may load anything else, a third one may."""
    before = (Placement("c0", "cat", ("cat-s",), 0.5, 1), Placement("c1", "cat", ("cat-s",), 0.5, 1))
    free, held = (
        explain(
            replace(asked(5.0, 0.0), devices=DEVICES[:2], previous=before, max_loads=most),
            placed(("c0", "cat-s", 0.5), ("c1", "cat-s", 0.5)),
            POOLS,
        ).pools[0]
        for most in (None, 0)
    )
    assert free.gain_accuracy == 0.0
    assert held.gain_accuracy == pytest.approx(1.0 - 0.72 / 0.96)
