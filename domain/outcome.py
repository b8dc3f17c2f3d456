"""The one terminal outcome of a query, and why it came to be."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.query import Query, QueryKey


class OutcomeKind(StrEnum):
    """How a query ended. Late answers are ANSWERED with ``late`` set."""

    ANSWERED = "answered"
    EXPIRED = "expired"
    DROPPED = "dropped"
    REJECTED = "rejected"
    FAILED = "failed"


class Reason(StrEnum):
    """Why a query was dropped, rejected or failed."""

    HOPELESS = "hopeless"  # could no longer be answered in time, whatever was done
    SHED = "shed"  # given up so that more behind it are answered in time
    SPREAD = "spread"  # chosen by a promise-keeping selection
    NO_CAPACITY = "no_capacity"  # the plan hosts no variant for it
    OVER_SHARE = "over_share"  # of its client, while others ask for theirs
    OVER_SUSTAINABLE_RATE = "over_sustainable_rate"
    INVALID = "invalid"  # could be attributed to a query but not be served as it is
    UNKNOWN_APP = "unknown_app"
    NOTHING_ROUTES = "nothing_routes"  # no router of the app lives
    DEADLINE_PAST = "deadline_past"
    INFEASIBLE = "infeasible"  # no variant meets its goals
    TOO_LARGE = "too_large"
    RESULT_TOO_LARGE = "result_too_large"  # answered, but its topic does not take an answer of that size
    OBJECT_UNREADABLE = "object_unreadable"  # what it refers to cannot be had, or is not what it says
    MODEL_ERROR = "model_error"
    EXECUTOR_KILLED = "executor_killed"  # run alone, it ended the process that runs models, or outlasted its time
    DEVICE_LOST = "device_lost"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseState:
    """What a stream was promised, and how it stands on the slice that serves it, as of one of its outcomes.

    ``max_consecutive``, ``weakly_hard`` ((m, K), ...): the promise. ``turns``: slices that the stream goes to in turn;
    the counts below are of this slice's turns. ``queries`` that ended so far in an unbroken row, ``misses`` among them,
    ``mcd``: longest run of misses, ``worst`` ((K, most misses in K consecutive), ...). ``safe_mode``: announced.
    ``left``: by K, how many of the next queries may be missed at once; of a stream that one slice serves.
    """

    max_consecutive: int | None = None
    weakly_hard: tuple[tuple[int, int], ...] = ()
    turns: int = 1
    queries: int = 0
    misses: int = 0
    mcd: int = 0
    worst: tuple[tuple[int, int], ...] = ()
    safe_mode: bool = False
    left: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Terminal outcome. Treat as frozen. Times are absolute seconds, durations seconds.

    ``accuracy``: profiled accuracy of the variant (0..1), 0 where nothing answered.
    ``best_accuracy``: that of the app's best variant, to normalise by; 1 where unknown.
    ``source``: who asked, ``rows``: how many it had, as in its query.
    """

    query_id: str
    app: str
    kind: OutcomeKind
    arrival: float
    deadline: float
    at: float
    query_class: QueryClass = QueryClass.STRICT
    reason: str | None = None
    detail: str | None = None
    variant: str | None = None
    accuracy: float = 0.0
    best_accuracy: float = 1.0
    device: str | None = None
    slice: str | None = None
    epoch: tuple[int, int] | None = None
    policy: str | None = None
    batch_size: int = 0
    queue_s: float = 0.0
    batch_s: float = 0.0
    execution_s: float = 0.0
    stream: str = ""
    sequence: int = -1
    promise: PromiseState | None = None
    source: str = ""
    rows: int = 1

    @staticmethod
    def of(query: Query, kind: OutcomeKind, at: float, **why: Any) -> "Outcome":
        """The end of ``query`` at ``at``; ``why``: any further field of Outcome."""
        return Outcome(
            query_id=query.id,
            app=query.app,
            kind=kind,
            arrival=query.arrival,
            deadline=query.deadline,
            at=at,
            query_class=query.query_class,
            stream=query.stream,
            sequence=query.sequence,
            source=query.source,
            rows=query.rows,
            **why,
        )

    @property
    def key(self) -> QueryKey:
        """Identity of the query that it ends."""
        return QueryKey(self.app, self.source, self.query_id)

    @property
    def took(self) -> float:
        """Seconds from its arrival to its end, none where that is before: arrivals are of the producer's clock, to the
        millisecond."""
        return max(0.0, self.at - self.arrival)

    @property
    def late(self) -> bool:
        """Answered, but after its deadline."""
        return self.kind is OutcomeKind.ANSWERED and self.at > self.deadline

    @property
    def on_time(self) -> bool:
        """Answered within its own SLO: the only kind of outcome that counts as attained."""
        return self.kind is OutcomeKind.ANSWERED and self.at <= self.deadline

    @property
    def miss(self) -> bool:
        """Counts as a miss for promises. Rejected queries are not in the sequence: ask before."""
        return not self.on_time
