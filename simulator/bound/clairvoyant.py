"""The clairvoyant bound of a scenario: what no policy exceeds on these arrivals, whatever it knows beforehand.

Rules. All that is left out makes the bound higher, never lower.
- A query answered in time took, of the slice that ran it, the time of its batch over the batch's rows, between its
  arrival (and the hops to a device) and its deadline. A batch has any size that is profiled and takes no longer than
  the query may wait; that enough others are there to fill it is not asked.
- Loads, plans, control, memory, promises, faults and what a query asks of its own beside its latency cost nothing. All
  devices are there throughout, and every variant that is ever registered.
- A GPU that plans may cut is cut any way at any moment: a slice takes its part of the GPU's compute slices, and of its
  memory slots. Slices that share a processor take their parts of it.
- Service times that are drawn: a batch counts with the chance that it ends in time and the seconds it takes at least in
  the mean, up to as long again as a query may wait. The bound then holds in the mean over draws (``certain`` is false),
  for policies that do not know them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sluicegate.domain.models.app import App
from sluicegate.domain.query import Query
from sluicegate.simulator.arrivals.sampling import ArrivalSource, collect
from sluicegate.simulator.bound.batch_chances import chances_of
from sluicegate.simulator.bound.fleet_capacity import Fleet
from sluicegate.simulator.bound.priced_time import Asked, Floats, Way, most_value
from sluicegate.simulator.engine.system_model import Draws, SystemModel

INTERVALS = 400
"""Of a trace, about: more are tried for nothing, the bound hardly falls."""
_LEAST = 1e-3
_FINEST = 64
"""Windows (seconds from arrival to deadline) of an app that are told apart; between them the longer holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What nothing exceeds. ``violation_ratio``: at least; ``right_in_time``, ``relative_right_in_time``: at most.

    Each is the best by itself: no policy need reach all at once. ``certain``: it holds for each run, not in the mean.
    """

    violation_ratio: float
    right_in_time: float
    relative_right_in_time: float
    certain: bool


@dataclass(frozen=True, eq=False)
class _Alike:
    """Queries of ``app`` that may wait ``window`` seconds at most once they are with a device."""

    app: str
    window: float
    asked: Asked


def clairvoyant_bound(system: SystemModel, source: ArrivalSource, rng: Generator) -> Bound:
    """Of ``system`` on the arrivals of ``source``. ``rng``: as the engine is given it, for what queries differ in."""
    certain = system.service in ("median", "p95") and not system.slow_probability
    hops = system.timing.to_router + system.timing.to_device
    windows = _windows(system, collect(source), rng)
    shortest = [float(waits.min()) for _, waits in windows.values() if waits.size]
    interval = max([source.duration / INTERVALS, *shortest, _LEAST])
    alike: list[_Alike] = []
    for app, (times, waits) in windows.items():
        ready = times + hops
        for window, mine in _by_window(waits - hops):
            until = ready[mine] + window * (1.0 if certain else 2.0)
            alike.append(_Alike(app, window, Asked.of(ready[mine], until, interval)))
    queries = sum(times.size for times, _ in windows.values())
    return _bound(system, alike, queries, interval, certain=certain)


def _bound(system: SystemModel, alike: Sequence[_Alike], queries: int, interval: float, *, certain: bool) -> Bound:
    fleet = Fleet(system)
    offered = [_ways(system, fleet, each, certain=certain) for each in alike]
    asked = [each.asked for each in alike]

    def most(values: Mapping[str, float]) -> float:
        ways = [[replace(w, value=w.value * values[variant]) for variant, w in each] for each in offered]
        return most_value(asked, ways, fleet.capacity, interval) / max(1, queries)

    accuracy = {v.name: v.accuracy for v in system.catalogue.variants.values()}
    best = {app.name: _least_best(system, app) for app in system.apps}
    relative = {v.name: v.accuracy / best[v.app] if best[v.app] else 1.0 for v in system.catalogue.variants.values()}
    of_best = most(relative)
    alone = best[system.apps[0].name] if len(system.apps) == 1 else 0.0
    return Bound(
        violation_ratio=max(0.0, 1.0 - most(dict.fromkeys(accuracy, 1.0))) if queries else 0.0,
        right_in_time=alone * of_best if alone else most(accuracy),
        relative_right_in_time=min(1.0, of_best),
        certain=certain,
    )


def _least_best(system: SystemModel, app: App) -> float:
    """Accuracy of the app's best variant, while that is lowest of all that are ever registered."""
    served = [change.served for change in system.registry if app.name in change.served.apps] or [system.catalogue]
    return min(catalogue.best_accuracy(app.name) for catalogue in served)


def _ways(system: SystemModel, fleet: Fleet, each: _Alike, *, certain: bool) -> list[tuple[str, Way]]:
    """By variant and kind of slice: worth the chance to be in time."""
    found: list[tuple[str, Way]] = []
    length = min(system.lengths.get(each.app, ()), default=0)
    ever = {name for change in system.registry for name in change.served.variants} or system.catalogue.variants.keys()
    variants = [variant for variant in system.catalogue.of_app(each.app) if variant.name in ever]
    for kind in fleet.kinds:
        for variant in variants:
            profile = fleet.profile(variant.name, kind)
            if profile is None:
                continue
            takes = kind.takes(variant.name)
            for chance, seconds in chances_of(system, profile, length, each.window, fleet.fastest, certain=certain):
                found.append((variant.name, Way(chance, tuple((of, part * seconds) for of, part in takes))))
    return found


def _windows(system: SystemModel, arrivals: Mapping[str, Floats], rng: Generator) -> dict[str, tuple[Floats, Floats]]:
    """By app: arrivals, and seconds from each to its deadline; 0 where it is refused for its app is not known."""
    varied = Draws.of(system, rng).varieties
    found: dict[str, tuple[Floats, Floats]] = {}
    for app in system.apps:
        times = arrivals[app.name]
        waits = _slos(system, app, times)
        if app.name in system.asked:
            for i in np.flatnonzero(waits).tolist():
                at = float(times[i])
                query = Query("", app.name, at, at + float(waits[i]))
                varied[app.name].apply(query)
                waits[i] = query.deadline - at
        found[app.name] = times, waits
    return found


def _slos(system: SystemModel, app: App, times: Floats) -> Floats:
    """What the app's queries may take, as its registration says when they come."""
    if not system.registry:
        return np.full(times.size, app.slo)
    waits = np.zeros(times.size)
    for number, change in enumerate(system.registry):
        known = change.served.apps.get(app.name)
        if known is not None:
            waits[times >= (change.at + system.timing.control if number else -np.inf)] = known.slo
    return waits


def _by_window(waits: Floats) -> list[tuple[float, NDArray[np.bool_]]]:
    """(window, which of them): no query may take longer than its window. Those that may take nothing are in none."""
    lasting = waits > 0.0
    levels = np.unique(waits[lasting])
    if levels.size > _FINEST:
        levels = np.unique(np.quantile(levels, np.linspace(0.0, 1.0, _FINEST), method="higher"))
    level = np.searchsorted(levels, waits)
    return [(window, lasting & (level == n)) for n, window in enumerate(levels.tolist())]
