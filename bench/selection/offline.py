"""CPU seconds to generate a selection table, beside the generation times that the paper reports (Table 2).

Every case is generated in both criteria, single-threaded; what is reported is the median of three. The paper's numbers
are wall seconds on its own machine (a ratio to them compares implementations and machines at once).
Needs the papers' data: set SLUICE_DATA. Run: ``python bench/selection/offline.py [--json] [--plot FILE]``.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from sluicegate.planner.mdp.generate_table import generate
from sluicegate.planner.mdp.mdp_model import Candidate, SelectionModel, candidates, pareto_front
from sluicegate.profiles.formats.ramsis_json import DEVICE_TYPE, load_ramsis

PAPER_S = {
    "model-based bins, variable batches": 3694.0,
    "D=100, variable batches": 3015.0,
    "model-based bins": 115.5,
    "base": 132.0,
    "D=10": 14.6,
    "|M|=60, K=100": 1355.0,
}
"""Table 2 of the paper: seconds a policy."""
LIMITS_S = {"base": 0.3, "|M|=60, K=100": 3.0, "|M|=60, D=200, K=1000": 3.0, "all 20 loads": 7.0}
"""What we hold ourselves to."""


def interpolated(front: tuple[Candidate, ...], count: int) -> tuple[Candidate, ...]:
    """``count`` variants on the front, evenly spaced in accuracy, latencies linear in between (paper, Fig. 8)."""
    accuracy = np.array([v.accuracy for v in front])
    latency = np.array([v.latency for v in front])
    return tuple(
        Candidate(f"m{i}", float(a), tuple(float(np.interp(a, accuracy, column)) for column in latency.T))
        for i, a in enumerate(np.linspace(accuracy[0], accuracy[-1], count))
    )


def cases(base: SelectionModel) -> dict[str, list[SelectionModel]]:
    """By name: the tables of one case."""
    many = interpolated(base.variants, 60)
    return {
        "base": [base],
        "D=10": [replace(base, grid=10)],
        "D=200": [replace(base, grid=200)],
        "model-based bins": [replace(base, grid="model")],
        "K=1000": [replace(base, workers=1000, qps=33_333.0)],
        "|M|=60, K=100": [replace(base, variants=many, workers=100, qps=3_333.0)],
        "|M|=60, D=200, K=1000": [replace(base, variants=many, grid=200, workers=1000, qps=33_333.0)],
        "D=100, variable batches": [replace(base, batching="variable", late="drop")],
        "model-based bins, variable batches": [replace(base, grid="model", batching="variable", late="drop")],
        "bursty arrivals (Gamma, shape 0.37)": [replace(base, arrival_shape=0.37)],
        "all 20 loads": [base.at(float(qps)) for qps in range(200, 4001, 200)],
    }


def measure(models: list[SelectionModel], repeats: int = 3) -> float:
    """CPU seconds of the whole process for all of ``models``, the median of ``repeats``."""
    spent: list[float] = []
    for _ in range(repeats):
        started = time.process_time()
        for model in models:
            generate(model)
        spent.append(time.process_time() - started)
    return statistics.median(spent)


def run(data: Path) -> list[dict[str, Any]]:
    """A row a case."""
    catalogue = load_ramsis(data / "ramsis", tasks=("image",), table="artifact")
    front = pareto_front(candidates(catalogue, "image", DEVICE_TYPE))
    base = SelectionModel(variants=front, slo=0.15, workers=60, qps=2000.0)
    generate(base)  # caches and imports are not what is measured
    rows = []
    for name, models in cases(base).items():
        query = measure(models, 1 if "variable" in name else 3)
        decision = measure([replace(m, criterion="decision") for m in models], 1 if "variable" in name else 3)
        rows.append(
            {
                "case": name,
                "query_cpu_s": query,
                "decision_cpu_s": decision,
                "paper_s": PAPER_S.get(name),
                "paper_over_decision": PAPER_S[name] / decision if name in PAPER_S else None,
                "limit_s": LIMITS_S.get(name),
                "within": max(query, decision) <= LIMITS_S[name] if name in LIMITS_S else None,
            }
        )
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rows


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    """Bars, logarithmic: ours in both criteria, the paper's where it has the case."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.8), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    y = np.arange(len(rows))
    series = (("query_cpu_s", "per query"), ("decision_cpu_s", "per decision"), ("paper_s", "paper, Table 2"))
    for i, (key, label) in enumerate(series):
        axes.barh(y + 0.27 * (i - 1), [r[key] or np.nan for r in rows], height=0.25, label=label)
    axes.set(yticks=y, yticklabels=[r["case"] for r in rows], xscale="log", xlabel="seconds a table (20 loads: all)")
    axes.invert_yaxis()
    axes.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)


def main() -> None:
    """Measure, print, plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    data = os.environ.get("SLUICE_DATA")
    if not data:
        sys.exit("SLUICE_DATA is not set; set it to the folder that holds the papers' data")
    rows = run(Path(data))
    if arguments.plot:
        plot(rows, arguments.plot)
    if arguments.json:
        print(json.dumps({"machine": platform.processor() or platform.machine(), "rows": rows}, indent=2))
        return
    print(f"{'':36}{'per query':>12}{'per decision':>14}{'paper':>10}{'ratio':>9}{'limit':>8}")
    for r in rows:
        paper = f"{r['paper_s']:.1f}" if r["paper_s"] else ""
        ratio = f"{r['paper_over_decision']:.0f}x" if r["paper_s"] else ""
        limit = f"{r['limit_s']:.1f}" + ("" if r["within"] else " !") if r["limit_s"] else ""
        print(f"{r['case']:36}{r['query_cpu_s']:11.3f}s{r['decision_cpu_s']:13.3f}s{paper:>10}{ratio:>9}{limit:>8}")


if __name__ == "__main__":
    main()
