"""Answers in any order: a stand-in behind the answer, both behind the end of a term, and what nobody asked for."""

import pytest

from sluicegate.domain.errors import IllegalEventError
from sluicegate.planner.control.questions import CALM, Questions
from sluicegate.planner.control.replan_trigger import Solve, Solved
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
