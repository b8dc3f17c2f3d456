"""Tables for a range of loads, so close that neighbours differ by at most one per cent of accuracy (EuroSys 2024, 4.4).

Loads are bisected where the accuracy expected at their ends differs by more. The library ends where the violation
expected exceeds what is tolerated: above, no table helps and workers fall back on the fastest variant.
"""

from itertools import pairwise

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.table import SelectionTable
from sluicegate.planner.mdp.generate_table import Generated, generate
from sluicegate.planner.mdp.mdp_model import SelectionModel
from sluicegate.planner.policy_tables.table_requests import LibraryRules

_CLOSEST = 0.002
_LOWEST = 0.02


def peak_rate(model: SelectionModel) -> float:
    """Queries a second that the workers answer with the best batch of any variant that fits the SLO."""
    best = 0.0
    for v in model.variants:
        for batch, seconds in enumerate(v.latency[: model.longest], 1):
            if seconds <= model.slo:
                best = max(best, batch / seconds)
    share = 1.0 / model.workers if model.share is None else model.share
    return best / share


def build_library(
    model: SelectionModel,
    *,
    app: str = "",
    worker_class: str = "",
    lowest: float | None = None,
    highest: float | None = None,
    rules: LibraryRules | None = None,
) -> tuple[SelectionTable, ...]:
    """Tables by ascending load, from ``lowest`` to ``highest`` (defaults: 2 % of peak, peak).

    Empty where even the lowest load is violated more than tolerated. ``model.qps`` is not used.
    """
    rules = rules or LibraryRules()
    if highest is None and model.never_in_time:
        raise InvalidInputError("slo", model.never_in_time)
    peak = peak_rate(model)
    top = highest if highest is not None else peak
    low = lowest if lowest is not None else min(_LOWEST * peak, top)
    if not 0.0 <= low <= top or top <= 0.0:
        raise InvalidInputError("loads", f"{low} to {top} queries/s is no range that {model.workers} workers can serve")
    build = _Builder(model, app, worker_class, rules)
    first = build.at(low, None)
    if first.table.expected.violation > rules.max_violation:
        return ()
    if top > low:
        build.between(low, build.tolerable(low, top))
    return tuple(build.made[qps].table for qps in sorted(build.made) if build.serves(qps))


class _Builder:
    def __init__(self, model: SelectionModel, app: str, worker_class: str, rules: LibraryRules) -> None:
        self._model = model
        self._app = app
        self._class = worker_class
        self._rules = rules
        self.made: dict[float, Generated] = {}

    def at(self, qps: float, near: Generated | None) -> Generated:
        """Made once."""
        if qps not in self.made:
            self.made[qps] = generate(
                self._model.at(qps),
                app=self._app,
                worker_class=self._class,
                values=near.values if near else None,
            )
        return self.made[qps]

    def serves(self, qps: float) -> bool:
        """Whether violations at this load are tolerated."""
        return self.made[qps].table.expected.violation <= self._rules.max_violation

    def tolerable(self, low: float, top: float) -> float:
        """The highest load in (low, top], to one per cent of top, at which violations are tolerated."""
        self.at(top, self.made[low])
        if self.serves(top):
            return top
        good, bad = low, top
        while bad - good > 0.01 * top:
            middle = (good + bad) / 2.0
            self.at(middle, self.made[good])
            good, bad = (middle, bad) if self.serves(middle) else (good, middle)
        return good

    def between(self, low: float, high: float) -> None:
        """Bisect until neighbours are close in accuracy, or in load."""
        loads = sorted(q for q in self.made if low <= q <= high)
        pending = list(pairwise(loads))
        while pending and len(self.made) < self._rules.most:
            a, b = pending.pop()
            gap = self.made[a].table.expected.accuracy - self.made[b].table.expected.accuracy
            if abs(gap) <= self._rules.spacing or b - a <= _CLOSEST * high:
                continue
            middle = (a + b) / 2.0
            self.at(middle, self.made[a])
            pending += [(a, middle), (middle, b)]
