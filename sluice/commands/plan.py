"""``sluice plan``: an allocation offline, from a problem file."""

from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.table import Table

from planner.explain import Explanation, explain
from planner.problem import Allocation
from planner.registry import planner
from sluice.console import JsonOption, one_line_errors, out, print_json
from sluice.problems import Question, read_question


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan)


def plan(
    problem: Annotated[Path, typer.Option("--problem", help="Problem file (YAML or JSON).")],
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Override a field: headroom=1.2, apps.bert.demand_qps=20.")
    ] = None,
    what_ifs: Annotated[
        list[str] | None, typer.Option("--what-if", help="Ask again with demand.<app>=x2 or pools.<type>=+1.")
    ] = None,
    planner_name: Annotated[str | None, typer.Option("--planner", help="Planner by name.")] = None,
    with_reasons: Annotated[
        bool, typer.Option("--explain", help="Also: what binds, and what one more device of each type would buy.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Plan offline: who hosts what, at which share, how far from optimal it can be, and why."""
    with one_line_errors():
        question = read_question(problem, sets or ())
        asked = _answer(question, planner_name, with_reasons)
        supposed = None
        if what_ifs:
            supposed = _answer(read_question(problem, sets or (), what_ifs), planner_name, with_reasons)
    if as_json:
        print_json({**asked.document, "what_if": supposed.document} if supposed else asked.document)
        return
    asked.show(problem.name)
    if supposed is not None:
        supposed.show(f"{problem.name} with {', '.join(what_ifs or ())}")


class _Answer:
    """One allocation, ready to be shown."""

    def __init__(self, question: Question, allocation: Allocation, solve_s: float, reasons: Explanation) -> None:
        self.question = question
        self.allocation = allocation
        self.solve_s = solve_s
        self.reasons = reasons
        self.with_reasons = False

    @property
    def document(self) -> dict[str, Any]:
        a = self.allocation
        found: dict[str, Any] = {
            "objective": a.objective,
            "bound": a.bound,
            "gap": a.gap,
            "served_fraction": dict(a.served),
            "served_by_class": _by_class(a),
            "shortage": {app: s for app, s in a.served.items() if s < 1.0},
            "placements": placements(self.question, a),
            "loads": a.loads,
            "cost_per_hour": self.cost,
            "solve_ms": 1e3 * self.solve_s,
            "steps": list(a.steps),
            "nondeterministic": a.nondeterministic,
        }
        if self.with_reasons:
            found["explain"] = asdict(self.reasons)
        return found

    @property
    def cost(self) -> float:
        """Price an hour of the devices in use."""
        used = {p.device for p in self.allocation.placements}
        return sum(d.price for d in self.question.problem.devices if d.name in used)

    def show(self, title: str) -> None:
        a = self.allocation
        short = any(s < 1.0 for s in a.served.values())
        state = "[red]shortage[/]" if short else "[green]all demand is served[/]"
        out.print(f"[bold]{title}[/]: {state}; accuracy {a.objective:.5f}, at most {a.bound:.5f} (gap {a.gap:.5f})")
        paid = f", {self.cost:g} an hour" if self.cost else ""
        out.print(f"{a.loads} loads{paid}, {1e3 * self.solve_s:.0f} ms" + ("; nondeterministic" * a.nondeterministic))
        out.print(self._hosts())
        out.print(self._apps())
        if self.with_reasons:
            out.print(self._pools())
            for line in self.reasons.binding:
                out.print(f"- {line}")
            for step in a.steps:
                out.print(f"  [dim]{step}[/]")

    def _hosts(self) -> Table:
        table = Table(title="who hosts what")
        for name in ("pool", "app", "variant"):
            table.add_column(name, overflow="fold")
        for name in ("devices", "share", "max batch"):
            table.add_column(name, justify="right")
        for row in placements(self.question, self.allocation):
            share = f"{row['share']:.1%}" if row["share"] else "spare"
            table.add_row(
                row["pool"], row["app"], ", ".join(row["variants"]), str(row["count"]), share, str(row["max_batch"])
            )
        return table

    def _apps(self) -> Table:
        table = Table(title="apps")
        table.add_column("app", overflow="fold")
        for name in ("demand/s", "headroom", "served", "accuracy", "best", "carries", "spare"):
            table.add_column(name, justify="right")
        for a in self.reasons.apps:
            table.add_row(
                a.app,
                f"{a.demand_qps:.1f}",
                f"{a.headroom:.2f}",
                f"{a.served:.1%}",
                f"{a.accuracy:.4f}",
                f"{a.best_accuracy:.4f}",
                f"{a.capacity_qps:.1f}",
                f"{a.spare:+.0%}" if a.demand_qps else "-",
                style="red" if a.served < 1.0 else "",
            )
        return table

    def _pools(self) -> Table:
        table = Table(title="what one more device would buy")
        table.add_column("pool")
        for name in ("devices", "with load", "queries/s", "accuracy, points"):
            table.add_column(name, justify="right")
        for p in self.reasons.pools:
            table.add_row(p.pool, str(p.count), str(p.used), f"{p.gain_qps:.2f}", f"{100 * p.gain_accuracy:.4f}")
        return table


def _answer(question: Question, name: str | None, with_reasons: bool) -> _Answer:
    chosen = planner(name or question.planner)
    started = perf_counter()
    allocation = chosen.allocate(question.problem)
    solve_s = perf_counter() - started
    answer = _Answer(question, allocation, solve_s, explain(question.problem, allocation))
    answer.with_reasons = with_reasons
    return answer


def _by_class(allocation: Allocation) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for (app, query_class), fraction in sorted(allocation.served_by_class.items()):
        found.setdefault(app, {})[query_class.value] = fraction
    return found


def placements(question: Question, allocation: Allocation) -> list[dict[str, Any]]:
    """Devices that hold the same, together: pool, app, variants, how many, their share of the app's demand in all."""
    rows: dict[tuple[str, str, tuple[str, ...], int], tuple[int, float]] = {}
    for p in allocation.placements:
        key = (question.pool_of[p.device], p.app, p.variants, p.max_batch)
        count, share = rows.get(key, (0, 0.0))
        rows[key] = (count + 1, share + p.share)
    return [
        {
            "pool": pool,
            "app": app,
            "variant": variants[0],
            "variants": list(variants),
            "count": count,
            "share": share,
            "max_batch": batch,
        }
        for (pool, app, variants, batch), (count, share) in sorted(rows.items())
    ]
