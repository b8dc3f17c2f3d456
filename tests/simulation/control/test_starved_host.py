"""A machine that lacks time for its workers, simulated: the planner hears of it, says so and plans for it."""

from collections import Counter

import numpy as np
import pytest

from sluicegate.domain.actions import Announce, Publish
from sluicegate.domain.events import HostHeard
from sluicegate.domain.outcome import Outcome
from sluicegate.planner.control.core import PlannerCore
from sluicegate.planner.control.events import PlannerAction, PlannerEvent
from sluicegate.planner.estimates.host_strain import HostStrain
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.scenario import build, overridden, read_scenario, scenario_of, source_of
from tests.simulation.test_wrong_profiles import SMALL

FROM, UNTIL, SECONDS = 20, 60, 75


class Missed:
    """Queries and misses by the second they arrived in."""

    def __init__(self) -> None:
        self.asked: Counter[int] = Counter()
        self.missed: Counter[int] = Counter()

    def add(self, outcome: Outcome) -> None:
        self.asked[int(outcome.arrival)] += 1
        self.missed[int(outcome.arrival)] += outcome.miss

    def share(self, first: int, last: int) -> float:
        return sum(self.missed[s] for s in range(first, last)) / sum(self.asked[s] for s in range(first, last))


def run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, delay_ms: float, *, seconds: int = SECONDS, seed: int = 1
) -> tuple[Missed, list[Announce], int]:
    """Misses, what was said of hosts, and plans while the host was starved."""
    trace = tmp_path / "flat.csv"  # type: ignore[operator]
    trace.write_text("500\n" * seconds)
    starved = [{"device": "*", "delay_ms": delay_ms, "at_s": FROM, "until_s": UNTIL}] if delay_ms else []
    document = overridden(
        read_scenario(SMALL, {}),
        {
            "traces": {"format": "counts", "path": str(trace), "qps": None, "shares": {"images": 0.6, "words": 0.4}},
            "duration_s": seconds,
            "policies": {"routing": "weighted", "batching": "adaptive"},
            "simulation": {"service": "median", "starved_hosts": starved},
        },
    )
    said: list[Announce] = []
    plans: list[float] = []
    handle = PlannerCore.handle

    def heard(core: PlannerCore, event: PlannerEvent, now: float) -> list[PlannerAction]:
        actions = handle(core, event, now)
        said.extend(a for a in actions if isinstance(a, Announce) and a.subject == "host")
        plans.extend(now for a in actions if isinstance(a, Publish))
        return actions

    monkeypatch.setattr(PlannerCore, "handle", heard)
    scenario = scenario_of(document)
    system = build(scenario, lambda: 0.0)
    seen = Missed()
    Engine(system, np.random.default_rng(seed), [seen]).run(
        source_of(scenario, system.catalogue, np.random.default_rng(seed))
    )
    monkeypatch.setattr(PlannerCore, "handle", handle)
    return seen, said, sum(FROM <= at < UNTIL for at in plans)


@pytest.mark.thorough
def test_a_starved_host_is_said_and_planned_for(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """In the mean of five seeds: one run misses by chance as much as it may save."""
    late = FROM + 15, UNTIL  # once it was heard, and planned for
    heard: list[float] = []
    unheard: list[float] = []
    for seed in (1, 2, 3, 4, 5):
        seen, said, plans = run(monkeypatch, tmp_path, 40.0, seed=seed)
        assert [a.state for a in said] == ["starved", "keeps_up"]
        assert "ms late (cpu0" in said[0].detail
        assert plans <= 20
        with monkeypatch.context() as deaf:
            deaf.setattr(HostStrain, "heard", _ignored)
            without, silent, more = run(deaf, tmp_path, 40.0, seed=seed)
        assert silent == []
        assert plans < more
        assert seen.share(FROM, UNTIL) < 0.75 * without.share(FROM, UNTIL)
        heard.append(seen.share(*late))
        unheard.append(without.share(*late))
    assert sum(heard) < 0.5 * sum(unheard)


def _ignored(_: HostStrain, __: HostHeard, ___: float) -> None:
    return None


def test_a_host_that_keeps_up_is_not_spoken_of(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    _, said, _ = run(monkeypatch, tmp_path, 0.0, seconds=UNTIL)
    assert said == []
