"""Promises as the topics tell of them: what broke, when, and whether it was announced before."""

from dataclasses import replace

import pytest

from sluicegate.domain.actions import Announce
from sluicegate.domain.models.app import NO_PROMISE, Promise, QueryClass, WeaklyHard
from sluicegate.domain.outcome import Outcome, OutcomeKind, PromiseState
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.audit.promise_audit import PromiseAudit, StreamReport
from sluicegate.sluice.audit.topic_audit import Audit
from sluicegate.sluice.registration.registry_topic import app_record
from sluicegate.streams.ports import Record
from sluicegate.streams.records import codec, control
from sluicegate.streams.topics import Topics
from tests.harness import toy_catalogue

T0 = 1_800_000_000.0


def ended(number: int, *, miss: bool, at: float) -> Outcome:
    """The outcome of the query ``number`` of a stream that may miss 1 of 3. ``at``: by the clock of its device."""
    return Outcome(
        query_id=f"q{number}",
        app="vow",
        kind=OutcomeKind.EXPIRED if miss else OutcomeKind.ANSWERED,
        query_class=QueryClass.STRICT,
        arrival=at - 1.0,
        deadline=at + (-0.5 if miss else 0.5),
        at=at,
        device="d1",
        slice="whole",
        promise=PromiseState(weakly_hard=((1, 3),), turns=2),
    )


def judged(audit: PromiseAudit) -> StreamReport:
    (report,) = audit.report()
    return report


def told(audit: PromiseAudit, misses: dict[int, float], queries: int = 8) -> None:
    """Outcomes out of order, those of ``misses`` written at those times."""
    for number in reversed(range(queries)):
        at = misses.get(number, T0 + number)
        audit.add_outcome(ended(number, miss=number in misses, at=at - 500.0), 10 * number, at)


@pytest.mark.parametrize(
    ("misses", "broken"), [((2, 3), 1), ((2, 4), 1), ((2, 5), 0), ((2, 3, 4), 2), ((2,), 0), ((0, 1, 6, 7), 2)]
)
def test_a_window_with_more_misses_than_promised_is_broken(misses: tuple[int, ...], broken: int) -> None:
    audit = PromiseAudit()
    told(audit, {number: T0 + number for number in misses})
    report = judged(audit)
    assert (report.broken, report.unannounced, report.queries) == (broken, broken, 8)
    assert report.misses == len(misses)
    if broken:
        assert report.example == tuple(f"q{number}" for number in misses[:2])


@pytest.mark.parametrize(
    ("spell", "unannounced"),
    [
        ((T0 + 2.5, None), 0),  # while the window was open
        ((T0 + 4.5, None), 1),  # too late
        ((T0 + 0.5, T0 + 1.5), 1),  # over before the first of its misses
        ((T0 + 0.5, T0 + 2.5), 0),
    ],
)
def test_it_was_announced_where_safe_mode_was_on_within_it(spell: tuple[float, float | None], unannounced: int) -> None:
    audit = PromiseAudit()
    told(audit, {2: T0 + 2.0, 4: T0 + 4.0})
    audit.add_status("app:vow@d1", Announce("app:vow", "safe_mode", ""), spell[0])
    if spell[1] is not None:
        audit.add_status("app:vow@d1", Announce("app:vow", "promise_kept", ""), spell[1])
    assert (judged(audit).broken, judged(audit).unannounced) == (1, unannounced)


def test_what_another_app_announces_or_another_announcer_takes_back_does_not_count() -> None:
    audit = PromiseAudit()
    told(audit, {2: T0 + 2.0, 4: T0 + 4.0})
    audit.add_status("app:other@d1", Announce("app:other", "safe_mode", ""), T0 + 1.0)
    assert judged(audit).unannounced == 1
    audit.add_status("app:vow@d1", Announce("app:vow", "safe_mode", ""), T0 + 1.0)
    audit.add_status("app:vow@d2", Announce("app:vow", "promise_kept", ""), T0 + 1.5)
    assert judged(audit).unannounced == 0


def test_what_was_decided_before_counts_though_it_was_written_after() -> None:
    """Outcomes say times 500 s before they are written."""
    audit = PromiseAudit()
    told(audit, {2: T0 + 2.0, 4: T0 + 4.0})
    audit.add_status("app:vow@d1", Announce("app:vow", "safe_mode", ""), T0 + 4.6, T0 - 496.1)
    assert judged(audit).unannounced == 0
    audit = PromiseAudit()
    told(audit, {2: T0 + 2.0, 4: T0 + 4.0})
    audit.add_status("app:vow@d1", Announce("app:vow", "safe_mode", ""), T0 + 4.6, T0 - 495.9)
    assert judged(audit).unannounced == 1


def test_clocks_of_those_who_serve_do_not_matter() -> None:
    """Every outcome here says a time 500 s before it was written."""
    audit = PromiseAudit()
    told(audit, {2: T0 + 2.0, 4: T0 + 4.0})
    audit.add_status("app:vow@d1", Announce("app:vow", "safe_mode", ""), T0 + 3.0)
    assert judged(audit).unannounced == 0
    audit = PromiseAudit()
    told(audit, {2: T0 + 2.0, 4: T0 + 4.0})
    audit.add_status("app:vow@d1", Announce("app:vow", "safe_mode", ""), T0 + 5.0)
    assert judged(audit).unannounced_at == (T0 + 4.0,)


@pytest.mark.parametrize(
    ("began", "ended", "unannounced"),
    [
        (T0 + 4.0005, None, 0),
        (T0 + 4.002, None, 1),
        (T0 + 0.5, T0 + 2.0, 0),
        (T0 + 0.5, T0 + 1.998, 1),
    ],
)
def test_times_of_records_are_as_exact_as_milliseconds(began: float, ended: float | None, unannounced: int) -> None:
    """The window of the misses is 2 to 4 s."""
    audit = PromiseAudit()
    told(audit, {2: T0 + 2.0, 4: T0 + 4.0})
    audit.add_status("app:vow@d1", Announce("app:vow", "safe_mode", ""), began)
    if ended is not None:
        audit.add_status("app:vow@d1", Announce("app:vow", "promise_kept", ""), ended)
    assert judged(audit).unannounced == unannounced


def test_safe_mode_that_is_announced_twice_is_on_from_the_first_and_off_once_it_is_taken_back() -> None:
    said = [("promise_kept", 0.1), ("safe_mode", 0.5), ("safe_mode", 1.0), ("promise_kept", 1.5), ("promise_kept", 9.0)]
    audit = PromiseAudit()
    told(audit, {2: T0 + 2.0, 4: T0 + 4.0})
    for state, at in said:
        audit.add_status("app:vow@d1", Announce("app:vow", state, ""), T0 + at)
    assert judged(audit).unannounced == 1


def test_each_spell_of_safe_mode_is_its_own_and_the_second_is_not_begun_again_either() -> None:
    said = [("safe_mode", 0.2), ("promise_kept", 0.4), ("safe_mode", 0.6), ("safe_mode", 3.0), ("promise_kept", 3.5)]
    audit = PromiseAudit()
    told(audit, {5: T0 + 5.0, 7: T0 + 7.0})
    for state, at in said:
        audit.add_status("app:vow@d1", Announce("app:vow", state, ""), T0 + at)
    assert judged(audit).unannounced == 1, "all of them were over"


def test_best_effort_is_in_no_stream_and_what_was_rejected_is_told_apart() -> None:
    audit = PromiseAudit()
    told(audit, {2: T0 + 2.0, 3: T0 + 3.0})
    loose = replace(ended(8, miss=True, at=T0 + 8.0), query_class=QueryClass.BEST_EFFORT)
    audit.add_outcome(loose, 15, T0 + 8.0)
    for order in (25, 26):  # between the two misses
        audit.add_outcome(replace(ended(9, miss=True, at=T0), kind=OutcomeKind.REJECTED), order, T0 + 9.0)
    report = judged(audit)
    assert (report.queries, report.rejected, report.misses, report.broken) == (8, 2, 2, 1)
    assert report.broken_at == report.unannounced_at == (T0 + 3.0,)
    assert (report.app, report.stream, report.kept, report.mcd) == ("vow", "vow", False, 2)


@pytest.mark.parametrize(("taken_back_by", "unannounced"), [("app:vow@d2", 0), ("app:vow@d1", 1), (None, 0)])
def test_the_audit_tells_announcers_apart_by_the_keys_of_their_records(
    taken_back_by: str | None, unannounced: int
) -> None:
    topics = Topics("t")
    audit = Audit(topics)

    def say(state: str, by: str | None, at: float) -> None:
        value = control.encode_announce(Announce("app:vow", state, ""))
        audit.add_status(Record(topics.status, 0, int(at), None if by is None else by.encode(), value, (), T0 + at))

    say("safe_mode", "app:vow@d1", 0.5)
    say("promise_kept", taken_back_by, 1.0)
    for number in range(5):
        outcome = replace(ended(number, miss=number in {2, 4}, at=T0 + number), sequence=10 * number)
        message = codec.encode_outcome(outcome, ())
        place = (topics.results("vow"), 0, number)
        audit.add_result(Record(*place, message.key, message.value, message.headers, T0 + number))
    report = audit.report()
    assert (report.promises_broken, report.promises_unannounced) == (1, unannounced)


def tracked(turns: int = 1, **told: object) -> StreamReport:
    """Four queries of one slice, the second and third of them missed, and what it told last of that."""
    true = PromiseState(weakly_hard=((1, 3),), turns=turns, queries=4, misses=2, mcd=2, worst=((3, 2),))
    audit = PromiseAudit()
    for number in range(4):
        outcome = ended(number, miss=number in {1, 2}, at=T0 + number)
        state = replace(true, **told) if number == 3 else replace(true, queries=number, mcd=0)  # type: ignore[arg-type]
        audit.add_outcome(replace(outcome, promise=state), 10 * number, T0 + number)
    return judged(audit)


@pytest.mark.parametrize("turns", [1, 2])
def test_a_tracker_that_tells_more_or_less_than_there_was_disagrees(turns: int) -> None:
    assert tracked(turns).agrees
    for lie in (
        {"mcd": 1}, {"mcd": 3}, {"worst": ((3, 1),)}, {"worst": ((3, 3),)}, {"worst": ((4, 2),)}, {"queries": 5},
    ):  # fmt: skip
        assert not tracked(turns, **lie).agrees, lie


def test_of_a_stream_that_went_from_one_slice_to_another_no_tracker_is_held_against_the_whole() -> None:
    audit = PromiseAudit()
    for number, device in enumerate(("d1", "d1", "d2")):
        state = PromiseState(weakly_hard=((1, 3),), turns=1, queries=1 + number % 2, mcd=0, worst=((3, 0),))
        outcome = replace(ended(number, miss=number == 1, at=T0 + number), device=device, promise=state)
        audit.add_outcome(outcome, number, T0 + number)
    assert judged(audit).agrees


def two_of_five(*misses: int) -> PromiseAudit:
    """Of nine queries these were missed; two of five may be."""
    audit = PromiseAudit()
    for number in range(9):
        outcome = replace(ended(number, miss=number in misses, at=T0 + number - 500.0), promise=TWO_OF_FIVE)
        audit.add_outcome(outcome, number, T0 + number)
    return audit


def one_of_three_said(audit: PromiseAudit, at: float, *, app: str = "vow") -> None:
    """By an outcome of another stream."""
    audit.add_outcome(replace(ended(99, miss=False, at=at), app=app, stream="told"), 0, at)


def untouched(audit: PromiseAudit, *times: float) -> None:
    """All queries of a stream that expired, written at these times, before any worker had them."""
    for number, at in enumerate(times):
        outcome = replace(ended(number, miss=True, at=at), stream="quiet", promise=None, device=None, slice=None)
        audit.add_outcome(outcome, 10 * number, at)


def broken_of(audit: PromiseAudit, stream: str = "quiet") -> list[float]:
    return [at - T0 for report in audit.report() if report.stream == stream for at in report.broken_at]


def test_a_stream_that_says_nothing_was_promised_what_other_streams_of_its_app_say() -> None:
    audit = PromiseAudit()
    untouched(audit, T0 + 1.0, T0 + 2.0, T0 + 3.0)
    assert audit.report() == ()
    one_of_three_said(audit, T0 + 0.5, app="other")
    assert broken_of(audit) == []
    one_of_three_said(audit, T0 + 9.0)
    assert broken_of(audit) == [2.0, 3.0]
    assert broken_of(audit, "told") == []


def test_of_what_others_say_the_last_before_counts_else_the_first_behind() -> None:
    audit = PromiseAudit()
    untouched(audit, *(T0 + number for number in range(8)))
    for at, state in ((2.0, TWO_OF_FIVE), (4.5, PromiseState(weakly_hard=((6, 7),))), (6.0, TWO_OF_FIVE)):
        told = replace(ended(99, miss=False, at=T0 + at), stream=f"told {at}", promise=state)
        audit.add_outcome(told, 0, T0 + at)
    assert broken_of(audit) == [2.0, 3.0, 4.0, 6.0, 7.0]


def test_where_no_outcome_says_it_the_registry_tells_what_was_promised() -> None:
    audit = PromiseAudit()
    untouched(audit, T0 + 1.0, T0 + 2.0, T0 + 3.0, T0 + 4.0)
    audit.add_promise("other", Promise(max_consecutive=0), T0)
    assert audit.report() == ()
    audit.add_promise("vow", Promise(max_consecutive=1), T0)
    assert broken_of(audit) == [2.0, 3.0, 4.0]
    audit.add_promise("vow", NO_PROMISE, T0 + 2.5)
    assert broken_of(audit) == [2.0]
    audit.add_promise("vow", Promise(weakly_hard=(WeaklyHard(3, 9),)), T0 + 3.5)
    (report,) = audit.report()
    assert report.broken_at == (T0 + 2.0, T0 + 4.0)
    assert (report.unannounced, report.agrees, report.queries, report.misses) == (2, True, 4, 4)


def test_what_a_stream_says_itself_counts_whatever_others_do() -> None:
    audit = PromiseAudit()
    told(audit, {2: T0 + 2.0, 5: T0 + 5.0})
    audit.add_promise("vow", Promise(max_consecutive=0), T0)
    audit.add_outcome(replace(ended(99, miss=True, at=T0), stream="x", promise=PromiseState(max_consecutive=0)), 0, T0)
    assert (broken_of(audit, "vow"), broken_of(audit, "x")) == ([], [0.0])


def test_the_audit_reads_of_the_registry_what_was_promised() -> None:
    topics = Topics("t")
    audit = Audit(topics)
    plain = toy_catalogue(("vow", "other"))
    apps = {"vow": replace(plain.apps["vow"], promise=Promise(max_consecutive=1)), "other": plain.apps["other"]}
    for number, (name, app) in enumerate(apps.items()):
        catalogue = Catalogue.of([app], plain.of_app(name), [])
        audit.add_registered(Record(topics.registry, 0, number, name.encode(), app_record(catalogue, name), (), T0))
    for number, value in enumerate((None, b"{", b"")):
        audit.add_registered(Record(topics.registry, 0, 2 + number, b"vow", value, (), T0 + 100.0))
    for name in apps:
        for number in range(3):
            outcome = replace(ended(number, miss=True, at=T0 + number), app=name, sequence=10 * number, promise=None)
            message = codec.encode_outcome(outcome, ())
            place = (topics.results(name), 0, number)
            audit.add_result(Record(*place, message.key, message.value, message.headers, T0 + number))
    report = audit.report()
    assert [(stream.app, stream.broken_at) for stream in report.promises] == [("vow", (T0 + 1.0, T0 + 2.0))]
    assert (report.promises_broken, report.promises_unannounced) == (2, 2)


TWO_OF_FIVE = PromiseState(weakly_hard=((2, 5),))


@pytest.mark.parametrize(
    ("misses", "broken_by"),
    [
        ((1, 3, 5), [(1, 3, 5)]),
        ((1, 3, 6), []),
        ((1, 3, 6, 7), [(3, 6, 7)]),
        ((1, 2, 3, 4), [(1, 2, 3), (2, 3, 4)]),
    ],
)
def test_what_breaks_a_window_are_the_last_misses_that_are_one_too_many(
    misses: tuple[int, ...], broken_by: list[tuple[int, ...]]
) -> None:
    report = judged(two_of_five(*misses))
    assert report.broken_at == report.unannounced_at == tuple(T0 + window[-1] for window in broken_by)
    assert report.example == tuple(f"q{number}" for number in (broken_by[0] if broken_by else ()))


@pytest.mark.parametrize(
    ("began", "ended_at", "unannounced"), [(2.0, 2.75, 1), (2.0, 3.25, 0), (6.5, 6.75, 0), (7.25, 9.0, 1)]
)
def test_safe_mode_counts_from_the_first_of_those_misses_to_the_last(
    began: float, ended_at: float, unannounced: int
) -> None:
    audit = two_of_five(1, 3, 6, 7)  # the first has no part in it
    audit.add_status("app:vow@d1", Announce("app:vow", "safe_mode", ""), T0 + began)
    audit.add_status("app:vow@d1", Announce("app:vow", "promise_kept", ""), T0 + ended_at)
    assert judged(audit).unannounced == unannounced
