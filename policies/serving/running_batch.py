"""The batch that runs on a slice, who hears of it, and how one that failed is run again, query by query, so that one
fails alone."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sluicegate.domain.actions import Run
from sluicegate.domain.events import HostingChanged
from sluicegate.domain.outcome import OutcomeKind, Reason
from sluicegate.domain.query import Query
from sluicegate.policies.routing.known_poison import REFUSED, KnownPoison
from sluicegate.policies.serving.device_actions import DeviceAction
from sluicegate.policies.serving.device_events import BatchFailed, Failure


class Neighbours(Protocol):
    """Hears what becomes of a slice, to choose among several."""

    def hosted(self, part: str, change: HostingChanged, now: float, actions: list[DeviceAction]) -> None:
        """It hosts other variants of an app."""
        ...

    def started(self, part: str, queries: tuple[Query, ...], now: float, actions: list[DeviceAction]) -> None:
        """It runs a batch."""
        ...

    def ended(self, part: str, app: str, now: float, actions: list[DeviceAction]) -> None:
        """A batch of ``app`` has ended."""
        ...

    def left(self, query: Query) -> None:
        """A query has ended."""
        ...


class EndedAlone(NamedTuple):
    """What became of one query of a batch that failed, ``at`` that time, after ``execution_s`` in the model."""

    query: Query
    kind: OutcomeKind
    at: float
    execution_s: float
    detail: str | None
    reason: Reason | None = None


class Retry:
    """A batch that ``failed``. ``alone``: the query of it that runs; ``ends``: those that are done with.

    A query that fails alone has failed, unless it had no part in that: then it is run once more, and no oftener. What
    ended a process alone is ``poison`` from then on.
    """

    __slots__ = ("_excused", "_left", "_poison", "_why", "alone", "ends")

    def __init__(self, queries: Sequence[Query], failed: BatchFailed, poison: KnownPoison, now: float) -> None:
        self._left = deque(queries)
        self._why = failed.detail
        self._poison = poison
        self._excused: set[Query] = set()
        self.ends: list[EndedAlone] = []
        self.alone: Query | None = None
        if len(queries) == 1:
            self.alone = self._left.popleft()
            self.failed(failed, now)

    @property
    def rows(self) -> int:
        """Of the query that runs."""
        assert self.alone is not None
        return self.alone.rows

    def answered(self, execution_s: float, now: float) -> None:
        """The query that runs was answered."""
        assert self.alone is not None
        self.ends.append(EndedAlone(self.alone, OutcomeKind.ANSWERED, now, execution_s, None))

    def failed(self, failed: BatchFailed, now: float) -> None:
        """It failed."""
        assert self.alone is not None
        self._why, failure = failed.detail, failed.failure
        if failure is Failure.BLAMELESS and self.alone not in self._excused:
            self._excused.add(self.alone)
            self._left.appendleft(self.alone)
            return
        reason = Reason.MODEL_ERROR if failure is Failure.RAISED else Reason.EXECUTOR_KILLED
        if reason is Reason.EXECUTOR_KILLED:
            self._poison.name(self.alone, now)
        self.ends.append(EndedAlone(self.alone, OutcomeKind.FAILED, now, 0.0, self._why, reason))

    def next(self, now: float) -> Query | None:
        """The query to run next, if any is left; those whose deadline has passed meanwhile expire."""
        self.alone = None
        while self._left:
            query = self._left.popleft()
            if now >= query.deadline:
                self.ends.append(EndedAlone(query, OutcomeKind.EXPIRED, now, 0.0, f"its batch failed: {self._why}"))
            elif self._poison.refuses(query, now):
                end = EndedAlone(query, OutcomeKind.FAILED, now, 0.0, REFUSED, Reason.EXECUTOR_KILLED)
                self.ends.append(end)
            else:
                self.alone = query
                return query
        return None


class Batch:
    """What runs, since ``started``. ``gone``: its queries are others' now; ``retry``: it failed. ``together``: how many
    ran on the slice at a time, at most, while it did."""

    __slots__ = ("gone", "retry", "run", "started", "together")

    def __init__(self, run: Run, started: float) -> None:
        self.run = run
        self.started = started
        self.gone = False
        self.retry: Retry | None = None
        self.together = 1
