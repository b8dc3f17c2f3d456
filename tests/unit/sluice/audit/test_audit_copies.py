"""Copies in the audit: each is excused by what became of the first of its kind, and by nothing else."""

import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.query import Query
from sluicegate.sluice.audit.fault_windows import FaultWindow
from sluicegate.sluice.audit.topic_audit import Audit, AuditReport
from sluicegate.sluice.load.demo_report import _checks
from sluicegate.sluice.load.demo_run import summarise
from sluicegate.sluice.load.run_observer import Observer
from sluicegate.streams import connect
from sluicegate.streams.ports import Record
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics
from tests.harness import toy_catalogue

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


def answered(query_id: str, *, app: str = "toy", source: str = "shop", marked_late: bool = False) -> Record:
    """Its outcome, in time; of one that was told no source, ""."""
    query = Query(id=query_id, app=app, source=f"/{source}" if source else "", arrival=NOW, deadline=NOW + 1)
    message = codec.encode_outcome(Outcome.of(query, OutcomeKind.ANSWERED, NOW + 0.5, variant="v"), ())
    value = message.value or b""
    if marked_late:
        value = value.replace(b'"late":false', b'"late":true')
        assert value != message.value
    return Record(TOPICS.results(app), 0, 0, message.key, value, message.headers, NOW + 0.5)


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


def test_a_copy_that_was_neither_answered_nor_refused_is_lost() -> None:
    found = report([asked(3, "q"), asked(8, "q"), asked(4, "r")], [], [answered("q"), answered("r")])
    assert (found.lost, found.examples["lost"], found.duplicates, found.balanced) == (1, ("q",), 0, False)


def test_what_was_refused_and_answered_ended_twice() -> None:
    first, other = asked(3, "q"), asked(4, "r")
    found = report([first, other], [refused(first, "is no JSON")], [answered("q"), answered("r")])
    assert (found.duplicates, found.examples["duplicates"], found.lost, found.balanced) == (1, ("q",), 0, False)
    again = report([first, other, asked(9, "q")], [refused(first, "is no JSON")], [answered("q"), answered("r")])
    assert again.balanced, "it was asked again, and then answered"


def test_a_record_that_was_answered_and_called_a_copy_of_itself_ended_twice() -> None:
    first, other = asked(3, "q"), asked(4, "r")
    found = report([first, other], [refused(first, "duplicate_id: seen before")], [answered("q"), answered("r")])
    assert (found.duplicates, found.examples["duplicates"], found.lost, found.balanced) == (1, ("q",), 0, False)
    assert (found.queries, found.outcomes, found.dead_letters) == (2, 2, 1)
    copy = asked(8, "q")
    both = [refused(record, "duplicate_id: seen before") for record in (first, copy)]
    assert report([first, copy, other], both, [answered("q"), answered("r")]).duplicates == 1
    assert report([first, copy, other], both[1:], [answered("q"), answered("r")]).balanced


@pytest.mark.parametrize(("topic", "duplicates"), [(TOPICS.queries("toy"), 0), (TOPICS.queries("vow"), 1)])
def test_a_copy_whose_first_record_is_gone_by_is_no_duplicate(topic: str, duplicates: int) -> None:
    audit, copy = Audit(TOPICS), asked(8, "q")
    audit.let_go(topic, NOW + 8)
    audit.add_query(copy)
    audit.add_dead_letter(refused(copy, "duplicate_id: seen before"))
    audit.add_result(answered("q"))
    found = audit.report()
    assert (found.duplicates, found.lost, found.unknown) == (duplicates, 0, 0)


def test_what_is_lost_was_not_answered_in_time_either() -> None:
    asks = [asked(3, "a"), asked(4, "b"), asked(5, "c", app="vow"), asked(6, "d", app="mum"), asked(7, "e")]
    found = report(asks, [refused(asks[4], "is no JSON")], [answered("a"), answered("c", app="vow")])
    assert (found.lost, found.summary.queries, found.summary.answered_on_time) == (2, 4, 2)
    assert (found.summary.slo_attainment, found.summary.violation_ratio) == (0.5, 0.5)
    shares = {app: (told["queries"], told["slo_attainment"]) for app, told in found.summary.per_app.items()}
    assert shares == {"mum": (1, 0.0), "toy": (2, 0.5), "vow": (1, 1.0)}
    whole = report(asks[:1], [], [answered("a")])
    assert (whole.summary.queries, whole.summary.violation_ratio) == (1, 0.0)


def test_what_the_demo_tells_of_its_run_counts_what_is_lost() -> None:
    asks = [asked(3, "a"), asked(4, "b"), asked(5, "c", app="vow"), asked(6, "d", app="vow")]
    results = [answered("a"), answered("c", app="vow"), answered("c", app="vow")]
    observer = Observer(connect("memory://"), TOPICS)
    for record in results:
        observer.take(record)
    told = summarise(observer, report(asks, [], results), toy_catalogue(("toy", "vow")), {}, wall_s=1.0)
    assert (told["queries"], told["lost"], told["duplicates"], told["answered_on_time"]) == (4, 2, 1, 2)
    assert told["slo_attainment"] == 0.5
    assert {app: one["slo_attainment"] for app, one in told["per_app"].items()} == {"toy": 0.5, "vow": 0.5}


def test_what_cannot_be_understood_needs_no_outcome() -> None:
    first = asked(3, "q")
    assert report([first], [refused(first, "is no JSON")], []).lost == 0


def test_an_outcome_that_tells_no_source_is_of_the_query_of_its_app_and_id() -> None:
    asks = [asked(3, "q", source="web"), asked(4, "r"), asked(5, "q", app="vow")]
    found = report(asks, [], [answered("q", source="", marked_late=True), answered("r"), answered("r", source="")])
    assert (found.lost, found.examples["lost"], found.unknown) == (1, ("q",), 0), "that of the other app"
    assert (found.outcomes, found.duplicates, found.max_copies, found.examples["duplicates"]) == (3, 1, 2, ("r",))
    assert (found.late_unmarked, found.examples["late_unmarked"], found.balanced) == (1, ("q",), False)
    elsewhere = report([asked(3, "q")], [], [answered("q"), answered("s", source="")])
    assert (elsewhere.unknown, elsewhere.examples["unknown"], elsewhere.lost) == (1, ("s",), 0)


def test_a_dead_letter_about_what_is_on_no_query_topic_is_not_counted_and_each_record_has_one() -> None:
    first = asked(3, "q")
    strange = first._replace(topic=TOPICS.admitted("toy"))
    letters = [refused(strange, "is no JSON"), refused(first, "is no JSON"), refused(first, "duplicate_id: twice")]
    found = report([first], letters, [])
    assert (found.dead_letters, found.duplicate_ids, found.lost) == (1, 1, 1), "the last word on it counts"


def test_five_examples_are_named_the_first_by_app_and_id_and_all_are_counted() -> None:
    found = report([asked(n, f"q{n}") for n in (6, 4, 7, 3, 5, 9)], [], [])
    assert (found.lost, found.queries, found.examples["lost"]) == (6, 6, ("q3", "q4", "q5", "q6", "q7"))


def test_what_a_window_holds_goes_by_the_query_whatever_its_outcome_tells_of_the_source() -> None:
    audit = Audit(TOPICS, timed=True)
    for record in (asked(3, "q"), asked(8, "r"), asked(30, "s")):
        audit.add_query(record)
    for source in ("", "shop"):
        audit.add_result(answered("q" if source else "r", source=source, marked_late=True))
    audit.add_result(answered("r"))
    windows = [FaultWindow(name=f"{since}", began=NOW + since, ended=NOW + until) for since, until in ((0, 7), (8, 30))]
    found = [(w.queries, w.lost, w.duplicates, w.late_unmarked) for w in audit.report(windows).windows]
    assert found == [(1, 0, 0, 1), (2, 1, 1, 1)]


def test_an_outcome_without_a_source_is_of_the_query_that_has_no_other() -> None:
    """Whichever of the two that is, and in whatever order their sources come."""
    asks = [asked(3, "q", source="a"), asked(4, "q", source="b")]
    for answered_itself in ("a", "b"):
        found = report(asks, [], [answered("q", source=answered_itself), answered("q", source="")])
        assert (found.lost, found.duplicates, found.unknown, found.balanced) == (0, 0, 0, True), answered_itself
    both = report(asks, [], [answered("q", source=""), answered("q", source="")])
    assert (both.lost, both.duplicates, both.balanced) == (0, 0, True)
    more = report(asks, [], [answered("q", source="a"), answered("q", source="b"), answered("q", source="")])
    assert (more.lost, more.duplicates, more.max_copies) == (0, 1, 2)
    one = report(asks, [], [answered("q", source="")])
    assert (one.lost, one.duplicates) == (1, 0)


def test_an_outcome_without_a_source_goes_to_who_needs_one() -> None:
    """Not to the query that was not understood, though that has none either."""
    odd, plain = asked(3, "q", source="a"), asked(4, "q", source="b")
    found = report([odd, plain], [refused(odd, "is no JSON")], [answered("q", source="")])
    assert (found.lost, found.duplicates, found.balanced) == (0, 0, True)


def test_an_outcome_that_was_not_marked_late_is_told_in_the_window_of_the_query_that_it_is_of() -> None:
    """Of two queries of one id the earlier has an outcome of its own: the other's window has the one that is wrong."""
    audit = Audit(TOPICS, timed=True)
    for record in (asked(3, "q", source="a"), asked(30, "q", source="b")):
        audit.add_query(record)
    audit.add_result(answered("q", source="a"))
    audit.add_result(answered("q", source="", marked_late=True))
    windows = [
        FaultWindow(name=f"{since}", began=NOW + since, ended=NOW + until) for since, until in ((0, 7), (20, 60))
    ]
    found = [(w.queries, w.lost, w.duplicates, w.late_unmarked) for w in audit.report(windows).windows]
    assert found == [(1, 0, 0, 0), (1, 0, 0, 1)]


def test_what_the_demo_checks_is_told_in_rows() -> None:
    check = {"answers": 64, "rows": 40, "accuracy_observed": 0.75, "accuracy_profiled": 0.5, "standard_errors_apart": 2}
    told = _checks({"accuracy_check": {"toy/v": check}})
    assert dict(zip(told.header, told.rows[0], strict=True)) == {
        "variant": "toy/v", "rows answered": "64", "unlike rows": "40", "right": "75.00%", "profiled": "50.00%",
        "standard errors apart": "2.0",
    }  # fmt: skip
