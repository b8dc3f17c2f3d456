"""Promises of a simulated run, counted again: what was missed of each stream, and whether it was announced before."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from sluicegate.domain.actions import Announce
from sluicegate.domain.models.app import App, QueryClass
from sluicegate.domain.outcome import Outcome, OutcomeKind


@dataclass(frozen=True, slots=True)
class PromiseFigures:
    """Of a run. ``queries``: strict ones in the sequence, ``rejected`` ones are outside it; ``misses`` among them.

    ``broken_windows``: those that end with a miss and hold too many; of them ``announced``: safe mode was on.
    """

    queries: int
    rejected: int
    misses: int
    broken_windows: int
    announced: int


@dataclass(slots=True)
class _Stream:
    """Outcomes by their place in the stream: None rejected, else (missed, announced)."""

    next: int
    ahead: dict[int, tuple[bool, bool] | None]
    recent: deque[tuple[int, bool]]
    position: int = 0


class PromiseWatch:
    """An observer of outcomes that also hears what is announced. ``apps``: all there are."""

    def __init__(self, apps: Iterable[App]) -> None:
        self._pairs = {app.name: app.promise.constraints for app in apps if app.promise.active}
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._safe: dict[str, set[str]] = {app: set() for app in self._pairs}
        self._queries = self._rejected = self._misses = self._broken = self._announced = 0

    @property
    def watches(self) -> bool:
        """Whether anything was promised."""
        return bool(self._pairs)

    @property
    def figures(self) -> PromiseFigures:
        """So far."""
        return PromiseFigures(self._queries, self._rejected, self._misses, self._broken, self._announced)

    def said(self, announcer: str, what: Announce) -> None:
        """``announcer`` says that safe mode begins, or ends."""
        safe = self._safe.get(what.subject.removeprefix("app:"))
        if safe is not None and what.state == "safe_mode":
            safe.add(announcer)
        elif safe is not None and what.state == "promise_kept":
            safe.discard(announcer)

    def add(self, outcome: Outcome) -> None:
        """One query has ended."""
        if outcome.app not in self._pairs or outcome.query_class is not QueryClass.STRICT:
            return
        key = (outcome.app, outcome.stream)
        stream = self._streams.get(key)
        if stream is None:
            most = max([m for m, _ in self._pairs[outcome.app]])
            stream = self._streams[key] = _Stream(0, {}, deque(maxlen=most + 1))
        rejected = outcome.kind is OutcomeKind.REJECTED
        stream.ahead[outcome.sequence] = None if rejected else (outcome.miss, bool(self._safe[outcome.app]))
        while stream.next in stream.ahead:
            self._count(outcome.app, stream, stream.ahead.pop(stream.next))
            stream.next += 1

    def _count(self, app: str, stream: _Stream, fate: tuple[bool, bool] | None) -> None:
        if fate is None:
            self._rejected += 1
            return
        missed, announced = fate
        self._queries += 1
        stream.position += 1
        if not missed:
            return
        self._misses += 1
        stream.recent.append((stream.position, announced))
        recent = stream.recent
        for m, k in self._pairs[app]:
            if len(recent) > m and stream.position - recent[-m - 1][0] < k:
                self._broken += 1
                self._announced += any(told for _, told in list(recent)[-m - 1 :])
                return
