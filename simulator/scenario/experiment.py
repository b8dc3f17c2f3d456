"""Runs of a scenario: one system once, or several systems on the same arrivals for several seeds.

Arrivals and service times come from generators of their own, seeded by the run's seed: systems that are compared see
the same arrivals, whatever they do with them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.fold import Summary
from sluicegate.domain.outcome import Outcome
from sluicegate.planner.registry import PLANNERS
from sluicegate.policies.batching.registry import BATCHING
from sluicegate.policies.routing.registry import ROUTING
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.formats.field_errors import meant
from sluicegate.simulator.arrivals.sampling import ArrivalSource
from sluicegate.simulator.bound import Bound, clairvoyant_bound
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.promise_watch import PromiseFigures
from sluicegate.simulator.scenario.build_scenario import build, check_begins, source_of
from sluicegate.simulator.scenario.scenario_fields import Scenario
from sluicegate.simulator.scenario.scenario_file import overridden, scenario_of
from sluicegate.simulator.time_series import Series, SeriesFold

COUNTS = ("queries", "answered_on_time", "late", "expired", "dropped", "rejected", "failed")
MEASURES = (
    "violation_ratio",
    "right_in_time",
    "relative_right_in_time",
    "effective_accuracy",
    "relative_accuracy",
    "max_accuracy_drop",
    "goodput_qps",
    "p50_ms",
    "p99_ms",
)
BASE = "base"
"""The scenario as it is, where it names no systems."""

MOST_BOUNDED = 10_000_000
"""Arrivals of a run: its bound has all of them in memory at once, 70 bytes each."""

_ARRIVALS, _SERVICE = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run. ``epochs``: plans published; ``solve_s``: wall seconds of each solve; ``wall_s``: of the whole run.

    ``nondeterministic``: solves that a limit in seconds cut off; where it is 0, equal seeds give equal runs. ``cost``:
    money, where instances come and go. ``bound``: what no policy exceeds on these arrivals, where that was asked for;
    ``unbounded``: it was, and they are too many. ``promises``: where anything was promised.
    """

    summary: Summary
    epochs: int
    solve_s: tuple[float, ...]
    wall_s: float
    seed: int
    nondeterministic: int = 0
    series: Series | None = None
    cost: float | None = None
    bound: Bound | None = None
    unbounded: bool = False
    promises: PromiseFigures | None = None

    def figures(self) -> dict[str, Any]:
        """The figures of the run by name, ready for JSON (times in ms, ratios in 0..1)."""
        figures = figures_of(self.summary, self.solve_s, self.wall_s, self.seed)
        if self.cost is not None:
            figures["cost"] = self.cost
        if self.bound is not None:
            figures["bound"] = asdict(self.bound)
        if self.promises is not None:
            figures = {"promises": asdict(self.promises), **figures}
        return figures


def figures_of(summary: Summary, solve_s: Sequence[float], wall_s: float, seed: int) -> dict[str, Any]:
    """The figures of a run, simulated or live, by name."""
    known = asdict(summary)
    known |= {"right_in_time": summary.right_in_time, "relative_right_in_time": summary.relative_right_in_time}
    return {
        **{name: known[name] for name in (*COUNTS, *MEASURES)},
        "planner": _planner_figures(solve_s),
        "wall_s": wall_s,
        "seed": seed,
    }


def arrivals_of(scenario: Scenario, catalogue: Catalogue, seed: int) -> ArrivalSource:
    """The arrivals of every run with this seed, simulated or live."""
    return source_of(scenario, catalogue, np.random.default_rng([seed, _ARRIVALS]))


class _Watch:
    """Tells of simulated time as queries end, once in each hundredth of ``duration``."""

    def __init__(self, told: Callable[[float, float], None], duration: float) -> None:
        self._told = told
        self._duration = duration
        self._step = duration / 100
        self._next = 0.0

    def add(self, outcome: Outcome) -> None:
        """A query ended."""
        if self._next <= outcome.at < self._duration:
            self._next = outcome.at + self._step
            self._told(outcome.at, self._duration)


def run_once(
    scenario: Scenario,
    seed: int,
    timer: Callable[[], float],
    *,
    with_series: bool = False,
    with_bound: bool = False,
    told: Callable[[float, float], None] | None = None,
) -> Run:
    """Simulate ``scenario``. ``timer``: wall seconds. ``told`` now and then of the simulated seconds that are over, of
    how many; all of them: what follows is the bound.

    Raises SluiceError: what is wrong with it.
    """
    started = timer()
    scenario = scenario.model_copy(update={"seed": seed})  # what else chance decides, as a market, goes by it too
    system = build(scenario, timer)
    source = arrivals_of(scenario, system.catalogue, seed)
    check_begins(scenario, source.duration)
    series = SeriesFold() if with_series else None
    watch = _Watch(told, source.duration) if told is not None else None
    observers = [one for one in (series, watch) if one is not None]
    engine = Engine(system, np.random.default_rng([seed, _SERVICE]), observers)
    result = engine.run(source)
    took = timer() - started
    if told is not None:
        told(source.duration, source.duration)
    bound = None
    with_bound = with_bound and scenario.promise is None  # arrivals by what is announced are known only afterwards
    unbounded = with_bound and source.expected > MOST_BOUNDED
    if with_bound and not unbounded:
        again = arrivals_of(scenario, system.catalogue, seed)
        bound = clairvoyant_bound(system, again, np.random.default_rng([seed, _SERVICE]))
    return Run(
        summary=result.summary,
        epochs=result.epochs,
        solve_s=result.solve_s,
        wall_s=took,
        seed=seed,
        nondeterministic=result.nondeterministic,
        series=series.series() if series is not None else None,
        cost=sum(result.cost.values()) if result.cost else None,
        bound=bound,
        unbounded=unbounded,
        promises=result.promises,
    )


def systems_of(document: Mapping[str, Any], wanted: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    """Documents by system name. ``wanted``: names of the scenario's systems, or of registered policies or planners.

    Without ``wanted``: every system of the scenario, or the scenario itself. Raises ConfigurationError.
    """
    named = scenario_of(document).systems
    names = list(wanted) if wanted else (list(named) or [BASE])
    if len(set(names)) < len(names):
        raise ConfigurationError(f"policies: {', '.join(names)} names one twice")
    return {name: _system(document, named, name) for name in names}


def _system(document: Mapping[str, Any], named: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    if name in named:
        return overridden(document, dict(named[name]))
    if name == BASE:
        return dict(document)
    for registry, setting in (
        (BATCHING, "policies.batching"),
        (ROUTING, "policies.routing"),
        (PLANNERS, "planner.name"),
    ):
        if name in registry:
            value: Any = name if setting.startswith("planner") else {"name": name}
            return _replaced(document, setting, value)
    known = list(dict.fromkeys([*named, BASE, *sorted(BATCHING), *sorted(ROUTING), *sorted(PLANNERS)]))
    choice = f"{', '.join(known)}{meant(name, known)}"
    raise ConfigurationError(f"policies: {name!r} is neither a system nor a policy; choose of {choice}")


def _replaced(document: Mapping[str, Any], setting: str, value: Any) -> dict[str, Any]:
    """Like an override, but what was there before goes: another policy's options are not this one's."""
    section, field = setting.split(".")
    cleared = overridden(document, {})
    inner = dict(cleared.get(section) or {})
    inner[field] = value
    cleared[section] = inner
    return cleared


def together(runs: Sequence[Run]) -> dict[str, Any]:
    """Means over seeds under the names of ``Run.figures``, with ``ci95`` (half widths) and ``seeds``."""
    figures = [run.figures() for run in runs]
    result: dict[str, Any] = {}
    half: dict[str, float] = {}
    for name in (*COUNTS, *MEASURES, *(["cost"] if "cost" in figures[0] else [])):
        values = [float(f[name]) for f in figures]
        mean, half[name] = mean_and_half_width(values)
        result[name] = figures[0][name] if len(set(values)) == 1 else mean
    result["planner"] = _planner_figures([s for run in runs for s in run.solve_s])
    result["wall_s"] = sum(run.wall_s for run in runs)
    result["seed"] = runs[0].seed
    bounds = [run.bound for run in runs if run.bound is not None]
    if bounds:
        result["bound"] = mean_bound(bounds)
    counted = [asdict(run.promises) for run in runs if run.promises is not None]
    if counted:
        result = {"promises": {name: _mean_count([one[name] for one in counted]) for name in counted[0]}, **result}
    return {**result, "seeds": [run.seed for run in runs], "ci95": half}


def _mean_count(counts: Sequence[int]) -> float:
    """A whole number where all are one."""
    return counts[0] if len(set(counts)) == 1 else float(np.mean(counts))


def mean_bound(bounds: Sequence[Bound]) -> dict[str, Any]:
    """Of the bounds of several seeds, under the names of one."""
    each = [asdict(bound) for bound in bounds]
    means = {name: float(np.mean([one[name] for one in each])) for name in each[0] if name != "certain"}
    return {**means, "certain": all(bound.certain for bound in bounds)}


def with_distances(results: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """``results`` (of ``together``, by system) with ``distance_closed``: of what there is between the system that has
    the fewest right answers in time and the bound, how much each has; NaN where they are one."""
    worst = min(float(one["right_in_time"]) for one in results.values())
    found = {}
    for name, one in results.items():
        if "bound" in one:
            room = one["bound"]["right_in_time"] - worst
            one = {**one, "distance_closed": (one["right_in_time"] - worst) / room if room > 1e-9 else math.nan}
        found[name] = one
    return found


def notes_on(runs: Mapping[str, Sequence[Run]]) -> list[str]:
    """A warning where a limit in seconds decided a plan: the same seed may give another run; and where a bound is
    left out."""
    cut = {name: sum(run.nondeterministic for run in of_system) for name, of_system in runs.items()}
    notes = [
        f"{name}: {count} plans were cut off by a limit in seconds; the same seed may give another run"
        for name, count in cut.items()
        if count
    ]
    if any(run.unbounded for of_system in runs.values() for run in of_system):
        notes.append(f"no clairvoyant bound: it has all arrivals in memory, and is left out above {MOST_BOUNDED:,}")
    return notes


def mean_and_half_width(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Mean of ``values`` (NaN left out) and half the width of its Student interval; NaN for fewer than two."""
    known = np.array([v for v in values if not math.isnan(v)])
    if not known.size:
        return math.nan, math.nan
    if known.size == 1:
        return float(known[0]), math.nan
    error = float(known.std(ddof=1)) / math.sqrt(known.size)
    return float(known.mean()), float(stdtrit(known.size - 1, 0.5 + level / 2.0)) * error


def _planner_figures(solve_s: Sequence[float]) -> dict[str, float]:
    if not solve_s:
        return {"solves": 0, "p50_ms": math.nan, "p95_ms": math.nan}
    p50, p95 = np.quantile(np.asarray(solve_s), [0.5, 0.95])
    return {"solves": len(solve_s), "p50_ms": 1e3 * float(p50), "p95_ms": 1e3 * float(p95)}
