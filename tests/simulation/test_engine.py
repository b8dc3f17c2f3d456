"""Conservation, determinism, faults and loading in the engine."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.domain.actions import Drop, Run
from sluicegate.domain.errors import ConfigurationError, IllegalEventError
from sluicegate.domain.events import Arrived, Finished
from sluicegate.domain.outcome import Reason
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.engine.faults import Failure, Faults, Straggler
from sluicegate.simulator.engine.ledger import ConservationError
from sluicegate.simulator.engine.system_model import Timing
from tests.simulation.worlds import Waits, one_app, poisson, simulate, world

_PROFILE = [0.02, 0.03, 0.035, 0.04]


@settings(max_examples=25, deadline=None)
@given(
    rate=st.floats(5.0, 400.0),
    devices=st.integers(1, 4),
    policy=st.sampled_from(["eager", "deadline"]),
    service=st.sampled_from(["median", "p95", "sampled"]),
    hops=st.floats(0.0, 0.05),
    fails=st.floats(0.0, 4.0),
    seed=st.integers(0, 1000),
)
def test_every_query_has_one_end_whatever_happens(
    rate: float, devices: int, policy: str, service: str, hops: float, fails: float, seed: int
) -> None:
    faults = Faults((Failure("d0", fails, fails + 1.0),), (Straggler("d*", 1.5, 1.0, 2.0),))
    system = world(
        one_app(_PROFILE, slo=0.2, load=0.3),
        devices,
        policy=policy,
        service=service,
        timing=Timing(to_router=hops, to_device=hops, control=hops),
        faults=faults,
    )
    source = poisson(rate, 4.0, seed)
    arrivals = sum(times.size for times, _ in poisson(rate, 4.0, seed).chunks())
    summary = simulate(system, source, seed).summary
    ends = summary.answered_on_time + summary.late + summary.expired + summary.dropped + summary.rejected
    assert summary.queries == arrivals == ends


class _Twice:
    """Answers a query and drops it too."""

    busy = False
    queued = rows = 0
    margins = ()

    def handle(self, event: object, now: float) -> list[Run | Drop]:
        if isinstance(event, Arrived):
            return [Drop(event.query, Reason.SHED), Drop(event.query, Reason.SHED)]
        return []

    def drain(self, app: str) -> tuple[()]:
        return ()

    def queued_of(self, app: str) -> int:
        return 0

    def take_observed(self, now: float) -> tuple[()]:
        return ()


class _Forgets(_Twice):
    """Never ends a query."""

    def handle(self, event: object, now: float) -> list[Run | Drop]:
        assert not isinstance(event, Finished)
        return []


def test_a_policy_that_ends_a_query_twice_is_found_out() -> None:
    system = world(one_app(_PROFILE), make_station=_Twice)
    with pytest.raises(IllegalEventError, match="second time"):
        simulate(system, poisson(10.0, 2.0, 0), 0)


def test_a_policy_that_forgets_queries_is_found_out() -> None:
    system = world(one_app(_PROFILE), make_station=_Forgets)
    with pytest.raises(ConservationError, match="still open"):
        simulate(system, poisson(10.0, 2.0, 0), 0)


def test_arrivals_of_other_apps_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="serves a"):
        simulate(world(one_app(_PROFILE)), poisson(10.0, 2.0, 0, app="b"), 0)


_SCRIPT = """
import json, sys
from dataclasses import asdict
from tests.simulation.worlds import *
system = world(one_app([0.02, 0.03, 0.035], slo=0.15, load=0.5), 3, policy="deadline", service="sampled")
print(json.dumps(asdict(simulate(system, poisson(120.0, 20.0, 7), 7).summary)))
"""


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_result_in_another_process() -> None:
    root = Path(__file__).resolve().parents[2]

    def run(hash_seed: str) -> str:
        environment = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)}
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, cwd=root, env=environment, check=True
        )
        return done.stdout

    first, second = run("1"), run("2")
    assert first == second
    system = world(one_app([0.02, 0.03, 0.035], slo=0.15, load=0.5), 3, policy="deadline", service="sampled")
    here = asdict(simulate(system, poisson(120.0, 20.0, 7), 7).summary)
    assert json.loads(first) == json.loads(json.dumps(here))
    other = asdict(simulate(system, poisson(120.0, 20.0, 7), 8).summary)
    assert here != other


def test_queries_wait_for_the_first_variant_to_load() -> None:
    system = world(one_app(_PROFILE, slo=10.0, load=3.0), timing=Timing(warm_up=0.0))
    waits = Waits()
    result = simulate(system, poisson(5.0, 2.0, 1), 1, waits)
    assert result.summary.answered_on_time == result.summary.queries
    assert waits.mean_wait > 1.0
    warm = Waits()
    simulate(replace(system, timing=Timing(warm_up=4.0)), poisson(5.0, 2.0, 1), 1, warm)
    assert warm.mean_wait < 0.05


def test_hops_add_their_time() -> None:
    bare, far = Waits(), Waits()
    system = world(one_app([0.01]))
    simulate(system, poisson(1.0, 100.0, 3), 3, bare)
    simulate(replace(system, timing=Timing(to_router=0.02, to_device=0.03)), poisson(1.0, 100.0, 3), 3, far)
    assert far.mean_time - bare.mean_time == pytest.approx(0.05, abs=1e-3)


def test_what_a_dead_device_held_is_served_when_it_returns() -> None:
    faults = Faults((Failure("d0", 5.0, 8.0),))
    system = world(one_app([0.01], slo=100.0), faults=faults)
    waits = Waits()
    result = simulate(system, poisson(20.0, 10.0, 4), 4, waits)
    assert result.summary.answered_on_time == result.summary.queries
    hurried = world(one_app([0.01], slo=0.5), faults=faults)
    lost = simulate(hurried, poisson(20.0, 10.0, 4), 4).summary
    assert lost.expired == pytest.approx(20.0 * 2.5, rel=0.4)


def test_a_straggler_slows_its_batches() -> None:
    slow = Faults(stragglers=(Straggler("d0", 3.0, 50.0),))
    waits = Waits(after=50.0)
    simulate(world(one_app([0.01]), faults=slow), poisson(1.0, 200.0, 3), 3, waits)
    assert waits.mean_time == pytest.approx(0.03, rel=0.1)


def test_sampled_service_has_the_profiles_median_and_tail() -> None:
    class Times:
        def __init__(self) -> None:
            self.seen: list[float] = []

        def add(self, outcome: object) -> None:
            self.seen.append(outcome.execution_s)  # type: ignore[attr-defined]

    times = Times()
    simulate(world(one_app([0.01]), service="sampled"), poisson(10.0, 500.0, 3), 3, times)
    assert np.median(times.seen) == pytest.approx(0.01, rel=0.03)
    assert np.quantile(times.seen, 0.95) == pytest.approx(0.015, rel=0.05)


def test_loading_may_hold_the_executor_up() -> None:
    catalogue = one_app([0.01], slo=10.0, load=0.0)
    engine = Engine(world(catalogue, exclusive_loads=True), np.random.default_rng(0))
    assert engine.run(poisson(5.0, 4.0, 0)).summary.answered_on_time > 0


def test_every_slice_of_a_device_serves() -> None:
    class Slices:
        def __init__(self) -> None:
            self.seen: set[str] = set()

        def add(self, outcome: object) -> None:
            self.seen.add(outcome.slice)  # type: ignore[attr-defined]

    slices = Slices()
    system = world(one_app([0.01], slo=1.0, load=0.5), 2, slices=3)
    result = simulate(system, poisson(200.0, 5.0, 0), 0, slices)
    assert slices.seen == {"s0", "s1", "s2"}
    assert result.summary.answered_on_time == result.summary.queries
