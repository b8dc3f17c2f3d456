"""Every batching rule on the same arrivals: one device, one app, simulated; a table, a plot and the cells as JSON.

Cells: arrivals (uniform, Poisson, Gamma of shape 0.05, on/off in phases of one SLO at twice the rate) x latency curve
(flat, affine, linear in the batch, 1..64) x SLO (2, 4, 10 times the latency of a batch of 8) x load (50-120 % of
capacity). Capacity is the best throughput of batches within half the SLO, as plans size devices. Every rule is given
the whole curve up to the SLO; the published rules keep to half the SLO by themselves, as published. Rules whose name
ends in ``/1`` are published ones freed of that limit: what they would do best counts as theirs too.

    python bench/batching.py                      200,000 queries a cell and rule (5 seeds of 40,000)
    python bench/batching.py --queries 4000 --seeds 2      a quick look
    python bench/batching.py --rules adaptive              one rule anew, beside what is known of the others

Cells and seeds are written to ``batching.jsonl`` as they end; a run that was broken off goes on from there (``--fresh``
begins anew), but for lines of a rule with other options or of other sources of rules. The same arrivals serve every
rule. With ``--rules`` the violations of the other rules are read from ``--known``, the cells of an earlier run as JSON;
no standard error is then granted, and where they were of other queries or seeds the report says so.

Two bounds stand beside the rules. ``fluid``: arrivals at a constant rate r form batches b = r (SLO - latency(b)), so
that at least 1 - b / (latency(b) r) is missed. ``clairvoyant``: no rule can miss fewer on these very arrivals, since it
serves each query alone in 1 / (best throughput of any batch within the SLO) seconds and drops only what would end late.
"""

import argparse
import gc
import json
import os
import platform
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, fields
from functools import partial
from hashlib import sha256
from math import nan
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reproduce.spread_drop.trial import ON_TIME, Trial, try_alone
from sluicegate.domain.events import Hosted
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.query import Query
from sluicegate.policies.batching.registry import batching
from sluicegate.policies.serving.slice_scheduler import Station

ROOT = Path(__file__).resolve().parents[1]
CURVES: dict[str, Callable[[int], float]] = {
    "flat": lambda _: 0.010,
    "affine": lambda b: 0.009 + 0.001 * b,
    "linear": lambda b: 0.001 * b,
}
SLOS = (2, 4, 10)
LOADS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
ARRIVALS = ("uniform", "poisson", "gamma", "on/off")
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "adaptive": ("adaptive", {}),
    "static": ("static", {"size": 8}),
    "deadline": ("deadline", {}),
    "deadline/1": ("deadline", {"max_latency_share": 1.0}),
    "eager": ("eager", {}),
    "aimd": ("aimd", {}),
    "early-drop": ("early-drop", {}),
    "early-drop/1": ("early-drop", {"max_latency_share": 1.0}),
    "lazy-drop": ("lazy-drop", {}),
    "spread-drop": ("spread-drop", {}),
    "weakly-hard": ("weakly-hard", {"weakly_hard": ((5, 10),)}),
    "balanced": ("balanced", {}),
    "greedy": ("greedy", {"weakly_hard": ((5, 10),)}),
}
"""Shown as -> rule and options. ``eager`` is ``lazy-drop`` freed of its limit."""
PUBLISHED = tuple(rule for rule in RULES if rule not in ("adaptive", "balanced", "greedy"))
SOURCES = (ROOT / "domain", ROOT / "policies", ROOT / "reproduce" / "spread_drop" / "trial.py", Path(__file__))
"""Of all that values of a rule hang on."""
LARGEST = 64
STYLES: dict[str, dict[str, Any]] = {"adaptive": {"lw": 2.5, "color": "k"}, "clairvoyant": {"ls": ":", "color": "grey"}}


@dataclass(frozen=True)
class Cell:
    arrivals: str
    curve: str
    slo: int
    load: float

    @property
    def seconds(self) -> tuple[float, ...]:
        """Latencies of all batches that any deadline could bear."""
        latency = CURVES[self.curve]
        return tuple(latency(b) for b in range(1, LARGEST + 1) if latency(b) <= self.slo_s + 1e-12)

    @property
    def slo_s(self) -> float:
        return self.slo * CURVES[self.curve](8)

    @property
    def capacity(self) -> float:
        """Rows per second of batches within half the SLO."""
        return max(b / s for b, s in enumerate(self.seconds, 1) if s <= self.slo_s / 2 + 1e-12)

    @property
    def rate(self) -> float:
        return self.load * self.capacity


Job = tuple[Cell, int, int]
"""A cell, queries, a seed."""
Found = dict[str, dict[str, float]]
"""Rule or bound -> metric -> value."""


def times(cell: Cell, count: int, seed: int) -> list[float]:
    """Arrival times, the same for every rule."""
    rng = np.random.default_rng([seed, ARRIVALS.index(cell.arrivals), round(100 * cell.load), cell.slo])
    mean = 1.0 / cell.rate
    if cell.arrivals == "uniform":
        at = mean * (np.arange(count) + rng.random())
    elif cell.arrivals == "poisson":
        at = np.cumsum(rng.exponential(mean, count))
    elif cell.arrivals == "gamma":
        at = np.cumsum(rng.gamma(0.05, mean / 0.05, count))
    else:
        inside = np.cumsum(rng.exponential(mean / 2, count))
        at = inside + np.floor(inside / cell.slo_s) * cell.slo_s
    found: list[float] = at.tolist()
    return found


def fluid_bound(cell: Cell) -> float:
    """Least violations at a constant rate."""
    rate = cell.rate
    able = [b / s for b, s in enumerate(cell.seconds, 1) if b <= rate * (cell.slo_s - s) + 1.0]
    return max(0.0, 1.0 - max(able) / rate)


def clairvoyant(cell: Cell, arrivals: list[float]) -> float:
    """Least violations on these arrivals."""
    each, free, served = 1.0 / max(b / s for b, s in enumerate(cell.seconds, 1)), 0.0, 0
    for at in arrivals:
        end = max(free, at) + each
        if end <= at + cell.slo_s:
            free, served = end, served + 1
    return 1.0 - served / len(arrivals)


def measure(job: Job, rules: Collection[str] = tuple(RULES)) -> tuple[Cell, Found]:
    """One cell, one seed."""
    cell, count, seed = job
    arrivals = times(cell, count, seed)
    curve = LatencyCurve(cell.seconds)
    found: Found = {
        "fluid": {"violations": fluid_bound(cell)},
        "clairvoyant": {"violations": clairvoyant(cell, arrivals)},
    }
    queries = [Query("", "app", at, at + cell.slo_s) for at in arrivals]
    gc.collect()
    gc.disable()  # nothing of a trial is a cycle
    for shown in rules:
        rule, options = RULES[shown]
        started = process_time()
        trial = try_alone(Station(batching(rule, **options)), queries, (Hosted("v", 0.9, curve),), cell.slo_s)
        found[shown] = {**judged(trial), "us_per_query": 1e6 * (process_time() - started) / count}
    gc.enable()
    return cell, found


def judged(trial: Trial) -> dict[str, float]:
    missed = np.frombuffer(trial.fates, dtype=np.uint8) != ON_TIME
    runs = np.diff(np.flatnonzero(np.concatenate(([True], ~missed, [True])))) - 1
    seen = np.concatenate(([0], np.cumsum(missed)))
    span = trial.ended - trial.batches[0][0] if trial.batches else 1.0
    return {
        "violations": trial.violation_ratio,
        "mean_batch": trial.mean_batch,
        "mcd": int(runs.max()),
        "worst_10": int((seen[10:] - seen[:-10]).max()),
        "wasted": trial.wasted_s / span,
    }


class Results:
    """Per cell and rule: one list of values per metric, a value a seed. ``known``: mean violations of rules not run."""

    def __init__(self, known: Mapping[tuple[Cell, str], float] | None = None) -> None:
        self.cells: dict[Cell, dict[str, dict[str, list[float]]]] = {}
        self.known = known or {}

    def add(self, cell: Cell, found: Found) -> None:
        rules = self.cells.setdefault(cell, {})
        for rule, metrics in found.items():
            into = rules.setdefault(rule, defaultdict(list))
            for metric, value in metrics.items():
                into[metric].append(value)

    def mean(self, cell: Cell, rule: str, metric: str = "violations") -> float:
        values = self.cells[cell].get(rule)
        if values is None:
            return self.known[cell, rule] if metric == "violations" else nan
        return float(np.mean(values[metric]))

    def total(self, rule: str, which: Callable[[Cell], bool] = lambda _: True) -> float:
        return sum(self.mean(c, rule) for c in self.cells if which(c))

    def over(self, rule: str, metric: str, which: Callable[[Cell], bool] = lambda _: True) -> float:
        return float(np.mean([self.mean(c, rule, metric) for c in self.cells if which(c)]))

    def summary(self) -> dict[str, Any]:
        """Mean violations of each cell and rule, and what the claims rest on."""
        rules = [*RULES, "clairvoyant", "fluid"]
        cells = [[*vars(cell).values(), *(round(self.mean(cell, rule), 5) for rule in rules)] for cell in self.cells]
        return {"columns": ["arrivals", "curve", "slo", "load", *rules], "cells": sorted(cells), "claims": claims(self)}

    def margin(self, cell: Cell) -> tuple[float, float, str]:
        """(adaptive less the best published rule, two standard errors of that, that rule), paired by seed.

        No error is granted where one of them was not run.
        """
        best = min(PUBLISHED, key=lambda rule: self.mean(cell, rule))
        run = self.cells[cell]
        if not {"adaptive", best} <= run.keys():
            return self.mean(cell, "adaptive") - self.mean(cell, best), 0.0, best
        gaps = np.array(run["adaptive"]["violations"]) - np.array(run[best]["violations"])
        error = 2.0 * float(gaps.std(ddof=1)) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0
        return float(gaps.mean()), error, best


def arriving(arrivals: str, curve: str | None = None, load: float | None = None) -> Callable[[Cell], bool]:
    """Cells with these arrivals, and that curve and load if given."""
    return lambda c: c.arrivals == arrivals and curve in (None, c.curve) and load in (None, c.load)


def report(results: Results) -> list[str]:
    lines = [
        f"{len(results.cells)} cells; violations in % of queries, means over cells",
        f"{'rule':12} "
        + " ".join(f"{a:>8}" for a in ARRIVALS)
        + "   <=100%     all   batch     mcd  m of 10  wasted us/query",
    ]
    for rule in (*RULES, "clairvoyant", "fluid"):
        parts = [100 * results.over(rule, "violations", arriving(a)) for a in ARRIVALS]
        parts.append(100 * results.over(rule, "violations", lambda c: c.load <= 1.0))
        parts.append(100 * results.over(rule, "violations"))
        line = f"{rule:12} " + " ".join(f"{p:8.2f}" for p in parts)
        if rule in RULES:
            more = [results.over(rule, m) for m in ("mean_batch", "mcd", "worst_10", "wasted", "us_per_query")]
            if more[0] == more[0]:  # was run
                line += f" {more[0]:7.1f} {more[1]:7.0f} {more[2]:8.1f} {100 * more[3]:6.2f}% {more[4]:8.1f}"
        lines.append(line)
    return [*lines, "", *claims(results)]


def claims(results: Results) -> list[str]:
    ours = results.total("adaptive")
    lines = []
    for rule in ("deadline", "aimd"):
        theirs = results.total(rule)
        lines.append(f"adaptive against {rule}: {100 * (1 - ours / theirs):.1f} % fewer violations (sum over cells)")
    feasible = lambda c: c.load <= 1.0  # noqa: E731
    for rule in ("early-drop", "early-drop/1", "lazy-drop", "eager"):
        theirs, mine = results.total(rule, feasible), results.total("adaptive", feasible)
        shares = [
            f"{100 * (theirs - mine) / (theirs - results.total(bound, feasible)):.1f} % ({bound})"
            for bound in ("fluid", "clairvoyant")
        ]
        lines.append(f"of the distance from {rule} to the bound, up to 100 % load, closed: {', '.join(shares)}")
    margins = sorted(((*results.margin(c), c) for c in results.cells), key=lambda m: m[0] - m[1], reverse=True)
    beyond = [m for m in margins if m[0] - m[1] > 0.005]
    lines.append(f"cells more than 0.5 points + 2 standard errors worse than the best published rule: {len(beyond)}")
    for gap, error, best, cell in margins[:5]:
        lines.append(f"    {100 * gap:+.2f} +- {100 * error:.2f} points against {best} at {cell}")
    return lines


def draw(results: Results, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 9), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(CURVES), len(ARRIVALS), sharex=True)
    shown = ("adaptive", "deadline", "aimd", "early-drop", "early-drop/1", "lazy-drop", "balanced", "clairvoyant")
    for row, curve in zip(grid, CURVES, strict=True):
        for axes, arrivals in zip(row, ARRIVALS, strict=True):
            for rule in shown:
                ys = [100 * results.over(rule, "violations", arriving(arrivals, curve, load)) for load in LOADS]
                style = STYLES.get(rule, {})
                axes.plot([100 * load for load in LOADS], ys, label=rule, **style)
            axes.set_title(f"{curve}, {arrivals}", fontsize=9)
            axes.set_ylim(0, 60)
    grid[-1][0].set_xlabel("load, % of capacity")
    grid[0][0].set_ylabel("violations, %")
    grid[0][0].legend(fontsize=7)
    figure.savefig(path, format="png", dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--queries", type=int, default=40_000, help="queries of each seed")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run has measured")
    parser.add_argument("--rules", default=",".join(RULES), help="measure these alone, parted by commas")
    parser.add_argument("--known", type=Path, default=ROOT / "docs/figures/batching.json", help="cells of other rules")
    parser.add_argument("--out", type=Path, default=Path("reports/bench"))
    asked = parser.parse_args()
    rules = [rule for rule in RULES if rule in asked.rules.split(",")]
    if set(rules) != set(asked.rules.split(",")):
        parser.error(f"--rules: choose of {', '.join(RULES)}")
    cells = [Cell(a, c, s, load) for a in ARRIVALS for c in CURVES for s in SLOS for load in LOADS]
    jobs = [(cell, asked.queries, seed) for seed in range(asked.seeds) for cell in cells]
    asked.out.mkdir(parents=True, exist_ok=True)
    kept = asked.out / "batching.jsonl"
    if asked.fresh:
        kept.unlink(missing_ok=True)
    others = len(rules) < len(RULES)
    results = Results(known(asked.known) if others else {})
    runs = {**(known_runs(asked.known) if others else {}), **{rule: [asked.queries, asked.seeds] for rule in rules}}
    by, done = made_by(rules), set()
    for job, found in read(kept, set(jobs), by):
        done.add(job)
        results.add(job[0], found)
    left = [job for job in jobs if job not in done]
    with ProcessPoolExecutor(asked.workers) as pool, kept.open("a") as file:
        running = {pool.submit(partial(measure, rules=rules), job): job for job in left}
        for ended in as_completed(running):
            job, (cell, found) = running[ended], ended.result()
            results.add(cell, found)
            file.write(line(job, by, found) + "\n")
            file.flush()
    machine = platform.processor() or platform.machine()
    lines = [
        f"{asked.queries * asked.seeds} queries a cell and rule, {asked.seeds} seeds, {machine}",
        *unlike(runs, rules),
    ]
    lines += report(results)
    print("\n".join(lines))
    (asked.out / "batching.txt").write_text("\n".join(lines) + "\n")
    (asked.out / "batching.json").write_text(one_line_a_cell({"runs": runs, **results.summary()}))
    draw(results, asked.out / "batching.png")
    return 0


def one_line_a_cell(summary: dict[str, Any]) -> str:
    """JSON that a diff can be read of."""
    cells = ",\n  ".join(json.dumps(cell) for cell in summary["cells"])
    rest = ",\n ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in summary.items() if key != "cells")
    return f'{{{rest},\n "cells": [\n  {cells}\n ]}}\n'


def known(path: Path) -> dict[tuple[Cell, str], float]:
    """Mean violations by cell and rule of a run whose cells were written to ``path``."""
    summary = json.loads(path.read_text())
    rows = [dict(zip(summary["columns"], row, strict=True)) for row in summary["cells"]]
    names = [f.name for f in fields(Cell)]
    return {(Cell(*(row[n] for n in names)), rule): row[rule] for row in rows for rule in row if rule not in names}


def known_runs(path: Path) -> dict[str, list[int]]:
    """Queries of a seed and seeds by rule, of the cells in ``path``; without rules of which that was not written."""
    told: dict[str, list[int]] = json.loads(path.read_text()).get("runs", {})
    return told


def unlike(runs: Mapping[str, list[int]], rules: Collection[str]) -> list[str]:
    """What is to be said of rules that were not run with ``rules``: those of other queries or seeds."""
    found = defaultdict(list)
    for rule in RULES:
        if rule not in rules and runs.get(rule) != runs[next(iter(rules))]:
            found[tuple(runs.get(rule, ()))].append(rule)
    told = {run: f"of {run[0]} queries and {run[1]} seeds" if run else "of queries and seeds unknown" for run in found}
    return [f"NOT ON THE SAME ARRIVALS, {told[run]}: {', '.join(names)}" for run, names in found.items()]


def made_by(rules: Collection[str]) -> dict[str, Any]:
    """What values of ``rules`` hang on beside cell, queries and seed: their options, and a digest of the sources."""
    digest = sha256()
    for place in SOURCES:
        for file in sorted(place.rglob("*.py")) if place.is_dir() else (place,):
            digest.update(file.read_bytes())
    made: dict[str, Any] = json.loads(json.dumps({rule: RULES[rule] for rule in rules}))
    return {"rules": made, "sources": digest.hexdigest()}


def line(job: Job, by: Mapping[str, Any], found: Found) -> str:
    """Of ``batching.jsonl``: one cell, one seed, and what made it."""
    return json.dumps([*vars(job[0]).values(), *job[1:], by, found])


def read(path: Path, wanted: set[Job], by: Mapping[str, Any]) -> Iterator[tuple[Job, Found]]:
    """What an earlier run left of ``wanted``; lines that something else made, or cut short, are passed over."""
    for row in path.read_text().splitlines() if path.exists() else ():
        try:
            *cell, count, seed, made, found = json.loads(row)
            job = (Cell(*cell), count, seed)
        except (ValueError, TypeError):  # the last line of a run that was killed
            continue
        if job in wanted and made == by:
            yield job, found


if __name__ == "__main__":
    raise SystemExit(main())
