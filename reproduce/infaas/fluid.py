"""Model-less scaling over time, as a fluid: what a rule for the fleet costs, and what it leaves unanswered.

Rules. Time goes in ticks of a second; an app's load is constant within one. Instances that are added cost from then on
and answer once they are loaded; those that are removed are gone at once. An app's queries of a tick are answered as far
as loaded instances that keep its SLO go, the rest violates it: queues are not modelled, which flatters everybody alike.
Profiles are synthetic: no publication has the paper's.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf

from sluicegate.planner.model_less.greedy_scaling import GreedyScaling
from sluicegate.planner.model_less.scaling_problem import SLACK, Asked, Fleet, ScalingVariant

Rule = Callable[[Fleet], Mapping[str, int]]
"""Changes to the number of instances, once a tick. What loads counts as running."""


@dataclass(frozen=True, slots=True)
class FluidResult:
    """What a fluid run came to.

    ``cost``: money in all. ``violations``: of all queries, 0..1. ``answered``: queries. ``changes``: their ticks.
    """

    cost: float
    violations: float
    answered: float
    changes: tuple[int, ...]


def simulate(
    rule: Rule,
    variants: Sequence[ScalingVariant],
    loads: Mapping[str, Sequence[float]],
    slos: Mapping[str, float],
    *,
    resources: Mapping[str, float] | None = None,
    start: Mapping[str, int] | None = None,
) -> FluidResult:
    """Run ``rule`` over ``loads`` (app -> queries/s by tick). ``start``: loaded instances at the beginning."""
    running = {v.name: (start or {}).get(v.name, 0) for v in variants}
    by_name = {v.name: v for v in variants}
    loading: dict[str, deque[int]] = {v.name: deque() for v in variants}  # tick at which each is ready
    cost = asked_all = answered = 0.0
    changed: list[int] = []
    for tick in range(len(next(iter(loads.values())))):
        asked = {app: Asked(load=series[tick], slo=slos[app]) for app, series in loads.items()}
        fleet = Fleet(variants=tuple(variants), asked=asked, running=running, resources=resources or {})
        changes = {name: more for name, more in rule(fleet).items() if more}
        for name, more in changes.items():
            running[name] += more
            if more > 0:
                loading[name].extend([tick + ceil(by_name[name].load)] * more)
            for _ in range(min(-more, len(loading[name]))):
                loading[name].pop()  # what is not loaded yet is given up first
        if changes:
            changed.append(tick)
        for ready in loading.values():
            while ready and ready[0] <= tick:
                ready.popleft()
        loaded = {name: count - len(loading[name]) for name, count in running.items()}
        able = Fleet(variants=tuple(variants), asked=asked, running=loaded)
        for app, a in asked.items():
            asked_all += a.load
            answered += min(a.load, able.capacity(app))
        cost += sum(by_name[name].cost * count for name, count in running.items()) / 3600.0
    violations = 1.0 - answered / asked_all if asked_all else 0.0
    return FluidResult(cost, violations, answered, tuple(changed))


def model_less(rate: float = 0.0) -> Rule:
    """The greedy: replicates, upgrades and downgrades."""
    greedy = GreedyScaling(rate=rate)
    return greedy.step


def preloaded(fleet: Fleet) -> dict[str, int]:
    """Clipper+: instances fixed beforehand, none is ever added or removed."""
    del fleet
    return {}


def horizontal(chosen: Mapping[str, str]) -> Rule:
    """SM+: each app's one variant, replicated as the load goes; one is removed after as many ticks of idleness as it
    takes to load, as by the greedy."""
    idle = dict.fromkeys(chosen, 0)

    def rule(fleet: Fleet) -> Mapping[str, int]:
        changes: dict[str, int] = {}
        for app, name in chosen.items():
            v = next(v for v in fleet.variants if v.name == name)
            wanted = max(1, ceil(SLACK * fleet.asked[app].load / v.capacity - 1e-9))
            have = fleet.count(name)
            fits = int(max(0.0, min(fleet.after(changes).free(v.hardware) / v.resources + 1e-9, 1e9)))
            idle[app] = idle[app] + 1 if wanted < have else 0
            if wanted > have and fits:
                changes[name] = min(wanted - have, fits)
            elif idle[app] >= max(1, ceil(v.load)):
                idle[app] = 0
                changes[name] = -1
        return changes

    return rule


def fixed_for(
    variants: Sequence[ScalingVariant],
    peaks: Mapping[str, float],
    slos: Mapping[str, float],
    resources: Mapping[str, float] | None = None,
) -> dict[str, int]:
    """Clipper+'s instances: the fastest variant of each app, for its peak; where resources end, apps get one in turn.

    Apps whose fastest hardware is full take the next fastest that keeps the SLO.
    """
    counts = {v.name: 0 for v in variants}
    left = dict(resources or {})
    short = {app: SLACK * peak for app, peak in peaks.items()}
    while True:
        added = False
        for app in sorted(short, key=lambda a: -short[a]):
            able = sorted((v for v in variants if v.app == app and v.latency <= slos[app]), key=lambda v: -v.capacity)
            v = next((v for v in able if left.get(v.hardware, inf) >= v.resources), None)
            if short[app] > 0.0 and v is not None:
                counts[v.name] += 1
                left[v.hardware] = left.get(v.hardware, inf) - v.resources
                short[app] -= v.capacity
                added = True
        if not added:
            return counts
