"""``sluice demo``: the whole system on this machine, watched as it runs, reported and audited at the end."""

import asyncio
import shlex
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from sluicegate.domain.errors import ConfigurationError
from sluicegate.sluice.catalogue.open_catalogue import open_catalogue
from sluicegate.sluice.catalogue.run_folders import new_run_folder
from sluicegate.sluice.console import (
    EXIT_FAILED,
    MAX_SEED,
    JsonOption,
    check_writable,
    err,
    one_line_errors,
    out,
    print_json,
    require_plots,
)
from sluicegate.sluice.load.demo_run import DEVICES, DemoResult, demo_trace, run_demo
from sluicegate.sluice.load.live_table import frame
from sluicegate.sluice.load.run_observer import Observer
from sluicegate.sluice.settings.settings import DeviceSettings, Settings, load
from sluicegate.sluice.system.logs import show_logs

DURATION = 40.0
_WHOLE_MB = 2048
"""So much of the log is kept at the least: the demo audits all of its run."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    broker: Annotated[str | None, typer.Option(help="memory:// (default) or kafka://host:port.")] = None,
    duration: Annotated[float, typer.Option(min=5.0, max=3600.0, help="Seconds of the trace.")] = DURATION,
    report: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("reports/demo"),
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the arrivals.")] = 7,
    settings: Annotated[Path | None, typer.Option(help="Settings file (YAML).")] = None,
    record: Annotated[bool, typer.Option(help="Write every decision under the run's folder.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Replay a trace whose peak overloads the most accurate variants, and watch accuracy scale with load."""
    show_logs()
    with one_line_errors():
        require_plots()
        check_writable(report / "index.html", "--report")
        chosen = load(settings, broker=broker, record=record or None)
        if chosen.fake_gpu is not None:
            told = "the demo runs its models, which emulated GPUs do not; leave it out, or serve by `sluice up`"
            raise ConfigurationError(f"fake_gpu {chosen.fake_gpu}: {told}")
        chosen = chosen.model_copy(
            update={
                "apps": chosen.apps or ("digits", "signals"),
                "embedded_log_mb": max(_WHOLE_MB, chosen.embedded_log_mb),
                "devices": chosen.devices or tuple(DeviceSettings(name=f"cpu{i}") for i in range(DEVICES)),
                "prefix": f"{chosen.prefix}.demo-{uuid.uuid4().hex[:6]}"
                if chosen.broker != "memory://"
                else chosen.prefix,
                "planner": chosen.planner.model_copy(update={"period_s": min(chosen.planner.period_s, duration / 8)}),
            }
        )
        catalogue, models = open_catalogue(chosen)
        folder = new_run_folder(chosen)
        arrivals = demo_trace(catalogue, chosen.apps, chosen, duration, seed)
        with Live(console=err, refresh_per_second=4, transient=False) as live:

            def show(observer: Observer, elapsed: float) -> None:
                live.update(frame(observer, elapsed=elapsed, duration=duration))

            result = asyncio.run(run_demo(chosen, catalogue, models, folder, arrivals=arrivals, show=show))
        if not err.is_terminal:  # there the last line of what is live is not ended
            err.line()
        from sluicegate.sluice.load.what_else import alternatives, first_line

        with err.status("the same arrivals with fewer variants, simulated"):
            found = alternatives(
                chosen,
                catalogue,
                models,
                lambda: demo_trace(catalogue, chosen.apps, chosen, duration, seed),
                seed,
            )
        result.summary["simulated"] = {name: asdict(one) for name, one in found.items()}
        result.summary["first_line"] = first_line(found)
        from sluicegate.sluice.load.demo_report import write_report  # plots take half a second to import

        page = write_report(result, catalogue, report)
    if as_json:
        print_json(document(result.summary, page, folder, chosen))
    else:
        out.print(result.summary["first_line"], highlight=False)
        out.print(table(result))
        for line in (f"report: {page}", *reading_on(chosen, folder, settings)):
            out.print(line, markup=False, highlight=False, soft_wrap=True)
    if result.summary["lost"] or result.summary["duplicates"]:
        raise typer.Exit(EXIT_FAILED)


def document(summary: Mapping[str, Any], page: Path, folder: Path, settings: Settings) -> dict[str, Any]:
    """The summary, and where the rest is that is known of the run."""
    return {**summary, "report": str(page), "run": str(folder), "broker": settings.broker, "prefix": settings.prefix}


def reading_on(settings: Settings, folder: Path, file: Path | None) -> list[str]:
    """Commands that read the topics of the run, which are in ``folder`` where the broker was embedded."""
    if settings.broker == "memory://":
        kept = shlex.quote(str(folder))
        return [f"topics: {kept}", f"sluice audit {kept}", f"sluice explain ID --run {kept}"]
    where = ["--broker", settings.broker, "--prefix", settings.prefix]
    there = shlex.join([*where, *(() if file is None else ("--settings", str(file)))])
    logs = f"logs: {shlex.quote(str(folder))}"
    return [logs, f"sluice audit {there}", f"sluice explain ID {there}"]


def table(result: DemoResult) -> Table:
    """The summary as a terminal table."""
    summary = result.summary
    shown = Table(title="Demo", show_header=False)
    ended = ("answered_on_time", "late", "expired", "dropped", "rejected", "failed")
    rows = {
        "queries": str(summary["queries"]),
        "ended": ", ".join(f"{summary[k]} {k.replace('_', ' ')}" for k in ended if summary[k]),
        "lost / duplicates": f"{summary['lost']} / {summary['duplicates']}",
        "on time": f"{summary['slo_attainment']:.2%}, goodput {summary['goodput_qps']:.0f}/s",
        "right in time": f"{summary['right_in_time']:.2%} of all asked, by profiled accuracy",
        "effective accuracy": f"{summary['effective_accuracy']:.2%}",
        "latency": f"p50 {summary['p50_ms']:.1f} ms, p99 {summary['p99_ms']:.1f} ms",
        "plan epochs": str(summary["plan_epochs"]),
        "variants used": "\n".join(f"{app}: {', '.join(names)}" for app, names in summary["variants_used"].items()),
        "answers checked": "\n".join(
            f"{name}: {c['accuracy_observed']:.2%} of {c['answers']} rows right, profiled {c['accuracy_profiled']:.2%}"
            for name, c in summary["accuracy_check"].items()
        ),
    }
    for name, text in rows.items():
        shown.add_row(name, text)
    return shown
