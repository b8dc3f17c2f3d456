"""Several variants on a device in a running system: queries get them by the batch, and only where it pays."""

from pathlib import Path

import numpy as np
import pytest

from simulator.engine import Engine, RunResult
from simulator.scenario import build, overridden, read_scenario, scenario_of, source_of

SMALL = Path(__file__).resolve().parents[2] / "examples" / "scenarios" / "small.yaml"


class Answers:
    """Variants that answered, by device."""

    def __init__(self) -> None:
        self.variants: dict[str, set[str]] = {}

    def add(self, outcome: object) -> None:
        device, variant = getattr(outcome, "device", ""), getattr(outcome, "variant", "")
        if device and variant:
            self.variants.setdefault(device, set()).add(variant)


def run(tmp_path: Path, several: int, devices: list[dict[str, object]], qps: int) -> tuple[RunResult, Answers]:
    trace = tmp_path / "flat.csv"
    trace.write_text(f"{qps}\n" * 30)
    document = overridden(
        read_scenario(SMALL, {}),
        {
            "traces": {"format": "counts", "path": str(trace), "shares": {"images": 0.6, "words": 0.4}},
            "duration_s": 30,
            "devices": devices,
            "policies": {"routing": "weighted", "batching": "adaptive"},
            "simulation": {"service": "median"},
            "planner": {"variants_per_device": several},
        },
    )
    scenario = scenario_of(document)
    system = build(scenario, lambda: 0.0)
    seen = Answers()
    result = Engine(system, np.random.default_rng(1), [seen]).run(
        source_of(scenario, system.catalogue, np.random.default_rng(1))
    )
    return result, seen


def test_one_device_serves_two_apps_by_holding_a_variant_of_each(tmp_path: Path) -> None:
    one, _ = run(tmp_path, 1, [{"type": "gpu", "count": 1}], 40)
    two, seen = run(tmp_path, 2, [{"type": "gpu", "count": 1}], 40)
    assert one.summary.slo_attainment < 0.7
    assert two.summary.slo_attainment > 0.9
    assert {v.split("-")[0] for v in seen.variants["gpu0"]} == {"images", "words"}


def test_two_variants_of_an_app_share_a_device_and_batches_choose_between_them(tmp_path: Path) -> None:
    devices: list[dict[str, object]] = [{"type": "cpu", "count": 2}, {"type": "gpu", "count": 1}]
    one, _ = run(tmp_path, 1, devices, 150)
    two, seen = run(tmp_path, 2, devices, 150)
    assert max(len(v) for v in seen.variants.values()) >= 2
    assert two.summary.effective_accuracy > one.summary.effective_accuracy
    assert two.summary.violation_ratio < one.summary.violation_ratio + 0.01


@pytest.mark.parametrize("several", [1, 2])
def test_with_devices_to_spare_every_device_holds_one(tmp_path: Path, several: int) -> None:
    result, seen = run(tmp_path, several, [{"type": "gpu", "count": 8}], 60)
    assert result.summary.effective_accuracy > 0.86
    assert max(len(v) for v in seen.variants.values()) == 1
