"""Selection tables by topic in the engine: made for plans in modelled time, read by workers, watched, made anew."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.outcome import Outcome
from sluicegate.planner.control.core import PlannerCore
from sluicegate.planner.policy_tables.table_schedule import Make
from sluicegate.policies.serving.device_events import TableCame
from sluicegate.simulator.engine.device_model import SimulatedDevice
from sluicegate.simulator.engine.engine import Engine, RunResult
from sluicegate.simulator.scenario import build, overridden, scenario_of, source_of

HOP, MAKE = 0.004, 0.3
BASE: dict[str, Any] = {
    "duration_s": 30.0,
    "apps": {"images": {"slo_ms": 200}},
    "catalogue": {
        "format": "inline",
        "variants": [
            {
                "name": "small",
                "app": "images",
                "accuracy": 0.71,
                "load_s": 0.2,
                "latency_ms": {"cpu": {1: 9, 4: 30, 8: 58}, "gpu": {1: 3, 8: 11}},
            },
            {
                "name": "large",
                "app": "images",
                "accuracy": 0.83,
                "load_s": 0.4,
                "latency_ms": {"cpu": {1: 60}, "gpu": {1: 12, 4: 40}},
            },
        ],
    },
    "devices": [{"type": "cpu", "count": 2}, {"type": "gpu", "count": 1}],
    "traces": {"format": "generator", "qps": [60, 60], "generator": {"noise": 0.0, "spikes": 0}},
    "policies": {"batching": {"name": "table", "guard_s": 0.005}},
    "planner": {"name": "allocation", "period_s": 5},
    "tables": {"grid": 15, "spacing": 0.05, "margin": 1.0, "hop_s": 0.01, "make_s": MAKE},
    "simulation": {"control_ms": 1e3 * HOP, "to_device_ms": 2},
}


@dataclass
class Heard:
    """What was asked of makers and announced, by a planner; what each device read. Each with its time."""

    makes: list[tuple[float, Make]] = field(default_factory=list)
    said: list[tuple[float, Announce]] = field(default_factory=list)
    came: dict[str, list[tuple[float, TableCame]]] = field(default_factory=dict)

    def prints(self, kind: str) -> list[str]:
        """Fingerprints of tables for workers of a kind, in the order of publishing."""
        read = [came.table.fingerprint for _, came in self.came["cpu0"] if came.kind == kind and came.table is not None]
        return list(dict.fromkeys(read))


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    found = Heard()
    handle, table = PlannerCore.handle, SimulatedDevice.table

    def handled(core: PlannerCore, event: Any, now: float) -> Any:
        actions = handle(core, event, now)
        found.makes += [(now, action) for action in actions if isinstance(action, Make)]
        found.said += [(now, action) for action in actions if isinstance(action, Announce)]
        return actions

    def tabled(device: SimulatedDevice, came: TableCame, now: float) -> None:
        found.came.setdefault(device.device.name, []).append((now, came))
        table(device, came, now)

    monkeypatch.setattr(PlannerCore, "handle", handled)
    monkeypatch.setattr(SimulatedDevice, "table", tabled)
    yield found


class Variants:
    """Answers by variant."""

    def __init__(self) -> None:
        self._answers: list[tuple[float, str, str]] = []

    def add(self, o: Outcome) -> None:
        if o.device and o.variant:
            self._answers.append((o.at, o.device, o.variant))

    def of(self, device: str, after: float, until: float) -> Counter[str]:
        return Counter(variant for at, by, variant in self._answers if by == device and after < at < until)


def run(*observers: Variants, **changes: Any) -> RunResult:
    given = scenario_of(overridden(BASE, changes))
    system = build(given, lambda: 0.0)
    engine = Engine(system, np.random.default_rng(4), observers)
    return engine.run(source_of(given, system.catalogue, np.random.default_rng(4)))


def test_tables_are_made_one_after_the_other_in_modelled_time_and_read_by_every_worker(heard: Heard) -> None:
    result = run()
    assert heard.came["cpu0"] == heard.came["cpu1"] == heard.came["gpu0"]
    single = [(at, make) for at, make in heard.makes if make.loads]
    libraries = [(at, make) for at, make in heard.makes if not make.loads]
    assert {make.question.shelf.worker_class for _, make in single} == {"cpu", "gpu"}
    read = [(at, came) for at, came in heard.came["cpu0"] if came.table is not None]
    assert single[0][0] + MAKE + HOP == pytest.approx(read[0][0])
    assert read[0][1].kind == single[0][1].question.shelf.worker_class
    first, then = libraries[0], heard.makes[heard.makes.index(libraries[0]) + 1]
    kind = first[1].question.shelf.worker_class
    tables = [came for at, came in read if came.kind == kind and first[0] < at <= then[0] + HOP + 1e-9]
    assert len(tables) > 1
    assert then[0] - first[0] == pytest.approx(len(tables) * MAKE)  # one question at a time
    for kind, slowest in (("cpu", 0.06), ("gpu", 0.012)):
        for _, came in read:
            if came.kind == kind and came.table is not None:
                assert (came.app, came.slo) == ("images", 0.2)
                assert slowest in {round(v, 6) for v in _ones(heard, kind)}
    assert result.summary.violation_ratio < 0.02
    assert result.summary.variants_used["images"]["large"] > 0


def _ones(heard: Heard, kind: str) -> set[float]:
    """Seconds of one row by the models that tables for workers of ``kind`` were asked of."""
    models = [make.question.model for _, make in heard.makes if make.question.shelf.worker_class == kind]
    return {variant.latency[0] for model in models for variant in model.variants}


def test_a_worker_that_starts_again_has_the_tables_that_stand_on_the_topic() -> None:
    """Without one it would fall back to its fastest variant."""
    seen = Variants()
    run(seen, **{"simulation.failures": [{"device": "cpu1", "at_s": 10.0, "until_s": 16.0}], "traces.qps": [20, 20]})
    assert seen.of("cpu1", 4.0, 10.0)["large"] > 0
    assert not seen.of("cpu1", 10.1, 16.0)
    assert seen.of("cpu1", 18.0, 30.0)["large"] > 0.8 * seen.of("cpu0", 18.0, 30.0)["large"] > 0


def test_tables_that_do_not_hold_are_announced_and_made_anew_for_measured_latencies(heard: Heard) -> None:
    slow = [{"device": "cpu0", "factor": 2.2, "at_s": 10.0}, {"device": "cpu1", "factor": 2.2, "at_s": 10.0}]
    run(
        **{
            "simulation.stragglers": slow,
            "tables.watch_s": 2.0,
            "devices": [{"type": "cpu", "count": 2}, {"type": "gpu", "count": 1, "name": "fast"}],
            "traces.qps": [110, 110],
            "duration_s": 40.0,
        }
    )
    after = [make.question for at, make in heard.makes if at > 10.0 and make.question.slowdown]
    assert after and {question.shelf.worker_class for question in after} == {"cpu"}
    assert 1.5 < max(f for question in after for f in question.slowdown.values()) < 2.3
    assert len(heard.prints("cpu")) > 1
    drifts = [(at, said) for at, said in heard.said if said.state == "drift"]
    assert drifts and all(at > 10.0 for at, _ in drifts)
    assert {said.subject for _, said in drifts} == {"tables:images/cpu/200ms"}


def test_a_load_that_no_table_covers_is_asked_for_while_the_library_is_made(heard: Heard) -> None:
    run(**{"tables.make_s": 4.0, "traces.qps": [140, 140], "duration_s": 20.0})
    asked = [(at, make) for at, make in heard.makes if make.loads and at > 0.0]
    assert asked
    assert max(qps for _, make in asked for qps in make.loads) > 0.8 * 140


def test_another_planner_goes_on_with_the_tables_that_stand(heard: Heard) -> None:
    run(**{"planner.planners": 2, "planner.failures": [{"planner": "planner0", "at_s": 8.0}], "duration_s": 25.0})
    gone = [came for at, came in heard.came["cpu0"] if at > 8.0 and came.table is None]
    assert not gone
    assert len(heard.prints("cpu")) == len(heard.prints("gpu")) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"policies.batching": {"name": "adaptive"}}, "tables: policies.batching 'adaptive'"),
        ({"policies.batching.loads": [5]}, "has no option 'loads'"),
        ({"tables.phases": 2, "tables.late": "drop"}, "phases"),
        ({"tables.make_s": -1}, "make_s"),
    ],
)
def test_tables_that_cannot_be_made_are_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        build(scenario_of(overridden(BASE, changes)), lambda: 0.0)
