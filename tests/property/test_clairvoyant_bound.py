"""The clairvoyant bound is never below what could be had, and never below what any policy gets."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sluicegate.domain.models.variant import Variant
from sluicegate.planner.registry import PLANNERS
from sluicegate.policies.batching.registry import BATCHING
from sluicegate.policies.routing.registry import ROUTING
from sluicegate.simulator.arrivals.sampling import Chunk
from sluicegate.simulator.bound import Bound, clairvoyant_bound
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.engine.system_model import SystemModel
from sluicegate.simulator.scenario import build, scenario_of
from tests.models.best_schedule import best_schedule

WORLDS = 1000
PARTS = 10
IN_TURN = [0, *(pytest.param(part, marks=pytest.mark.thorough) for part in range(1, PARTS))]
"""A hundred worlds by default."""
CLOSE = 1e-9
KINDS = ("old", "new")


@dataclass
class _Given:
    """Arrivals written down: (app, time)."""

    apps: tuple[str, ...]
    arrivals: list[tuple[str, float]]
    duration: float = 1.0

    def chunks(self) -> Iterator[Chunk]:
        times = np.array([at for _, at in self.arrivals])
        yield times, np.array([self.apps.index(app) for app, _ in self.arrivals], dtype=np.intp)


def _world(seed: int) -> tuple[dict[str, Any], list[tuple[str, float]]]:
    """One or two apps of one to three variants on one or two devices, and one to five queries."""
    rng = np.random.default_rng([seed, 19])
    apps = ("a", "b")[: rng.integers(1, 3)]
    kinds = [KINDS[rng.integers(2)] for _ in range(rng.integers(1, 3))]
    variants = []
    for app in apps:
        for v in range(rng.integers(1, 4)):
            base, growth = rng.choice([0.02, 0.05, 0.1, 0.2]), rng.choice([0.0, 0.1, 0.6, 1.1])
            variants.append(
                {
                    "name": f"{app}{v}",
                    "app": app,
                    "accuracy": float(rng.integers(30, 100)) / 100,
                    "load_s": 0.0,
                    "latency_ms": {
                        kind: {b: 1e3 * factor * float(base * (1 + growth * (b - 1))) for b in (1, 2, 3)}
                        for kind, factor in (("old", 1.0), ("new", float(rng.choice([0.4, 0.7, 1.3]))))
                    },
                }
            )
    document = {
        "catalogue": {"variants": variants},
        "apps": {app: {"slo_ms": float(rng.choice([120, 250, 400]))} for app in apps},
        "devices": [{"type": kind, "name": f"d{n}-{kind}"} for n, kind in enumerate(kinds)],
        "traces": {"format": "generator", "qps": [1, 1]},
        "planner": {"quantile": "median", "period_s": 0.5},
        "simulation": {"warm_up_s": 1.0},
    }
    spread = rng.choice([0.0, 0.1, 0.5])
    times = np.sort(rng.uniform(0.0, spread, rng.integers(1, 6))) if spread else np.zeros(rng.integers(1, 6))
    return document, [(apps[rng.integers(len(apps))], float(at)) for at in times]


def _rng() -> np.random.Generator:
    return np.random.default_rng(4)


def _bound(system: SystemModel, arrivals: list[tuple[str, float]]) -> Bound:
    return clairvoyant_bound(system, _Given(tuple(a.name for a in system.apps), arrivals), _rng())


def _system(document: dict[str, Any], **more: Any) -> SystemModel:
    return build(scenario_of({**document, **more}), lambda: 0.0)


def _best(system: SystemModel, arrivals: list[tuple[str, float]], value: Callable[[Variant], float]) -> float:
    catalogue = system.catalogue
    queries = [(app, at, at + catalogue.apps[app].slo) for app, at in arrivals]
    curves = {pair: profile.curve("median").seconds for pair, profile in catalogue.profiles.items()}
    values = {app: {v.name: value(v) for v in catalogue.of_app(app)} for app in catalogue.apps}
    return best_schedule(queries, [d.type for d in system.devices], curves, values) / len(queries)


@pytest.mark.parametrize("part", IN_TURN)
def test_no_schedule_of_small_worlds_exceeds_the_bound(part: int) -> None:
    met = 0
    for seed in range(part, WORLDS, PARTS):
        document, arrivals = _world(seed)
        system = _system(document)
        bound = _bound(system, arrivals)
        answered = _best(system, arrivals, lambda _: 1.0)
        assert answered <= 1.0 - bound.violation_ratio + CLOSE, seed
        assert _best(system, arrivals, lambda v: v.accuracy) <= bound.right_in_time + CLOSE, seed
        relative = _best(system, arrivals, lambda v, known=system.catalogue: known.relative_accuracy(v.name))
        assert relative <= bound.relative_right_in_time + CLOSE, seed
        met += answered > 1.0 - bound.violation_ratio - 1e-6
    assert met > WORLDS / PARTS / 2  # it says something: a bound of 1 throughout would not be met as often


def _choices() -> list[dict[str, Any]]:
    """One for each batching rule, routing rule and planner that needs no more than a name."""
    plain = [name for name in BATCHING if name not in {"table", "model-switching", "model-switching-published"}]
    chosen: list[dict[str, Any]] = [{"policies": {"batching": name}} for name in plain]
    chosen += [{"policies": {"routing": name}} for name in ROUTING]
    chosen += [{"planner": {"name": name, "quantile": "median"}} for name in PLANNERS]
    return chosen


@pytest.mark.parametrize("part", IN_TURN)
def test_no_policy_exceeds_the_bound_in_small_worlds(part: int) -> None:
    choices = _choices()
    answered: Counter[str] = Counter()
    for seed in range(part, WORLDS, PARTS):
        document, arrivals = _world(seed)
        choice = choices[seed // PARTS % len(choices)]
        system = _system(document, **choice)
        bound = _bound(system, arrivals)
        source = _Given(tuple(a.name for a in system.apps), arrivals)
        summary = Engine(system, _rng()).run(source).summary
        assert summary.violation_ratio >= bound.violation_ratio - CLOSE, (seed, choice)
        assert summary.right_in_time <= bound.right_in_time + CLOSE, (seed, choice)
        assert summary.relative_right_in_time <= bound.relative_right_in_time + CLOSE, (seed, choice)
        answered[str(choice)] += summary.answered_on_time
    assert len([choice for choice in choices if answered[str(choice)]]) > 0.9 * len(choices)


def _busy(rate: float, **more: Any) -> tuple[SystemModel, list[tuple[str, float]]]:
    """One device that serves 20/s of "slow" or 50/s of "quick", for 20 s."""
    document: dict[str, Any] = {
        "catalogue": {
            "variants": [
                {"name": "slow", "app": "a", "accuracy": 0.9, "latency_ms": {"old": {1: 50.0}}},
                {"name": "quick", "app": "a", "accuracy": 0.6, "latency_ms": {"old": {1: 20.0}}},
            ]
        },
        "apps": {"a": {"slo_ms": 100}},
        "devices": [{"type": "old"}],
        "traces": {"format": "generator", "qps": [1, 1]},
        "planner": {"quantile": "median"},
    }
    arrivals = [("a", (i + 0.5) / rate) for i in range(int(20 * rate))]
    return _system({**document, **more}), arrivals


@pytest.mark.parametrize(("rate", "missed", "right"), [(15, 0.0, 0.9), (35, 0.0, None), (100, 0.5, 0.3)])
def test_a_steady_load_is_bounded_by_what_the_device_can_do(rate: float, missed: float, right: float | None) -> None:
    system, arrivals = _busy(rate)
    bound = _bound(system, arrivals)
    if right is None:  # x of slow and the rest quick: 50 x + 20 (35 - x) = 1000 ms a second
        right = (10 * 0.9 + 25 * 0.6) / 35
    assert bound.violation_ratio == pytest.approx(missed, abs=0.01)
    assert bound.right_in_time == pytest.approx(right, abs=0.01)
    assert bound.relative_right_in_time == pytest.approx(right / 0.9, abs=0.01)
    assert bound.certain


def test_hops_leave_less_time() -> None:
    system, arrivals = _busy(15, simulation={"to_router_ms": 20, "to_device_ms": 31})
    assert _bound(system, arrivals).right_in_time == pytest.approx(0.6)  # 49 ms are left: only quick is in time
    system, arrivals = _busy(15, simulation={"to_router_ms": 40, "to_device_ms": 41})
    assert _bound(system, arrivals).violation_ratio == 1.0


@pytest.mark.parametrize("service", ["sampled", "exponential"])
def test_drawn_service_times_are_bounded_in_the_mean(service: str) -> None:
    runs, bounds = [], []
    for seed in range(6):
        rng = np.random.default_rng([seed, 3])
        system, _ = _busy(60, simulation={"service": service, "slow_batches": {"probability": 0.1, "factor": 3}})
        arrivals = [("a", float(at)) for at in np.sort(rng.uniform(0.0, 20.0, 1200))]
        bound = _bound(system, arrivals)
        assert not bound.certain
        bounds.append(bound.right_in_time)
        runs.append(Engine(system, rng).run(_Given(("a",), arrivals, 20.0)).summary.right_in_time)
    assert np.mean(runs) <= np.mean(bounds) < 0.75


def test_what_queries_ask_of_their_own_counts() -> None:
    """Half of them may take ten times as long: at 100/s a second's worth of them waits beyond a burst."""
    wish = {"a": {"slo_ms": 100, "queries": [{"share": 0.5, "latency_ms": 1000}]}}
    burst = [("a", 0.001 * i) for i in range(100)]
    plain, patient = _busy(1)[0], _busy(1, apps=wish)[0]
    assert _bound(patient, burst).violation_ratio < _bound(plain, burst).violation_ratio - 0.2
    summary = Engine(patient, _rng()).run(_Given(("a",), burst)).summary
    assert summary.violation_ratio >= _bound(patient, burst).violation_ratio - CLOSE


def test_gpus_that_may_be_cut_are_bounded_by_the_parts_of_any_cut() -> None:
    variants = [{"name": "v", "app": "a", "accuracy": 0.8, "latency_ms": {"a100": {1: 50.0}}}]
    document: dict[str, Any] = {
        "catalogue": {"variants": variants},
        "apps": {"a": {"slo_ms": 400}},
        "devices": [{"type": "a100", "geometry": "4g+3g"}],
        "traces": {"format": "generator", "qps": [1, 1]},
        "planner": {"quantile": "median"},
        "slices": {"rdf": {"1g": 3.5, "2g": 2.0, "3g": 2.0, "4g": 1.5, "7g": 1.0}},
    }
    arrivals = [("a", i / 80) for i in range(800)]
    system = _system(document)
    bound = _bound(system, arrivals)
    # Seven 1g would serve 7 x 20 / 3.5 = 40 a second, 4g + 3g 20 / 1.5 + 20 / 2, the whole 20.
    assert bound.violation_ratio == pytest.approx(0.5, abs=0.03)
    summary = Engine(system, _rng()).run(_Given(("a",), arrivals, 10.0)).summary
    assert summary.violation_ratio > bound.violation_ratio


@pytest.mark.parametrize(("part", "missed"), [(1.0, 0.5), (0.5, 0.0)])
def test_slices_that_share_a_processor_are_bounded_by_what_they_take_of_it(part: float, missed: float) -> None:
    """Two slices serve 20/s each: together no more than one where a batch takes all of what they share."""
    slices = [{"name": name, "profile": "half", "instance": "both"} for name in ("left", "right")]
    variants = [{"name": "v", "app": "a", "accuracy": 0.8, "latency_ms": {"gpu:half": {1: 50.0}, "gpu": {1: 50.0}}}]
    document: dict[str, Any] = {
        "catalogue": {"variants": variants},
        "apps": {"a": {"slo_ms": 200}},
        "devices": [{"type": "gpu", "slices": slices}],
        "traces": {"format": "generator", "qps": [1, 1]},
        "planner": {"quantile": "median"},
        "simulation": {"bandwidth": {"v": part}},
    }
    arrivals = [("a", i / 40) for i in range(400)]
    system = _system(document)
    bound = _bound(system, arrivals)
    assert bound.violation_ratio == pytest.approx(missed, abs=0.02)
    summary = Engine(system, _rng()).run(_Given(("a",), arrivals, 10.0)).summary
    assert summary.violation_ratio >= bound.violation_ratio - CLOSE


def test_an_app_that_comes_later_is_missed_until_then_and_its_slo_counts_from_when_it_changes() -> None:
    changes = [{"at_s": 5.0, "app": "a"}, {"at_s": 10.0, "app": "a", "slo_ms": 30}]
    system, arrivals = _busy(15, apps={"a": {"slo_ms": 100, "at_start": False}}, registrations=changes)
    bound = _bound(system, arrivals)
    assert bound.violation_ratio == pytest.approx(0.25, abs=0.01)
    assert bound.right_in_time == pytest.approx((0.9 * 5 + 0.6 * 10) / 20, abs=0.01)  # only quick is done in 30 ms
    summary = Engine(system, _rng()).run(_Given(("a",), arrivals, 20.0)).summary
    assert bound.violation_ratio <= summary.violation_ratio < 0.9
    assert summary.right_in_time <= bound.right_in_time + CLOSE
