"""Copies in the audit: each is excused by what became of the first of its kind, and by nothing else."""

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.query import Query
from sluicegate.sluice.audit.topic_audit import Audit, AuditReport
from sluicegate.streams.ports import Record
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics

TOPICS = Topics("audited")
NOW = 1.7e9


def asked(offset: int, query_id: str, *, app: str = "toy", source: str = "shop") -> Record:
    """A record of the query topic."""
    message = codec.encode_query(query_id, (), app=app, source=source, now=NOW)
    return Record(TOPICS.queries(app), 1, offset, message.key, message.value, message.headers, NOW + offset)


def refused(record: Record, problem: str) -> Record:
    """A dead letter about it."""
    letter = codec.dead_letter(record, InvalidInputError("id", problem), stage="admission", now=NOW + 20)
    return Record(TOPICS.dead_letters, 0, record.offset, letter.key, letter.value, letter.headers, NOW + 20)


def answered(query_id: str, *, app: str = "toy", source: str = "shop") -> Record:
    """Its outcome."""
    query = Query(id=query_id, app=app, source=f"/{source}", arrival=NOW, deadline=NOW + 1)
    message = codec.encode_outcome(Outcome.of(query, OutcomeKind.ANSWERED, NOW + 0.5, variant="v"), ())
    return Record(TOPICS.results(app), 0, 0, message.key, message.value, message.headers, NOW + 0.5)


def report(asks: list[Record], letters: list[Record], results: list[Record]) -> AuditReport:
    """What the audit makes of them."""
    audit = Audit(TOPICS)
    for record in asks:
        audit.add_query(record)
    for record in letters:
        audit.add_dead_letter(record)
    for record in results:
        audit.add_result(record)
    return audit.report()


def test_a_copy_of_an_answered_query_is_excused() -> None:
    first, copy = asked(3, "q"), asked(8, "q")
    found = report([first, copy], [refused(copy, "duplicate_id: seen before")], [answered("q")])
    assert (found.lost, found.duplicate_ids, found.balanced) == (0, 1, True)


@pytest.mark.parametrize("answer_to", [{"app": "vow"}, {"source": "other"}])
def test_a_copy_is_lost_where_the_only_answer_is_anothers(answer_to: dict[str, str]) -> None:
    first, other = asked(3, "q"), asked(4, "q", **answer_to)
    found = report([first, other], [refused(first, "duplicate_id: seen before")], [answered("q", **answer_to)])
    assert found.lost == 1
    assert found.examples["lost"] != ()


def test_what_cannot_be_understood_needs_no_outcome() -> None:
    first = asked(3, "q")
    assert report([first], [refused(first, "is no JSON")], []).lost == 0
