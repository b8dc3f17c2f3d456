"""Promises as the topics tell of them: what broke, when, and whether it was announced before."""

import pytest

from sluicegate.domain.actions import Announce
from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.outcome import Outcome, OutcomeKind, PromiseState
from sluicegate.sluice.audit.promise_audit import PromiseAudit, StreamReport

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
