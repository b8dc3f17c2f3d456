"""Single units that change host: never less service, never less value, and the heuristic stays fast."""

from time import process_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.allocation.columns import build
from sluicegate.planner.allocation.program import PoolKey
from sluicegate.planner.allocation.rounding import evaluate
from sluicegate.planner.allocation.unit_exchange import improved
from sluicegate.planner.allocation.units import count_loaded, group_units
from sluicegate.planner.greedy_fill import GreedyFill
from sluicegate.planner.problems.problem import AppDemand, Problem
from sluicegate.profiles.catalogue.catalogue import Catalogue
from tests.property.problems import problems


@settings(max_examples=60, deadline=None)
@given(problem=problems(), seed=st.integers(0, 1000), weight=st.sampled_from((0.0, 0.5)))
def test_units_change_host_only_to_the_better(problem: Problem, seed: int, weight: float) -> None:
    pools = group_units(problem.devices, ())
    program = build(problem, {k: len(u) for k, u in pools.items()}, count_loaded(pools))
    rng = np.random.default_rng(seed)
    units = np.zeros(len(program.hosts), dtype=np.int64)
    for p, count in enumerate(program.counts):
        mine = np.flatnonzero(program.host_pool == p)
        if len(mine):
            np.add.at(units, rng.choice(mine, size=rng.integers(0, count + 1)), 1)
    before = evaluate(program, units)
    after = improved(program, before)
    assert (after.served >= before.served - 1e-6).all()
    assert after.value >= before.value - 1e-9
    used = np.bincount(program.host_pool, weights=after.units, minlength=len(program.counts))
    assert (used <= program.pool_count).all() and (after.units >= 0).all()
    assert improved(program, after).value <= after.value + 1e-6


def wide(apps: int, variants: int, types: int) -> Catalogue:
    """Slower variants are more accurate; types differ in speed."""
    rng = np.random.default_rng(3)
    listed, profiles = [], []
    for v in range(variants):
        size = rng.uniform()
        listed.append(Variant(name=f"v{v}", app=f"a{v % apps}", accuracy=0.6 + 0.38 * size**0.6))
        for t in range(types):
            first = 0.001 * 60**size * rng.uniform(0.7, 1.4) * (1 + t)
            points = tuple(BatchLatency(b, first * (0.5 + 0.5 * b), first * (0.5 + 0.5 * b)) for b in (1, 4, 16))
            profiles.append(Profile(variant=f"v{v}", device_type=f"t{t}", points=points))
    return Catalogue.of([App(name=f"a{i}", slo=0.3) for i in range(apps)], listed, profiles)


@pytest.mark.timing
def test_without_a_solver_a_large_fleet_is_planned_in_seconds() -> None:
    demands = tuple(AppDemand(app=f"a{i}", qps=4000.0 / (1 + i), slo=0.3) for i in range(17))
    problem = Problem(demands=demands, devices=(), catalogue=wide(17, 450, 10))
    program = build(problem, {PoolKey(f"t{t}"): 100 for t in range(10)}, {})
    started = process_time()
    whole = GreedyFill().counts(program)
    assert process_time() - started < 3.0
    assert whole.served.min() > 1 - 1e-6


def test_what_can_be_gained_by_one_swap_is_gained() -> None:
    catalogue = wide(1, 3, 1)
    best = max(catalogue.variants.values(), key=lambda v: v.accuracy)
    problem = Problem(
        demands=(AppDemand(app="a0", qps=1.0, slo=0.3),),
        devices=tuple(Device(name=f"d{i}", type="t0") for i in range(2)),
        catalogue=catalogue,
    )
    program = build(problem, {PoolKey("t0"): 2}, {})
    worst = min(range(len(program.hosts)), key=lambda h: program.serves[program.serves_of_host[h][0]].accuracy)
    units = np.zeros(len(program.hosts), dtype=np.int64)
    units[worst] = 2
    assert improved(program, evaluate(program, units)).accuracy >= best.accuracy - 1e-9
