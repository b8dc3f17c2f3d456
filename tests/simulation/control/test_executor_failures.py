"""Executors that die in a run: the device stays, what it ran is run again, and it serves on once it holds all again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.scenario import build, overridden, read_scenario, scenario_of, source_of

SMALL = Path(__file__).resolve().parents[3] / "examples" / "scenarios" / "small.yaml"


class Kept:
    def __init__(self) -> None:
        self.answered: list[Outcome] = []
        self.others: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        (self.answered if outcome.kind is OutcomeKind.ANSWERED else self.others).append(replace(outcome))


def run(**simulation: Any) -> tuple[Kept, int]:
    """Twenty seconds of words on two GPUs, whose large variant takes 1.5 s to load; and how many plans there were."""
    document = {**read_scenario(SMALL, {}), "systems": {}, "duration_s": 20, "apps": {"words": {"slo_ms": 100}}}
    words = [v for v in document["catalogue"]["variants"] if v["app"] == "words"]
    document |= {"catalogue": {"variants": words}, "traces": {"format": "generator", "qps": [800, 800]}}
    changes = {"devices": [{"type": "gpu", "count": 2}], "policies.batching": "eager", "simulation": simulation}
    document = overridden(document, changes)
    scenario = scenario_of(document)
    system = build(scenario, lambda: 0.0)
    kept = Kept()
    source = source_of(scenario, system.catalogue, np.random.default_rng(5))
    result = Engine(system, np.random.default_rng(5), [kept]).run(source)
    return kept, result.epochs


def test_an_executor_that_dies_is_whole_again_after_start_and_loads_and_nothing_is_lost() -> None:
    kept, epochs = run(executor_failures=[{"device": "gpu0", "at_s": 10.0}], executor_start_s=0.5)
    by = {device: [o for o in kept.answered if o.device == device] for device in ("gpu0", "gpu1")}
    silent = [o for o in by["gpu0"] if 10.0 < o.at < 12.0 - 1e-9]
    assert not silent, "0.5 s to start, 1.5 s to load"
    assert any(12.0 <= o.at < 12.6 for o in by["gpu0"]), "routers come back when they hear it whole, at 12.5"
    assert any(10.0 < o.at < 12.0 for o in by["gpu1"]), "the other goes on"
    expired = [o.arrival for o in kept.others if o.kind is OutcomeKind.EXPIRED and 9.0 < o.arrival < 15.0]
    assert expired and 9.9 < min(expired) <= max(expired) < 12.6
    assert epochs == run()[1], "the device has not gone: no plan is asked for"


def test_one_that_dies_again_while_it_is_made_whole_waits_out_its_second() -> None:
    twice = [{"device": "gpu0", "at_s": 10.0}, {"device": "gpu0", "at_s": 10.75}, {"device": "gpu0", "at_s": 10.8}]
    kept, _ = run(executor_failures=twice, executor_start_s=0.5)
    # Started at 10.5, dead at 10.75, again from 11.5 on, which takes 0.5 s and 1.5 s of loads; at 10.8 it is not there.
    after = [o.at for o in kept.answered if o.device == "gpu0" and o.at > 10.0]
    assert 13.5 <= min(after) < 14.1, "routers come back at the heartbeat after"


def test_a_device_that_is_none_is_told() -> None:
    with pytest.raises(ConfigurationError, match=r"simulation\.executor_failures: no device is called 'tpu0'"):
        run(executor_failures=[{"device": "tpu0", "at_s": 1.0}])
