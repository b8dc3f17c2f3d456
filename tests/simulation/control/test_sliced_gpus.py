"""Sliced GPUs in the engine: who gets which slice, how long batches take there, and how a GPU is cut otherwise."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.outcome import Outcome
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.planner.geometry.first_cut import laid_out
from sluicegate.policies.serving.device_actions import Beat
from sluicegate.simulator.engine.control_plane import ControlEvent
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.engine.system_model import RunResult, SystemModel
from sluicegate.simulator.scenario import Scenario, build, overridden, read_scenario, scenario_of, source_of
from sluicegate.simulator.scenario.experiment import run_once
from tests.simulation.worlds import FixedPlan

VARIANTS = [
    {
        "name": "heavy",
        "app": "heavy",
        "accuracy": 0.9,
        "memory_mb": 15_000,
        "load_s": 0.25,
        "latency_ms": {"a100": {1: 40, 2: 76}, "a100:4g": {1: 50, 2: 95}, "a100:3g": {1: 70, 2: 130}},
    },
    {
        "name": "light",
        "app": "light",
        "accuracy": 0.8,
        "memory_mb": 2_000,
        "load_s": 0.5,
        "latency_ms": {"a100": {1: 10, 2: 19}, "a100:1g": {1: 16, 2: 30}},
    },
]
STEP = 0.7
"""Seconds to make or destroy a slice."""
BASE: dict[str, Any] = {
    "catalogue": {"format": "inline", "variants": VARIANTS},
    "apps": {"heavy": {"slo_ms": 400}, "light": {"slo_ms": 200, "class": "best_effort"}},
    "devices": [{"type": "a100", "count": 1, "geometry": "4g+3g"}],
    "traces": {"format": "generator", "qps": [4, 4], "generator": {"noise": 0.0, "spikes": 0}},
    "duration_s": 20.0,
    "policies": {"batching": "eager"},
    "planner": {"variants_per_device": 2},
}


@dataclass
class Answer:
    app: str
    device: str
    part: str
    at: float
    rows: int
    seconds: float


class Seen:
    """Answers; ``beats``: (time, device, profiles of its slices) whenever a heartbeat stated others than before."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.beats: list[tuple[float, str, tuple[str, ...]]] = []
        self._last: dict[str, tuple[str, ...]] = {}

    def add(self, o: Outcome) -> None:
        if o.device and o.slice:
            self.answers.append(Answer(o.app, o.device, o.slice, o.at, o.batch_size, o.execution_s))

    def heard(self, event: ControlEvent, now: float) -> None:
        if isinstance(event, Beat):
            profiles = tuple(sorted(part.profile for part in event.seen.slices))
            if profiles != self._last.get(event.seen.device):
                self._last[event.seen.device] = profiles
                self.beats.append((now, event.seen.device, profiles))

    def seconds(self, app: str, part: str, rows: int = 1) -> set[float]:
        """Distinct times of batches of ``rows``, to a microsecond."""
        return {round(a.seconds, 6) for a in self.answers if (a.app, a.part, a.rows) == (app, part, rows)}

    def shares(self, app: str) -> Counter[str]:
        return Counter(a.part for a in self.answers if a.app == app)


def scenario(**changes: Any) -> Scenario:
    return scenario_of(overridden(BASE, changes))


def run(given: Scenario, system: SystemModel | None = None, seed: int = 3) -> tuple[RunResult, Seen]:
    system = system or build(given, lambda: 0.0)
    seen = Seen()
    make = system.make_control

    def watched() -> Any:
        control = make()
        heard = control.heard

        def told(event: ControlEvent, now: float) -> None:
            seen.heard(event, now)
            heard(event, now)

        control.heard = told  # type: ignore[method-assign]
        return control

    source = source_of(given, system.catalogue, np.random.default_rng(seed))
    engine = Engine(replace(system, make_control=watched), np.random.default_rng(seed), [seen])
    return engine.run(source), seen


def fixed(given: Scenario, placed: Iterable[tuple[str, str, float]]) -> SystemModel:
    """Under one plan of (app, slice, share) on the first device."""
    system = build(given, lambda: 0.0)
    name = system.devices[0].name
    placements = tuple(Placement(name, app, (app,), share, 2, part) for app, part, share in placed)
    plan = Plan(epoch=Epoch(1, 1), created=0.0, placements=placements)
    return replace(system, make_control=lambda: FixedPlan(plan))


BOTH = [("heavy", "4g.0", 0.2), ("heavy", "3g.4", 0.8), ("light", "4g.0", 0.5), ("light", "3g.4", 0.5)]


def test_by_proteans_rule_strict_queries_get_the_fast_slice_and_best_effort_the_small_one() -> None:
    given = scenario(slices={"choice": "strict-first", "rdf": {"4g": 1.2, "3g": 2.0}})
    _, seen = run(given, fixed(given, BOTH))
    assert seen.shares("heavy")["4g.0"] > 5 * seen.shares("heavy")["3g.4"]
    assert seen.shares("light").keys() == {"3g.4"}  # it has room for all there are


def test_by_the_plans_shares_queries_stay_where_their_router_sent_them() -> None:
    given = scenario(duration_s=60.0, **{"policies.routing": "weighted"})
    _, seen = run(given, fixed(given, BOTH))
    heavy = seen.shares("heavy")
    assert heavy["3g.4"] == pytest.approx(4 * heavy["4g.0"], rel=0.1)


def test_batches_take_what_was_profiled_on_their_slice_or_the_whole_gpus_times_its_factor() -> None:
    given = scenario(slices={"rdf": {"4g": 1.2, "3g": 2.0}}, **{"policies.routing": "weighted"})
    _, seen = run(given, fixed(given, BOTH))
    assert seen.seconds("heavy", "4g.0") == {0.05}
    assert seen.seconds("heavy", "3g.4") == {0.07}
    assert seen.seconds("light", "4g.0") == {0.012}  # 10 ms on the whole GPU
    assert seen.seconds("light", "3g.4") == {0.02}


SHARED = [
    {"name": "a", "profile": "4g", "instance": "first", "memory_mb": 20_000},
    {"name": "b", "profile": "4g", "instance": "first", "memory_mb": 20_000},
    {"name": "c", "profile": "4g", "memory_mb": 20_000},
]


@pytest.mark.parametrize(("part", "slowest"), [(1.0, 2.0), (0.8, 1.6), (0.5, 1.0)])
def test_slices_of_one_instance_slow_each_other_by_what_they_take_of_its_bandwidth(part: float, slowest: float) -> None:
    given = scenario(
        devices=[{"type": "a100", "slices": SHARED}],
        simulation={"bandwidth": {"heavy": part}},
        traces={"qps": [36, 36]},
        apps={"heavy": {"slo_ms": 4000}},
    )
    _, seen = run(given, fixed(given, [("heavy", name, 1 / 3) for name in "abc"]))
    assert seen.seconds("heavy", "c") == {0.05}  # has its compute for itself
    for name in "ab":
        times = seen.seconds("heavy", name)
        assert min(times) == pytest.approx(0.05, abs=1e-6)
        assert max(times) <= slowest * 0.05 + 1e-6
        assert (max(times) > 0.05 + 1e-6) == (slowest > 1.0)


def test_a_gpu_is_drained_cut_and_loaded_as_the_planner_asks_and_serves_nothing_meanwhile() -> None:
    given = scenario(
        devices=[{"type": "a100", "name": "gpu", "count": 3, "geometry": "7g"}],
        traces={"qps": [20, 420], "generator": {"period_s": 80}, "shares": {"heavy": 0.05, "light": 0.95}},
        duration_s=80.0,
        planner={"geometry": "joint", "period_s": 2, "geometry_patience_s": 2, "geometry_rest_s": 5},
        slices={"step_s": STEP},
    )
    result, seen = run(given)
    cuts = [(at, device, profiles) for at, device, profiles in seen.beats if profiles != ("7g",)]
    assert any("1g" in profiles for _, _, profiles in cuts)  # light queries fit on small slices
    for at, device, profiles in cuts:
        served = sorted(a.at for a in seen.answers if a.device == device)
        before = [t for t in served if t < at - 1e-6]
        if before and before[-1] > 0.0:
            assert at - before[-1] >= 3 * STEP  # idle, then one slice destroyed and two made at least
        after = [a for a in seen.answers if a.device == device and a.at > at]
        until = min((t for t, d, _ in seen.beats if d == device and t > at), default=1e9)
        assert {a.part.split(".")[0] for a in after if a.at < until} <= set(profiles)
    assert any(a.app == "light" and a.part.startswith("1g") for a in seen.answers)
    assert not any(a.app == "heavy" and a.part[:2] in ("1g", "2g") for a in seen.answers)  # does not fit there
    one_at_a_time = [later[0] - earlier[0] for earlier, later in pairwise(cuts)]
    assert all(gap >= 3 * STEP for gap in one_at_a_time)
    assert result.summary.violation_ratio < 0.25


@pytest.mark.thorough
def test_proteans_rule_gives_small_slices_to_some_best_effort_queries_and_a_large_one_to_many() -> None:
    strict = {"name": "heavy", "app": "heavy", "accuracy": 0.9, "memory_mb": 6_000, "load_s": 0.25}
    loose = {"name": "light", "app": "light", "accuracy": 0.8, "memory_mb": 3_000, "load_s": 0.5}
    given = scenario(
        catalogue={
            "variants": [
                {**strict, "latency_ms": {"a100": {1: 50, 8: 225}}},
                {**loose, "latency_ms": {"a100": {1: 100, 8: 450}}},
            ]
        },
        apps={"heavy": {"slo_ms": 600}, "light": {"slo_ms": 3000}},
        devices=[{"type": "a100", "name": "gpu", "count": 2, "geometry": "7g"}],
        traces={"qps": [30, 160], "generator": {"period_s": 100}, "shares": {"heavy": 0.3, "light": 0.7}},
        duration_s=50.0,
        planner={"geometry": "protean", "period_s": 3, "geometry_rest_s": 5},
        simulation={"control_ms": 3},
    )
    _, seen = run(given)
    cuts = {device: [profiles for _, name, profiles in seen.beats if name == device] for device in ("gpu0", "gpu1")}
    small, large = ("1g", "2g", "4g"), ("3g", "4g")
    for ways in cuts.values():
        assert ways[:2] == [("7g",), small]
        assert large in ways[2:]


def test_a_cut_takes_a_step_for_each_slice_that_is_made_or_destroyed_and_spares_what_can_stay() -> None:
    given = scenario(devices=[{"type": "a100", "geometry": "4g+2g+1g"}], slices={"step_s": STEP})
    system = build(given, lambda: 0.0)
    (device,) = system.devices
    asked = Plan(
        epoch=Epoch(1, 1), created=0.0, placements=(), geometries={device.name: laid_out("a100", ("4g", "3g"))}
    )
    system = replace(system, make_control=lambda: FixedPlan(asked))
    _, seen = run(given, system)
    (begin, _, before), (end, _, after) = seen.beats
    assert (before, after) == (("1g", "2g", "4g"), ("3g", "4g"))
    assert end - begin == pytest.approx(3 * STEP)  # 2g and 1g go, 3g comes, 4g stays


@pytest.mark.thorough
@pytest.mark.parametrize("geometry", ["4g+3g", "3g+2g+2g"])
def test_more_is_right_in_time_by_the_plan_than_by_a_rule_of_the_worker(geometry: str) -> None:
    right = right_in_time(geometry, seeds=(5,))
    assert right["plan"] > max(right["strict-first"], right["strict-room"])


@pytest.mark.thorough
@pytest.mark.parametrize("geometry", ["4g+3g", "3g+2g+2g"])
def test_the_plan_is_ahead_in_the_mean_of_ten_seeds(geometry: str) -> None:
    right = right_in_time(geometry, seeds=tuple(range(5, 15)))
    assert right["plan"] > max(right["strict-first"], right["strict-room"])


def right_in_time(geometry: str, seeds: tuple[int, ...]) -> dict[str, float]:
    """By who chooses the slice: the mean over ``seeds``."""
    choices = ("plan", "strict-first", "strict-room")
    return {choice: fmean(_right_in_time(geometry, choice, seed) for seed in seeds) for choice in choices}


@cache
def _right_in_time(geometry: str, choice: str, seed: int) -> float:
    shipped = read_scenario(Path(__file__).resolve().parents[3] / "examples" / "scenarios" / "sliced-gpus.yaml", {})
    shipped.pop("systems")
    changes = {"duration_s": 30, "traces.generator.period_s": 30, "planner.geometry": "off"}
    chosen = {**changes, "devices.0.geometry": geometry, "slices.choice": choice}
    return run_once(scenario_of(overridden(shipped, chosen)), seed, lambda: 0.0).summary.right_in_time


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"devices.0.geometry": "5g"}, "devices.0"),
        ({"devices.0.geometry": "4g+4g"}, "cannot be placed on a100"),
        ({"devices.0.geometry": "nothing like it x"}, "devices.0"),
        ({"devices.0.type": "cpu"}, "no placement table"),
        ({"devices.0.slices": [{"name": "a"}]}, "geometry and slices"),
        ({"simulation": {"shared": ["a100"]}}, "simulation.shared"),
        ({"simulation": {"bandwidth": {"heavy": 0.5}}}, "shares nothing"),
        ({"simulation": {"bandwidth": {"none": 0.5}}}, "no variant 'none'"),
    ],
)
def test_slices_that_cannot_be_are_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        build(scenario(**changes), lambda: 0.0)
