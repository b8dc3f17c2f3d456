"""A million strict queries at 80 to 100 % of the bound that is announced for them: how many windows break.

Each run is the shipped scenario, examples/scenarios/promises-campaign.yaml, with another promise, other rows a query,
another share of the bound and in another world. Best effort is at capacity in all of them.

    python -m tests.simulation.promises.campaign                    # a million queries, a quarter of an hour
    python -m tests.simulation.promises.campaign --queries 1000     # of each run; the same table, sooner
    python -m tests.simulation.promises.campaign --worlds exact,jitter --docs docs/reports/promises.md

Writes reports/promises/campaign.json after each run; worlds that were not asked for stay as they are. Exits with 1
where a window breaks, but where a device is lost: there it must have been announced.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import numpy as np

from sluicegate.domain.outcome import Outcome
from sluicegate.policies.serving.device_actions import Beat
from sluicegate.simulator.engine.control_plane import ControlEvent, ControlPlane
from sluicegate.simulator.engine.engine import Engine
from sluicegate.simulator.promise_watch import PromiseFigures
from sluicegate.simulator.scenario import build, read_scenario, scenario_of, with_setting
from sluicegate.simulator.scenario.experiment import arrivals_of

SCENARIO = Path(__file__).parents[3] / "examples" / "scenarios" / "promises-campaign.yaml"
TARGET = Path("reports/promises/campaign.json")
PROMISES = ("mk=2,10", "mk=4,10", "mk=1,5", "mcd=2")
ROWS = ("1", "2", "[1,8]")
SHARES = (0.8, 0.9, 1.0)
STEADY_QUERIES = 3_600
"""Strict queries of a run where nothing happens; with those of the others, a million in all."""
BUSY_QUERIES = {"1": 17_000, "2": 17_000, "[1,8]": 7_000}
"""By rows, of a run where something does: large ones are fewer a second, and plans are as many."""


_QUICK = [("control", 0.9, {1: 4.5, 64: 36.0}), ("second", 0.8, {1: 4.0, 32: 20.0}), ("bulk", 0.7, {1: 9.0, 64: 72.0})]
_SLOW = [("control", 0.9, {1: 18.0, 16: 45.0}), ("second", 0.8, {1: 8.0, 32: 40.0}), ("bulk", 0.7, {1: 9.0, 64: 72.0})]
"""So that as many queries take many plans."""
_THIRD = ("third", 0.75, {1: 6.0, 16: 15.0})


def _variants(
    variants: Sequence[tuple[str, float, Mapping[int, float]]], spread: float = 1.3, kind: str = "cpu"
) -> str:
    """A scenario's variants, whose 95th percentile is ``spread`` times the median."""
    return "catalogue.variants=" + json.dumps(
        [
            {
                "name": f"{app}-v",
                "app": app,
                "accuracy": accuracy,
                "load_s": 0.5,
                "memory_mb": 2_000,
                "latency_ms": {kind: {rows: [ms, round(ms * spread, 3)] for rows, ms in points.items()}},
            }
            for app, accuracy, points in variants
        ]
    )


_WITH_THIRD = (
    "apps.third={slo_ms: 350}",
    "traces.shares={control: 0.0, second: 0.3, bulk: 0.5, third: 0.2}",
    "planner.variants_per_device=4",
)
_SWING = (
    "traces.qps=[60, 320]",
    "traces.generator={period_s: 8, spikes: 3, spike_factor: 1.5, spike_s: 2}",
    "planner.period_s=3",
    "planner.variants_per_device=2",
)
_THREE = ("devices.0.count=3", _variants(_SLOW), *_SWING)

WORLDS: Mapping[str, tuple[str, ...]] = {
    "jitter": (),
    "exact": (_variants(_QUICK, 1.0), "simulation.slow_batches={probability: 0.05, factor: 1.3}"),
    "third": (_variants([*_QUICK, _THIRD]), *_WITH_THIRD),
    "plans": _THREE,
    "registered": (
        *_WITH_THIRD,
        _variants([*_QUICK, _THIRD]),
        "apps.third.at_start=false",
        "registrations=[{at_s: 5, app: third}]",
    ),
    "recut": (
        *_SWING,
        "devices=[{type: a100, count: 3, geometry: 7g}]",
        _variants(_SLOW, kind="a100"),
        "planner.geometry=joint",
        "planner.geometry_patience_s=2",
        "planner.geometry_rest_s=4",
        "slices={step_s: 0.3, choice: plan}",
    ),
    "lost": (*_THREE, "simulation.failures=[{device: cpu1, at_s: 8, until_s: 14}]"),
}
WHAT: Mapping[str, str] = {
    "jitter": "the 95th percentile is 30 % above the median, lognormal; a second app on the slice",
    "exact": "profiles say that batches do not vary, and 5 % of them take 30 % more",
    "third": "as jitter, with a third app",
    "plans": "three devices, and demand that swings, so that plans change",
    "registered": "a third app is registered after five seconds",
    "recut": "three GPUs that plans cut otherwise as demand swings",
    "lost": "three devices, of which one dies for six seconds; what breaks then must have been announced",
}
LOSES = frozenset({"lost"})
STEADY = frozenset({"jitter", "exact", "third"})
"""Worlds where nothing happens: each of their runs may be short."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run. ``share``: of the bound."""

    world: str
    promise: str
    rows: str
    share: float
    queries: int
    seed: int

    @property
    def changes(self) -> Iterable[str]:
        """Of the scenario."""
        name, value = self.promise.split("=")
        said = json.dumps(value) if name == "mk" else value
        promise = f"{{app: control, {name}: {said}, rows: {self.rows}, share_of_bound: {self.share}, queries: 1}}"
        return (f"promise={promise}", f"promise.queries={self.queries}", *WORLDS[self.world])


def cases(worlds: Sequence[str], queries: int | None, seed: int) -> list[Case]:
    """Every promise and number of rows once in each world; of the worlds where nothing happens with every share."""
    found: list[Case] = []
    for world, (i, promise), (j, rows) in product(WORLDS, enumerate(PROMISES), enumerate(ROWS)):
        for share in SHARES if world in STEADY else (SHARES[(i + j) % len(SHARES)],):
            each = queries or (STEADY_QUERIES if world in STEADY else BUSY_QUERIES[rows])
            found.append(Case(world, promise, rows, share, each, seed + len(found)))
    return [case for case in found if case.world in worlds]


class _Watched:
    """Counts what happened to a run: ``seconds`` until its last query, ``cuts`` of devices."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cuts = 0
        self._slices: dict[str, frozenset[str]] = {}

    def add(self, outcome: Outcome) -> None:
        self.seconds = outcome.at

    def heard(self, event: ControlEvent) -> None:
        if isinstance(event, Beat) and event.seen.slices:
            slices = frozenset(part.name for part in event.seen.slices)
            self.cuts += self._slices.setdefault(event.seen.device, slices) != slices
            self._slices[event.seen.device] = slices


@dataclass(frozen=True, slots=True)
class Found:
    """What became of the strict queries of ``case``, how many plans and cuts there were, and how long it took."""

    case: Case
    figures: PromiseFigures
    plans: int
    cuts: int
    seconds: float
    wall_s: float

    @property
    def failed(self) -> bool:
        """Whether it may not be so."""
        allowed = self.figures.announced if self.case.world in LOSES else 0
        return self.figures.broken_windows > allowed


def run_case(case: Case) -> Found:
    """Simulate it."""
    began = time.perf_counter()
    document = read_scenario(SCENARIO, os.environ)
    for change in case.changes:
        document = with_setting(document, change)
    scenario = scenario_of(document)
    system = build(scenario, lambda: 0.0)
    watched = _Watched()

    def control() -> ControlPlane:
        made = system.make_control()
        heard = made.heard

        def told(event: ControlEvent, now: float) -> None:
            watched.heard(event)
            heard(event, now)

        made.heard = told  # type: ignore[method-assign]
        return made

    source = arrivals_of(scenario, system.catalogue, case.seed)
    engine = Engine(replace(system, make_control=control), np.random.default_rng([case.seed, 2]), [watched])
    result = engine.run(source)
    assert result.promises is not None
    wall_s = time.perf_counter() - began
    return Found(case, result.promises, result.epochs, watched.cuts, watched.seconds, wall_s)


def table(found: Sequence[Found]) -> str:
    """By world and share, in Markdown."""
    lines = [
        "| world | share of the bound | strict queries | seconds | plans | cuts | refused | missed | broken windows "
        "| announced |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for world, share in sorted({(one.case.world, one.case.share) for one in found}):
        mine = [one for one in found if (one.case.world, one.case.share) == (world, share)]
        told = [one.figures for one in mine]
        counts = (
            sum(one.queries for one in told),
            round(sum(one.seconds for one in mine)),
            sum(one.plans for one in mine),
            sum(one.cuts for one in mine),
            sum(one.rejected for one in told),
            sum(one.misses for one in told),
            sum(one.broken_windows for one in told),
            sum(one.announced for one in told),
        )
        lines.append(f"| {world} | {share:.0%} | " + " | ".join(f"{count:,}" for count in counts) + " |")
    return "\n".join(lines)


def _seen() -> list[Found]:
    """What was seen of all before."""
    seen = json.loads(TARGET.read_text()) if TARGET.exists() else []
    return [Found(Case(**one.pop("case")), PromiseFigures(**one.pop("figures")), **one) for one in seen]


def _keep(found: Iterable[Found]) -> None:
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def page(intro: str, found: Sequence[Found]) -> str:
    """In Markdown. ``intro``: how it was made, and the sums."""
    worlds = {one.case.world for one in found}
    told = "\n".join(f"- *{world}*: {what}" for world, what in WHAT.items() if world in worlds)
    missing = ", ".join(world for world in WORLDS if world not in worlds)
    without = f" Not run: {missing}." if missing else ""
    each = "Each line: promises (2, 10), (4, 10), (1, 5), at most two in a row; queries of 1, of 2 and of 1 to 8 rows."
    return f"# Promises at their bound\n\n{intro}{without}\n\n{each}\n\n{told}\n\n{table(found)}\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run them all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--queries", type=int, help="of each run (default: a million in all)")
    parser.add_argument("--worlds", default=",".join(WORLDS), help=f"some of {','.join(WORLDS)}")
    parser.add_argument("--resume", action="store_true", help="but for the runs that were seen before")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--docs", type=Path, help="write the table there, too")
    options = parser.parse_args(argv)
    chosen = cases(options.worlds.split(","), options.queries, options.seed)
    found = _seen()
    if options.resume:
        chosen = [case for case in chosen if all(case != one.case for one in found)]
    else:
        found = [one for one in found if one.case.world not in options.worlds.split(",")]
    with ProcessPoolExecutor(options.parallel) as pool:
        for one in pool.map(run_case, chosen):
            found.append(one)
            _keep(found)
            case, mark = one.case, "FAILED" if one.failed else "ok"
            what = f"{case.world} {case.promise} rows {case.rows} {case.share:.0%} seed {case.seed}"
            _say(f"{mark} {what}: {one.figures}, {one.plans} plans, {one.seconds:.0f} s in {one.wall_s:.0f}")
    _say(table(found))
    queries, broken = sum(one.figures.queries for one in found), sum(one.figures.broken_windows for one in found)
    _say(f"{queries:,} strict queries, {broken} broken windows")
    if options.docs is not None:
        command = f"python -m tests.simulation.promises.campaign --seed {options.seed}"
        lost = sum(one.figures.broken_windows for one in found if one.case.world in LOSES)
        intro = f"`{command}`, {datetime.now(UTC):%Y-%m-%d}: {queries:,} strict queries, {broken - lost} broken windows"
        intro += f", and {lost:,} where a device is lost." if lost else "."
        options.docs.write_text(page(intro, found))
    return int(any(one.failed for one in found))


if __name__ == "__main__":
    sys.exit(main())
