"""A machine that does not keep up: when that is said, what plans then count on, and how often they are asked for."""

import pytest

from sluicegate.domain.actions import Announce
from sluicegate.domain.events import DemandCounted, DeviceSeen, EndsCounted, HostHeard
from sluicegate.planner.control.events import DeviceHeard
from sluicegate.planner.control.replan_trigger import Solve
from sluicegate.planner.estimates.host_strain import HostStrain, StrainSettings
from tests.unit.planner.control.test_controller import FAST, SLOW, World, published

START = 1000.0


def beats(
    strain: HostStrain, start: float, end: float, late: float, ends: tuple[int, int] = (37, 3), device: str = "d0"
) -> tuple[list[str], dict[str, float]]:
    """Heartbeats in (start, end]; what was judged: changes, and the misses that no plan explains."""
    changes, wrong, t = [], {}, start
    while t < end - 1e-9:
        t += 0.5
        strain.heard(HostHeard(device, late, (EndsCounted("a", *ends),)), t)
        said, found = strain.judge(0.3, {"a": 1.0, "b": 1.0}, (), t)
        changes += [said] if said else []
        wrong |= found
    return changes, wrong


def test_a_heartbeat_that_tells_no_more_tells_of_a_host_that_keeps_up_and_of_nothing_that_is_overdue() -> None:
    beat = DeviceHeard(DeviceSeen("d0", "cpu", "i"))
    assert (beat.late, beat.overdue) == (0.0, 0.0)
    assert (beat.measured, beat.observed, beat.ended) == ((), (), ())


def test_one_late_look_is_no_starved_host_and_a_late_window_is() -> None:
    strain = HostStrain()
    assert beats(strain, START, START + 5.0, 0.001) == ([], {})
    assert beats(strain, START + 5.0, START + 5.5, 0.2, (40, 0)) == ([], {})
    assert beats(HostStrain(), START, START + 10.0, 0.2, (40, 0)) == ([], {}), (
        "where nothing is missed, nothing is amiss"
    )
    (said,) = beats(strain, START + 5.5, START + 10.0, 0.2)[0]
    assert "ms late (d0)" in said
    assert strain.delay == pytest.approx(0.2)


def test_a_host_keeps_up_again_only_after_a_calm_while() -> None:
    strain = HostStrain()
    beats(strain, START, START + 5.0, 0.2)
    changes, _ = beats(strain, START + 5.0, START + 14.0, 0.0)
    assert (changes, strain.starved) == ([], True)
    assert beats(strain, START + 14.0, START + 20.0, 0.0)[0] == ["event loops wake in time again"]
    assert strain.delay == 0.0


def test_misses_count_against_the_plan_only_where_a_host_is_starved_and_the_plan_has_room() -> None:
    calm = HostStrain()
    assert beats(calm, START, START + 20.0, 0.0, (3, 7))[1] == {}
    strain = HostStrain()
    assert beats(strain, START, START + 10.0, 0.2, (5, 5))[1] == {"a": 0.5}
    assert strain.strains["a"] == pytest.approx(2.0**3)
    short = HostStrain()
    t = START
    while t < START + 20.0:
        t += 0.5
        short.heard(HostHeard("d0", 0.2, (EndsCounted("a", 5, 5),)), t)
        assert short.judge(0.3, {"a": 0.6}, (), t)[1] == {}  # the plan says itself that it cannot serve all
        assert short.judge(0.3, {"a": 1.0}, ("a",), t)[1] == {}  # nor was it made for this load
    assert short.strains == {}


def test_another_plan_is_given_a_window_of_its_own() -> None:
    strain = HostStrain()
    beats(strain, START, START + 2.5, 0.2, (5, 5))
    strain.planned(START + 2.5)
    assert beats(strain, START + 2.5, START + 5.0, 0.2, (5, 5))[1] == {}
    assert beats(strain, START + 5.0, START + 6.0, 0.2, (5, 5))[1] == {"a": 0.5}


def test_strain_falls_after_calm_and_waits_longer_where_misses_come_back() -> None:
    strain = HostStrain(StrainSettings(step=3.0))
    beats(strain, START, START + 2.0, 0.2, (5, 5))
    assert strain.strains == {"a": 2.0}
    beats(strain, START + 2.0, START + 11.5, 0.2, (40, 0))
    assert strain.strains == {"a": 2.0}
    beats(strain, START + 11.5, START + 13.0, 0.2, (40, 0))
    assert strain.strains == {}
    beats(strain, START + 13.0, START + 14.5, 0.2, (1, 9))  # back: it was tried too soon
    assert strain.strains.keys() == {"a"}
    beats(strain, START + 14.5, START + 30.0, 0.2, (40, 0))
    assert strain.strains, "it waits twice as long"
    beats(strain, START + 30.0, START + 50.0, 0.2, (40, 0))
    assert strain.strains == {}


def test_the_worst_host_counts_and_one_that_is_heard_no_more_does_not() -> None:
    strain, said = HostStrain(), ""
    t = START
    while t < START + 5.0:
        t += 0.5
        strain.heard(HostHeard("d0", 0.0), t)
        strain.heard(HostHeard("d1", 0.3, (EndsCounted("a", 9, 1),)), t)
        said += strain.judge(0.3, {}, (), t)[0]
    assert strain.starved
    assert "(d1)" in said
    beats(strain, START + 5.0, START + 20.0, 0.0)
    assert not strain.starved


def run(world: World, start: float, end: float, late: float, ends: tuple[int, int], qps: float) -> list[object]:
    """Half seconds of demand and heartbeats of two workers on one host."""
    seen: list[object] = []
    t = start
    while t < end - 1e-9:
        t += 0.5
        seen += world.send(DemandCounted("a", round(qps / 2), 0.5), t)
        for device in ("d0", "d1"):
            seen += world.send(HostHeard(device, late, (EndsCounted("a", *ends),)), t)
        seen += world.beat(t)
    return seen


def test_a_starved_host_is_said_and_faster_variants_take_over_until_it_keeps_up() -> None:
    world = World(plan_period=5.0)
    run(world, START, START + 12.0, 0.0, (10, 0), 40)
    plan = world.controller.plan
    assert plan is not None and {v for p in plan.placements for v in p.variants} == {SLOW}
    seen = run(world, START + 12.0, START + 40.0, 0.1, (3, 7), 40)
    said = [a for a in seen if isinstance(a, Announce) and a.subject == "host"]
    assert [a.state for a in said] == ["starved"]
    assert "% of a missed" in said[0].detail
    assert "missed where the plan has room" in "".join(p.plan.reason for p in published(seen))
    plan = world.controller.plan
    assert plan is not None and FAST in {v for p in plan.placements for v in p.variants}
    assert plan.served["a"] > 0.0
    seen = run(world, START + 40.0, START + 120.0, 0.0, (10, 0), 40)
    assert [a.state for a in seen if isinstance(a, Announce) and a.subject == "host"] == ["keeps_up"]
    plan = world.controller.plan
    assert plan is not None and {v for p in plan.placements for v in p.variants} == {SLOW}


@pytest.mark.parametrize("late", [0.0, 0.2])
def test_what_load_alone_asks_for_waits_while_a_host_is_starved(late: float) -> None:
    world = World(plan_period=10.0)
    asked = [a for a in run(world, START, START + 6.0, late, (9, 1), 20) if isinstance(a, Solve)]
    t, rate, asked = START + 6.0, 20.0, []
    while t < START + 36.0:  # each burst is more than what the plan before was made for
        rate *= 1.25
        asked += [a for a in run(world, t, t + 1.5, late, (9, 1), rate) if isinstance(a, Solve)]
        t += 1.5
    if late:
        assert len(asked) <= 6
        gone = world.beat(t, ["d0"]) + world.beat(t + 1.1, ["d0"]) + world.beat(t + 2.2, ["d0"])
        assert any(isinstance(a, Solve) for a in gone), "a device that is gone is not waited for"
    else:
        assert len(asked) > 10
