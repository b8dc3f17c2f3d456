"""Figures 3 to 5 of the spread-drop paper and figure 6 of Proteus, redrawn beside the papers' numbers.

    python bench/spread_drop.py                   a table on the terminal, reports/bench/spread_drop.png

B = 8 and SLO = 2 P, which the spread-drop paper leaves open, reproduce its figures 3 to 5. For figure 6 one device
serves the same load with uniform, Poisson and Gamma (shape 0.05) arrivals; Proteus's batching is ``deadline``, the
paper says 2-3 times its violations for early drop and 3.8-4 times for AIMD.
"""

import argparse
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from domain.events import Hosted
from domain.profile import LatencyCurve
from domain.query import Query
from policies.batching.registry import batching
from policies.batching.station import Station
from policies.batching.trial import ON_TIME, Trial, try_alone
from policies.dropping.tracker import MissTracker

B = 8
P = 1.0
PAPER_3 = {1: (10.4, 2.0), 2: (20.8, 3.0), 3: (29.8, 4.0), 4: (38.2, 5.3)}


def serve(rule: str, arrivals: list[float], seconds: tuple[float, ...], slo: float, **options: Any) -> Trial:
    queries = [Query("", "app", at, at + slo) for at in arrivals]
    return try_alone(Station(batching(rule, **options)), queries, (Hosted("v", 0.9, LatencyCurve(seconds)),), slo)


def tracked(trial: Trial, k: int) -> MissTracker:
    tracker = MissTracker([k])
    for fate in trial.fates:
        tracker.record(fate != ON_TIME)
    return tracker


def figure_3(runs: int, count: int) -> list[tuple[int, float, float, float, float]]:
    """(load in B/P, mean MCD of early drop, of balanced spread, their miss ratios) under Poisson arrivals at 0.9 x."""
    rows = []
    for load in PAPER_3:
        found: dict[str, list[tuple[int, float]]] = {"early-drop": [], "balanced": []}
        for seed in range(runs):
            gaps = np.random.default_rng([3, load, seed]).exponential(P / (0.9 * load * B), count)
            for rule, into in found.items():
                trial = serve(rule, np.cumsum(gaps).tolist(), (P,) * B, 2 * P)
                into.append((tracked(trial, 10).mcd, trial.violation_ratio))
        means = {rule: np.mean(values, axis=0) for rule, values in found.items()}
        (early, early_missed), (spread, missed) = means["early-drop"], means["balanced"]
        rows.append((load, float(early), float(spread), float(early_missed), float(missed)))
    return rows


def figure_4(count: int) -> list[tuple[int, int]]:
    """(arrivals in P at fixed intervals, MCD of balanced spread)."""
    return [
        (x, tracked(serve("balanced", [i * P / x for i in range(count)], (P,) * B, 2 * P), 10).mcd)
        for x in range(2, 41)
    ]


def figure_5(count: int) -> list[tuple[int, int, int]]:
    """(arrivals in P, worst misses in 10 of balanced spread, the lower bound)."""
    rows = []
    for x in range(6, 21):
        trial = serve("balanced", [i * P / x for i in range(count)], (P,) * B, 2 * P)
        rows.append((x, tracked(trial, 10).worst[10], max(0, ceil(10 * (x - B) / x))))
    return rows


def figure_6(count: int, load: float) -> dict[str, dict[str, float]]:
    """Violations by arrivals and rule; affine latency, SLO 10 times that of one query."""
    seconds = tuple(0.009 + 0.001 * b for b in range(1, 42))
    mean = seconds[-1] / len(seconds) / load
    rng = np.random.default_rng(6)
    arrivals = {
        "uniform": mean * np.arange(count),
        "poisson": np.cumsum(rng.exponential(mean, count)),
        "gamma": np.cumsum(rng.gamma(0.05, mean / 0.05, count)),
    }
    return {
        kind: {
            rule: serve(rule, at.tolist(), seconds, 0.1).violation_ratio
            for rule in ("deadline", "early-drop", "aimd", "adaptive")
        }
        for kind, at in arrivals.items()
    }


def draw(path: Path, third: Any, fourth: Any, fifth: Any, sixth: Any) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    ((a, b), (c, d)) = figure.subplots(2, 2)
    loads = [row[0] for row in third]
    a.plot(loads, [row[1] for row in third], "o-", label="early drop")
    a.plot(loads, [row[2] for row in third], "s-", label="balanced spread")
    for column, label in ((0, "paper, early drop"), (1, "paper, spread")):
        a.plot(loads, [PAPER_3[load][column] for load in loads], "k:" if column else "k--", label=label)
    a.set(title="Figure 3: longest run of misses, Poisson", xlabel="load, B/P")
    a.legend()
    b.step([x for x, _ in fourth], [mcd for _, mcd in fourth], where="mid")
    for x in (8, 16, 24, 32):
        b.axvline(x + 0.5, color="k", ls=":")
    b.set(title="Figure 4: longest run, fixed intervals (paper: steps at 8, 16, 24, 32)", xlabel="arrivals in P")
    c.plot([x for x, _, _ in fifth], [worst for _, worst, _ in fifth], "o", label="balanced spread")
    c.step([x for x, _, _ in fifth], [bound for _, _, bound in fifth], "k:", where="mid", label="lower bound")
    c.set(title="Figure 5: worst misses in 10", xlabel="arrivals in P")
    c.legend()
    kinds = list(sixth)
    for i, rule in enumerate(sixth[kinds[0]]):
        d.bar([k + 0.2 * i for k in range(len(kinds))], [100 * sixth[kind][rule] for kind in kinds], 0.18, label=rule)
    d.set_xticks([k + 0.3 for k in range(len(kinds))], kinds)
    d.set(title="Proteus, figure 6: violations at the same load, %")
    d.legend()
    figure.savefig(path, format="png", dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--load", type=float, default=0.75, help="of capacity, for figure 6")
    parser.add_argument("--out", type=Path, default=Path("reports/bench"))
    asked = parser.parse_args()
    third = figure_3(asked.runs, asked.queries)
    fourth, fifth = figure_4(asked.queries), figure_5(asked.queries)
    sixth = figure_6(4 * asked.queries, asked.load)
    print("figure 3   load   early drop (paper)   spread (paper)   missed early / spread")
    for load, early, spread, missed_early, missed in third:
        paper = PAPER_3[load]
        print(
            f"{load:15d} {early:12.1f} ({paper[0]:.1f}) {spread:13.1f} ({paper[1]:.1f})"
            f"   {missed_early:12.3f} / {missed:.3f}"
        )
    steps = [x for (x, mcd), (_, after) in pairwise(fourth) if after > mcd]
    print(f"figure 4   steps after {steps} (paper: 8, 16, 24, 32)")
    print(f"figure 5   balanced meets the lower bound at {sum(w <= low for _, w, low in fifth)} of {len(fifth)} rates")
    for kind, rules in sixth.items():
        ratios = ", ".join(f"{rule} {100 * v:.2f} %" for rule, v in rules.items())
        print(f"figure 6   {kind:8} {ratios}")
    asked.out.mkdir(parents=True, exist_ok=True)
    draw(asked.out / "spread_drop.png", third, fourth, fifth, sixth)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
