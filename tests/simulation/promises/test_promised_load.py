"""The shipped campaign: strict queries at a share of the bound, on a slice that others share."""

import os
from pathlib import Path

import pytest

from sluicegate.simulator.promise_watch import PromiseFigures
from sluicegate.simulator.scenario import read_scenario, scenario_of, with_setting
from sluicegate.simulator.scenario.experiment import run_once
from tests.simulation.promises.best_effort import World, compared
from tests.simulation.promises.campaign import WORLDS

FILE = Path(__file__).parents[3] / "examples" / "scenarios" / "promises-campaign.yaml"


def promises_of(*changes: str, seed: int = 3) -> PromiseFigures:
    document = read_scenario(FILE, os.environ)
    for change in ("promise.queries=1200", *changes):
        document = with_setting(document, change)
    found = run_once(scenario_of(document), seed, lambda: 0.0).promises
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("mk", "rows"), [("2,10", "1"), ("4,10", "2"), pytest.param("1,5", "[1,8]", marks=pytest.mark.thorough)]
)
def test_no_window_breaks_at_the_whole_of_the_announced_bound(mk: str, rows: str) -> None:
    found = promises_of(f"promise.mk={mk}", f"promise.rows={rows}", "promise.share_of_bound=1.0")
    assert found.queries > 850
    assert (found.broken_windows, found.announced) == (0, 0)


@pytest.mark.parametrize("mk", ["2,10", "4,10"])
def test_batches_that_overrun_an_exact_profile_as_a_p95_permits_break_nothing_at_the_whole_bound(mk: str) -> None:
    """Measured once: 84 windows."""
    found = promises_of(f"promise.mk={mk}", "promise.share_of_bound=1.0", *WORLDS["exact"])
    assert found.queries > 1000
    assert (found.broken_windows, found.announced) == (0, 0)


def test_what_nothing_keeps_within_the_bound_breaks_and_is_counted() -> None:
    found = promises_of(
        "promise.mk=2,10",
        "promise.share_of_bound=1.0",
        "policies.admission.mode=observe",
        "simulation.stragglers=[{device: cpu0, factor: 4.0, at_s: 1.0}]",
    )
    assert found.queries == 1200
    assert found.broken_windows > 50


def test_what_breaks_as_a_device_is_lost_was_announced_before() -> None:
    """Nothing was lost in this world once: its runs ended before the device did."""
    found = promises_of(*WORLDS["lost"], "promise.mk=2,10", "simulation.failures=[{device: cpu1, at_s: 2, until_s: 5}]")
    assert found.broken_windows == found.announced > 20


def test_a_load_ends_with_the_scenario() -> None:
    assert 0 < promises_of("duration_s=1").queries < 1200


def test_a_run_ends_with_the_last_of_the_load_though_nothing_else_comes_so_long() -> None:
    document = with_setting(read_scenario(FILE, os.environ), "promise.queries=50")
    lengths = []
    for duration in (60, 90):
        quiet = {**document, "traces": {"qps": [0, 0]}, "duration_s": duration}
        run = run_once(scenario_of(quiet), 3, lambda: 0.0)
        assert run.promises is not None and run.promises.queries == 50
        lengths.append(run.summary.duration_s)
    assert lengths[0] == lengths[1] < 30.0


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.thorough), 16])
def test_a_promise_costs_best_effort_at_most_a_tenth_where_strict_asks_for_a_fifth(rows: int) -> None:
    """Strict batches of one row, as each comes, once left it a fifth of what the device could do."""
    found = compared(World(100.0, 1.0, rows), 700)
    assert (found.broken, found.broken_without) == (0, 0)
    assert found.goodput >= 0.9 * found.without > 50.0
    assert found.goodput > 400.0
