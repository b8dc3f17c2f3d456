"""The batch that runs on a slice, and how one that failed is run again, query by query, so that one fails alone."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from sluicegate.domain.actions import Run
from sluicegate.domain.outcome import OutcomeKind, Reason
from sluicegate.domain.query import Query
from sluicegate.policies.serving.device_events import Failure


class EndedAlone(NamedTuple):
    """What became of one query of a batch that failed, ``at`` that time, after ``execution_s`` in the model."""

    query: Query
    kind: OutcomeKind
    at: float
    execution_s: float
    detail: str | None
    reason: Reason | None = None


class Retry:
    """A batch that failed with ``detail``. ``alone``: the query of it that runs; ``ends``: those that are done with.

    A query that fails alone has failed, unless it had no part in that: then it is run once more, and no oftener.
    """

    __slots__ = ("_excused", "_left", "_why", "alone", "ends")

    def __init__(self, queries: Sequence[Query], detail: str, failure: Failure, now: float) -> None:
        self._left = deque(queries)
        self._why = detail
        self._excused: set[Query] = set()
        self.ends: list[EndedAlone] = []
        self.alone: Query | None = None
        if len(queries) == 1:
            self.alone = self._left.popleft()
            self.failed(detail, failure, now)

    @property
    def rows(self) -> int:
        """Of the query that runs."""
        assert self.alone is not None
        return self.alone.rows

    def answered(self, execution_s: float, now: float) -> None:
        """The query that runs was answered."""
        assert self.alone is not None
        self.ends.append(EndedAlone(self.alone, OutcomeKind.ANSWERED, now, execution_s, None))

    def failed(self, detail: str, failure: Failure, now: float) -> None:
        """It failed."""
        assert self.alone is not None
        self._why = detail
        if failure is Failure.BLAMELESS and self.alone not in self._excused:
            self._excused.add(self.alone)
            self._left.appendleft(self.alone)
            return
        reason = Reason.MODEL_ERROR if failure is Failure.RAISED else Reason.EXECUTOR_KILLED
        self.ends.append(EndedAlone(self.alone, OutcomeKind.FAILED, now, 0.0, detail, reason))

    def next(self, now: float) -> Query | None:
        """The query to run next, if any is left; those whose deadline has passed meanwhile expire."""
        self.alone = None
        while self._left:
            query = self._left.popleft()
            if now < query.deadline:
                self.alone = query
                return query
            self.ends.append(EndedAlone(query, OutcomeKind.EXPIRED, now, 0.0, f"its batch failed: {self._why}"))
        return None


class Batch:
    """What runs, since ``started``. ``gone``: its queries are others' now; ``retry``: it failed."""

    __slots__ = ("gone", "retry", "run", "started")

    def __init__(self, run: Run, started: float) -> None:
        self.run = run
        self.started = started
        self.gone = False
        self.retry: Retry | None = None
