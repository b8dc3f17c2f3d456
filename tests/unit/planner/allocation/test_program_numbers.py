"""The program's columns and prices counted by hand: two apps of unlike metric."""

from dataclasses import replace

import numpy as np
import pytest

from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.app import App, QueryClass
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Placement
from sluicegate.planner.allocation.columns import build, candidates, prune
from sluicegate.planner.allocation.program import CALM, NOTICED, RETURNS, Candidate, PoolKey, Program
from sluicegate.planner.allocation.solver_types import Limits
from sluicegate.planner.allocation.units import count_loaded, group_units
from sluicegate.planner.problems.problem import AppDemand, Problem
from sluicegate.planner.problems.throughput import Throughput
from sluicegate.profiles.catalogue.catalogue import Catalogue

SECONDS = {
    ("cat-l", "cpu"): 0.100, ("cat-l", "gpu"): 0.025, ("cat-s", "cpu"): 0.040, ("cat-s", "gpu"): 0.010,
    ("find-l", "gpu"): 0.050, ("find-s", "cpu"): 0.080, ("find-s", "gpu"): 0.020,
}  # fmt: skip
ACCURACY = {"cat-l": 0.96, "cat-s": 0.72, "find-l": 0.40, "find-s": 0.30}
LOADS = {"cat-l": 5.0, "cat-s": 2.0, "find-l": 3.0, "find-s": 0.5}
CATALOGUE = Catalogue.of(
    [App(name="cat", slo=0.3, max_rows=1), App(name="find", slo=0.5, max_rows=1)],
    [Variant(name=name, app=name.split("-")[0], accuracy=a) for name, a in ACCURACY.items()],
    [
        Profile(variant=v, device_type=k, points=(BatchLatency(1, s, s),), load=LOADS[v], memory_bytes=10 * (1 + i))
        for i, ((v, k), s) in enumerate(SECONDS.items())
    ],
)
DEVICES = tuple(
    Device(name=name, type=kind, price=price, spot=spot)
    for name, kind, price, spot in (("c0", "cpu", 1.0, False), ("c1", "cpu", 1.0, False), ("g0", "gpu", 3.0, True))
)


def problem(**more: object) -> Problem:
    demands = (
        AppDemand(app="find", qps=10.0, slo=0.5, headroom=1.5, weight=3.0),
        AppDemand(app="cat", qps=8.0, slo=0.3, headroom=1.25),
        AppDemand(app="cat", qps=2.0, slo=0.3, headroom=1.0, query_class=QueryClass.BEST_EFFORT),
    )
    whole = Problem(demands=demands, devices=DEVICES, catalogue=CATALOGUE, quantile="median", price=2.0)
    return replace(whole, **more)  # type: ignore[arg-type]


def program(asked: Problem, *, by_price: bool = True) -> Program:
    units = group_units(asked.devices, asked.previous, by_price=by_price)
    return build(asked, {key: len(held) for key, held in units.items()}, count_loaded(units))


def test_every_serve_needs_its_demand_with_headroom_over_its_rate_and_counts_as_part_of_its_apps_best() -> None:
    made = program(problem())
    assert [(d.app, d.query_class.value) for d in made.demands] == [
        ("cat", "best_effort"), ("cat", "strict"), ("find", "strict"),
    ]  # fmt: skip
    assert [(p.type, p.price, p.spot) for p in made.pools] == [("cpu", 1.0, False), ("gpu", 3.0, True)]
    assert made.counts == (2, 1)
    for serve in made.serves:
        host, demand = made.hosts[serve.host], made.demands[serve.demand]
        rate = 1.0 / SECONDS[serve.variant, made.pools[host.pool].type]
        assert host.variants == (serve.variant,) and serve.variant.startswith(demand.app)
        assert serve.need == pytest.approx(demand.headroom * demand.qps / rate)
        assert serve.accuracy == pytest.approx(ACCURACY[serve.variant] / (0.96 if demand.app == "cat" else 0.40))
        assert (serve.batch, serve.qps) == (1, pytest.approx(rate))
    assert len(made.serves) == 2 * 2 * 2 + 3
    assert made.weight == pytest.approx(np.array([2.0, 8.0, 30.0]) / 40.0)
    assert made.strict.tolist() == [False, True, True] and made.served_somewhere.all()


def test_a_larger_program_is_given_fewer_nodes_to_a_floor() -> None:
    nodes = [Limits(nodes=2000).of_size(serves).nodes for serves in (1, 100, 101, 150, 400, 1000, 100_000)]
    assert nodes[:2] == [2000, 2000] and nodes[-1] == 20
    assert nodes[1:] == sorted(nodes[1:], reverse=True) and nodes[2] > nodes[3] > nodes[4]
    assert Limits(nodes=5).of_size(1000).nodes == 5


def test_pressure_is_the_part_of_all_units_that_the_fastest_hosts_need() -> None:
    least = 2.0 * 0.01 + 8.0 * 1.25 * 0.01 + 10.0 * 1.5 * 0.02
    assert program(problem()).pressed == pytest.approx(least / 3)
    assert program(problem(devices=DEVICES[2:])).pressed == pytest.approx(least)
    assert program(problem(devices=())).pressed == 0.0
    busy = tuple(replace(d, qps=20.0 * d.qps) for d in problem().demands)
    assert program(problem(demands=busy)).pressed == 1.0


def test_a_unit_is_useful_as_long_as_any_demand_needs_it() -> None:
    made = program(problem())
    limit = {
        (made.pools[h.pool].type, h.variants[0]): n for h, n in zip(made.hosts, made.unit_limit.tolist(), strict=True)
    }
    assert limit["cpu", "cat-l"] == 2  # 1.2 units, of all its app's demands
    assert limit["cpu", "cat-s"] == 1
    assert limit["cpu", "find-s"] == 2  # 1.2 units
    assert limit["gpu", "find-l"] == 1


@pytest.mark.parametrize(
    ("units", "budget", "fits"), [(2, 2.0, True), (2, 2.0 - 1e-6, False), (0, 0.0, True), (2, None, True)]
)
def test_units_are_affordable_up_to_the_budget(units: int, budget: float | None, fits: bool) -> None:
    made = program(problem(budget=budget))
    counts = np.zeros(len(made.hosts), dtype=np.int64)
    counts[0] = units
    assert made.rent[0] == 1.0
    assert made.affordable(counts) is fits


def test_what_makes_columns_of_their_own_is_a_price_of_loads_or_money() -> None:
    assert not program(problem()).priced  # nothing is loaded: nothing is displaced
    held = (Placement("c0", "cat", ("cat-l",), 1.0, 1),)
    assert program(problem(previous=held)).priced
    assert not program(problem(previous=held, price=0.0)).priced
    for more in ({"max_loads": 0}, {"money_weight": 0.1}, {"budget": 9.0}):
        assert program(problem(**more)).priced
    assert program(problem()).independent
    assert not program(problem(variants_per_device=2)).independent


def test_a_load_costs_its_time_beyond_what_is_noticed_times_what_it_displaces_and_over_the_time_hosts_stand() -> None:
    held = (Placement("c0", "cat", ("cat-l",), 1.0, 1), Placement("g0", "find", ("find-l",), 1.0, 1))
    asked = problem(previous=held, stood={"cat": 40.0, "find": 4.0})
    made = program(asked)
    assert dict(zip((pool.type for pool in made.pools), made.empty_units, strict=True)) == {"cpu": 1, "gpu": 0}
    found = {
        (made.pools[h.pool].type, h.variants[0]): p for h, p in zip(made.hosts, made.load_price.tolist(), strict=True)
    }
    assert found["cpu", "cat-l"] == pytest.approx(
        2.0 * made.pressed * RETURNS["beside"] * (5.0 - NOTICED) / 3 / 40.0 * 0.5
    )
    assert found["cpu", "find-s"] == 0.0  # loaded before it is noticed
    assert found["gpu", "find-l"] == pytest.approx(2.0 * made.pressed * RETURNS["beside"] * (3.0 - NOTICED) / 3 / CALM)
    assert found["gpu", "cat-s"] == pytest.approx(2.0 * made.pressed * RETURNS["beside"] * (2.0 - NOTICED) / 3 / 40.0)
    alone = program(replace(asked, loads="exclusive"))
    own = dict(
        zip(((alone.pools[h.pool].type, h.variants[0]) for h in alone.hosts), alone.load_price.tolist(), strict=True)
    )
    assert own["gpu", "cat-s"] == pytest.approx(
        2.0 * made.pressed * (RETURNS["exclusive"] * (2.0 - NOTICED) + 2.0) / 3 / 40.0
    )
    assert own["cpu", "find-s"] == pytest.approx(2.0 * made.pressed * 0.5 / 3 / CALM * 0.5)
    assert not program(replace(asked, loads="free")).load_price.any()
    assert {(made.pools[h.pool].type, h.variants): h.loaded for h in made.hosts if h.loaded} == {
        ("cpu", ("cat-l",)): 1,
        ("gpu", ("find-l",)): 1,
    }


def test_who_cannot_meet_the_floor_the_memory_or_half_the_slo_is_no_candidate() -> None:
    asked = problem()
    cats = [CATALOGUE.variants["cat-l"], CATALOGUE.variants["cat-s"]]

    def names(key: PoolKey, demand: AppDemand, sharing: int = 1) -> list[str]:
        return [c.variant.name for c in candidates(asked, key, cats, {0: demand}, sharing)]

    demand = asked.demands[1]
    assert names(PoolKey("cpu"), demand) == ["cat-l", "cat-s"]
    assert names(PoolKey("cpu"), replace(demand, min_accuracy=0.72)) == ["cat-l", "cat-s"]
    assert names(PoolKey("cpu"), replace(demand, min_accuracy=0.73)) == ["cat-l"]
    assert names(PoolKey("cpu", memory_bytes=30), demand) == ["cat-l", "cat-s"]
    assert names(PoolKey("cpu", memory_bytes=29), demand) == ["cat-l"]
    assert names(PoolKey("cpu"), replace(demand, slo=0.2)) == ["cat-l", "cat-s"]
    assert names(PoolKey("cpu"), replace(demand, slo=0.19)) == ["cat-s"]
    assert names(PoolKey("cpu"), replace(demand, slo=0.301), sharing=2) == ["cat-l", "cat-s"]
    assert names(PoolKey("cpu"), demand, sharing=3) == ["cat-s"]
    assert names(PoolKey("tpu"), demand) == []


def test_a_unit_holds_as_many_variants_as_it_may_and_no_more() -> None:
    for several, most in ((1, 1), (2, 2), (3, 3)):
        made = program(problem(variants_per_device=several))
        assert max(len(host.variants) for host in made.hosts) == most


def test_units_know_for_which_slo_they_hold_what_they_hold() -> None:
    held = (Placement("c1", "cat", ("cat-l",), 1.0, 1, slo=0.3),)
    pools = group_units(DEVICES, held)
    assert {u.device: u.slo for units in pools.values() for u in units} == {"c0": 0.0, "c1": 0.3, "g0": 0.0}
    assert {(of.variants, of.slo): n for of, n in count_loaded(pools).items() if of.pool.type == "cpu"} == {
        ((), 0.0): 1, (("cat-l",), 0.3): 1,
    }  # fmt: skip


def test_what_another_beats_is_left_out_unless_it_is_held_or_takes_less_memory() -> None:
    points = (Throughput(1, 10.0), Throughput(1, 20.0), Throughput(1, 30.0))
    slow, mid, fast = points

    def names(*found: Candidate, held: tuple[str, ...] = (), by_memory: bool = False) -> list[str]:
        return [c.variant.name for c in prune(found, held, by_memory=by_memory)]

    def candidate(name: str, accuracy: float, rates: dict[int, Throughput], memory: int) -> Candidate:
        return Candidate(Variant(name=name, app="cat", accuracy=accuracy), rates, memory, 1.0)

    best = candidate("best", 0.9, {0: mid, 1: mid}, 20)
    worse = candidate("worse", 0.8, {0: mid, 1: slow}, 10)
    assert names(worse, best) == ["best"]
    assert names(worse, best, held=("worse",)) == ["best", "worse"]
    assert names(worse, best, by_memory=True) == ["best", "worse"]
    assert names(replace(worse, memory_bytes=20), best, by_memory=True) == ["best"]
    assert names(replace(worse, rates={0: slow, 1: fast}), best) == ["best", "worse"]
    assert names(replace(worse, rates={2: slow}), best, by_memory=True) == ["best", "worse"]
    # Of two alike the faster one, then the smaller, then the first by name.
    alike = [candidate(n, 0.9, {0: r}, m) for n, r, m in (("b", mid, 5), ("a", mid, 5), ("c", mid, 4), ("d", slow, 1))]
    assert names(*alike) == ["c"]
    assert names(*alike, by_memory=True) == ["c", "d"]
    assert names(*alike[:2]) == ["a"]


def test_units_are_pooled_by_what_makes_them_alike() -> None:
    cut = (Slice("4g.0", "4g", 20), Slice("3g.4", "3g", 10))
    devices = (*DEVICES, Device(name="m0", type="gpu", memory_bytes=99, slices=cut))
    held = (Placement("m0", "cat", ("cat-s", "cat-l"), 1.0, 1, "3g.4"), Placement("c1", "find", ("find-s",), 1.0, 1))
    pools = group_units(devices, held)
    assert {(key.type, key.memory_bytes, key.price, key.spot): len(units) for key, units in pools.items()} == {
        ("cpu", 0, 0.0, False): 2, ("gpu", 0, 0.0, False): 1,
        ("gpu:4g", 20, 0.0, False): 1, ("gpu:3g", 10, 0.0, False): 1,
    }  # fmt: skip
    assert [(u.device, u.slice, u.loaded) for units in pools.values() for u in units if u.loaded] == [
        ("c1", "whole", ("find-s",)), ("m0", "3g.4", ("cat-l", "cat-s")),
    ]  # fmt: skip
    assert {(k.price, k.spot) for k in group_units(devices, held, by_price=True)} == {
        (1.0, False),
        (3.0, True),
        (0.0, False),
    }
    assert len(group_units(devices, held, by_device=True)) == 5
    assert sorted((k.type, k.empty) for k in group_units(DEVICES, held, by_held=True)) == [
        ("cpu", False), ("cpu", True), ("gpu", True),
    ]  # fmt: skip
