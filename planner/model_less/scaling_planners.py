"""Model-less scaling as planners: the greedy, tick after tick, and the integer program (INFaaS, ATC 2021, 5.1).

Rules.
- An instance that loads costs its price and serves nothing: for as long again as the apps' hosts have stood, which is
  what a change may be expected to last, so lambda is one over that.
- What runs is what the plan in force holds on the devices that are there. An instance that is not needed is given up:
  its device is then free for other apps, and a worker of it may be ended.
- Devices in ``avoided`` (an instance on them is interfered with) host nothing as long as the others can answer all that
  could be answered with them.
- Each variant in ``wanted`` (queries ask for it, and nothing runs it) gets one instance: on a free unit, else in the
  place of one of its app, where enough is left for the app's load.
- What a worker that was replaced had held counts as loaded on the one in its place (``restored``: device -> variants).
"""

from dataclasses import replace

from typing_extensions import override

from sluicegate.planner.allocation.program import CALM
from sluicegate.planner.model_less.greedy_scaling import GreedyScaling
from sluicegate.planner.model_less.integer_program import scale_exactly
from sluicegate.planner.model_less.objectives import LeastCost
from sluicegate.planner.model_less.problem_adapter import Scale
from sluicegate.planner.model_less.scaling_problem import Fleet
from sluicegate.planner.model_less.wishes import FollowsWishes, restored
from sluicegate.planner.problems.problem import Allocation, Problem
from sluicegate.planner.problems.problem_checks import check

TICK = 1.0
"""Seconds between calls, at most."""
UNHURRIED = 20.0
"""Patience with a planner that no solver makes late: what a stand-in would load is only forgotten again."""
_ENOUGH = 1e-6


class ScalingPlanner(FollowsWishes):
    """Model-less scaling as a planner. ``exact``: by the program, the greedy only where nothing answers all. ``tick``:
    seconds between calls. ``rate``: lambda, 1/s, where it is not to follow from the problem."""

    def __init__(self, *, exact: bool, tick: float = TICK, rate: float | None = None) -> None:
        super().__init__("scaling-ilp" if exact else "scaling-greedy")
        self._exact = exact
        self._rate = rate
        self._aim = LeastCost(rate or 0.0)
        self._greedy = GreedyScaling(slack=1.0, tick=tick, aim=self._aim)

    @override
    def allocate(self, problem: Problem) -> Allocation:
        """Scale by one tick. Raises InvalidInputError for what is no problem."""
        check(problem)
        if self._rate is None:
            self._aim.rate = 1.0 / max(CALM, min(problem.stood.values(), default=0.0))
        problem = replace(problem.merged(), previous=(*problem.previous, *restored(problem, self.wishes)))
        kept = tuple(d for d in problem.devices if d.name not in self.wishes.avoided)
        scale = Scale(problem)
        if kept and len(kept) < len(problem.devices):
            without = Scale(replace(problem, devices=kept))
            if _covered(without.fleet) >= _covered(scale.fleet) * (1.0 - _ENOUGH):
                scale = without
        fleet = self._scaled(scale.fleet)
        return scale.placed(self._with_wanted(scale, fleet), self.name)

    def _scaled(self, fleet: Fleet) -> Fleet:
        if self._exact:
            found = scale_exactly(fleet, slack=1.0, rate=self._aim.rate)
            if found is not None:
                return fleet.after(found.changes)
        return fleet.after(self._greedy.step(fleet))

    def _with_wanted(self, scale: Scale, fleet: Fleet) -> Fleet:
        """One instance of each variant that is asked for by name, where that leaves every other app what it has."""
        for variant in sorted(self.wishes.wanted):
            names = [v.name for v in fleet.variants if scale.variant(v.name) == variant]
            if not any(fleet.count(name) for name in names):
                fleet = _one_more(fleet, names)
        return fleet


def _covered(fleet: Fleet) -> float:
    """Queries/s that are answered once what is missing has been added."""
    grown = fleet.after(GreedyScaling(slack=1.0).step(fleet))
    return sum(min(asked.load, grown.capacity(app)) for app, asked in fleet.asked.items())


def _one_more(fleet: Fleet, names: list[str]) -> Fleet:
    """With one of ``names`` on a free unit, else in the place of an instance that its app can spare."""
    by_name = {v.name: v for v in fleet.variants}
    for name in names:
        if fleet.free(by_name[name].hardware) >= 1.0 - _ENOUGH:
            return fleet.after({name: 1})
    for name in names:
        v = by_name[name]
        others = [w for w in fleet.variants if w.app == v.app and w.hardware == v.hardware and fleet.count(w.name)]
        for other in sorted(others, key=lambda w: (w.capacity, w.name)):
            changed = fleet.after({other.name: -1, name: 1})
            if changed.capacity(v.app) >= fleet.asked[v.app].load * (1.0 - _ENOUGH):
                return changed
    return fleet
