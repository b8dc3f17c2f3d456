"""The books of a run: every query that came in has exactly one end. Streaming: only open queries are held."""

from collections.abc import Sequence
from typing import Protocol

from sluicegate.domain.actions import Run
from sluicegate.domain.errors import SluiceError
from sluicegate.domain.fold import OutcomeFold
from sluicegate.domain.outcome import Outcome, OutcomeKind, Reason
from sluicegate.domain.query import Query
from sluicegate.profiles.catalogue.catalogue import Catalogue


class ConservationError(SluiceError):
    """A query ended twice, or never: a defect of a policy or of the simulator."""


class Observer(Protocol):
    """Is shown every outcome. The object is used again for the next one: copy what is to be kept."""

    def add(self, outcome: Outcome) -> None:
        """One query has ended."""
        ...


class Ledger:
    """Opens queries, ends them, folds their outcomes. ``observers`` see each outcome too.

    ``catalogue``: all that there ever is. The best variant of an app is that of those registered; an answer of a better
    one, which is registered no more, counts as the best.
    """

    __slots__ = ("_accuracy", "_best", "_observers", "_scratch", "closed", "fold", "open", "opened")

    def __init__(self, catalogue: Catalogue, observers: Sequence[Observer]) -> None:
        self.fold = OutcomeFold()
        self.open: set[Query] = set()
        self.opened = 0
        self.closed = 0
        self._accuracy: dict[str, float] = {}
        self._best: dict[str, float] = {}
        self.registered(catalogue)
        self._observers = tuple(observers)
        self._scratch = Outcome(query_id="", app="", kind=OutcomeKind.ANSWERED, arrival=0.0, deadline=0.0, at=0.0)

    def registered(self, served: Catalogue) -> None:
        """These are served from now on."""
        self._accuracy |= {v.name: v.accuracy for v in served.variants.values()}
        self._best |= {app: served.best_accuracy(app) for app in served.apps}

    def begin(self, query: Query) -> None:
        """``query`` came in."""
        self.opened += 1
        self.open.add(query)

    def answered(
        self, run: Run, queries: Sequence[Query], started: float, now: float, by: tuple[str, str, str]
    ) -> None:
        """``queries``, of one app and a batch, were answered ``by`` a device, slice and policy."""
        self._close(queries, OutcomeKind.ANSWERED, now, run.variant)
        if self._observers:
            outcome = self._scratch
            outcome.kind = OutcomeKind.ANSWERED
            outcome.reason = None
            outcome.variant = run.variant
            outcome.accuracy = self._accuracy[run.variant]
            outcome.device, outcome.slice, outcome.policy = by
            outcome.batch_size = run.rows
            outcome.execution_s = outcome.batch_s = now - started
            self._show(queries, started, now)

    def ended(self, query: Query, kind: OutcomeKind, now: float, reason: Reason | str | None = None) -> None:
        """``query`` ended without an answer."""
        self._close((query,), kind, now, "")
        if self._observers:
            outcome = self._scratch
            outcome.kind = kind
            outcome.reason = reason
            outcome.variant = outcome.device = outcome.slice = outcome.policy = None
            outcome.accuracy = outcome.execution_s = outcome.batch_s = 0.0
            outcome.batch_size = 0
            self._show((query,), now, now)

    def _close(self, queries: Sequence[Query], kind: OutcomeKind, now: float, variant: str) -> None:
        still_open = self.open
        for query in queries:
            if query not in still_open:
                raise ConservationError(f"query {query.id} of {query.app} ended a second time at {now}")
            still_open.remove(query)
        self.closed += len(queries)
        accuracy = self._accuracy[variant] if variant else 0.0
        self.fold.count(queries, kind, now, variant, accuracy, max(accuracy, self._best[queries[0].app]))

    def _show(self, queries: Sequence[Query], waited_until: float, now: float) -> None:
        outcome = self._scratch
        outcome.at = now
        for query in queries:
            outcome.query_id = query.id
            outcome.app, outcome.source = query.app, query.source
            outcome.arrival = query.arrival
            outcome.queue_s = waited_until - query.arrival
            outcome.deadline = query.deadline
            outcome.query_class = query.query_class
            outcome.best_accuracy = max(outcome.accuracy, self._best[query.app])
            outcome.stream = query.stream
            outcome.sequence = query.sequence
            outcome.rows = query.rows
            for observer in self._observers:
                observer.add(outcome)

    def check(self) -> None:
        """Raises ConservationError unless each query that came in has had one end."""
        counted = self.fold.summary(1.0)
        kinds = counted.answered_on_time + counted.late + counted.expired
        kinds += counted.dropped + counted.rejected + counted.failed
        if self.open or not self.opened == self.closed == counted.queries == kinds:
            raise ConservationError(
                f"{self.opened} queries came in, {self.closed} ended, {kinds} were counted, {len(self.open)} are open"
            )
