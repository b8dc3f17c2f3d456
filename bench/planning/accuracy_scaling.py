"""What scaling accuracy brings: all variants, against the best one of each app alone and the fastest one alone.

    python bench/planning/accuracy_scaling.py --png docs/figures/accuracy-scaling.png

``examples/scenarios/small.yaml`` for one of its waves, at several loads: one planner, the same policies and arrivals;
only the variants that may be served differ. ``right in time``: queries answered on time, each counted by its variant's
accuracy, of all queries. Means over seeds, with half the width of their 95 % interval.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sluicegate.simulator.report.charts import STYLE
from sluicegate.simulator.scenario import overridden, read_scenario, scenario_of
from sluicegate.simulator.scenario.experiment import mean_and_half_width, run_once

SCENARIO = Path(__file__).resolve().parents[2] / "examples" / "scenarios" / "small.yaml"
WAVE_S = 150.0
STYLES = {"all variants": ("#2166ac", "o"), "the best alone": ("#d6604d", "s"), "the fastest alone": ("#1b7837", "^")}
MEASURES = {
    "missed": "missed, %",
    "accuracy": "accuracy of what is on time, %",
    "right_in_time": "right in time, %",
}

Document = Mapping[str, Any]
Found = Mapping[str, Sequence[Mapping[str, tuple[float, float]]]]


def documents(base: Document) -> dict[str, Document]:
    """The scenario, and the same with one variant an app."""
    listed = base["catalogue"]["variants"]

    def only(best: Callable[[Document], float]) -> Document:
        kept = {app: max((v for v in listed if v["app"] == app), key=best) for app in base["apps"]}
        return {**base, "catalogue": {**base["catalogue"], "variants": list(kept.values())}}

    return {
        "all variants": base,
        "the best alone": only(lambda variant: variant["accuracy"]),
        "the fastest alone": only(lambda variant: -variant["latency_ms"]["cpu"][1][0]),
    }


def at(document: Document, load: float, seeds: int) -> dict[str, tuple[float, float]]:
    """Each measure in percent, and half the width of its interval."""
    scenario = scenario_of(overridden(document, {"traces.scale": load, "duration_s": WAVE_S}))
    runs = [run_once(scenario, scenario.seed + i, time.perf_counter).summary for i in range(seeds)]
    values = {
        "missed": [run.violation_ratio for run in runs],
        "accuracy": [run.effective_accuracy for run in runs],
        "right_in_time": [run.effective_accuracy * run.slo_attainment for run in runs],
        "queries_per_s": [run.queries / WAVE_S / 100.0 for run in runs],
    }
    return {name: mean_and_half_width([100.0 * value for value in of_runs]) for name, of_runs in values.items()}


def picture(found: Found, file: Path) -> None:
    """Each measure over the mean load."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 2.9), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, (measure, label) in zip(figure.subplots(1, 3), MEASURES.items(), strict=True):
            for name, points in found.items():
                colour, marker = STYLES[name]
                values = [point[measure][0] for point in points]
                rates = [point["queries_per_s"][0] for point in points]
                axes.plot(rates, values, marker=marker, ms=4, color=colour, lw=1.4, label=name)
            axes.set(xlabel="queries/s, mean of the wave", ylabel=label)
        figure.axes[0].legend(loc="upper left")
        figure.savefig(file, dpi=130)


def main() -> None:
    """Simulate, print, draw."""
    asking = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asking.add_argument("--seeds", type=int, default=5)
    asking.add_argument("--loads", default="0.5,0.75,1,1.25,1.5,2")
    asking.add_argument("--png", type=Path)
    asked = asking.parse_args()
    if asked.seeds < 2:
        asking.error("--seeds: an interval takes two or more")
    found: dict[str, list[dict[str, tuple[float, float]]]] = {}
    for name, document in documents(read_scenario(SCENARIO, {})).items():
        found[name] = []
        for load in map(float, asked.loads.split(",")):
            point = at(document, load, asked.seeds)
            found[name].append(point)
            rounded = {key: [round(x, 2) for x in value] for key, value in point.items()}
            print(json.dumps({"variants": name, "load": load, "seeds": asked.seeds, **rounded}), flush=True)
    if asked.png is not None:
        picture(found, asked.png)


if __name__ == "__main__":
    main()
