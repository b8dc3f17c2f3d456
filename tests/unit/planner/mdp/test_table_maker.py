"""The process that makes tables: what is asked and answered over its pipes."""

import pytest

from sluicegate.domain.errors import SluiceError
from sluicegate.planner.mdp.mdp_model import Candidate, SelectionModel
from sluicegate.planner.policy_tables.keys import Shelf
from sluicegate.planner.policy_tables.table_requests import LibraryRules, Question
from sluicegate.planner.policy_tables.table_schedule import Make, make_tables
from sluicegate.stages.planner.table_process import answer_to, decode_answer, encode_request


def make(**changes: float) -> Make:
    variants = (
        Candidate("fast", 0.7, tuple(0.002 + 0.001 * b for b in range(1, 9))),
        Candidate("good", 0.9, tuple(0.006 + 0.003 * b for b in range(1, 9))),
    )
    model = SelectionModel(variants=variants, slo=0.1, workers=2, qps=150.0, grid=20)
    return Make(Question(Shelf("toy", "cpu", 0.1), model, changes), (150.0,))


def test_the_tables_come_back_as_they_were_made() -> None:
    asked = make(fast=1.5)
    tables = decode_answer(answer_to(encode_request(asked, LibraryRules())))
    assert tables == make_tables(asked, LibraryRules())
    assert [t.qps for t in tables] == [150.0]


def test_what_went_wrong_is_told_in_words() -> None:
    answer = answer_to(b'{"make": 1}')
    with pytest.raises(SluiceError, match="make"):
        decode_answer(answer)
