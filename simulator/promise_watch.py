"""Promises of a simulated run, counted again: what was missed of each stream, and whether it was announced before.

Counted are the streams of apps that are promised something at any time of the run, from their first query on, as the
audit of a live system does. A miss is judged by what is promised when it ends.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from sluicegate.domain.actions import Announce
from sluicegate.domain.models.app import App, QueryClass
from sluicegate.domain.outcome import Outcome, OutcomeKind


@dataclass(frozen=True, slots=True)
class PromiseFigures:
    """Of a run. ``queries``: strict ones in the sequence, ``rejected`` ones are outside it; ``misses`` among them.

    ``broken_windows``: those that end with a miss and hold too many; of them ``announced``: safe mode was on at any
    time from the first of the misses that are too many to the last.
    """

    queries: int
    rejected: int
    misses: int
    broken_windows: int
    announced: int


_Pairs = tuple[tuple[int, int], ...]
_Fate = tuple[bool, int, _Pairs]
"""How a query in the sequence ended: whether missed, how often safe mode had begun or ended, what was promised."""


@dataclass(slots=True)
class _Stream:
    """A stream so far. ``ahead``: by place in it, what ended before the one that is ``next``; None does not count.

    ``recent``: place in the sequence and turn of the last misses.
    """

    recent: deque[tuple[int, int]]
    ahead: dict[int, _Fate | None] = field(default_factory=dict)
    next: int = 0
    position: int = 0


class PromiseWatch:
    """An observer of outcomes that also hears what is announced and registered. ``registry``: the apps at the start,
    and those after each change to come."""

    def __init__(self, registry: Iterable[Iterable[App]]) -> None:
        promised = [_pairs(apps) for apps in registry]
        self._pairs = promised[0]
        self._most: dict[str, int] = {}  # misses that are ever borne: as far back as windows look
        for app, pairs in [one for at_a_time in promised for one in at_a_time.items()]:
            self._most[app] = max([self._most.get(app, 0), *(m for m, _ in pairs)])
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._safe: dict[str, set[str]] = {app: set() for app in self._most}
        self._turns = dict.fromkeys(self._most, 0)  # odd while safe mode is on
        self._queries = self._rejected = self._misses = self._broken = self._announced = 0

    @property
    def watches(self) -> bool:
        """Whether anything is ever promised."""
        return bool(self._most)

    @property
    def figures(self) -> PromiseFigures:
        """So far."""
        return PromiseFigures(self._queries, self._rejected, self._misses, self._broken, self._announced)

    def registered(self, apps: Iterable[App]) -> None:
        """These are served from now on, with what they are promised."""
        self._pairs = _pairs(apps)

    def said(self, announcer: str, what: Announce) -> None:
        """``announcer`` says that safe mode begins, or ends."""
        app = what.subject.removeprefix("app:")
        safe = self._safe.get(app)
        if safe is None:
            return
        if what.state == "safe_mode":
            safe.add(announcer)
        elif what.state == "promise_kept":
            safe.discard(announcer)
        if bool(safe) is not bool(self._turns[app] % 2):
            self._turns[app] += 1

    def add(self, outcome: Outcome) -> None:
        """One query has ended."""
        app = outcome.app
        if app not in self._most or outcome.sequence < 0:  # of an app that is not known yet there is no stream
            return
        stream = self._streams.get((app, outcome.stream))
        if stream is None:
            stream = self._streams[app, outcome.stream] = _Stream(deque(maxlen=self._most[app] + 1))
        fate: _Fate | None = None
        if outcome.query_class is QueryClass.STRICT:
            if outcome.kind is OutcomeKind.REJECTED:
                self._rejected += 1
            else:
                fate = outcome.miss, self._turns[app], self._pairs.get(app, ())
        stream.ahead[outcome.sequence] = fate
        while stream.next in stream.ahead:
            ended = stream.ahead.pop(stream.next)
            stream.next += 1
            if ended is not None:
                self._count(stream, ended)

    def _count(self, stream: _Stream, fate: _Fate) -> None:
        self._queries += 1
        stream.position += 1
        missed, turn, pairs = fate
        if not missed:
            return
        self._misses += 1
        recent = stream.recent
        recent.append((stream.position, turn))
        for m, k in pairs:
            if len(recent) > m and stream.position - recent[-m - 1][0] < k:
                turns = {turn for _, turn in list(recent)[-m - 1 :]}
                self._broken += 1
                self._announced += len(turns) > 1 or turn % 2 == 1
                return


def _pairs(apps: Iterable[App]) -> dict[str, _Pairs]:
    return {app.name: app.promise.constraints for app in apps if app.promise.active}
