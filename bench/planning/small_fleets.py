"""Plans on one to three devices against standing still: an app of three variants, by load, simulated.

``python bench/planning/small_fleets.py [--devices 1,2,3] [--loads 0.5,0.8,1,1.5,3] [--seconds 120] [--lead 0]
[--seeds 1]``

A load is a multiple of what the most accurate variant carries on all devices by its best batch within half the SLO.
Beside the plans are systems that have one variant only, and so nothing to choose. Each row: answers on time, their
accuracy over that of the best variant, and right answers in time over all queries (0..1), means over seeds.
``--lead``: seconds from the start whose queries do not count: before anything was asked no plan knows how much will
be, while a variant chosen beforehand is chosen by somebody who does. ``holds``: whether plans are as good as is asked
of them (up to 0.8 within 0.3 points on time and 0.2 of accuracy of the most accurate variant alone, above no fewer
right answers in time than any fixed choice).
"""

import argparse
from collections.abc import Mapping
from typing import Any

from sluicegate.simulator.scenario import scenario_of
from sluicegate.simulator.scenario.experiment import run_once

SLO_MS = 250
VARIANTS: Mapping[str, tuple[float, float]] = {"small": (0.80, 5.0), "medium": (0.88, 14.0), "large": (0.91, 40.0)}
"""Accuracy, and milliseconds of a batch of one; a row more takes 0.6 times as long."""
_BATCHES = (1, 2, 4, 8)
_CALM, _ON_TIME, _ACCURACY = 0.8, 0.003, 0.002


def latency(first: float, rows: int) -> float:
    """Milliseconds of a batch."""
    return first * (0.4 + 0.6 * rows)


def capacity() -> float:
    """Queries/s of the most accurate variant on one device, as plans count it (95th percentiles)."""
    first = VARIANTS["large"][1]
    return max(1e3 * b / (1.1 * latency(first, b)) for b in _BATCHES if 1.1 * latency(first, b) <= SLO_MS / 2)


def document(devices: int, load: float, seconds: float, only: str | None) -> dict[str, Any]:
    """A scenario. ``only``: the variant that is all there is."""
    qps = load * devices * capacity()
    return {
        "duration_s": seconds,
        "apps": {"a": {"slo_ms": SLO_MS}},
        "catalogue": {
            "variants": [
                {
                    "name": name,
                    "app": "a",
                    "accuracy": accuracy,
                    "load_s": 1.0,
                    "latency_ms": {"cpu": {b: [latency(ms, b), 1.1 * latency(ms, b)] for b in _BATCHES}},
                }
                for name, (accuracy, ms) in VARIANTS.items()
                if only in (None, name)
            ]
        },
        "devices": [{"type": "cpu", "count": devices}],
        "traces": {"qps": [qps, qps], "generator": {"noise": 0.0, "spikes": 0}},
        "policies": {"batching": {"name": "adaptive", "guard_s": 0.005}},
        "simulation": {"service": "sampled", "to_router_ms": 1, "to_device_ms": 1, "control_ms": 2},
    }


def measured(
    devices: int, load: float, seconds: float, lead: int, only: str | None, seeds: int
) -> tuple[float, float, float]:
    """On time, accuracy over the best variant's, right in time."""
    best = max(accuracy for accuracy, _ in VARIANTS.values())
    found = []
    for seed in range(seeds):
        scenario = scenario_of(document(devices, load, lead + seconds, only))
        series = run_once(scenario, seed, lambda: 0.0, with_series=True).series
        assert series is not None
        assert series.step == 1.0
        asked = sum(series.demand[lead:])
        on_time = sum(series.goodput[lead:])
        answers = {name: sum(rates[lead:]) for name, rates in series.variants.items()}
        right = sum(VARIANTS[name.removeprefix("a/")][0] * rate for name, rate in answers.items())
        found.append((on_time / asked, right / on_time / best if on_time else 0.0, right / asked))
    on_time, accuracy, right = (sum(column) / seeds for column in zip(*found, strict=True))
    return on_time, accuracy, right


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="1,2,3")
    parser.add_argument("--loads", default="0.5,0.8,1,1.5,3")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--lead", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    systems = (None, *VARIANTS)
    print("devices load | " + " | ".join(f"{name or 'plans':>20}" for name in systems) + " | holds")
    for devices in map(int, arguments.devices.split(",")):
        for load in map(float, arguments.loads.split(",")):
            rows = [
                measured(devices, load, arguments.seconds, arguments.lead, only, arguments.seeds) for only in systems
            ]
            plans, best = rows[0], rows[-1]
            if load <= _CALM:
                holds = plans[0] >= best[0] - _ON_TIME and plans[1] >= best[1] - _ACCURACY
            else:
                holds = plans[2] >= max(row[2] for row in rows[1:])
            cells = " | ".join(f"{a:.4f} {b:.4f} {c:.4f}" for a, b, c in rows)
            print(f"{devices:7} {load:4g} | {cells} | {'yes' if holds else 'no'}", flush=True)


if __name__ == "__main__":
    main()
