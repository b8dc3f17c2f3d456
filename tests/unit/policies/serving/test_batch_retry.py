"""A batch that failed, query by query: which runs next, what became of each, and what is known of those that killed."""

from sluicegate.domain.outcome import OutcomeKind, Reason
from sluicegate.domain.query import Query
from sluicegate.policies.routing.known_poison import REFUSED, KnownPoison
from sluicegate.policies.serving.device_events import BatchFailed, Failure
from sluicegate.policies.serving.running_batch import EndedAlone, Retry

T = 700.0
RAISED = BatchFailed("4g.0", "it raised")
KILLED = BatchFailed("4g.0", "it died", Failure.KILLED)
BLAMELESS = BatchFailed("4g.0", "it was stopped", Failure.BLAMELESS)


def query(name: str, *, rows: int = 1, deadline: float = T + 9.0, holds: str = "", to: KnownPoison) -> Query:
    """One whose content is known to ``to``, where it has one."""
    made = Query(name, "a", T - 1.0, deadline, rows)
    if holds:
        to.told(made.key, holds)
    return made


def test_queries_run_alone_in_their_order_and_each_end_says_when_and_how_long_it_took() -> None:
    poison = KnownPoison()
    first, second = query("1", rows=3, to=poison), query("2", rows=5, to=poison)
    retry = Retry((first, second), RAISED, poison, T)
    assert retry.next(T + 1) is first
    assert retry.rows == 3
    retry.answered(0.25, T + 2)
    assert retry.next(T + 2) is second
    assert retry.rows == 5
    retry.failed(BatchFailed("4g.0", "it raised otherwise"), T + 3)
    assert retry.next(T + 3) is None
    assert retry.ends == [
        EndedAlone(first, OutcomeKind.ANSWERED, T + 2, 0.25, None),
        EndedAlone(second, OutcomeKind.FAILED, T + 3, 0.0, "it raised otherwise", Reason.MODEL_ERROR),
    ]


def test_whose_deadline_has_come_expires_and_says_why_the_batch_failed() -> None:
    poison = KnownPoison()
    due, later = query("1", deadline=T + 2.0, to=poison), query("2", deadline=T + 2.25, to=poison)
    retry = Retry((due, later), RAISED, poison, T)
    assert retry.next(T + 2.0) is later
    assert retry.ends == [EndedAlone(due, OutcomeKind.EXPIRED, T + 2.0, 0.0, "its batch failed: it raised")]


def test_a_batch_of_one_has_failed_with_it() -> None:
    poison = KnownPoison()
    only = query("1", holds="x", to=poison)
    retry = Retry((only,), KILLED, poison, T)
    assert retry.ends == [EndedAlone(only, OutcomeKind.FAILED, T, 0.0, "it died", Reason.EXECUTOR_KILLED)]
    assert retry.next(T) is None
    assert poison.fresh == [only]


def test_what_holds_the_same_as_one_that_killed_is_refused_without_a_run() -> None:
    poison = KnownPoison()
    guilty, twin, other = (query(name, holds=held, to=poison) for name, held in (("1", "x"), ("2", "x"), ("3", "y")))
    retry = Retry((guilty, twin, other), KILLED, poison, T)
    assert retry.next(T) is guilty
    retry.failed(KILLED, T + 1)
    assert retry.next(T + 2) is other
    assert retry.ends == [
        EndedAlone(guilty, OutcomeKind.FAILED, T + 1, 0.0, "it died", Reason.EXECUTOR_KILLED),
        EndedAlone(twin, OutcomeKind.FAILED, T + 2, 0.0, REFUSED, Reason.EXECUTOR_KILLED),
    ]


def test_a_query_under_which_the_model_raised_is_no_poison() -> None:
    poison = KnownPoison()
    one, twin = query("1", holds="x", to=poison), query("2", holds="x", to=poison)
    retry = Retry((one, twin), RAISED, poison, T)
    assert retry.next(T) is one
    retry.failed(RAISED, T)
    assert retry.next(T) is twin
    assert poison.fresh == []


def test_each_that_had_no_part_in_it_is_run_once_more_before_the_others() -> None:
    poison = KnownPoison()
    first, second = query("1", to=poison), query("2", to=poison)
    retry = Retry((first, second), RAISED, poison, T)
    ran = []
    for at in range(4):
        ran.append(retry.next(T + at))
        retry.failed(BLAMELESS, T + at)
    assert ran == [first, first, second, second]
    assert retry.next(T + 4) is None
    assert [(end.query, end.at, end.reason) for end in retry.ends] == [
        (first, T + 1, Reason.EXECUTOR_KILLED),
        (second, T + 3, Reason.EXECUTOR_KILLED),
    ]
