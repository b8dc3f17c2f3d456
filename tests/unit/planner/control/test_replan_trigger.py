"""When a plan is asked for: again where no answer came, sooner behind a burst, later where a host is starved."""

import pytest

from sluicegate.planner.control.controller_settings import ControllerSettings
from sluicegate.planner.control.replan_trigger import Asking, Solved
from sluicegate.planner.estimates.host_strain import StrainSettings
from sluicegate.planner.problems.problem import Allocation, Problem
from sluicegate.profiles.catalogue.catalogue import Catalogue

NOW = 1000.0
PROBLEM = Problem(demands=(), devices=(), catalogue=Catalogue.of([], [], []))
SETTINGS = ControllerSettings(plan_period=10.0, burst_period=3.0, burst_interval=5.0, solve_timeout=7.0)


def asking(*, urgent: bool = False) -> Asking:
    """A question went out."""
    found = Asking(SETTINGS)
    found.begin()
    if urgent:
        found.burst("a", NOW)
    else:
        found.want("why", NOW)
    assert found.due(NOW)
    found.ask(PROBLEM, NOW)
    return found


def test_a_question_that_is_not_answered_in_time_is_given_up_and_asked_again() -> None:
    found = asking()
    assert not found.late(NOW + 7.0)
    assert not found.due(NOW + 7.0)
    assert found.late(NOW + 7.1)
    assert not found.late(NOW + 99.0)  # nothing is out
    assert found.due(NOW + 7.1)
    assert found.ask(PROBLEM, NOW + 7.1).reason == "the planner did not answer"


@pytest.mark.parametrize(("urgent", "period"), [(False, 10.0), (True, 3.0)])
def test_the_next_plan_comes_sooner_behind_a_burst(urgent: bool, period: float) -> None:
    found = asking(urgent=urgent)
    found.drop()
    assert not found.due(NOW + period - 0.1)
    assert found.due(NOW + period)


def test_what_waits_while_a_host_is_starved_waits_no_more_once_it_is_not() -> None:
    found = Asking(SETTINGS)
    found.begin()
    found.damped = True
    found.want("why", NOW)
    found.ask(PROBLEM, NOW)
    found.drop()
    found.want("load", NOW + 1.0, by_load=True)
    assert not found.due(NOW + 4.9)
    assert found.due(NOW + 5.0)
    found.damped = False
    assert found.due(NOW + 1.0)


def solved(number: int, *, took: float = 0.5, provisional: bool = False) -> Solved:
    nothing = Allocation(placements=(), served={}, objective=0.0, bound=0.0)
    return Solved(nothing, "why", took, number, provisional)


def test_devices_have_changed_when_a_term_begins_and_not_once_that_was_asked_about() -> None:
    found = Asking(SETTINGS)
    found.begin()
    for number, changed in ((1, True), (2, False)):
        found.want("why", NOW)
        assert found.ask(PROBLEM, NOW).number == number
        pending = found.answered(solved(number))
        assert pending is not None
        assert (pending.number, pending.asked, pending.publish_anyway) == (number, NOW, changed)


def test_devices_that_changed_before_a_question_without_an_answer_have_changed_for_the_next() -> None:
    found = asking()
    assert found.late(NOW + 8.0)
    assert found.publish_anyway
    found.ask(PROBLEM, NOW + 8.0)
    found.answered(solved(2))
    found.want("why", NOW + 9.0)
    found.ask(PROBLEM, NOW + 9.0)
    assert found.late(NOW + 17.0)
    assert not found.publish_anyway


def test_an_answer_counts_for_the_question_that_is_out_and_a_stand_in_leaves_it_out() -> None:
    found = asking()
    assert found.answered(solved(2)) is None, "another's"
    stood_in = found.answered(solved(1, provisional=True))
    assert stood_in is not None
    found.want("more", NOW)
    assert not found.due(NOW + 1.0), "the answer itself is still to come"
    assert found.answered(solved(0)) is stood_in, "without a number it is of whatever is out"
    assert found.answered(solved(1)) is None, "nothing is out"
    assert found.due(NOW + 1.0)


def test_a_reason_counts_from_when_it_first_asked_for_a_plan_and_not_before() -> None:
    found = asking()
    found.drop()
    found.want("b", NOW + 2.0)
    found.want("b", NOW + 1.0)
    found.want("a", NOW + 3.0)
    assert not found.due(NOW + 1.9)
    assert found.due(NOW + 2.0)
    solve = found.ask(PROBLEM, NOW + 2.0)
    assert (solve.reason, solve.urgent) == ("a; b", False)
    found.drop()
    assert not found.due(NOW + 4.0), "it was asked for with the other"


def test_a_burst_is_urgent_once_and_looked_for_only_an_interval_after_the_last_question() -> None:
    found = Asking(SETTINGS)
    found.begin()
    assert not found.expects_bursts(NOW)
    found.burst("web", NOW)
    solve = found.ask(PROBLEM, NOW)
    assert (solve.reason, solve.urgent) == ("burst of web", True)
    assert not found.expects_bursts(NOW + 4.9)
    assert found.expects_bursts(NOW + 5.0)
    found.drop()
    found.want("why", NOW + 5.0)
    assert not found.ask(PROBLEM, NOW + 5.0).urgent
    found.drop()
    assert not found.due(NOW + 14.9), "what was asked last was no burst: the whole period"
    assert found.due(NOW + 15.0)


def test_behind_a_burst_the_period_is_no_longer_than_it_ever_is() -> None:
    found = Asking(ControllerSettings(plan_period=2.0, burst_period=6.0))
    found.burst("a", NOW)
    found.ask(PROBLEM, NOW)
    found.drop()
    assert not found.due(NOW + 1.9)
    assert found.due(NOW + 2.0)


def test_from_three_variants_on_measured_latencies_are_told_in_one_word() -> None:
    few = [f"latency of {name}@cpu is {factor:.2f} times its profile" for name, factor in (("v", 1.5), ("w", 0.6))]
    found = asking()
    for reason in (*few, "why"):
        found.want(reason, NOW, by_load=True)
    assert found.ask(PROBLEM, NOW).reason == "; ".join((*few, "why"))
    for reason in (*few, "latency of v@cpu is 1.90 times its profile", "why"):
        found.want(reason, NOW, by_load=True)
    assert found.ask(PROBLEM, NOW).reason.count("latency of") == 3, "the same variant twice"
    for reason in (*few, "latency of v@gpu is 1.90 times its profile", "why"):
        found.want(reason, NOW, by_load=True)
    assert found.ask(PROBLEM, NOW).reason == "latency of 3 variants otherwise than profiled; why"


def test_the_first_question_is_urgent_only_where_something_made_it_so() -> None:
    found = Asking(SETTINGS)
    found.want("why", NOW)
    assert not found.ask(PROBLEM, NOW).urgent
    found.drop()
    assert not found.due(NOW + 9.9)
    assert found.due(NOW + 10.0)


def test_load_waits_as_long_whenever_the_clock_began() -> None:
    found = Asking(SETTINGS)
    found.damped = True
    found.want("why", 2.0)
    found.ask(PROBLEM, 2.0)
    found.drop()
    found.want("load", 3.0, by_load=True)
    assert not found.due(6.9)
    assert found.due(7.0)


def test_where_a_host_is_starved_load_waits_for_ten_answers_then_twice_as_long_up_to_the_period() -> None:
    found = Asking(ControllerSettings(plan_period=30.0, burst_interval=1.5, strain=StrainSettings(rest=10.0)))
    found.begin()
    found.damped = True
    now = NOW
    for took, wait in ((0.4, 1.5), (0.6, 4.0), (0.1, 8.0), (2.5, 16.0), (0.2, 30.0)):
        found.want("load", now, by_load=True)
        number = found.ask(PROBLEM, now).number
        found.answered(solved(number, took=took))
        found.want("load", now, by_load=True)
        assert not found.due(now + wait - 0.1), wait
        assert found.due(now + wait), wait
        now += wait
    found.want("a device is gone", now)
    assert found.due(now), "what is no matter of load does not wait"
