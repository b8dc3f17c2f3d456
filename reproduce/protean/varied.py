"""Other models, shares, limits and rivals."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from reproduce.figure import Options, Result
from reproduce.protean.plots import grouped
from reproduce.protean.runs import SHOWN, compared, scenario, seconds_of
from reproduce.protean.slices.slices_fields import SliceScenario
from reproduce.protean.tables import FOUR, Compared, beside, interval, percent, points, tables_of, wiki
from sluicegate.simulator.report.page import Table

LANGUAGE = ("bert", "deberta", "distilbert", "flaubert")

GPT = ("gpt1", "gpt2")


def _languages(title: str, models: Sequence[str], rows: Any, options: Options) -> Result:
    loads = {"128/s": 0.0256, "256/s": 0.0512}
    found = {
        f"{m}, {load}": compared(wiki(m, options, traces={"scale": scale}), SHOWN, options)
        for m in models
        for load, scale in loads.items()
    }
    return Result(
        title,
        "Language models, batches of 4, best effort from the vision models of low interference.",
        [("strict queries on time, %", grouped({"% on time": percent(found)}, limit=102.0, width=10.5))],
        [beside("beside the paper", rows(found)), *tables_of(found)],
        [],
        found,
    )


def language(options: Options) -> Result:
    """Fig. 12."""

    def rows(found: Mapping[str, Compared]) -> list[tuple[str, str, str]]:
        busy = [f for name, f in found.items() if name.endswith("256/s")]
        means = {s: 100 * sum(f[s]["slo_compliance_strict"] for f in busy) / len(busy) for s in SHOWN}
        most = max(points(f, "protean", "infless") for f in busy)
        return [
            ("INFless, mean", "5.92 %", f"{means['infless']:.1f} % (256/s)"),
            ("PROTEAN above others, at most", "93 points", f"{most:.1f} points above INFless (256/s)"),
            ("PROTEAN / joint, mean", "", f"{means['protean']:.1f} / {means['joint']:.1f} % (256/s)"),
        ]

    return _languages("very high interference", LANGUAGE, rows, options)


def gpt(options: Options) -> Result:
    """Fig. 13."""

    def rows(found: Mapping[str, Compared]) -> list[tuple[str, str, str]]:
        def both(system: str, load: str = "128/s") -> str:
            return " / ".join(f"{100 * found[f'{m}, {load}'][system]['slo_compliance_strict']:.1f}" for m in GPT) + " %"

        return [
            ("PROTEAN", "90 %", both("protean")),
            ("INFless", "0 %", both("infless")),
            ("Molecule", "61.45 / 79 %", both("molecule")),
            ("joint", "", both("joint")),
        ]

    return _languages("GPT-1 and GPT-2", GPT, rows, options)


def shares(options: Options) -> Result:
    """Fig. 14."""
    found = {
        f"{m}, {100 * s:.0f} % strict": compared(wiki(m, options, workload={"strict_share": s}), SHOWN, options)
        for m in ("shufflenetv2", "dpn92")
        for s in (0.75, 0.25)
    }
    paper = {"shufflenetv2, 75 % strict": "99.99 %", "dpn92, 75 % strict": "93.78 %"}
    rows = [
        (
            f"PROTEAN (joint), {name}",
            paper.get(name, ">= 99.96 %"),
            f"{100 * f['protean']['slo_compliance_strict']:.2f} % ({100 * f['joint']['slo_compliance_strict']:.2f} %)",
        )
        for name, f in found.items()
    ]
    return Result(
        "more and fewer strict queries",
        "Wiki trace.",
        [("strict queries on time, %", grouped({"% on time": percent(found)}, limit=102.0))],
        [beside("Fig. 14", rows), *tables_of(found)],
        [],
        found,
    )


def all_strict(options: Options) -> Result:
    """Table 4."""
    found = {"resnet50": compared(wiki("resnet50", options, workload={"strict_share": 1.0}), SHOWN, options)}
    paper = {"molecule": "60.12 %", "naive": "54.31 %", "infless": "0.42 %", "protean": "94.19 %"}
    rows = [(s, paper.get(s, ""), f"{100 * r['slo_compliance_strict']:.2f} %") for s, r in found["resnet50"].items()]
    return Result(
        "all queries strict",
        "Wiki trace, ResNet50.",
        [("strict queries on time, %", grouped({"% on time": percent(found)}, limit=102.0))],
        [beside("Table 4", rows), *tables_of(found)],
        [],
        found,
    )


def all_best_effort(options: Options) -> Result:
    """Table 5."""
    found = {"best effort": compared(wiki("resnet50", options, workload={"strict_share": 0.0}), SHOWN, options)}
    paper = {"molecule": "68, 165", "naive": "50, 99", "infless": "57, 130", "protean": "35, 138"}
    results = found["best effort"]
    rows = [
        (s, f"{paper[s]} ms" if s in paper else "", f"{r['p50_best_effort_ms']:.0f}, {r['p99_best_effort_ms']:.0f} ms")
        for s, r in results.items()
    ]
    panels = {
        "P50, ms": {"all best effort": {s: r["p50_best_effort_ms"] for s, r in results.items()}},
        "P99, ms": {"all best effort": {s: r["p99_best_effort_ms"] for s, r in results.items()}},
    }
    return Result(
        "all queries best effort",
        "Wiki trace, models of low interference; P50 and P99.",
        [("latency, ms", grouped(panels, width=5.6))],
        [beside("Table 5", rows), *tables_of(found)],
        [],
        found,
    )


def tight(options: Options) -> Result:
    """Fig. 15."""
    found = {
        f"{m}, SLO {k}x": compared(wiki(m, options, workload={"slo_multiplier": float(k)}), SHOWN, options)
        for m in ("resnet50", "mobilenet", "shufflenetv2")
        for k in (3, 2)
    }
    falls = {
        s: [
            100
            * (found[f"{m}, SLO 2x"][s]["slo_compliance_strict"] - found[f"{m}, SLO 3x"][s]["slo_compliance_strict"])
            for m in ("resnet50", "mobilenet", "shufflenetv2")
        ]
        for s in SHOWN
    }
    paper = {"protean": "-5 points", "joint": ""}
    rows = [(s, paper.get(s, "-22 points"), " / ".join(f"{x:+.1f}" for x in falls[s])) for s in SHOWN]
    return Result(
        "a tighter SLO",
        "SLO of 2 times the time alone, against 3. By strict model, points lost.",
        [("strict queries on time, %", grouped({"% on time": percent(found)}, limit=102.0))],
        [beside("Fig. 15 (ResNet50 / MobileNet / ShuffleNetV2)", rows), *tables_of(found)],
        [],
        found,
    )


def gpulet(options: Options) -> Result:
    """Fig. 16."""
    found = {m: compared(wiki(m, options), ("gpulet", "protean", "joint"), options) for m in FOUR}
    rows = [
        (
            f"PROTEAN (joint) above GPUlet, {m}",
            "16 points" if m == "vgg19" else "",
            f"{points(f, 'protean', 'gpulet'):+.1f} ({points(f, 'joint', 'gpulet'):+.1f}) points",
        )
        for m, f in found.items()
    ]
    return Result(
        "against GPUlet",
        "MPS alone with compute capped by class (strict 60-65 %), bandwidth shared.",
        [("strict queries on time, %", grouped({"% on time": percent(found)}, limit=102.0))],
        [beside("Fig. 16", rows), *tables_of(found)],
        [],
        found,
    )


def oracle(options: Options) -> Result:
    """Fig. 17."""
    systems = {
        "oracle": {},
        "protean": {},
        "protean-queue": {},
        "joint-geometry": {},
        "joint-least-slowdown": {"like": "joint", "dispatch": "least-slowdown"},
        "joint": {},
    }
    worlds = {
        "vgg19, wiki": wiki("vgg19", options, systems=systems),
        "vgg19, twitter": scenario("protean-twitter", seconds_of(options), systems=systems),
        "shufflenetv2, load 1.4": wiki("shufflenetv2", options, traces={"scale": 1.4}, systems=systems),
    }
    found = {name: compared(one, tuple(systems), options) for name, one in worlds.items()}
    tail = {name: {s: r["p99_strict_ms"] for s, r in f.items()} for name, f in found.items()}
    rows = [
        (
            f"Oracle above PROTEAN (joint), {name}",
            "<= 0.42 points",
            f"{points(f, 'oracle', 'protean'):+.2f} ({points(f, 'oracle', 'joint'):+.2f}) points",
        )
        for name, f in found.items()
    ]
    rows += [
        (
            f"Oracle's tail below PROTEAN's (joint's), {name}",
            "<= 17 %",
            f"{100 * (1 - t['oracle'] / t['protean']):.0f} ({100 * (1 - t['oracle'] / t['joint']):.0f}) %",
        )
        for name, t in tail.items()
    ]
    return Result(
        "beside the Oracle, and whose share of a gain is what",
        "The Oracle takes the best of the known plans in hindsight, interval by interval, and recuts for free; it is"
        " no bound. protean-queue: PROTEAN's geometry with our queue; joint-geometry: our geometry with PROTEAN's"
        " queue. All take turns over GPUs by class, but for the one named otherwise.",
        [("strict queries on time, %, and strict P99, ms", grouped({"% on time": percent(found), "P99, ms": tail}))],
        [beside("Fig. 17", rows), *tables_of(found)],
        [],
        found,
    )


TRACES = ("wiki", "twitter")


def _on_time(title: str, header: str, found: Mapping[str, Compared]) -> Table:
    """Strict queries on time, with intervals: a row a world."""
    rows = [
        (
            name,
            *(interval(r, "slo_compliance_strict", 100.0, 2, " %") for r in f.values()),
        )
        for name, f in found.items()
    ]
    return Table(title, (header, *next(iter(found.values()))), rows)


def _missed(found: Mapping[str, Compared]) -> Figure:
    """Strict queries that were not on time, a panel a trace."""
    missed = {name: {s: 100.0 - on_time for s, on_time in row.items()} for name, row in percent(found).items()}
    return grouped(
        {
            f"% late, {trace}": {n.removeprefix(f"{trace}, "): row for n, row in missed.items() if n.startswith(trace)}
            for trace in TRACES
        }
    )


def _vgg19(trace: str, options: Options, **changes: Any) -> SliceScenario:
    return scenario(f"protean-{trace}", seconds_of(options), **changes)


def counts(options: Options) -> Result:
    """Not in the paper: other numbers of GPUs, the load in proportion."""
    found = {
        f"{trace}, {n} GPUs": compared(
            _vgg19(trace, options, gpus={"count": n}, traces={"scale": n / 8}), SHOWN, options
        )
        for trace in TRACES
        for n in range(7, 12)
    }
    return Result(
        "7 to 11 GPUs, the load in proportion",
        "Both traces, VGG19 strict. Means of the seeds, with 95 % intervals.",
        [("strict queries that were late, %", _missed(found))],
        [_on_time("Strict queries on time", "trace and GPUs", found), *tables_of(found)],
        [],
        found,
    )


WORLDS: Mapping[str, Mapping[str, Any]] = {
    "as shipped": {},
    "bursts every 0.4 s": {"bursts": {"gap_s": 0.4, "width_ms": 50, "shape": 4}},
    "bursts every 1.6 s": {"bursts": {"gap_s": 1.6, "width_ms": 50, "shape": 4}},
    "bursts like clockwork": {"bursts": {"gap_s": 0.8, "width_ms": 50, "shape": 400}},
    "bursts at random": {"bursts": {"gap_s": 0.8, "width_ms": 50, "shape": 1}},
    "best effort redrawn every 7 s": {"redraw_s": 7},
    "SLO twice the time alone": {"slo_multiplier": 2.0},
}
"""Of the workload, what is otherwise."""


def bursts(options: Options) -> Result:
    """Not in the paper: other bursts, phases and limits."""
    shown = ("infless", "mps-mig", "protean", "joint")
    found = {
        f"{trace}, {name}": compared(_vgg19(trace, options, workload=dict(workload)), shown, options)
        for trace in TRACES
        for name, workload in WORLDS.items()
    }
    return Result(
        "other bursts, phases and limits",
        "Both traces, VGG19 strict, eight GPUs. Means of the seeds, with 95 % intervals.",
        [("strict queries that were late, %", _missed(found))],
        [_on_time("Strict queries on time", "trace and workload", found), *tables_of(found)],
        [],
        found,
    )
