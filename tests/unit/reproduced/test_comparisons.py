"""What figures compare differs by what they say, and pages say what was done."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from math import nan, sqrt
from types import ModuleType
from typing import Any

import pytest
from matplotlib.figure import Figure
from numpy.random import Generator

from reproduce.figure import Options
from reproduce.infaas import figures as infaas
from reproduce.infaas.traffic import TrafficResult
from reproduce.protean import vision
from reproduce.protean.runs import scenario
from reproduce.protean.slices.slices_experiment import workload_of
from reproduce.protean.slices.systems import world_of
from reproduce.protean.tables import by_system, wiki
from reproduce.proteus import ablation, arrival_processes, distance, end_to_end, runs
from reproduce.proteus.systems import System
from reproduce.proteus.workloads import Workload
from reproduce.ramsis import figures as selection
from reproduce.ramsis.gains import Point
from reproduce.ramsis.selection_study import Found, World
from reproduce.spread_drop.figures import figure_3
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.fold import Summary
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.problems.problem import AppDemand, Problem
from sluicegate.planner.registry import planner
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.simulator.bound import Bound
from sluicegate.simulator.scenario.experiment import Run

SECONDS = {"fast": 0.01, "good": 0.04}
CATALOGUE = Catalogue.of(
    [App(name="a", slo=0.1)],
    [Variant(name="fast", app="a", accuracy=0.8), Variant(name="good", app="a", accuracy=0.9)],
    [Profile(variant=v, device_type="cpu", points=(BatchLatency(1, s, s),)) for v, s in SECONDS.items()],
)
"""100 queries/s at 0.8 or 25 at 0.9 a device."""
BURSTY = Problem(
    demands=(AppDemand(app="a", qps=90.0, slo=0.1, spread=0.5),),
    devices=tuple(Device(name=f"d{i}", type="cpu") for i in range(4)),
    catalogue=CATALOGUE,
)
T_1 = 12.706204736432095
"""Student's t of 97.5 % with one degree of freedom."""

PROTEANS = ("protean", "protean-queue", "joint-geometry", "protean-published", "spot-only")


def test_what_takes_a_part_of_the_program_away_takes_away_nothing_else() -> None:
    work = Workload("", {}, mean={"a": 90.0}, peak={"a": 90.0})
    chosen = {}
    for system in ablation.mended():
        made = system.planner(work) if system.planner else planner(system.overrides.get("planner.name", "allocation"))
        chosen[system.name] = made.allocate(BURSTY).headroom
    whole = chosen.pop(ablation.ALL_PARTS)
    assert {name: held == whole for name, held in chosen.items()} == {
        "Sluicegate": False,
        "headroom at its price": False,
        **{f"without {part}": True for part in ablation.PARTS},
    }


def test_whose_share_of_a_gain_is_what_is_told_from_one_start() -> None:
    wiki = scenario("protean-wiki", 1.0, systems=dict.fromkeys(PROTEANS))
    begun = {name: world_of(wiki, name, workload_of(wiki, 0), 0).gpus[0].geometry for name in PROTEANS}
    assert begun == dict.fromkeys(PROTEANS, ("4g", "3g"))


def test_what_a_page_says_of_a_cut_is_what_its_worlds_do(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {"gpus": {"count": 20}, "reconfiguration": {"reshape_s": 5.0}, "workload": {"redraw_s": 7.0}}
    monkeypatch.setattr(vision, "wiki", lambda strict, options, **changes: wiki(strict, options, **changes, **slow))
    made = vision.reconfiguration(Options(seconds=1.0))
    (table,) = made.tables
    assert [row[2] for row in table.rows[:2]] == ["5 s and the drain", "at most 6 of 20"]
    assert "every 7 s" in made.intro and "protean as 4g+3g" in made.intro


def run_of(late: float, seed: int) -> Run:
    ratios: dict[str, Any] = {f.name: 0.9 for f in fields(Summary)} | {
        "violation_ratio": late,
        "variants_used": {},
        "per_app": {},
    }
    return Run(summary=Summary(**ratios), epochs=1, solve_s=(), wall_s=0.0, seed=seed, bound=Bound(**BOUND))


BOUND: dict[str, Any] = {f.name: 1.0 for f in fields(Bound)}


def two_seeds(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[Mapping[str, Mapping[str, float]]]:
    """What is drawn as bars where violations are 1 % by the first seed and 3 % by the second, of the others twice."""

    def run_all(chosen: Sequence[System], work: Workload, options: Options) -> dict[str, Run]:
        del work
        late = 0.01 + 0.02 * options.seed
        return {s.name: run_of(late if i == 0 else 2.0 * late, options.seed) for i, s in enumerate(chosen)}

    drawn: list[Mapping[str, Mapping[str, float]]] = []

    def bars(values: Mapping[str, Mapping[str, float]], titles: Mapping[str, str], columns: int = 2) -> Figure:
        del titles, columns
        drawn.append(values)
        return Figure()

    monkeypatch.setattr(runs, "run_all", run_all)
    monkeypatch.setattr(module, "bars", bars)
    monkeypatch.setattr(module, "drawn", lambda name, *_, **__: Workload(name, {}, {}, {}))
    return drawn


def test_bars_and_multiples_of_bursts_are_means_of_all_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = two_seeds(monkeypatch, end_to_end)
    monkeypatch.setattr(end_to_end, "_drawing", lambda *_: Figure())
    made = end_to_end.figure_5(Options(seeds=2))
    assert drawn[0]["Sluicegate"]["v"] == pytest.approx(2.0)
    assert "multiples of Sluicegate's 2.00 %: Proteus, published 2.0x" in made.notes[0]


def test_arrival_processes_are_drawn_as_often_as_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = two_seeds(monkeypatch, arrival_processes)
    made = arrival_processes.figure_6(Options(seeds=2))
    assert drawn[0]["deadline (Proteus)"] == pytest.approx(dict.fromkeys(("uniform", "poisson", "gamma"), 2.0))
    assert {row["seed"] for row in made.rows} == {0, 1}
    assert "±" in made.tables[0].rows[0][2]
    assert "2.00 % with deadline" in made.notes[0]


def test_the_distance_to_the_bound_is_written_of_every_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    two_seeds(monkeypatch, distance)
    monkeypatch.setattr(distance, "run_all", runs.run_all)
    monkeypatch.setattr(distance, "bound_of", lambda *_: Bound(**BOUND))
    monkeypatch.setattr(distance, "trace", lambda name, **_: Workload(name, {}, {}, {}))
    rows = distance.figure_bound(Options(seeds=2)).rows
    assert {row["seed"] for row in rows if row["workload"] == "bursts"} == {0, 1}


def test_means_over_seeds_have_their_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    measures = ("slo_compliance_strict", "p99_strict_ms", "p50_best_effort_ms", "p99_best_effort_ms")
    of = dict.fromkeys((*measures, "strict_qps_per_gpu"), 0.9)
    (several,), (once,) = (by_system("", {"joint": {**of, "ci95": dict.fromkeys(of, h)}}).rows for h in (0.02, nan))
    assert several[1] == "90.00 \u00b1 2.00 %"
    assert once[1] == "90.00 %"

    def result(answered: float) -> TrafficResult:
        return TrafficResult(
            asked=100.0, answered=answered, cost=1.0, by_tick=[(1.0, 1.0)], prices=[1.0], busy={"gpu": [0.5]}
        )

    found = {name: [result(90.0 - i - j) for j in range(2)] for i, name in enumerate(("Clipper+", "SM+", "model-less"))}
    monkeypatch.setattr(infaas, "played", lambda _: found)
    monkeypatch.setattr(infaas, "counted", lambda *_: "200")
    (row, *_) = infaas.figure_5(Options()).rows
    assert row["violations, \u00b1 95 %"] == pytest.approx(0.005 * T_1)
    assert row["over ours, \u00b1 95 %"] == pytest.approx(abs(10 / 12 - 11 / 13) / 2 * T_1)

    drawn = [Point("image, 150 ms", "table", 60.0, accuracy, 0.0) for accuracy in (0.70, 0.72)]
    assert selection.mean_of(drawn).accuracy_half == pytest.approx(0.01 * T_1)
    assert selection.mean_of(drawn[:1]).accuracy_half is None


def test_runs_differ_by_the_deviation_of_a_sample() -> None:
    rows = figure_3(Options(seeds=2, quick=True)).rows
    apart = [row["sd"] * sqrt(2) for row in rows]  # of two runs
    assert max(apart) >= 1.0
    assert apart == pytest.approx([round(one) for one in apart])
    assert {row[3] for row in figure_3(Options(seeds=1, quick=True)).tables[0].rows} == {"-"}


def test_a_seed_draws_the_times_of_executions_too(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[float] = []

    def serve(*given: Any, **_: Any) -> Found:
        drawn.append(next(one for one in given if isinstance(one, Generator)).random())
        return Found(0.7, 0.0, 1)

    image = World(CATALOGUE, "a", "cpu", 0.1, "sampled")
    monkeypatch.setattr(selection, "world", lambda _: image)
    monkeypatch.setattr(selection, "by_tables", serve)
    monkeypatch.setattr(selection, "by_rule", serve)
    for seed in (0, 1):
        selection.compute(selection.Job("constant", "image", 100, 2, qps=20.0, seconds=1, seed=seed))
    assert len(set(drawn)) == 2, "alike for all systems, anew for each seed"


@pytest.mark.parametrize("qps", [20.0, 333.0])
def test_what_a_variant_is_capable_of_is_known_as_well_as_tables_know_their_loads(
    qps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []

    def capable(world: World, workers: int, loads: Sequence[float], rng: Generator, seconds: float) -> dict[str, float]:
        del world, workers, rng, seconds
        tried.extend(loads)
        return {}

    monkeypatch.setattr(World, "capable", capable)
    monkeypatch.setattr(selection, "world", lambda _: World(CATALOGUE, "a", "cpu", 0.1, "p95"))
    selection.compute(selection.Job("constant", "image", 100, 2, qps=qps, seconds=1))
    assert qps in tried and min(tried) < qps < max(tried)
    assert all(high / low <= 1.0101 for low, high in pairwise(tried))
