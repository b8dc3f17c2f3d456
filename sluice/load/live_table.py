"""The live table of a run: what is asked, what is answered, how accurately, by which variants, under which plan."""

from collections import Counter

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sluicegate.sluice.load.run_observer import Observer, Second

_SPAN = 3
"""Seconds that rates are shown over."""


def frame(observer: Observer, *, elapsed: float, duration: float) -> RenderableType:
    """One picture of the run, ``elapsed`` seconds after its start."""
    now = max(observer.seconds, default=0)
    recent = [observer.seconds[s] for s in range(now - _SPAN, now) if s in observer.seconds]
    plan = observer.plans[-1] if observer.plans else None
    head = Text.assemble(
        ("sluice ", "bold"),
        f"{elapsed:5.1f} s of {duration:.0f}   plan ",
        (f"{plan.epoch.term}.{plan.epoch.number}" if plan else "none yet", "bold cyan"),
        f"  ({plan.reason})" if plan else "",
    )
    table = Table(expand=False)
    for column in ("", "asked/s", "on time/s", "missed/s", "accuracy", "of best", "variants now"):
        table.add_column(column, justify="left" if column in {"", "variants now"} else "right")
    _add_row(table, "now", recent)
    for app, mix in sorted(_mix(recent).items()):
        total = sum(mix.values())
        shown = "  ".join(f"{name} {count / total:.0%}" for name, count in mix.most_common(3))
        table.add_row(f"  {app}", "", f"{total / max(1, len(recent)):.0f}", "", "", "", shown)
    summary = observer.fold.summary()
    if summary.queries:
        table.add_section()
        table.add_row(
            "so far",
            f"{summary.queries}",
            f"{summary.answered_on_time}",
            f"{summary.queries - summary.answered_on_time}",
            f"{summary.effective_accuracy:.2%}",
            "",
            f"on time {summary.slo_attainment:.2%}, p50 {summary.p50_ms:.0f} ms, p99 {summary.p99_ms:.0f} ms",
        )
    bar = ProgressBar(total=duration, completed=min(elapsed, duration), width=60)
    return Group(head, table, bar)


def _add_row(table: Table, name: str, recent: list[Second]) -> None:
    span = max(1, len(recent))
    on_time = sum(s.on_time for s in recent)
    accuracy = sum(s.accuracy for s in recent)
    table.add_row(
        name,
        f"{sum(s.asked for s in recent) / span:.0f}",
        f"{on_time / span:.0f}",
        f"{sum(s.missed for s in recent) / span:.0f}",
        "",
        f"{accuracy / on_time:.2%}" if on_time else "-",
        "",
    )


def _mix(recent: list[Second]) -> dict[str, Counter[str]]:
    mixes: dict[str, Counter[str]] = {}
    for second in recent:
        for name, count in second.variants.items():
            app, _, variant = name.partition("/")
            mixes.setdefault(app, Counter())[variant] += count
    return mixes
