"""What ``judge`` makes of topics that hold what they should, and of those in which one thing is wrong."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.query import Query
from sluicegate.sluice.audit.fault_windows import FaultWindow
from sluicegate.sluice.audit.topic_audit import Audit
from sluicegate.streams.ports import Record
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics
from tests.chaos.judge import JUDGED, Fault, Verdict, judge

TOPICS = Topics("judged")
NOW = 1.7e9
CALM = (NOW + 2.0, NOW + 9.0)
FAULT = Fault(hit="d1", began=NOW + 10.0, due=NOW + 11.0, until=NOW + 24.0)
RATE, SECONDS, SLO = 20, 26, 1.0


def ended(
    *,
    away: tuple[float, float] | None = None,
    kind: OutcomeKind = OutcomeKind.ANSWERED,
) -> list[Outcome]:
    """What became of queries that came at an even pace; of those that came while service was ``away`` it was late."""
    found = []
    for number in range(RATE * SECONDS):
        arrival = NOW + number / RATE + 0.01
        late = away is not None and away[0] <= arrival - NOW < away[1]
        query = Query(id=str(number), app="toy", arrival=arrival, deadline=arrival + SLO)
        outcome = Outcome.of(query, kind, arrival + (3.0 if late else 0.2))
        found.append(replace(outcome, execution_s=0.05))
    return found


def results(outcomes: Sequence[Outcome]) -> list[Record]:
    """Their records."""
    encoded = [(codec.encode_outcome(outcome, ()), outcome) for outcome in outcomes]
    return [
        Record(TOPICS.results("toy"), 0, place, told.key, told.value, told.headers, outcome.at)
        for place, (told, outcome) in enumerate(encoded)
    ]


def verdict(
    outcomes: Sequence[Outcome],
    written: Sequence[Record] | None = None,
    *,
    faults: Sequence[Fault] = (FAULT,),
    calm: tuple[float, float] = CALM,
    acknowledged: int = RATE * SECONDS,
    copies_allowed: int = 0,
    steps: bool = False,
) -> Verdict:
    """Of one cell whose topics hold all queries, and of results those that were ``written``: by default all."""
    audit = Audit(TOPICS, timed=True)
    for number in range(RATE * SECONDS):
        asked = NOW + number / RATE
        message = codec.encode_query(str(number), (), app="toy", source="", now=asked)
        audit.add_query(Record(TOPICS.queries("toy"), 0, number, message.key, message.value, message.headers, asked))
    for record in results(outcomes) if written is None else written:
        audit.add_result(record)
    return judge(
        "worker-stop",
        "at_least_once",
        audit.report([FaultWindow(name=f.hit, began=f.began, ended=f.until) for f in faults]),
        outcomes,
        faults,
        calm=calm,
        rate=float(RATE),
        slo=SLO,
        acknowledged=acknowledged,
        copies_allowed=copies_allowed,
        resume_s_allowed=4.0,
        steps=steps,
    )


def test_a_run_in_which_nothing_went_wrong_has_no_fault() -> None:
    found = verdict(ended())
    assert found.faults == () and not found.busy
    assert (found.queries, found.lost, found.duplicates, found.max_copies, found.late_unmarked) == (520, 0, 0, 1, 0)
    assert (found.resume_s_max, found.outage_s_max, found.on_time, found.calm_on_time) == (0.0, 0.0, 1.0, 1.0)
    assert (found.added_p99_ms_before, found.added_p99_ms_during) == (150.0, 150.0)
    assert (found.hits, found.seeds, found.rate) == (("d1",), 1, 20.0)
    (window,) = found.windows
    assert (window.name, window.queries, window.lost) == ("d1", 281, 0)


def test_one_that_has_no_end_is_lost() -> None:
    outcomes = ended()
    gone = outcomes.pop(300)
    found = verdict(outcomes)
    assert (found.lost, found.faults) == (1, ("lost",))
    assert [window.lost for window in found.windows] == [1] and FAULT.began < gone.arrival < FAULT.until


def test_what_the_broker_acknowledged_and_does_not_have_is_lost() -> None:
    found = verdict(ended(), acknowledged=RATE * SECONDS + 3)
    assert (found.queries, found.lost, found.faults) == (523, 3, ("lost",))
    assert verdict(ended(), acknowledged=RATE * SECONDS - 3).lost == 0, "its acknowledgement may be what was lost"


@pytest.mark.parametrize(("allowed", "faults"), [(0, ("duplicates",)), (1, ("duplicates",)), (2, ())])
def test_one_that_ended_more_than_once_is_a_copy(allowed: int, faults: tuple[str, ...]) -> None:
    outcomes = ended()
    found = verdict(outcomes, results([*outcomes, outcomes[300], outcomes[300]]), copies_allowed=allowed)
    assert (found.duplicates, found.max_copies, found.lost, found.faults) == (2, 3, 0, faults)


def test_one_that_was_late_is_no_fault_where_it_says_so_and_is_one_where_it_does_not() -> None:
    outcomes = ended(away=(15.0, 15.04))
    late = [outcome for outcome in outcomes if outcome.late]
    assert len(late) == 1
    found = verdict(outcomes)
    assert (found.late_unmarked, found.faults) == (0, ())
    assert 0.99 < found.on_time < 1.0
    written = [
        record._replace(value=(record.value or b"").replace(b'"late":true', b'"late":false'))
        for record in results(outcomes)
    ]
    found = verdict(outcomes, written)
    assert (found.late_unmarked, found.faults) == (1, ("late_unmarked",))


def test_how_long_service_was_away_is_reckoned_from_when_it_was_due_and_from_the_fault() -> None:
    outcomes = ended(away=(10.0, 18.0))
    found = verdict(outcomes)
    assert (found.resume_s_max, found.outage_s_max) == (7.0, 8.0)
    assert found.added_p99_ms_before == 150.0 and found.added_p99_ms_during == 2950.0
    assert found.calm_on_time == 1.0 and found.faults == (), "one seed says little"
    soon = Fault(hit="d2", began=NOW + 19.0, due=NOW + 19.0, until=NOW + 24.0)
    many = verdict(outcomes, faults=[*[soon] * (JUDGED - 1), FAULT])
    assert (many.resume_s_max, many.faults) == (7.0, ("resume_s_max",))
    assert verdict(outcomes, faults=[soon] * JUDGED).faults == ()


def test_what_a_fault_in_steps_takes_away_later_counts_from_its_own_beginning() -> None:
    outcomes = ended(away=(18.0, 20.0))
    assert verdict(outcomes).resume_s_max == 9.0
    assert verdict(outcomes, steps=True).resume_s_max == 2.0


def test_of_what_was_added_the_slowest_hundredth_is_told() -> None:
    assert verdict(ended(away=(14.0, 14.09))).added_p99_ms_during == 150.0, "two of 280"
    assert verdict(ended(away=(14.0, 14.24))).added_p99_ms_during == 2950.0, "five of them"


@pytest.mark.parametrize("calm", [(NOW + 11.0, NOW + 17.0), (NOW + 100.0, NOW + 107.0)])
def test_without_a_calm_before_it_how_soon_service_is_back_is_not_judged(calm: tuple[float, float]) -> None:
    """Service was away in it already, or nobody asked anything: nothing is known of what the machine keeps up with."""
    outcomes = ended(away=(10.0, 18.0))
    found = verdict(outcomes, faults=[FAULT] * JUDGED, calm=calm)
    assert found.busy and found.calm_on_time == 0.0
    assert (found.resume_s_max, found.due_s, found.faults) == (7.0, None, ())
    copies = verdict(outcomes, results([*outcomes, outcomes[300]]), calm=calm)
    assert copies.faults == ("duplicates",), "where none are allowed none is excused"
    assert verdict(outcomes[1:], calm=calm).faults == ("lost",)


def test_what_was_rejected_is_no_service_and_says_nothing_of_the_calm() -> None:
    found = verdict(ended(kind=OutcomeKind.REJECTED))
    assert (found.calm_on_time, found.added_p99_ms_before, found.added_p99_ms_during) == (0.0, 0.0, 0.0)
    assert found.resume_s_max == 12.0 and found.lost == 0
