"""Ours, Proteus, and the baselines of its evaluation: exactly as published, and mended.

Rules:
- At their word: headroom 1.05, capacity at the largest batch within half the SLO, a plan every 10 s (INFaaS looks every
  second), queries spread by the plan's shares. Clipper is placed once for the mean demand and batches by AIMD; Proteus,
  Sommelier and INFaaS-Accuracy wait to the last moment, as Proteus publishes it.
- Mended: what none of these papers is about is taken from here, so that what is left of a difference is the idea; see
  ``CARRIED``. None of them carries headroom at its price, which asks a planner for several plans.
- Proteus, published: its per-device program at the relative gap of 0.5 that its artifact asks for. Proteus, exact: the
  same without a gap.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from reproduce.proteus.workloads import Workload
from sluicegate.planner.allocation.linear import Limits
from sluicegate.planner.allocation.pipeline import AllocationPlanner
from sluicegate.planner.baselines.clipper_sommelier import ClipperPlanner, SommelierPlanner
from sluicegate.planner.baselines.infaas_accuracy import InfaasAccuracyPlanner
from sluicegate.planner.baselines.per_device import PerDevicePlanner
from sluicegate.planner.problems.problem import Planner
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.engine.planned_control import Controlled
from sluicegate.simulator.engine.system_model import SystemModel
from sluicegate.simulator.scenario import build, overridden, scenario_of
from sluicegate.simulator.scenario.build_control import control
from sluicegate.simulator.scenario.experiment import Run, arrivals_of
from sluicegate.simulator.scenario.scenario_fields import Scenario
from sluicegate.simulator.time_series import SeriesFold

WORD: Mapping[str, Any] = {
    "planner.name": "allocation",
    "planner.period_s": 10,
    "planner.headroom": 1.05,
    "planner.capacity": "largest-batch",
    "planner.loads": "free",
    "policies.routing": "weighted",
    "policies.batching": "deadline",
}
BY_SHARE: Mapping[str, Any] = {
    "planner.name": "allocation",
    "planner.period_s": 2,
    "policies.routing": "weighted",
    "policies.batching": "adaptive",
}
MENDED: Mapping[str, Any] = {**BY_SHARE, "policies.routing": "slack-blend"}
CARRIED = (
    "best batch, a plan every 2 s (INFaaS: every second), headroom from variance, adaptive batching, slack-blend"
    " routing, idle devices put to use (not by INFaaS, whom that costs four points of accuracy: it keeps what it finds"
    " there), a static placement made for the busiest ten seconds"
)
_GAP = Limits(gap=0.5, nodes=1_000_000, seconds=60.0)
_EXACT = AllocationPlanner(name="proteus", fill_idle=False)


@dataclass(frozen=True)
class System:
    """A system of the comparison.

    ``overrides``: of the scenario. ``planner``: made from the workload, where the scenario names none that will do.
    """

    name: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    planner: Callable[[Workload], Planner] | None = None

    def but(self, name: str, **changes: Any) -> "System":
        """Another system; two underscores in a name stand for a dot."""
        return replace(
            self, name=name, overrides={**self.overrides, **{k.replace("__", "."): v for k, v in changes.items()}}
        )


OURS = System("Sluicegate")
PROTEUS = System("Proteus, published", WORD, lambda _: PerDevicePlanner(limits=_GAP))
PROTEUS_EXACT = System("Proteus, exact", WORD, lambda _: _EXACT)
PROTEUS_MENDED = System("Proteus, mended", MENDED, lambda _: AllocationPlanner(name="proteus"))
SOMMELIER = System("Sommelier", WORD, lambda w: SommelierPlanner(expected=w.mean))
SOMMELIER_MENDED = System("Sommelier, mended", MENDED, lambda w: SommelierPlanner(expected=w.peak))
INFAAS = System("INFaaS-Accuracy", {**WORD, "planner.period_s": 1}, lambda _: InfaasAccuracyPlanner())
INFAAS_MENDED = System("INFaaS-Accuracy, mended", {**MENDED, "planner.period_s": 1}, lambda _: InfaasAccuracyPlanner())
_AIMD = {**WORD, "policies.batching": "aimd"}
CLIPPER_HT = System("Clipper-HT", _AIMD, lambda w: ClipperPlanner(accurate=False, expected=w.mean))
CLIPPER_HT_MENDED = System("Clipper-HT, mended", MENDED, lambda w: ClipperPlanner(accurate=False, expected=w.peak))
CLIPPER_HA = System("Clipper-HA", _AIMD, lambda w: ClipperPlanner(accurate=True, expected=w.mean))
CLIPPER_HA_MENDED = System("Clipper-HA, mended", MENDED, lambda w: ClipperPlanner(accurate=True, expected=w.peak))

ALL = (
    OURS,
    PROTEUS,
    PROTEUS_EXACT,
    PROTEUS_MENDED,
    SOMMELIER,
    SOMMELIER_MENDED,
    INFAAS,
    INFAAS_MENDED,
    CLIPPER_HT,
    CLIPPER_HT_MENDED,
    CLIPPER_HA,
    CLIPPER_HA_MENDED,
)


def _control(scenario: Scenario, model: SystemModel, planner: Planner) -> Controlled:
    return control(
        scenario.planner,
        lambda: planner,
        time.process_time,
        catalogue=model.catalogue,
        devices=model.devices,
        hop=model.timing.control,
        loads=scenario.simulation.loads,
        tables=None,
    )


def simulate(system: System, workload: Workload, seed: int = 0) -> Run:
    """One run. Devices are heard before the first plan: a static placement sees all of them."""
    started = time.process_time()
    scenario = scenario_of(overridden(workload.document, dict(system.overrides)))
    model = build(scenario, time.process_time)
    if system.planner is not None:
        planner = system.planner(workload)
        model = replace(model, make_control=lambda: _control(scenario, model, planner))
    series = SeriesFold()
    engine = Engine(model, np.random.default_rng([seed, 2]), (series,))
    result = engine.run(arrivals_of(scenario, model.catalogue, seed))
    return Run(
        summary=result.summary,
        epochs=result.epochs,
        solve_s=result.solve_s,
        wall_s=time.process_time() - started,
        seed=seed,
        nondeterministic=result.nondeterministic,
        series=series.series(),
    )
