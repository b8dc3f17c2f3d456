"""Sliced GPUs under the virtual clock.

Exact sharing, nothing lost by drains, cuts and evictions, copies go on alike.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from reproduce.protean.baselines import STRATEGIES, strategy
from reproduce.protean.gpu_choice import LeastSlowdown
from reproduce.protean.slices.cluster import Rules
from reproduce.protean.slices.slices_experiment import run_once, together, workload_of
from reproduce.protean.slices.slices_fields import SliceScenario, slice_scenario
from reproduce.protean.slices.systems import SYSTEMS, world_of
from reproduce.protean.slices.workload import Batch, Bursts, Workload
from reproduce.protean.slices.world import World
from sluicegate.domain.errors import ConfigurationError
from sluicegate.planner.geometry.mig_tables import parse_geometry, table_of
from sluicegate.planner.geometry.reconfigurator import Desired
from sluicegate.profiles.catalogue.slowdown import SlowdownTable, VariantDemand

GB = 1 << 30
SCENARIOS = Path(__file__).parents[3] / "examples" / "scenarios"
RDF = {"7g": 1.0, "4g": 1.25, "3g": 1.5, "2g": 2.0, "1g": 4.0}


def table(fbr: float = 0.6, memory_gb: float = 3.0) -> SlowdownTable:
    return SlowdownTable(
        {
            n: VariantDemand(name=n, solo=0.1, memory_bytes=int(memory_gb * GB), rdf=RDF, fbr=fbr)
            for n in ("strict", "other")
        }
    )


def batches(*arrivals: tuple[float, bool]) -> Workload:
    found = [
        Batch(i, "strict" if strict else "other", strict, at, np.array([at]), 1.0)
        for i, (at, strict) in enumerate(sorted(arrivals))
    ]
    return Workload(tuple(found), 1.0 + max(t for t, _ in arrivals), "strict", ((0.0, "other"),))


def world(workload: Workload, geometry: str, gpus: int = 1, placement: str = "strict-first", **rules: Any) -> World:
    known = table()
    made = Rules(make_queue=lambda: strategy(placement, known), geometry=parse_geometry(geometry), **rules)
    return World(workload, known, table_of("a100"), gpus, made, dispatch=LeastSlowdown(known))


def scenario(name: str = "protean-wiki", **changes: Any) -> SliceScenario:
    document = yaml.safe_load((SCENARIOS / f"{name}.yaml").read_text())
    document |= {"duration_s": 40, "warm_up_s": 5, **changes}
    return slice_scenario(document)


def test_bandwidth_is_shared_by_those_who_are_there() -> None:
    # Alone 0.1 s. The second joins at 0.05: both go at 1 / 1.2, the first has 0.05 left.
    shared = world(batches((0.0, True), (0.05, True)), "7g")
    shared.run()
    first, second = sorted(e.at for e in shared.ended)
    assert first == pytest.approx(0.05 + 0.05 * 1.2)
    # The second did 0.05 of its own meanwhile and has 0.05 left, alone.
    assert second == pytest.approx(first + 0.05)


def test_memory_makes_batches_wait_and_slices_are_isolated() -> None:
    crowded = world(batches(*[(0.0, False)] * 4), "1g")
    crowded.run()
    assert sorted(round(e.at, 6) for e in crowded.ended) == [0.4, 0.8, 1.2, 1.6]
    isolated = world(batches((0.0, True), (0.0, True)), "3g+3g")
    isolated.run()
    assert [e.at for e in isolated.ended] == pytest.approx([0.15, 0.15])


def test_a_drain_waits_for_what_runs_and_loses_nothing() -> None:
    one = world(batches((0.0, True), (0.0, True), (0.3, False)), "4g+3g", reshape_s=2.0, patience=1)
    one.run_until(0.05)
    one.ask(Desired("gpu0", ("7g",)), 0.05)
    assert one.gpus[0].geometry == ("4g", "3g")
    one.run()
    ends = {e.batch.key: e for e in one.ended}
    assert len(ends) == 3
    # Cut only after the longer of the two has ended, and the third waits for that.
    assert ends[2].placed == pytest.approx(max(ends[0].at, ends[1].at) + 2.0)
    assert one.gpus[0].geometry == ("7g",)


@given(
    st.lists(st.tuples(st.floats(0, 3), st.booleans()), min_size=1, max_size=40),
    st.lists(
        st.tuples(
            st.floats(0, 4), st.integers(0, 2), st.sampled_from(["7g", "4g+3g", "4g+2g+1g", "lose", "regain", "close"])
        ),
        max_size=12,
    ),
    st.sampled_from(sorted(STRATEGIES)),
    st.floats(0.0, 0.3),
)
@settings(max_examples=80, deadline=None)
def test_whatever_happens_every_batch_ends_once_and_memory_holds(
    arrivals: list[tuple[float, bool]], happenings: list[tuple[float, int, str]], placement: str, cold: float
) -> None:
    one = world(batches(*arrivals), "4g+3g", gpus=3, placement=placement, patience=1, cold_start_s=cold)
    gone: set[int] = set()
    for at, gpu, what in sorted(happenings):
        one.run_until(at)
        if what == "lose" and gpu not in gone:
            one.lose(gpu, at)
            gone.add(gpu)
        elif what == "regain" and gpu in gone:
            one.regain(gpu, at)
            gone.discard(gpu)
        elif what not in ("lose", "regain", "close"):
            one.ask(Desired(f"gpu{gpu}", parse_geometry(what)), at)
        for part in (p for g in one.gpus for p in g.parts.values()):
            assert 0 <= part.free_bytes <= part.memory_bytes
    for gpu in sorted(gone):
        one.regain(gpu, one.now)
    one.run()
    assert sorted(e.batch.key for e in one.ended) == list(range(len(arrivals)))
    assert len(one.reconfigurator.in_flight) <= one.reconfigurator.limit


def test_a_copy_goes_on_exactly_as_the_original() -> None:
    original = world_of(scenario(), "joint", workload_of(scenario(), 3), 3)
    original.run_until(12.0)
    copy = original.fork()
    copy.control = original.control
    before = len(original.ended)
    original.control = None
    copy.control = None
    original.run()
    copy.run()
    assert [(e.batch.key, e.at) for e in original.ended[before:]] == [(e.batch.key, e.at) for e in copy.ended]


def test_bursts_keep_order_and_number_and_come_together() -> None:
    times = np.sort(np.random.default_rng(0).uniform(0, 50, 5000))
    moved = Bursts(0.8, 0.05, 4.0).moved(times, 50.0, np.random.default_rng(1))
    assert moved.size == times.size
    assert (np.diff(moved) >= 0).all()
    assert (moved >= times).all()
    assert np.mean(np.diff(moved) < 0.01) > 0.98


@pytest.mark.parametrize("label", [name for name in SYSTEMS if name != "oracle"])
def test_every_system_answers_everything_and_equal_seeds_give_equal_runs(label: str) -> None:
    small = scenario(systems={label: None}, duration_s=12, warm_up_s=2)
    one, two = (run_once(small, label, 1, lambda: 0.0) for _ in range(2))
    assert one.figures == two.figures
    assert 0.0 <= one.figures["slo_compliance_strict"] <= 1.0
    parts = sum(one.tail_ms.values())
    assert parts == pytest.approx(one.figures["p99_strict_ms"], rel=0.2)


NOISE = 0.003
"""Of strict queries on time, between means of two runs of a minute on the same batches."""
BASELINES = ("protean", "mps-mig", "infless", "naive", "molecule")


def on_time(one: SliceScenario, label: str, seeds: int = 2) -> float:
    runs = together([run_once(one, label, seed, lambda: 0.0) for seed in range(seeds)])
    return float(runs["slo_compliance_strict"])


@cache
def on_time_with(gpus: int, label: str) -> float:
    """On the steady scenario with ``gpus`` GPUs, the load in proportion."""
    document = yaml.safe_load((SCENARIOS / "protean-wiki.yaml").read_text())
    one = scenario(
        duration_s=60,
        gpus=document["gpus"] | {"count": gpus},
        traces=document["traces"] | {"scale": gpus / 8},
        systems={label: None},
    )
    return on_time(one, label)


@pytest.mark.parametrize("gpus", [8, *(pytest.param(n, marks=pytest.mark.thorough) for n in (7, 9, 10, 11))])
def test_ours_is_never_worse_than_a_baseline_that_balances_each_class(gpus: int) -> None:
    for label in BASELINES:
        assert on_time_with(gpus, "joint") >= on_time_with(gpus, label) - NOISE, label


@pytest.mark.thorough
def test_on_batches_that_leave_half_a_slice_unused_ours_is_never_worse_than_whole_gpus() -> None:
    document = yaml.safe_load((SCENARIOS / "protean-wiki.yaml").read_text())
    one = scenario(
        duration_s=120,
        workload=document["workload"] | {"strict": "dpn92"},
        systems=dict.fromkeys(("joint", *BASELINES)),
    )
    found = {label: on_time(one, label) for label in ("joint", *BASELINES)}
    assert found["joint"] >= max(found.values()) - NOISE


def test_one_turn_for_both_classes_is_a_rule_of_its_own_and_costs_an_even_number_of_gpus() -> None:
    one = scenario(duration_s=60, systems={"joint": None, "published": {"like": "protean", "dispatch": "one-turn"}})
    assert on_time(one, "published") < on_time_with(8, "protean") - 0.02


@pytest.mark.parametrize(
    "label", ["joint", "protean", *(pytest.param(one, marks=pytest.mark.thorough) for one in BASELINES[1:])]
)
def test_whether_the_number_of_gpus_is_even_is_no_matter(label: str) -> None:
    # A turn for both classes would cost an even number 4 points (protean) to 15 (infless).
    seven, eight, nine = (on_time_with(n, label) for n in (7, 8, 9))
    assert abs(eight - (seven + nine) / 2) < 0.02


@pytest.mark.thorough
def test_under_an_erratic_load_too_ours_is_never_worse() -> None:
    one = scenario("protean-twitter", duration_s=60, systems=dict.fromkeys(("joint", *BASELINES)))
    found = {label: on_time(one, label) for label in ("joint", *BASELINES)}
    assert found["joint"] >= max(found.values()) - NOISE


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["protean-twitter", "protean-wiki"])
def test_the_oracle_takes_a_plan_an_interval_and_nothing_is_above_the_bound(name: str) -> None:
    small = scenario(name, duration_s=60)
    found = {label: run_once(small, label, 0, lambda: 0.0) for label in ("joint", "protean", "oracle", "bound")}
    strict = {label: run.figures["slo_compliance_strict"] for label, run in found.items()}
    assert strict["oracle"] >= strict["protean"]
    assert strict["joint"] >= strict["oracle"] - 0.01
    assert max(strict.values()) == strict["bound"] <= 1.0
    assert sum(found["oracle"].chosen.values()) == 7  # at 0, 10, ... 60 s


def test_without_revocations_spot_costs_three_tenths() -> None:
    costs = {
        label: run_once(scenario(duration_s=20), label, 0, lambda: 0.0).figures["cost_usd"]
        for label in ("protean", "molecule")
    }
    assert 1 - costs["protean"] / costs["molecule"] == pytest.approx(0.70, abs=0.03)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workload": {"strict": "nobody"}}, "'nobody' is not one of models"),
        ({"gpus": {"type": "tpu"}}, "no placement table"),
        ({"gpus": {"geometry": "4g+4g"}}, "cannot be placed"),
        ({"systems": {"x": {"placement": "magic"}}}, "is not one of"),
        ({"systems": {"bound": {"placement": "strict-room"}}}, "bound takes no options"),
        (
            {"procurement": {"p_rev": 0.1, "on_demand_price": 1, "spot_price": 1}, "systems": {"bound": None}},
            "holds where no GPU is taken back",
        ),
        ({"systms": {}}, r"systms: is unknown; did you mean systems\?"),
        ({"procurement": {"p_rev": 2, "on_demand_price": 1, "spot_price": 1}}, r"procurement\.p_rev"),
    ],
)
def test_a_wrong_file_is_refused_by_the_name_of_the_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        scenario(**changes)


def test_an_unknown_system_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"systems\.mine: no system is called"):
        run_once(scenario(systems={"mine": None}), "mine", 0, lambda: 0.0)
