"""A million strict queries at 80 to 100 % of the bound that is announced for them: how many windows break.

Each run is the shipped scenario, examples/scenarios/promises-campaign.yaml, with another promise, other rows a query,
another share of the bound and in another world. Best effort is at capacity in all of them.

    python -m tests.simulation.promises.campaign                    # a million queries, a quarter of an hour
    python -m tests.simulation.promises.campaign --queries 1000     # of each run; the same table, sooner
    python -m tests.simulation.promises.campaign --worlds exact,jitter --docs docs/reports/promises.md

Writes reports/promises/campaign.json, where worlds that were not run stay as they are. Exits with 1 where a window
breaks, but where a device is lost: there it must have been announced.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from sluicegate.simulator.promise_watch import PromiseFigures
from sluicegate.simulator.scenario import read_scenario, scenario_of, with_setting
from sluicegate.simulator.scenario.experiment import run_once

SCENARIO = Path(__file__).parents[3] / "examples" / "scenarios" / "promises-campaign.yaml"
TARGET = Path("reports/promises/campaign.json")
PROMISES = ("mk=2,10", "mk=4,10", "mk=1,5", "mcd=2")
ROWS = ("1", "2", "[1,8]")
SHARES = (0.8, 0.9, 1.0)
LEAST = 1_000_000
"""Strict queries of a whole campaign."""


def _variants(spread: float, third: bool = False) -> str:
    """The scenario's variants, whose 95th percentile is ``spread`` times the median."""
    found = [
        ("control", 0.9, {1: 4.5, 64: 36.0}),
        ("second", 0.8, {1: 4.0, 32: 20.0}),
        ("bulk", 0.7, {1: 9.0, 64: 72.0}),
    ]
    if third:
        found.append(("third", 0.75, {1: 6.0, 16: 15.0}))
    return json.dumps(
        [
            {
                "name": f"{app}-v",
                "app": app,
                "accuracy": accuracy,
                "load_s": 0.5,
                "latency_ms": {"cpu": {rows: [ms, round(ms * spread, 3)] for rows, ms in points.items()}},
            }
            for app, accuracy, points in found
        ]
    )


_THIRD = (
    "apps.third={slo_ms: 350}",
    f"catalogue.variants={_variants(1.3, third=True)}",
    "traces.shares={control: 0.0, second: 0.3, bulk: 0.5, third: 0.2}",
    "planner.variants_per_device=4",
)
_SWING = ("traces.qps=[60, 220]", "traces.generator={period_s: 40, spikes: 2, spike_factor: 1.5, spike_s: 4}")

WORLDS: Mapping[str, tuple[str, ...]] = {
    "jitter": (),
    "exact": (f"catalogue.variants={_variants(1.0)}", "simulation.slow_batches={probability: 0.05, factor: 1.3}"),
    "third": _THIRD,
    "plans": (*_SWING, "devices.0.count=3", "planner.variants_per_device=2"),
    "registered": (*_THIRD, "apps.third.at_start=false", "registrations=[{at_s: 20, app: third}]"),
    "lost": (*_SWING, "devices.0.count=3", "simulation.failures=[{device: cpu1, at_s: 30, until_s: 60}]"),
}
WHAT: Mapping[str, str] = {
    "jitter": "the 95th percentile is 30 % above the median, lognormal; a second app on the slice",
    "exact": "batches take what the profile says, and 5 % of them 30 % more",
    "third": "as jitter, with a third app",
    "plans": "three devices, and demand that swings, so that plans change",
    "registered": "a third app is registered after 20 s",
    "lost": "three devices, of which one dies for half a minute; what breaks then must have been announced",
}
LOSES = frozenset({"lost"})


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
    """Every world, promise, number of rows and share once."""
    all_of = list(product(worlds, PROMISES, ROWS, SHARES))
    whole = len(WORLDS) * len(PROMISES) * len(ROWS) * len(SHARES)
    each = queries or LEAST * 26 // 25 // whole  # what is refused is not in the sequence
    return [Case(*one, each, seed + number) for number, one in enumerate(all_of)]


def run_case(case: Case) -> tuple[Case, PromiseFigures, float]:
    """What became of the strict queries, and wall seconds."""
    began = time.perf_counter()
    document = read_scenario(SCENARIO, os.environ)
    for change in case.changes:
        document = with_setting(document, change)
    found = run_once(scenario_of(document), case.seed, lambda: 0.0).promises
    assert found is not None
    return case, found, time.perf_counter() - began


def failed(case: Case, found: PromiseFigures) -> bool:
    """Whether it may not be so."""
    allowed = found.announced if case.world in LOSES else 0
    return found.broken_windows > allowed


def table(found: Sequence[tuple[Case, PromiseFigures, float]]) -> str:
    """By world and share, in Markdown."""
    lines = [
        "| world | share of the bound | strict queries | refused | missed | broken windows | announced |",
        "|---|---|---|---|---|---|---|",
    ]
    for world, share in sorted({(c.world, c.share) for c, _, _ in found}):
        mine = [p for c, p, _ in found if (c.world, c.share) == (world, share)]
        counts = [
            sum(getattr(p, name) for p in mine)
            for name in ("queries", "rejected", "misses", "broken_windows", "announced")
        ]
        lines.append(f"| {world} | {share:.0%} | " + " | ".join(f"{count:,}" for count in counts) + " |")
    return "\n".join(lines)


def _others(worlds: Sequence[str]) -> list[tuple[Case, PromiseFigures, float]]:
    """What was seen of other worlds before."""
    seen = json.loads(TARGET.read_text()) if TARGET.exists() else []
    known = [(Case(**one["case"]), PromiseFigures(**one["found"]), one["wall_s"]) for one in seen]
    return [one for one in known if one[0].world not in worlds]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def page(intro: str, found: Sequence[tuple[Case, PromiseFigures, float]]) -> str:
    """In Markdown. ``intro``: how it was made, and the sums."""
    worlds = {case.world for case, _, _ in found}
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
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--docs", type=Path, help="write the table there, too")
    options = parser.parse_args(argv)
    chosen = cases(options.worlds.split(","), options.queries, options.seed)
    found: list[tuple[Case, PromiseFigures, float]] = []
    with ProcessPoolExecutor(options.parallel) as pool:
        for case, figures, seconds in pool.map(run_case, chosen):
            found.append((case, figures, seconds))
            mark = "FAILED" if failed(case, figures) else "ok"
            _say(f"{mark} {case.world} {case.promise} rows {case.rows} {case.share:.0%}: {figures} ({seconds:.0f} s)")
    found += _others(options.worlds.split(","))
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    told: list[dict[str, Any]] = [{"case": asdict(c), "found": asdict(p), "wall_s": round(s, 1)} for c, p, s in found]
    TARGET.write_text(json.dumps(told, indent=1) + "\n")
    _say(table(found))
    queries, broken = (sum(getattr(p, name) for _, p, _ in found) for name in ("queries", "broken_windows"))
    _say(f"{queries:,} strict queries, {broken} broken windows")
    if options.docs is not None:
        command = f"python -m tests.simulation.promises.campaign --seed {options.seed}"
        intro = f"`{command}`, {datetime.now(UTC):%Y-%m-%d}: {queries:,} strict queries, {broken} broken windows."
        options.docs.write_text(page(intro, found))
    return int(any(failed(case, figures) for case, figures, _ in found))


if __name__ == "__main__":
    sys.exit(main())
