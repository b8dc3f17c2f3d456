"""INFaaS' figure 6 in a fluid simulation on synthetic profiles: what GPUs alone cost over model-less serving.

One app, the variants of table 2 (A as a CPU, B an Inferentia, C a GPU); low, changing and high load. Clipper+ holds
instances for the peak, SM+ replicates its one variant as the load goes. Ratios stand beside the paper's, whose profiles
were never published: orderings can be compared, sizes hardly.

    python -m bench.model_less_figures [--json]
"""

import argparse
import json

import numpy as np

from planner.scaling.fleet import ScalingVariant
from simulator.model_less import fixed_for, horizontal, model_less, preloaded, simulate

TABLE_2 = (
    ScalingVariant(name="A", app="a", latency=0.200, capacity=5.0, cost=1.0, load=1.0),
    ScalingVariant(name="B", app="a", latency=0.020, capacity=100.0, cost=3.0, load=3.0),
    ScalingVariant(name="C", app="a", latency=0.015, capacity=800.0, cost=16.0, load=6.0),
)
PAPER_6 = {"4": (21.6, 21.3), "4-80": (3.0, 3.0), "650-700": (1.05, None)}
"""Load -> ratio of SM+ and of Clipper+."""
SECONDS = 900


def figure_6() -> list[dict[str, object]]:
    """Cost of the baselines on GPUs over ours, at three loads."""
    loads = {
        "4": np.full(SECONDS, 4.0),
        "4-80": np.linspace(4.0, 80.0, SECONDS),
        "650-700": np.linspace(650.0, 700.0, SECONDS),
    }
    rows = []
    for name, series in loads.items():
        given = ({"a": list(series)}, {"a": 0.3})
        first = {"C": 1}
        ours = simulate(model_less(), TABLE_2, *given, start={"A": 1} if series[0] < 5 else first)
        scaled = simulate(horizontal({"a": "C"}), TABLE_2, *given, start=first)
        fixed = simulate(preloaded, TABLE_2, *given, start=fixed_for(TABLE_2, {"a": max(series)}, {"a": 0.3}))
        rows.append(
            {
                "qps": name,
                "cost_sm_over_ours": round(scaled.cost / ours.cost, 2),
                "cost_clipper_over_ours": round(fixed.cost / ours.cost, 2),
                "paper": PAPER_6[name],
                "violations_ours": round(float(ours.violations), 4),
            }
        )
    return rows


def main() -> None:
    """Print the three loads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    rows = figure_6()
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    print("cost of the baselines over ours (paper: SM+, Clipper+)")
    for row in rows:
        print(" ", row)


if __name__ == "__main__":
    main()
