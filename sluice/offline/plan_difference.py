"""What a plan that is supposed otherwise does otherwise: before and after side by side, and what moves."""

from typing import Any

from rich.table import Table

from sluicegate.sluice.offline.plan_report import Answer


def difference(before: Answer, after: Answer) -> dict[str, Any]:
    """After less before: accuracy, cost, what is served and how accurately by app, and devices by what they host."""
    apps = {a.app: a for a in before.reasons.apps}
    return {
        "objective": after.allocation.objective - before.allocation.objective,
        "cost_per_hour": after.cost - before.cost,
        "apps": {
            a.app: {
                "served": a.served - apps[a.app].served,
                "accuracy": a.accuracy - apps[a.app].accuracy,
                "demand_qps": a.demand_qps - apps[a.app].demand_qps,
                "capacity_qps": a.capacity_qps - apps[a.app].capacity_qps,
            }
            for a in after.reasons.apps
            if a.app in apps
        },
        "hosts": [
            {"pool": pool, "app": app, "variant": variant, "count": count}
            for (pool, app, variant), count in sorted(_moved(before, after).items())
        ],
    }


def difference_table(before: Answer, after: Answer) -> Table:
    """The same for people: one line a figure, then what hosts what otherwise."""
    table = Table(title="what that changes")
    table.add_column("what", overflow="fold")
    for name in ("now", "then", "change"):
        table.add_column(name, justify="right")
    a, b = before.allocation, after.allocation
    _line(table, "accuracy of each app's best", a.objective, b.objective, "{:.4f}")
    if before.cost or after.cost:
        _line(table, "cost an hour", before.cost, after.cost, "{:g}")
    known = {one.app: one for one in before.reasons.apps}
    for one in after.reasons.apps:
        old = known.get(one.app)
        if old is not None:
            _line(table, f"{one.app}: demand/s", old.demand_qps, one.demand_qps, "{:.1f}")
            _line(table, f"{one.app}: carries/s", old.capacity_qps, one.capacity_qps, "{:.1f}")
            _line(table, f"{one.app}: served, %", 100 * old.served, 100 * one.served, "{:.1f}")
            _line(table, f"{one.app}: accuracy, %", 100 * old.accuracy, 100 * one.accuracy, "{:.2f}")
    hosts = _hosts(before), _hosts(after)
    for key in sorted(_moved(before, after)):
        pool, app, variant = key
        _line(table, f"{pool}: {app} on {variant}", hosts[0].get(key, 0), hosts[1].get(key, 0), "{:.0f}")
    return table


def _line(table: Table, what: str, now: float, then: float, form: str) -> None:
    was, will = form.format(now), form.format(then)
    change = "" if was == will else ("+" if then > now else "-") + form.format(abs(then - now))
    table.add_row(what, was, will, change, style="bold" if change else "dim")


def _hosts(answer: Answer) -> dict[tuple[str, str, str], int]:
    found: dict[tuple[str, str, str], int] = {}
    for row in answer.placements():
        key = (row["pool"], row["app"], ", ".join(row["variants"]))
        found[key] = found.get(key, 0) + row["count"]
    return found


def _moved(before: Answer, after: Answer) -> dict[tuple[str, str, str], int]:
    old, new = _hosts(before), _hosts(after)
    return {key: n for key in {*old, *new} if (n := new.get(key, 0) - old.get(key, 0))}
