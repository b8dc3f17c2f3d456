"""When a plan is asked for: again where no answer came, sooner behind a burst, later where a host is starved."""

import pytest

from sluicegate.planner.control.controller_settings import ControllerSettings
from sluicegate.planner.control.replan_trigger import Asking
from sluicegate.planner.problems.problem import Problem
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
