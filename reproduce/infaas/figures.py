"""INFaaS' figures 5 to 7 in simulation: see ``reproduce.infaas``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, isnan, nan

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Drawing
from numpy.typing import NDArray

from reproduce.drawing import panels
from reproduce.figure import Options, Result, papers_data
from reproduce.infaas import sharing, worlds
from reproduce.infaas.fluid import fixed_for, horizontal, model_less, preloaded, simulate
from reproduce.infaas.traffic import Traffic, TrafficResult, poisson_counts
from reproduce.infaas.worlds import TABLE_2
from sluicegate.planner.model_less.greedy_scaling import GreedyScaling
from sluicegate.planner.model_less.scaling_problem import SLACK, Asked, Fleet, ScalingVariant
from sluicegate.simulator.report.charts import STYLE
from sluicegate.simulator.report.page import Table
from sluicegate.simulator.scenario.experiment import mean_and_half_width

SECONDS = 900
SEEDS = 3
FIGURE_5, FIGURE_7 = (10.0, 1000.0, 113_420), (50.0, 500.0, 75_000)
"""Lowest and highest rate of the trace, and its queries."""
QUICK = 60.0
"""Seconds of a quick run."""
_INTRO = "Synthetic profiles: the paper's were never published. Means over seeds of the arrivals."
LOADS = dict(zip(("A", "B", "C"), (1.0, 3.0, 6.0), strict=True))
OURS, CLIPPER, SM = "model-less", "Clipper+", "SM+"


Panels = Mapping[str, Mapping[str, tuple[Sequence[float] | Sequence[str], Sequence[float]]]]
"""Label of y -> system -> x, y."""


def shape() -> NDArray[np.float64]:
    """Of the Twitter trace, which is among RAMSIS' data."""
    found: NDArray[np.float64] = np.loadtxt(papers_data("ramsis/twitter_04_25_norm.txt"))[:, 1]
    return found


def trace(options: Options, of: tuple[float, float, int]) -> NDArray[np.float64]:
    """Queries/s by second: the paper's number of queries, or the whole shape in as many seconds as are asked for."""
    return worlds.twitter(shape(), *of, options.lasting(QUICK))


def counted(options: Options, of: tuple[float, float, int]) -> str:
    """How many queries that makes."""
    return f"{of[2] if options.lasting(QUICK) is None else round(trace(options, of).sum()):,}"


def seeds(options: Options) -> range:
    """One where it is to be quick."""
    return options.each_seed(1 if options.quick else SEEDS)


def figure_5(options: Options) -> Result:
    """Violations, answers a second and cost of the three systems; means over seeds of the arrivals."""
    runs = played(options)
    means = {name: means_of(found) for name, found in runs.items()}
    paper = {CLIPPER: (1.1, 1.63, 1.23), SM: (1.3, 2.54, 1.23), OURS: (1.0, 1.0, 1.0)}
    rows: list[dict[str, float | str]] = [
        {
            "system": name,
            "violations": mean["violations"],
            "violations, \u00b1 95 %": width([r.violations for r in runs[name]]),
            "answered in time, of ours": mean["answered"] / means[OURS]["answered"],
            "violations over ours": mean["violations"] / means[OURS]["violations"],
            "over ours, \u00b1 95 %": over_ours(runs, name),
            "cost over ours": mean["cost"] / means[OURS]["cost"],
            "paper: answered of ours": 1.0 / paper[name][0],
            "paper: violations over ours": paper[name][1],
            "paper: cost over ours": paper[name][2],
            "GPUs busy": mean["gpu"],
        }
        for name, mean in means.items()
    ]
    return _result(
        f"Figure 5. {counted(options, FIGURE_5)} queries of a Twitter trace, 10 to 1,000 a second, over 22"
        " architectures",
        rows,
        {
            "queries/s": {
                "asked": _line([asked for asked, _ in runs[OURS][0].by_tick]),
                **{name: _line([answered for _, answered in found[0].by_tick]) for name, found in runs.items()},
            },
            "violations/s": {
                name: _line(_smooth([a - b for a, b in found[0].by_tick])) for name, found in runs.items()
            },
            "money an hour": {name: _line(found[0].prices) for name, found in runs.items()},
        },
        [
            "The paper: less than 4 % violations, GPUs 48.9 % used. Numbers are means over"
            f" {len(runs[OURS])} draws of the arrivals."
        ],
    )


def played(options: Options, free: worlds.Free = worlds.USUAL) -> dict[str, list[TrafficResult]]:
    """The three systems on the same arrivals, a run a seed."""
    rates = trace(options, FIGURE_5)
    runs: dict[str, list[TrafficResult]] = {CLIPPER: [], SM: [], OURS: []}
    for seed in seeds(options):
        counts = poisson_counts(rates, worlds.shares(), np.random.default_rng(seed))
        for name, run in (*baselines(counts, free), (OURS, ours(counts, rates[0], free))):
            runs[name].append(run.run())
    return runs


VARIED: Mapping[str, Sequence[float]] = {
    "sharing_cost": (0.0, 0.05, 0.1, 0.15, 0.2, 0.25),
    "inferentia": (5.2, 6.0, 8.0),
    "gpu": (12.0, 15.0, 18.0),
    "fixed": (0.5, 0.6, 0.7),
    "loading": (0.5, 1.0, 2.0),
}
"""Free constants by name, one changed at a time."""


def figure_5_free(options: Options) -> Result:
    """What figure 5 would say had the constants that the paper does not give been chosen otherwise."""
    rows: list[dict[str, float | str]] = []
    usual = played(options)
    for name, values in VARIED.items():
        for value in values:
            free = replace(worlds.USUAL, **{name: value})
            runs = usual if free == worlds.USUAL else played(options, free)
            means = {s: means_of(found) for s, found in runs.items()}
            rows.append(
                {
                    "constant": name,
                    "value": value,
                    "our violations": means[OURS]["violations"],
                    **{
                        f"{s} violations over ours": means[s]["violations"] / means[OURS]["violations"]
                        for s in (CLIPPER, SM)
                    },
                    **{f"{s} over ours, \u00b1 95 %": over_ours(runs, s) for s in (CLIPPER, SM)},
                    "their cost over ours": means[CLIPPER]["cost"] / means[OURS]["cost"],
                }
            )
    shared = [row for row in rows if row["constant"] == "sharing_cost"]
    at = [float(row["value"]) for row in shared]
    over = {s: [float(row[f"{s} violations over ours"]) for row in shared] for s in (CLIPPER, SM)}
    return _result(
        "Figure 5 by what sharing a GPU costs, a free constant (0.05 in figure 5)",
        rows,
        {
            "violations over ours": {
                **{s: (at, found) for s, found in over.items()},
                "paper: Clipper+": (at, [1.63] * len(at)),
                "paper: SM+": (at, [2.54] * len(at)),
            }
        },
        x_label="share of a GPU's rate that sharing it costs",
    )


def baselines(counts: Mapping[str, NDArray[np.int64]], free: worlds.Free = worlds.USUAL) -> list[tuple[str, Traffic]]:
    """On five CPU workers and seven GPUs."""
    slos, shares = worlds.slos(), worlds.shares()
    there = {"cpu": 5, "gpu": 7}
    pools = worlds.pools(there, there)
    variants = [v for v in worlds.variants(whole_gpus=True, free=free) if v.hardware in there]
    fixed = most_answers(
        variants,
        {app: 1000.0 * s for app, s in shares.items()},
        slos,
        {h: n * worlds.EACH[h] for h, n in there.items()},
    )
    chosen = {
        app: max(
            (v for v in variants if v.app == app and v.latency <= slos[app] and v.hardware == hardware_of(app)),
            key=lambda v: v.capacity,
        ).name
        for app in slos
    }
    return [
        (CLIPPER, Traffic(preloaded, variants, counts, slos, pools, start=fixed)),
        (SM, Traffic(horizontal(chosen), variants, counts, slos, pools, start=dict.fromkeys(chosen.values(), 1))),
    ]


def hardware_of(app: str) -> str:
    """Where a user who names one variant has it: the popular on GPUs, for their SLO needs one."""
    return "gpu" if app in worlds.POPULAR else "cpu"


def most_answers(
    variants: Sequence[ScalingVariant],
    peaks: Mapping[str, float],
    slos: Mapping[str, float],
    resources: Mapping[str, float],
) -> dict[str, int]:
    """Clipper+'s fixed instances: the one that answers most of what is short, for its resources, again and again."""
    left, short = dict(resources), {app: SLACK * peak for app, peak in peaks.items()}
    counts: dict[str, int] = {}
    while True:
        able = [
            v for v in variants if v.latency <= slos[v.app] and short[v.app] > 1e-9 and left[v.hardware] >= v.resources
        ]
        if not able:
            return counts
        best = max(able, key=lambda v: (min(short[v.app], v.capacity) / v.resources, v.capacity, v.name))
        counts[best.name] = counts.get(best.name, 0) + 1
        left[best.hardware] -= best.resources
        short[best.app] -= best.capacity


def ours(counts: Mapping[str, NDArray[np.int64]], first: float, free: worlds.Free = worlds.USUAL) -> Traffic:
    """Five CPU workers, five GPUs and two of Inferentia at the start; at rest at the trace's first rate."""
    slos, shares, variants = worlds.slos(), worlds.shares(), worlds.variants(whole_gpus=False, free=free)
    there = {"cpu": 5, "gpu": 5, "inferentia": 2}
    fleet = Fleet(
        variants=variants,
        asked={app: Asked(load=shares[app] * first, slo=slos[app]) for app in slos},
        resources={h: n * worlds.EACH[h] for h, n in there.items()},
    )
    greedy = GreedyScaling()
    for _ in range(20):
        fleet = fleet.after(greedy.step(fleet))
    pools = worlds.pools(there, {"cpu": 6, "gpu": 7, "inferentia": 6})
    return Traffic(model_less(), variants, counts, slos, pools, start=fleet.running, scale_workers=True)


def means_of(runs: Sequence[TrafficResult]) -> dict[str, float]:
    """Over runs."""
    return {
        "violations": float(np.mean([r.violations for r in runs])),
        "answered": float(np.mean([r.answered for r in runs])),
        "cost": float(np.mean([r.cost for r in runs])),
        "gpu": float(np.mean([np.mean(r.busy["gpu"]) for r in runs])),
    }


def width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of a mean; NaN of one value."""
    return mean_and_half_width(values)[1]


def over_ours(runs: Mapping[str, Sequence[TrafficResult]], name: str) -> float:
    """``width`` of a system's violations over ours on the same arrivals."""
    pairs = zip(runs[name], runs[OURS], strict=True)
    return width([r.violations / ours.violations if ours.violations else nan for r, ours in pairs])


def figure_6(options: Options) -> Result:
    """Cost of the baselines on CPUs and on GPUs over ours, at four loads, as a fluid; the variants of table 2."""
    variants = tuple(
        ScalingVariant(name=v.name, app="a", latency=v.latency, capacity=v.capacity, cost=v.cost, load=LOADS[v.name])
        for v in TABLE_2
    )
    lasts = max(2, round(options.lasting(300.0) or SECONDS))
    priced = {v.name: v.cost for v in variants}
    wave = 210.0 + 190.0 * np.sin(np.arange(lasts) * 2.0 * np.pi / 300.0)
    series = {
        "4": np.full(lasts, 4.0),
        "4-80": np.linspace(4.0, 80.0, lasts),
        "650-700": np.linspace(650.0, 700.0, lasts),
        "20-400, up and down": wave * np.random.default_rng(options.seed).uniform(0.9, 1.1, lasts),
    }
    paper: dict[str, tuple[float, float]] = {"4": (21.6, 21.3), "4-80": (3.0, 3.0), "650-700": (1.05, float("nan"))}
    rows: list[dict[str, float | str]] = []
    for name, load in series.items():
        given = ({"a": list(load)}, {"a": 0.3})
        mine = simulate(model_less(), variants, *given, start=_at_rest(variants, float(load[0])))
        row: dict[str, float | str] = {"queries/s": name, "price of C over A, put in": priced["C"] / priced["A"]}
        for v, on in zip(variants, ("CPUs, A", "Inferentia, B", "GPUs, C"), strict=True):
            first = max(1, ceil(SLACK * float(load[0]) / v.capacity))
            scaled = simulate(horizontal({"a": v.name}), variants, *given, start={v.name: first})
            fixed = simulate(preloaded, variants, *given, start=fixed_for([v], {"a": float(max(load))}, {"a": 0.3}))
            row |= {f"SM+ on {on}": scaled.cost / mine.cost, f"Clipper+ on {on}": fixed.cost / mine.cost}
            row |= {f"SM+ on {on}: violations": scaled.violations}
        known = paper.get(name, (float("nan"), float("nan")))
        rows.append(row | {"paper: SM+": known[0], "paper: Clipper+": known[1], "our violations": mine.violations})
    at = list(series)
    shown = [k for k in rows[0] if k.startswith(("SM+", "Clipper+")) and not k.endswith("violations")]
    return _result(
        "Figure 6. What one kind of hardware alone costs over model-less serving",
        rows,
        {"cost over ours": {k: (at, [float(r[k]) for r in rows]) for k in [*shown, "paper: SM+", "paper: Clipper+"]}},
        x_label="queries/s",
    )


def _at_rest(variants: Sequence[ScalingVariant], load: float) -> Mapping[str, int]:
    """What the greedy has running once it has met a load for long."""
    fleet = Fleet(variants=tuple(variants), asked={"a": Asked(load=load, slo=0.3)})
    greedy = GreedyScaling()
    for _ in range(20):
        fleet = fleet.after(greedy.step(fleet))
    return fleet.running


def figure_7(options: Options) -> Result:
    """GPU time and violations of two models on one GPU that may become two, against a GPU each."""
    rates = trace(options, FIGURE_7)
    runs = {
        name: [sharing.Gpus(rates, np.random.default_rng(seed), exclusive=exclusive).run() for seed in seeds(options)]
        for name, exclusive in (("a GPU each", True), ("shared", False))
    }
    first = {name: found[0] for name, found in runs.items()}
    rows: list[dict[str, float | str]] = [
        {
            "system": name,
            "GPU seconds": float(np.mean([r.gpu_seconds for r in found])),
            "GPU seconds, \u00b1 95 %": width([r.gpu_seconds for r in found]),
            "violations": float(np.mean([r.violations for r in found])),
            "cheaper": float(np.mean([sharing.saved(r, e) for r, e in zip(found, runs["a GPU each"], strict=True)])),
            "paper: cheaper": 0.1 if name == "shared" else 0.0,
            **{f"{t.name}: p99 ms": 1e3 * float(np.mean([r.p99(t) for r in found])) for t in sharing.TENANTS},
            **{f"{t.name}: answered/s": float(np.mean([r.rate(t) for r in found])) for t in sharing.TENANTS},
        }
        for name, found in runs.items()
    ]
    return _result(
        f"Figure 7. Inception-ResNetV2 (80 %) and MobileNetV1 under {counted(options, FIGURE_7)} queries, 50 to 500 a"
        " second",
        rows,
        {
            "queries/s": {
                "asked": _line([a for a, _ in first["shared"].by_tick]),
                **{name: _line([b for _, b in run.by_tick]) for name, run in first.items()},
            },
            "GPUs": {name: _line(run.gpus) for name, run in first.items()},
        },
    )


def _line(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    return list(range(len(values))), list(values)


def _smooth(values: Sequence[float], over: int = 5) -> list[float]:
    found: list[float] = np.convolve(values, np.ones(over) / over, mode="same").tolist()
    return found


def _result(
    title: str,
    rows: Sequence[Mapping[str, float | str]],
    lines: Panels,
    notes: Sequence[str] = (),
    x_label: str = "seconds",
) -> Result:
    """``rows``: named numbers beside the paper's."""
    cells = [[v if isinstance(v, str) else "-" if isnan(v) else f"{v:.4g}" for v in row.values()] for row in rows]
    table = Table("numbers", list(rows[0]), cells)
    return Result(title, _INTRO, [(title, _drawing(title, lines, x_label))], [table], notes, rows)


def _drawing(title: str, lines: Panels, x_label: str) -> Drawing:
    """A row a panel."""
    with mpl.rc_context(STYLE):
        made, axes = panels(len(lines), 1, 7.6, 2.4 * len(lines) + 0.8)
        for axis, (panel, systems) in zip(axes, lines.items(), strict=True):
            for name, (x, y) in systems.items():
                style = {"color": "#999999", "lw": 2.4} if name == "asked" else {"lw": 1.3}
                marked = len(x) < 10
                axis.plot(
                    x, y, label=name, marker="o" if marked else None, ls="--" if "paper" in name else "-", **style
                )
            axis.set(ylabel=panel, ylim=(0.0, None))
            axis.legend(fontsize=7, ncols=4)
        axes[-1].set_xlabel(x_label)
        made.suptitle(title, fontsize=9)
        return made
