"""From counts to the Allocation that callers see."""

from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.plan import Placement
from sluicegate.planner.allocation.program import Program
from sluicegate.planner.allocation.rounding import Whole
from sluicegate.planner.problems.problem import Allocation


def allocation(
    program: Program,
    whole: Whole,
    gap: float,
    placements: tuple[Placement, ...],
    *,
    loads: int,
    steps: tuple[str, ...],
    nondeterministic: bool = False,
) -> Allocation:
    """``gap``: in mean accuracy over all demand; what is reported is over served queries."""
    by_class, by_app = served(program, whole)
    total = float(program.weight @ whole.served)
    objective = whole.accuracy / total if total > 0 else 0.0
    return Allocation(
        placements=placements,
        served=by_app,
        objective=objective,
        bound=min(1.0, objective + gap / total) if total > 0 else objective,
        loads=loads,
        steps=steps,
        nondeterministic=nondeterministic,
        served_by_class=by_class,
    )


def served(program: Program, whole: Whole) -> tuple[dict[tuple[str, QueryClass], float], dict[str, float]]:
    """Served fraction by app and class, and by app. Where nothing is demanded nothing is missing: 1."""
    by_class: dict[tuple[str, QueryClass], float] = {}
    wanted: dict[str, float] = {}
    answered: dict[str, float] = {}
    for demand, share in zip(program.demands, whole.served.tolist(), strict=True):
        fraction = min(1.0, share) if demand.qps > 0 else 1.0
        # A solver's tolerance is no shortage.
        fraction = 1.0 if fraction > 1.0 - 1e-6 else fraction
        by_class[demand.app, demand.query_class] = fraction
        wanted[demand.app] = wanted.get(demand.app, 0.0) + demand.qps
        answered[demand.app] = answered.get(demand.app, 0.0) + fraction * demand.qps
    by_app = {app: answered[app] / wanted[app] if wanted[app] > 0 else 1.0 for app in sorted(wanted)}
    return by_class, by_app
