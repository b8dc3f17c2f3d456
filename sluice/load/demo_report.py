"""The demo's report: ``index.html`` with plots of what the run produced, and ``summary.json``."""

import math
from pathlib import Path
from typing import Any

import orjson

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.plan import Plan
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.simulator.report.charts import accuracy_chart, demand_chart, latency_chart, variants_chart
from sluicegate.simulator.report.page import Figure, Table, Tile, page
from sluicegate.simulator.time_series import Series
from sluicegate.sluice.console import write_whole
from sluicegate.sluice.load.demo_run import DemoResult

_COUNTS = ("queries", "answered_on_time", "late", "expired", "dropped", "rejected", "failed", "lost", "duplicates")


def write_report(result: DemoResult, catalogue: Catalogue, folder: Path) -> Path:
    """Write the page and ``summary.json``; returns the page."""
    try:
        options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
        write_whole(folder / "summary.json", orjson.dumps(result.summary, option=options))
        place = folder / "index.html"
        write_whole(place, _page(result, catalogue).encode())
    except OSError as error:
        raise ConfigurationError(f"report {folder}: {error.strerror}; give a writable folder with --report") from error
    return place


def _page(result: DemoResult, catalogue: Catalogue) -> str:
    summary = result.summary
    series = _series(result)
    slos = [catalogue.apps[app].slo for app in summary["variants_used"]]
    return page(
        "Sluicegate demo",
        intro=(
            f"{summary['first_line']} What follows ran live: {summary['queries']:,} queries through topics, answered "
            f"by real ONNX variants: {summary['slo_attainment']:.2%} on time, {summary['right_in_time']:.2%} right in "
            f"time, effective accuracy {summary['effective_accuracy']:.2%}, {summary['plan_epochs']} plan epochs, "
            f"p50 {summary['p50_ms']:.1f} ms, p99 {summary['p99_ms']:.1f} ms."
        ),
        tiles=[Tile(f"{summary[name]:,}", name.replace("_", " ")) for name in _COUNTS],
        figures=[
            Figure("Demand and goodput", demand_chart({"demo": series}), "dotted lines: plan epochs"),
            Figure("Effective accuracy", accuracy_chart({"demo": series}), "each app normalised by its best variant"),
            Figure("Which variants answered", variants_chart(series)),
            Figure("Latency of all answers", latency_chart({"demo": series.latencies}, slos)),
        ],
        tables=[_alternatives(summary), _checks(summary), _plans(result)],
        notes=[
            "Queries, lost and duplicates are counted by an independent reading of the topics.",
            "Accuracy is checked by comparing the labels returned with the true ones, which no stage ever sees, of "
            "rows that no model was built from and no profile has seen.",
        ],
    )


def _series(result: DemoResult) -> Series:
    seconds = result.observer.seconds
    first = int(result.started)
    rows = [seconds.get(s) for s in range(first, max(seconds, default=first) + 1)]
    names = sorted({name for row in rows if row for name in row.variants})
    return Series(
        step=1.0,
        demand=[row.asked if row else 0 for row in rows],
        goodput=[row.on_time if row else 0 for row in rows],
        accuracy=[row.accuracy / row.on_time if row and row.on_time else math.nan for row in rows],
        variants={name: [row.variants.get(name, 0) if row else 0 for row in rows] for name in names},
        latencies=result.observer.fold.latency.buckets(),
        marks=[(at, "") for p in result.observer.plans if (at := p.created - first) >= 0],
    )


def _checks(summary: dict[str, Any]) -> Table:
    rows = [
        (
            name,
            f"{check['answers']:,}",
            f"{check['rows']:,}",
            f"{check['accuracy_observed']:.2%}",
            f"{check['accuracy_profiled']:.2%}",
            f"{check['standard_errors_apart']:.1f}",
        )
        for name, check in summary["accuracy_check"].items()
    ]
    return Table(
        "Are the answers right?",
        ("variant", "rows answered", "unlike rows", "right", "profiled", "standard errors apart"),
        rows,
    )


def _alternatives(summary: dict[str, Any]) -> Table:
    """What ran, and the same arrivals and profiles simulated."""
    ran = {"missed": 1.0 - summary["slo_attainment"], "right_in_time": summary["right_in_time"]}
    ways = {"all variants, as it ran": {**ran, "accuracy": summary["effective_accuracy"]}}
    ways |= {f"{name}, simulated": found for name, found in summary["simulated"].items()}
    rows = [(way, *(f"{found[m]:.2%}" for m in ("missed", "accuracy", "right_in_time"))) for way, found in ways.items()]
    return Table(
        "What scaling accuracy brings, on the same arrivals and profiles",
        ("served", "missed", "accuracy in time", "right in time, of all asked"),
        rows,
    )


def _plans(result: DemoResult) -> Table:
    rows = [_plan_row(plan, result.started) for plan in result.observer.plans]
    return Table("Plans", ("epoch", "at", "because", "demand", "placements", "solved in"), rows)


def _plan_row(plan: Plan, started: float) -> tuple[str, ...]:
    return (
        f"{plan.epoch.term}.{plan.epoch.number}",
        f"{plan.created - started:.1f} s",
        plan.reason,
        "; ".join(f"{app} {qps:.0f} rows/s" for app, qps in sorted(plan.demand.items())),
        "; ".join(f"{p.device}: {'+'.join(p.variants)} {p.share:.0%}" for p in plan.placements),
        f"{1e3 * plan.solve_s:.0f} ms",
    )
