"""Figures 3 to 5 of the spread-drop paper, and figure 6 of Proteus on one device: see ``reproduce.spread_drop``."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import ceil, isnan, nan
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from typing_extensions import override

from reproduce.drawing import panels
from reproduce.figure import Options, Result
from reproduce.spread_drop.trial import ON_TIME, Trial, try_alone
from sluicegate.domain.actions import StationAction
from sluicegate.domain.events import Hosted
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.query import Query
from sluicegate.policies.batching.aimd import AdditiveIncrease
from sluicegate.policies.batching.base import last_start
from sluicegate.policies.batching.deadline import DeadlineBatching
from sluicegate.policies.batching.registry import batching
from sluicegate.policies.promises.tracker import MissTracker
from sluicegate.policies.protocols import BatchingPolicy
from sluicegate.policies.serving.slice_scheduler import Station
from sluicegate.simulator.report.charts import STYLE
from sluicegate.simulator.report.page import Table

B = 8
P = 1.0
PAPER_3 = {1: (10.4, 2.0), 2: (20.8, 3.0), 3: (29.8, 4.0), 4: (38.2, 5.3)}
"""Load in B/P -> longest run of misses: early drop, spread."""
PAPER_4 = (8, 16, 24, 32)
"""Arrivals in P up to which the longest run is 0, 1, 2, 3."""
LENIENCE = 1000 / 300
"""SLOs after which the artifact of Proteus begins to count an answer as late."""
RUNS = 10
COUNTED = "deadline, late above 3.3 SLO"


def serve(make: Callable[[], BatchingPolicy], arrivals: list[float], seconds: tuple[float, ...], slo: float) -> Trial:
    queries = [Query("", "app", at, at + slo) for at in arrivals]
    return try_alone(Station(make), queries, (Hosted("v", 0.9, LatencyCurve(seconds)),), slo)


def _queries(options: Options) -> int:
    """Of a run."""
    return 1000 if options.quick else 10_000


def tracked(trial: Trial) -> MissTracker:
    tracker = MissTracker([10])
    for fate in trial.fates:
        tracker.record(fate != ON_TIME)
    return tracker


def drawn(title: str, x_label: str, y_label: str) -> tuple[Drawing, Axes]:
    with mpl.rc_context(STYLE):
        drawing, (axes,) = panels(1, 1, 7.4, 4.0)
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
        return drawing, axes


def figure_3(options: Options) -> Result:
    """Longest runs of misses under Poisson arrivals at 0.9 times the load on the axis."""
    runs, count = len(options.each_seed(RUNS)), _queries(options)
    rows: list[dict[str, Any]] = []
    alike = 0
    for load in PAPER_3:
        found: dict[str, list[tuple[int, float]]] = {"early-drop": [], "balanced": []}
        for seed in options.each_seed(RUNS):
            gaps = np.random.default_rng([3, load, seed]).exponential(P / (0.9 * load * B), count)
            for rule, into in found.items():
                trial = serve(batching(rule), np.cumsum(gaps).tolist(), (P,) * B, 2 * P)
                into.append((tracked(trial).mcd, trial.violation_ratio))
        alike += sum(a == b for (_, a), (_, b) in zip(*found.values(), strict=True))
        for rule, paper in zip(found, PAPER_3[load], strict=True):
            mcd, missed = np.mean(found[rule], axis=0)
            spread = float(np.std([longest for longest, _ in found[rule]], ddof=1)) if runs > 1 else nan
            rows.append({"load": load, "rule": rule, "mcd": float(mcd), "sd": spread, "missed": missed, "paper": paper})
    drawing, axes = drawn("Longest run of misses, Poisson arrivals at 0.9 of the load", "load, B/P", "queries")
    for rule, mark in (("early-drop", "o-"), ("balanced", "s-")):
        of = [row for row in rows if row["rule"] == rule]
        axes.plot([r["load"] for r in of], [r["mcd"] for r in of], mark, label=rule)
        axes.plot([r["load"] for r in of], [r["paper"] for r in of], "kx", ms=8, label=f"paper, {rule}")
    axes.set_xticks(list(PAPER_3))
    axes.legend()
    cells = [
        [
            str(r["load"]),
            r["rule"],
            f"{r['mcd']:.1f}",
            "-" if isnan(r["sd"]) else f"{r['sd']:.1f}",
            f"{r['paper']:.1f}",
            f"{100 * r['missed']:.1f} %",
        ]
        for r in rows
    ]
    notes = [
        f"By both rules as many are missed, to the last query, in {alike} of {runs * len(PAPER_3)} runs.",
        f"Means over {runs} runs of {count} queries.",
    ]
    table = Table("Longest run of misses", ("load, B/P", "rule", "here", "sd of runs", "paper", "missed"), cells)
    intro = f"B = {B}, SLO = 2 P, arrivals Poisson at 0.9 times the load."
    return Result("longest runs of misses", intro, [(table.title, drawing)], [table], notes, rows)


def at_fixed_intervals(rule: str, x: int, count: int, **options: Any) -> MissTracker:
    return tracked(serve(batching(rule, **options), [i * P / x for i in range(count)], (P,) * B, 2 * P))


def figure_4(options: Options) -> Result:
    """Longest runs of misses with x arrivals in P at fixed intervals."""
    count = _queries(options)
    rates = range(2, 41)
    rows = [
        {"arrivals": x, **{rule: at_fixed_intervals(rule, x, count).mcd for rule in ("balanced", "early-drop")}}
        for x in rates
    ]
    exact = sum(row["balanced"] == max(0, ceil(row["arrivals"] / B) - 1) for row in rows)
    steps = [low["arrivals"] for low, high in pairwise(rows) if high["balanced"] > low["balanced"]]
    drawing, axes = drawn("Longest run of misses, fixed intervals", "arrivals in P", "queries")
    axes.step(rates, [r["balanced"] for r in rows], where="mid", label="balanced")
    axes.step(rates, [r["early-drop"] for r in rows], where="mid", label="early-drop", lw=0.8)
    for x in PAPER_4:
        axes.axvline(x + 0.5, color="k", ls=":", lw=0.8, label="paper's steps" if x == B else None)
    axes.set_ylim(-0.2, 8)
    axes.legend()
    cells = [[str(i + 1), str(x), str(paper)] for i, (x, paper) in enumerate(zip(steps, PAPER_4, strict=False))]
    notes = [
        f"Steps after {', '.join(map(str, steps))} arrivals in P; the paper's after {', '.join(map(str, PAPER_4))}."
        f" The longest run of X arrivals in P is ceil(X / B) - 1, so that M is kept up to X = B (1 + M), at {exact} of"
        f" {len(rows)} rates.",
    ]
    table = Table("Last rate before each step", ("step", "here", "paper"), cells)
    intro = f"B = {B}, SLO = 2 P, {count} queries at fixed intervals."
    return Result("longest runs at fixed intervals", intro, [(table.title, drawing)], [table], notes, rows)


def figure_5(options: Options) -> Result:
    """Worst misses in any ten with x arrivals in P at fixed intervals."""
    count = _queries(options)
    rates = range(6, 21)
    rules: dict[str, dict[str, Any]] = {
        "balanced": {},
        "weakly-hard": {"weakly_hard": ((5, 10),)},
        "spread-drop": {},
        "early-drop": {},
    }
    rows: list[dict[str, Any]] = [
        {"arrivals": x, "bound": max(0, ceil(10 * (x - B) / x))}
        | {rule: at_fixed_intervals(rule, x, count, **options).worst[10] for rule, options in rules.items()}
        for x in rates
    ]
    met = sum(r["balanced"] <= r["bound"] for r in rows)
    kept, possible = (sum(r[name] <= 5 for r in rows) for name in ("weakly-hard", "bound"))
    whole = ", ".join(str(r["arrivals"]) for r in rows if r["early-drop"] == 10)
    drawing, axes = drawn("Worst misses in ten, fixed intervals", "arrivals in P", "of 10")
    for rule, mark in zip(rules, ("s", "^", "v", "."), strict=True):
        axes.plot(rates, [r[rule] for r in rows], mark, label=rule)
    axes.step(rates, [r["bound"] for r in rows], "k:", where="mid", label="lower bound (met in the paper)")
    axes.legend()
    header = ("arrivals in P", "lower bound", *rules)
    cells = [[str(r["arrivals"]), str(r["bound"]), *(str(r[rule]) for rule in rules)] for r in rows]
    notes = [
        f"balanced meets the lower bound ceil(10 (1 - B / X)) at {met} of {len(rows)} rates, as in the paper.",
        f"weakly-hard was asked for (5, 10), which is kept at {kept} rates, by the lower bound at {possible} at most.",
        f"Early drop misses ten of ten at {whole or 'none'} arrivals in P.",
    ]
    table = Table("Worst misses in ten", header, cells)
    intro = f"B = {B}, SLO = 2 P, K = 10, {count} queries at fixed intervals."
    return Result("worst misses in ten", intro, [(table.title, drawing)], [table], notes, rows)


class LateCounts(DeadlineBatching):
    """Waiting as the artifact runs and judges it: full batches wait as well, nobody is dropped, and an answer counts as
    late only ``LENIENCE`` SLOs after its arrival, which is the deadline its queries are given.
    """

    @override
    def drop_hopeless(self, now: float, actions: list[StationAction]) -> None:
        del now
        self.drop_too_large(actions)

    @override
    def decide(self, now: float, actions: list[StationAction]) -> None:
        rows = min(self.largest, self.queue.rows)
        until = last_start(self.head_deadline - (LENIENCE - 1.0) * self.slo, self.seconds[rows - 1])
        if now < until and self.queue.rows < self.largest:
            self.wake_by(until, actions)
        else:
            self.run(rows, actions)


class FullBatchesOnly(AdditiveIncrease):
    """AIMD that never runs a batch smaller than its limit, as the artifact's."""

    @override
    def decide(self, now: float, actions: list[StationAction]) -> None:
        if self.queue.rows >= int(self.limit):
            super().decide(now, actions)


def figure_6(options: Options) -> Result:
    """Proteus's figure 6 on one device, judged by the SLO and as the artifact judges."""
    runs, count = len(options.each_seed(RUNS)), _queries(options)
    seconds = tuple(0.009 + 0.001 * b for b in range(1, 42))
    judged: dict[str, tuple[Callable[[], BatchingPolicy], float]] = {
        "deadline": (batching("deadline"), 1.0),
        "early-drop": (batching("early-drop"), 1.0),
        "aimd": (batching("aimd"), 1.0),
        "adaptive": (batching("adaptive"), 1.0),
        COUNTED: (LateCounts, LENIENCE),
        "aimd, full batches": (FullBatchesOnly, 1.0),
    }
    rows: list[dict[str, Any]] = []
    for load in (0.5, 0.75, 0.9, 0.95):
        mean = seconds[-1] / len(seconds) / load
        for kind in ("uniform", "poisson", "gamma"):
            found = dict.fromkeys(judged, 0.0)
            for seed in options.each_seed(RUNS):
                rng = np.random.default_rng([6, seed])
                shape = 0.05 if kind == "gamma" else 1.0
                gaps = np.full(count, mean) if kind == "uniform" else rng.gamma(shape, mean / shape, count)
                at = np.cumsum(gaps).tolist()
                for rule, (make, lenience) in judged.items():
                    queries = [Query("", "app", t, t + lenience * 0.1) for t in at]
                    trial = try_alone(Station(make), queries, (Hosted("v", 0.9, LatencyCurve(seconds)),), 0.1)
                    found[rule] += trial.violation_ratio / runs
            rows.append({"load": load, "arrivals": kind, **found})
    drawing, axes = drawn("Violations on one device, Gamma arrivals of shape 0.05", "load, % of capacity", "%")
    gamma = [r for r in rows if r["arrivals"] == "gamma"]
    for rule in judged:
        mark = "k--" if rule == COUNTED else "o-"
        axes.plot([100 * r["load"] for r in gamma], [100 * r[rule] for r in gamma], mark, label=rule)
    axes.legend()
    cells = [
        [f"{100 * r['load']:.0f} %, {r['arrivals']}", *(f"{100 * r[rule]:.2f} %" for rule in judged)] for r in rows
    ]
    table = Table("Violations", ("load and arrivals", *judged), cells)
    intro = f"Latency 9 ms + 1 ms a row up to 41 rows, SLO 100 ms, {count} queries, {runs} runs."
    return Result("arrivals and batching, one device", intro, [(table.title, drawing)], [table], said_6(gamma), rows)


def said_6(gamma: Sequence[Mapping[str, float]]) -> list[str]:
    """Which of the paper's factors come out, and how they are counted."""
    shown = "{:.0f} %: early drop {:.1f}x, AIMD {:.1f}x".format
    by_slo, counted = (
        "; ".join(
            shown(100 * r["load"], r["early-drop"] / r[base], r["aimd"] / r[base]) for r in gamma if r[base] > 1e-3
        )
        for base in ("deadline", COUNTED)
    )
    fewer = sum(r["early-drop"] < r["deadline"] for r in gamma)
    return [
        "The paper: the same load, early drop has 2-3 times and AIMD 3.8-4 times the violations of Proteus's rule.",
        f"Judged by the SLO, Gamma arrivals, in multiples of deadline's: {by_slo or 'none to compare with'}. Early drop"
        f" has fewer at {fewer} of {len(gamma)} loads.",
        "The artifact counts an answer as late only above 1000 ms where the SLO is 300, and its Proteus drops nobody:"
        f" what it serves between one SLO and {LENIENCE:.1f} counts as served, while early drop gives the same queries"
        " up at the SLO, and those count. In multiples of violations counted so:"
        f" {counted or 'none to compare with, in so short runs'}.",
        "The artifact's AIMD starts full batches only.",
    ]
