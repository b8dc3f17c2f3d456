"""An offline plan, ready to be shown: as a document, and as tables for people."""

from collections import Counter
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.fleet.device import Device
from sluicegate.planner.geometry.joint_plan import GeometryPlan, as_cut, cut_and_placed
from sluicegate.planner.geometry.mig_tables import TABLES, Geometry, shown
from sluicegate.planner.model_less.planner_choice import KNOW_NO_BUDGET, no_budget_of
from sluicegate.planner.problems.explain import Explanation, explain
from sluicegate.planner.problems.problem import Allocation, Planner, Problem
from sluicegate.planner.registry import planner
from sluicegate.sluice.console import out
from sluicegate.sluice.offline.problem_file import Question


@dataclass(frozen=True, slots=True)
class Recut:
    """How GPUs are cut by ``plan``, and what they would host as they are."""

    plan: GeometryPlan
    before: Allocation


@dataclass(frozen=True, slots=True)
class Answer:
    """One allocation. ``problem``: with the devices as they then are. ``recut``: None where no GPU can be cut."""

    question: Question
    problem: Problem
    allocation: Allocation
    solve_s: float
    reasons: Explanation
    with_reasons: bool
    recut: Recut | None = None

    @property
    def document(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        a = self.allocation
        found: dict[str, Any] = {
            "objective": a.objective,
            "bound": a.bound,
            "gap": a.gap,
            "served_fraction": dict(a.served),
            "apps": {one.app: {k: v for k, v in asdict(one).items() if k != "app"} for one in self.reasons.apps},
            "served_by_class": _by_class(a),
            "shortage": {app: s for app, s in a.served.items() if s < 1.0},
            "placements": self.placements(),
            "loads": a.loads,
            "cost_per_hour": self.cost,
            "solve_ms": 1e3 * self.solve_s,
            "steps": list(a.steps),
            "nondeterministic": a.nondeterministic,
        }
        if self.recut is not None:
            before = self.recut.before
            found["geometries"] = self.geometries()
            found["changes"] = len(self._changed(self.recut))
            if not self.question.uncut:
                found["without_changes"] = {"objective": before.objective, "served_fraction": dict(before.served)}
            found["steps"] = [*self.recut.plan.steps, *a.steps]
        if self.with_reasons:
            found["explain"] = asdict(self.reasons)
        return found

    @property
    def cost(self) -> float:
        """Price an hour of the devices in use."""
        return self.problem.rent({p.device for p in self.allocation.placements})

    def placements(self) -> list[dict[str, Any]]:
        """Units that hold the same, together: where, what, how many, and their share of the app's demand in all."""
        profile = {(d.name, s.name): s.profile for d in self.problem.devices for s in d.slices}
        rows: dict[tuple[str, str, str, tuple[str, ...], int], tuple[int, float]] = {}
        for p in self.allocation.placements:
            key = (self.question.pool_of[p.device], profile[p.device, p.slice], p.app, p.variants, p.max_batch)
            count, share = rows.get(key, (0, 0.0))
            rows[key] = (count + 1, share + p.share)
        return [
            {
                "pool": pool,
                "slice": part,
                "app": app,
                "variant": variants[0],
                "variants": list(variants),
                "count": count,
                "share": share,
                "max_batch": batch,
            }
            for (pool, part, app, variants, batch), (count, share) in sorted(rows.items())
        ]

    def geometries(self) -> list[dict[str, Any]]:
        """GPUs of a pool that are cut alike and stay or become alike, together. ``before``: None for uncut ones."""
        if self.recut is None:
            return []
        now = {d.name: d for d in self.question.problem.devices}
        rows: Counter[tuple[str, Geometry, Geometry]] = Counter()
        for name, after in self.recut.plan.geometries.items():
            rows[self.question.pool_of[name], _cut(now[name]), after] += 1
        return [
            {
                "pool": pool,
                "count": count,
                "before": None if pool in self.question.uncut else shown(before),
                "after": shown(after),
            }
            for (pool, before, after), count in sorted(rows.items())
        ]

    def show(self, title: str) -> None:
        """Print it for people."""
        a = self.allocation
        short = any(s < 1.0 for s in a.served.values())
        state = "[red]shortage[/]" if short else "[green]all demand is served[/]"
        reached = f"accuracy {a.objective:.5f} of each app's best, at most {a.bound:.5f} (gap {a.gap:.5f})"
        out.print(f"[bold]{title}[/]: {state}; {reached}")
        paid = f", {self.cost:g} an hour" if self.cost else ""
        out.print(f"{a.loads} loads{paid}, {1e3 * self.solve_s:.0f} ms" + ("; nondeterministic" * a.nondeterministic))
        if self.recut is not None:
            out.print(self._geometries())
            if not self.question.uncut:
                out.print(self._gain(self.recut))
        out.print(self._hosts())
        out.print(self._apps())
        if self.with_reasons:
            out.print(self._pools())
            for line in self.reasons.binding:
                out.print(f"- {line}")
            for step in a.steps:
                out.print(f"  [dim]{step}[/]")

    def _changed(self, recut: Recut) -> list[str]:
        """GPUs that are cut now and will be otherwise."""
        pool_of, uncut = self.question.pool_of, self.question.uncut
        return [name for name in recut.plan.changes if pool_of[name] not in uncut]

    def _gain(self, recut: Recut) -> str:
        changed, a = self._changed(recut), self.allocation
        if not changed:
            return "no GPU is worth cutting otherwise"
        lines = [
            f"{app} {recut.before.served.get(app, 0.0):.1%} -> {served:.1%}"
            for app, served in a.served.items()
            if abs(served - recut.before.served.get(app, 0.0)) > 5e-4
        ]
        if a.objective != recut.before.objective:
            lines.append(f"accuracy {recut.before.objective:.5f} -> {a.objective:.5f}")
        return f"cutting {len(changed)} GPUs otherwise brings: {', '.join(lines) or 'nothing that shows'}"

    def _geometries(self) -> Table:
        table = Table(title="how GPUs are cut")
        for name in ("pool", "now", "then"):
            table.add_column(name, overflow="fold")
        table.add_column("GPUs", justify="right")
        for row in self.geometries():
            before = row["before"] or "uncut"
            changes = before != row["after"]
            then = row["after"] if changes else "stays"
            table.add_row(row["pool"], before, then, str(row["count"]), style="bold" if changes else "")
        return table

    def _hosts(self) -> Table:
        rows = self.placements()
        cut = self.recut is not None
        table = Table(title="who hosts what")
        for name in ("pool", *(["slice"] if cut else []), "app", "variant"):
            table.add_column(name, overflow="fold")
        for name in ("slices" if cut else "devices", "share", "max batch"):
            table.add_column(name, justify="right")
        for row in rows:
            share = f"{row['share']:.1%}" if row["share"] else "spare"
            where = [row["pool"], row["slice"]] if cut else [row["pool"]]
            table.add_row(
                *where, row["app"], ", ".join(row["variants"]), str(row["count"]), share, str(row["max_batch"])
            )
        return table

    def _apps(self) -> Table:
        table = Table(title="apps", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("app", overflow="fold")
        for name in ("demand/s", "headroom", "served", "accuracy", "best", "of best", "carries", "spare"):
            table.add_column(name, justify="right")
        for a in self.reasons.apps:
            table.add_row(
                a.app,
                f"{a.demand_qps:.1f}",
                f"{a.headroom:.2f}",
                f"{a.served:.1%}",
                f"{a.accuracy:.4f}",
                f"{a.best_accuracy:.4f}",
                f"{a.of_best:.4f}",
                f"{a.capacity_qps:.1f}",
                f"{a.spare:+.0%}" if a.demand_qps else "-",
                style="red" if a.served < 1.0 else "",
            )
        return table

    def _pools(self) -> Table:
        table = Table(title="what one more device would buy")
        table.add_column("pool")
        for name in ("devices", "with load", "rows/s", "accuracy, points"):
            table.add_column(name, justify="right")
        for p in self.reasons.pools:
            table.add_row(p.pool, str(p.count), str(p.used), f"{p.gain_qps:.2f}", f"{100 * p.gain_accuracy:.4f}")
        return table


def answer(question: Question, name: str | None, with_reasons: bool) -> Answer:
    """Plan. Raises InvalidInputError and ConfigurationError."""
    name = name or question.planner
    chosen = planner(name)
    if name in KNOW_NO_BUDGET and question.problem.budget is not None:
        raise InvalidInputError("budget", no_budget_of(name))
    started = perf_counter()
    problem, recut = question.problem, None
    if problem.recuts is None:
        allocation = chosen.allocate(problem)
    else:
        problem, allocation, recut = _with_geometry(problem, chosen)
    solve_s = perf_counter() - started
    reasons = explain(problem, allocation, question.pool_of)
    return Answer(question, problem, allocation, solve_s, reasons, with_reasons, recut)


def _with_geometry(problem: Problem, chosen: Planner) -> tuple[Problem, Allocation, Recut]:
    """The allocation once GPUs are cut as is best, and what they would host as they are."""
    plan, before, after = cut_and_placed(problem, chosen)
    return as_cut(problem, plan), after, Recut(plan, before)


def _cut(device: Device) -> Geometry:
    return TABLES[device.type].ordered([s.profile for s in device.slices])


def _by_class(allocation: Allocation) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for (app, query_class), fraction in sorted(allocation.served_by_class.items()):
        found.setdefault(app, {})[query_class.value] = fraction
    return found
