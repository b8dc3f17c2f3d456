"""Live against simulated: the comparison, what it refuses, and a short run of both."""

from pathlib import Path
from typing import Any

import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.fleet.device import Device
from sluicegate.simulator.figure_differences import Difference, difference
from sluicegate.simulator.scenario import Scenario, catalogue_of, overridden, read_scenario, scenario_of
from sluicegate.sluice.offline.live_vs_simulated import LiveRun, check, executor_of, fidelity, live_settings, run_live
from sluicegate.sluice.system.system import System

SCENARIOS = Path(__file__).resolve().parents[2] / "examples" / "scenarios"
SMALL, SLICED, TABLES = (SCENARIOS / f"{name}.yaml" for name in ("small", "sliced-gpus", "published-tables"))


def _document(**overrides: Any) -> dict[str, Any]:
    return overridden(read_scenario(SMALL, {}), overrides)


def test_differences_are_in_points_and_percent_of_the_simulated() -> None:
    live = {"effective_accuracy": 0.90, "goodput_qps": 99.0, "violation_ratio": 0.02}
    simulated = {"effective_accuracy": 0.91, "goodput_qps": 100.0, "violation_ratio": 0.01}
    apart = difference(live, simulated)
    assert apart.accuracy_points == pytest.approx(-1.0)
    assert apart.throughput_percent == pytest.approx(-1.0)
    assert apart.violation_points == pytest.approx(1.0)
    assert not apart.small
    assert Difference(0.2, -0.9, 0.9).small
    assert not Difference(0.2, float("nan"), 0.0).small


@pytest.mark.parametrize(
    "field",
    [
        {"simulation.service": "exponential"},
        {"simulation.failures": [{"device": "cpu0", "at_s": 1}]},
        {"simulation.stragglers": [{"device": "cpu0", "factor": 2}]},
        {"simulation.loads": "exclusive"},
        {"simulation.executor_failures": [{"device": "cpu0", "at_s": 1}]},
        {"planner.latency_s": 1.0},
        {"planner.planners": 2},
        {"planner.scaling": "greedy"},
        {"scaling": {"spare": ["cpu3"]}},
        {"registrations": [{"app": "words", "at_s": 5, "retired": True}]},
        {"policies.admission": "sustainable"},
        {"policies.admission": None},
        {"planner.name": "scaling-greedy"},
        {"policies.batching": {"name": "adaptive", "gard_s": 0.005}},
        {"planner.demand": {"alhpa": 0.5}},
    ],
)
def test_what_cannot_be_done_live_is_refused_by_name(field: dict[str, Any]) -> None:
    named = {"policies.batching": "gard_s", "planner.demand": "alhpa"}.get(next(iter(field)), next(iter(field)))
    with pytest.raises(ConfigurationError, match=named):
        check(scenario_of(_document(**field)))


async def test_each_load_is_run_on_both_sides() -> None:
    seen = []

    async def runner(scenario: Scenario, seed: int) -> LiveRun:
        seen.append((scenario.traces.scale, seed))
        return LiveRun({"effective_accuracy": 0.9, "goodput_qps": 1.0, "violation_ratio": 0.5}, {"routing": {"a": "b"}})

    found = await fidelity(_document(duration_s=5), [0.5, 2.0], 4, runner)
    assert seen == [(0.5, 4), (2.0, 4)]
    assert list(found) == ["x0.5", "x2"]
    assert found["x2"]["ran_live"] == {"routing": {"a": "b"}}
    assert found["x2"]["simulated"]["queries"] > 2 * found["x0.5"]["simulated"]["queries"]
    assert found["x2"]["difference"]["violation_points"] > 40.0


@pytest.mark.virtual
async def test_a_short_live_run_answers_as_the_simulation_does() -> None:
    overrides = {"duration_s": 8, "traces.qps": [60, 90], "policies.batching": "eager", "simulation.warm_up_s": 4}
    document = _document(**overrides)
    found = await fidelity(document, [1.0], 2, run_live)
    live, simulated = found["x1"]["live"], found["x1"]["simulated"]
    assert live["queries"] == simulated["queries"] > 300
    assert live["violation_ratio"] == pytest.approx(simulated["violation_ratio"], abs=0.02)
    assert live["effective_accuracy"] == pytest.approx(simulated["effective_accuracy"], abs=0.03)


KNOBS: dict[str, Any] = {
    "duration_s": 2,
    "traces.qps": [40, 60],
    "apps": {"images": {"slo_ms": 340, "class": "best_effort"}, "words": {"slo_ms": 170, "min_accuracy": 0.9}},
    "devices": [
        {"type": "cpu", "count": 2, "memory_mb": 900, "price": 0.4, "spot": True},
        {"type": "gpu", "count": 1, "slices": [{"name": "left", "memory_mb": 70}, {"name": "right", "memory_mb": 80}]},
    ],
    "policies.admission": "deadline",
    "policies.routing": "packing",
    "policies.turns": "duty-cycle",
    "policies.quantile": "p95",
    "planner.name": "greedy-fill",
    "planner.period_s": 3.0,
    "planner.burst_interval_s": 1.5,
    "planner.device_timeout_s": 4.0,
    "planner.headroom": 1.3,
    "planner.capacity": "largest-batch",
    "planner.quantile": "median",
    "planner.variants_per_device": 3,
    "planner.price": 0.1,
    "planner.money_weight": 0.01,
    "planner.budget": 50.0,
    "planner.strict_on_demand": 0.125,
    "planner.loads": "exclusive",
    "planner.max_loads": 7,
    "planner.geometry": "protean",
    "planner.geometry_patience_s": 3.5,
    "planner.geometry_rest_s": 12.5,
    "planner.demand": {"alpha": 0.55},
    "simulation.service": "p95",
    "simulation.heartbeat_s": 0.3,
    "simulation.warm_up_s": 3.0,
}


def test_each_device_draws_its_own_latencies_in_each_run() -> None:
    base = scenario_of(_document(**{"simulation.service": "sampled"}))
    catalogue = catalogue_of(base)
    profile = next(p for (_, kind), p in catalogue.profiles.items() if kind == "cpu")
    devices = [Device(name=name, type="cpu") for name in ("cpu11", "cpu20", "cpu12")]
    drawn = {
        executor_of(scenario, catalogue, device, device.slices[0]).draw(profile, 1)
        for scenario in (base, base.model_copy(update={"seed": base.seed + 1}))
        for device in devices
    }
    assert len(drawn) == 6


async def test_every_knob_of_a_scenario_reaches_what_runs_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is at its default, and the environment says something else."""
    monkeypatch.setenv("SLUICE_PLANNER__PERIOD_S", "8")
    monkeypatch.setenv("SLUICE_WORKER__BATCHING", "eager")
    document = _document(**KNOBS)
    document["policies"]["batching"] = {"name": "static", "size": 3, "timeout_s": 0.025}
    document["catalogue"]["variants"][4]["load_s"] = 0.7  # words-large
    live = await run_live(scenario_of(document), 2)
    ran = live.ran
    assert live.figures["queries"] > 40

    planner = ran["planner"]
    assert planner.pop("demand")["alpha"] == 0.55
    assert planner == {name.removeprefix("planner."): value for name, value in KNOBS.items() if _is_rule(name)}
    assert ran["routing"] == {"images": "packing", "words": "packing"}
    assert ran["admission"] == "deadline"
    assert ran["batching"] == ["static"]
    assert ran["quantile"] == ["p95"]
    assert ran["apps"] == {
        "images": {"slo_s": 0.34, "class": "best_effort", "min_accuracy": 0.0},
        "words": {"slo_s": 0.17, "class": "strict", "min_accuracy": 0.9},
    }
    devices = ran["devices"]
    assert {name: tuple(device["slices"]) for name, device in devices.items()} == {
        "cpu0": ("whole",),
        "cpu1": ("whole",),
        "gpu0": ("left", "right"),
    }
    assert (devices["cpu1"]["price"], devices["cpu1"]["spot"], devices["cpu1"]["memory_bytes"]) == (
        0.4,
        True,
        900 << 20,
    )
    assert {device["heartbeat_s"] for device in devices.values()} == {0.3}
    parts = [(device["type"], part) for device in devices.values() for part in device["slices"].values()]
    assert {part["turns"] for _, part in parts} == {"duty-cycle"}
    assert {part["service"] for _, part in parts} == {"p95"}
    assert all(part["profiled_as"] == kind for kind, part in parts)
    rules = [one for _, part in parts for one in part["batching"].values()]
    assert rules and all(one == {"name": "static", "size": 3, "timeout_s": 0.025} for one in rules)
    loads = {name: seconds for _, part in parts for name, seconds in part["loads_s"].items()}
    assert loads["words-large"] >= 0.7
    assert all(seconds >= 0.5 for seconds in loads.values())


async def test_sliced_gpus_are_cut_live_as_the_scenario_has_them() -> None:
    document = overridden(
        read_scenario(SLICED, {}),
        {
            "duration_s": 2,
            "traces.qps": [20, 20],
            "devices.0": {"count": 2, "geometry": "4g+2g+1g"},
            "planner": {"geometry": "protean", "geometry_patience_s": 3.5, "geometry_rest_s": 12.5},
            "slices": {"choice": "strict-room", "drain_s": 2.5, "rdf": {"2g": 2.25}, "step_s": 0.25},
            "simulation": {"service": "p95", "warm_up_s": 3.0},
        },
    )
    scenario = scenario_of(document)
    settings = live_settings(scenario)
    worker = settings.worker.slices
    assert (worker.choice, worker.drain_s, worker.rdf, worker.fake_step_s) == ("strict-room", 2.5, {"2g": 2.25}, 0.25)
    live = await run_live(scenario, 2)
    devices = live.ran["devices"]
    assert {name: sorted(device["slices"]) for name, device in devices.items()} == {
        "a1000": ["1g.6", "2g.4", "4g.0"],
        "a1001": ["1g.6", "2g.4", "4g.0"],
    }
    parts = [(name, part) for device in devices.values() for name, part in device["slices"].items()]
    assert all(part["profiled_as"] == f"a100:{name.partition('.')[0]}" for name, part in parts)
    assert {part["service"] for _, part in parts} == {"p95"}
    planner = live.ran["planner"]
    assert [planner[f"geometry{what}"] for what in ("", "_patience_s", "_rest_s")] == ["protean", 3.5, 12.5]


def test_tables_are_made_live_as_the_scenario_has_them() -> None:
    tables = {"hop_s": 0.007, "margin": 1.2, "grid": 30, "spacing": 0.03, "watch_s": 4.0, "make_s": 0.3}
    scenario = scenario_of(overridden(read_scenario(TABLES, {}), {"tables": tables, "simulation.stragglers": []}))
    check(scenario)
    live = live_settings(scenario).tables
    assert live.model_dump(include=tables.keys() - {"make_s"}) == {k: v for k, v in tables.items() if k != "make_s"}


def _is_rule(name: str) -> bool:
    return name.startswith("planner.") and name != "planner.demand"


def test_nothing_derives_from_the_system() -> None:
    """A subclass whose methods were called no more once ran defaults for a scenario; checks of types refuse another."""
    assert System.__final__  # type: ignore[attr-defined]
