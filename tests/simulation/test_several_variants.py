"""Several variants on a device in a running system: queries get them by the batch, and only where it pays."""

from pathlib import Path

import numpy as np
import pytest

from sluicegate.domain.outcome import Outcome
from sluicegate.policies.batching.registry import STATIONS
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.engine.system_model import RunResult
from sluicegate.simulator.scenario import build, overridden, read_scenario, scenario_of, source_of

SMALL = Path(__file__).resolve().parents[2] / "examples" / "scenarios" / "small.yaml"


class Answers:
    """Variants that answered, by device and plan, once there is demand to plan for."""

    def __init__(self) -> None:
        self.variants: dict[tuple[str, tuple[int, int] | None], set[str]] = {}

    def add(self, outcome: Outcome) -> None:
        if outcome.device and outcome.variant and outcome.arrival > 5.0:
            self.variants.setdefault((outcome.device, outcome.epoch), set()).add(outcome.variant)


def run(
    tmp_path: Path,
    several: int,
    devices: list[dict[str, object]],
    qps: int,
    images: float = 0.6,
    turns: str = "urgency",
) -> tuple[RunResult, Answers]:
    trace = tmp_path / "flat.csv"
    trace.write_text(f"{qps}\n" * 30)
    document = overridden(
        read_scenario(SMALL, {}),
        {
            "traces": {
                "format": "counts",
                "path": str(trace),
                "qps": None,
                "shares": {"images": images, "words": 1 - images},
            },
            "duration_s": 30,
            "devices": devices,
            "policies": {"routing": "weighted", "batching": "adaptive", "turns": turns},
            "simulation": {"service": "median"},
            "planner": {"variants_per_device": several},
        },
    )
    scenario = scenario_of(document)
    system = build(scenario, lambda: 0.0)
    assert type(system.make_station()) is STATIONS[turns]
    seen = Answers()
    result = Engine(system, np.random.default_rng(1), [seen]).run(
        source_of(scenario, system.catalogue, np.random.default_rng(1))
    )
    return result, seen


@pytest.mark.parametrize("turns", ["urgency", pytest.param("duty-cycle", marks=pytest.mark.thorough)])
def test_one_device_serves_two_apps_by_holding_a_variant_of_each(tmp_path: Path, turns: str) -> None:
    one, _ = run(tmp_path, 1, [{"type": "gpu", "count": 1}], 40)
    two, seen = run(tmp_path, 2, [{"type": "gpu", "count": 1}], 40, turns=turns)
    assert one.summary.slo_attainment < 0.7
    assert two.summary.slo_attainment > 0.97
    assert {v.split("-")[0] for held in seen.variants.values() for v in held} == {"images", "words"}


def test_few_devices_answer_more_accurately_when_they_hold_two_variants(tmp_path: Path) -> None:
    devices: list[dict[str, object]] = [{"type": "gpu", "count": 2}]
    one, _ = run(tmp_path, 1, devices, 300, images=0.97)
    two, seen = run(tmp_path, 2, devices, 300, images=0.97)
    assert max(len(v) for v in seen.variants.values()) >= 2
    assert two.summary.effective_accuracy > one.summary.effective_accuracy + 0.03
    assert two.summary.violation_ratio < one.summary.violation_ratio + 0.005


@pytest.mark.parametrize("several", [1, 2])
def test_with_devices_to_spare_every_device_holds_one(tmp_path: Path, several: int) -> None:
    result, seen = run(tmp_path, several, [{"type": "gpu", "count": 8}], 60)
    assert result.summary.effective_accuracy > 0.86
    assert max(len(v) for v in seen.variants.values()) == 1
