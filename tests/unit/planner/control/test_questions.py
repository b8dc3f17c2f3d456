"""Answers in any order: a stand-in behind the answer, both behind the end of a term, and what nobody asked for."""

import pytest

from sluicegate.domain.errors import IllegalEventError
from sluicegate.planner.control.controller_settings import ControllerSettings
from sluicegate.planner.control.questions import CALM, Questions
from sluicegate.planner.control.replan_trigger import Asking, Solve, Solved
from sluicegate.planner.problems.problem import Allocation, Problem
from sluicegate.profiles.catalogue.catalogue import Catalogue

NOW = 1000.0
PROBLEM = Problem(demands=(), devices=(), catalogue=Catalogue.of([], [], []))
ANSWER = Allocation(placements=(), served={}, objective=0.0, bound=0.0)


def solved(number: int, *, provisional: bool = False) -> Solved:
    return Solved(ANSWER, "why", 0.1, number, provisional)


def late(*numbers: int) -> Questions:
    questions = Questions(patience=2.0)
    for number in numbers:
        questions.asked(Solve(PROBLEM, f"why {number}", number=number, urgent=True), NOW)
    assert questions.late(NOW + 1.9) == []
    assert [found.number for found in questions.late(NOW + 2.0)] == list(numbers)
    assert questions.late(NOW + CALM * 2.0) == []
    return questions


def test_a_stand_in_that_its_answer_overtook_is_of_no_use() -> None:
    questions = late(3, 4)
    answered = questions.answered(solved(3))
    assert answered is not None and answered.number == 3
    assert questions.answered(solved(3, provisional=True)) is None
    with pytest.raises(IllegalEventError, match="3"):
        questions.answered(solved(3, provisional=True))
    assert questions.answered(solved(4, provisional=True)) is not None
    with pytest.raises(IllegalEventError, match="4"):
        questions.answered(solved(4, provisional=True))
    assert questions.answered(solved(4)) is not None


def test_what_was_asked_in_a_term_that_ended_is_answered_to_nobody() -> None:
    questions = late(3)
    questions.drop()
    questions.asked(Solve(PROBLEM, "of the next term", number=5), NOW + 9)
    assert questions.answered(solved(3)) is None
    assert questions.answered(solved(3, provisional=True)) is None
    with pytest.raises(IllegalEventError, match="3"):
        questions.answered(solved(3))
    questions.ignore(solved(5))
    with pytest.raises(IllegalEventError, match="5"):
        questions.answered(solved(5))


def test_who_answers_unasked_is_told_which_answer_it_was() -> None:
    for provisional, told in ((True, "a stand-in to question 9"), (False, "an answer to question 9")):
        with pytest.raises(IllegalEventError, match=told):
            late(3).answered(solved(9, provisional=provisional))


SETTINGS = ControllerSettings(plan_period=10.0, burst_period=3.0, burst_interval=5.0, solve_timeout=7.0)


def asking(at: float, reason: str = "why", *, urgent: bool = False) -> Asking:
    """A question went out ``at``."""
    found = Asking(SETTINGS)
    found.begin()
    if urgent:
        found.burst("a", at)
    else:
        found.want(reason, at)
    assert found.due(at)
    found.ask(PROBLEM, at)
    return found


def test_a_question_that_is_not_answered_in_time_is_given_up_and_asked_again() -> None:
    found = asking(NOW)
    assert not found.late(NOW + 7.0)
    assert not found.due(NOW + 7.0)
    assert found.late(NOW + 7.1)
    assert not found.late(NOW + 99.0)  # nothing is out
    assert found.due(NOW + 7.1)
    assert found.ask(PROBLEM, NOW + 7.1).reason == "the planner did not answer"


@pytest.mark.parametrize(("urgent", "period"), [(False, 10.0), (True, 3.0)])
def test_the_next_plan_comes_sooner_behind_a_burst(urgent: bool, period: float) -> None:
    found = asking(NOW, urgent=urgent)
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
