"""Scenarios of the figures and their runs: the shipped files, shortened and varied, several seeds a system."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from reproduce.figure import Options
from reproduce.protean.slices.slices_experiment import run_once, together
from reproduce.protean.slices.slices_fields import SliceScenario, slice_scenario

SCENARIOS = Path(__file__).parents[2] / "examples" / "scenarios"
SHOWN = ("molecule", "naive", "infless", "mps-mig", "protean", "joint")
"""The systems of most figures, ours last."""


SEEDS = 2


def seconds_of(options: Options) -> float:
    """Of each run."""
    return options.lasting(30.0) or 90.0


def scenario(name: str, seconds: float = 90.0, **changes: Any) -> SliceScenario:
    """A shipped scenario with some sections merged or replaced."""
    found: dict[str, Any] = yaml.safe_load((SCENARIOS / f"{name}.yaml").read_text())
    found["duration_s"] = seconds
    for key, value in changes.items():
        found[key] = {**found[key], **value} if isinstance(found.get(key), dict) and key != "systems" else value
    return slice_scenario(found)


def compared(one: SliceScenario, systems: Sequence[str], options: Options) -> dict[str, Mapping[str, Any]]:
    """By system, as ``together`` gives them; said as it goes."""
    found: dict[str, Mapping[str, Any]] = {}
    for label in systems:
        found[label] = together([run_once(one, label, seed, time.perf_counter) for seed in options.each_seed(SEEDS)])
        got = found[label]
        print(
            f"  {one.name} {one.workload.strict}: {label}: {100 * got['slo_compliance_strict']:.2f} % on time,"
            f" P99 {got['p99_strict_ms']:.0f} ms, best effort {got['p99_best_effort_ms']:.0f} ms",
            flush=True,
        )
    return found
