"""``sluice plan``: an allocation offline, from a problem file."""

from pathlib import Path
from typing import Annotated

import typer

from sluicegate.sluice.console import JsonOption, one_line_errors, out, print_json
from sluicegate.sluice.offline.plan_difference import difference, difference_table
from sluicegate.sluice.offline.plan_report import answer
from sluicegate.sluice.offline.problem_file import read_question


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
        asked = answer(question, planner_name, with_reasons)
        supposed = None
        if what_ifs:
            supposed = answer(read_question(problem, sets or (), what_ifs), planner_name, with_reasons)
    if as_json:
        told = {"what_if": supposed.document, "difference": difference(asked, supposed)} if supposed else {}
        print_json({**asked.document, **told})
        return
    asked.show(problem.name)
    if supposed is not None:
        supposed.show(f"{problem.name} with {', '.join(what_ifs or ())}")
        out.print(difference_table(asked, supposed))
