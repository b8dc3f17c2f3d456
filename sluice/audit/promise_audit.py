"""Promises, checked from the topics: counts every stream again and compares it with what its outcomes say.

Rules.
- A stream is the strict queries of one key (or without one: of the app) in the order of the query topic. Rejected
  queries and dead letters are not in it; a query without an outcome is reported as lost by the audit.
- A promise is *broken* where a window of K ends with a miss and holds more than m: when the last of m + 1 misses in it
  is written. Which promise, that miss says; one that says nothing goes by those before it, else by those behind it.
  Of a stream that says nothing at all (no worker touched it) each goes by what was said of the app last before it was
  written, by outcomes of other streams or by the registry, else by what was said first behind it.
  It is *unannounced* where safe mode of the app was not on, as the status topic says, at any time from the
  first of them to that one: neither by the clocks of who decided, which may be set meanwhile, nor by the broker's, by
  which what was said first may be written last.
- The tracker that outcomes carry is that of the slice that served the stream in its turn: it is compared with a recount
  of that slice's outcomes. After a fault a tracker may begin anew; it then *disagrees*, which is told, not an error.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from sluicegate.domain.actions import Announce
from sluicegate.domain.models.app import NO_PROMISE, Promise, QueryClass, WeaklyHard
from sluicegate.domain.outcome import Outcome, OutcomeKind, PromiseState
from sluicegate.policies.promises.tracker import MissTracker

_Written = tuple[float, Outcome]
"""When it was written, and what."""

_TICK_S = 0.001
"""Timestamps of records are whole milliseconds, rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """One stream, recounted. ``rejected`` queries are outside; ``broken``: windows beyond the promise.

    ``example``: ids of the misses that broke the first unannounced one; ``broken_at``, ``unannounced_at``: when the
    last miss of each was written.
    """

    app: str
    stream: str
    queries: int
    rejected: int
    misses: int
    mcd: int
    worst: dict[int, int]
    kept: bool
    broken: int
    unannounced: int
    agrees: bool
    example: tuple[str, ...]
    broken_at: tuple[float, ...]
    unannounced_at: tuple[float, ...]


@dataclass(slots=True)
class _Stream:
    ends: list[tuple[int, float, Outcome]] = field(default_factory=list)
    states: dict[tuple[str | None, str | None], PromiseState] = field(default_factory=dict)


@dataclass(slots=True)
class _Said:
    """When safe mode of an app was announced by one announcer, and whether it still was."""

    spells: list[list[float]] = field(default_factory=list)

    def say(self, on: bool, at: float) -> None:
        if on and (not self.spells or len(self.spells[-1]) == 2):
            self.spells.append([at])
        elif not on and self.spells and len(self.spells[-1]) == 1:
            self.spells[-1].append(at)

    def within(self, first: float, last: float) -> bool:
        last += _TICK_S
        return any(s[0] <= last and (len(s) == 1 or first <= s[1]) for s in self.spells)


class _Told:
    """What was said of the promise of an app, and when."""

    def __init__(self, said: Iterable[tuple[float, Promise]]) -> None:
        self._said = sorted(said, key=lambda one: (one[0], one[1].constraints))
        self._times = [at for at, _ in self._said]

    def at(self, moment: float) -> Promise:
        """The last until then, else the first behind it."""
        return self._said[max(0, bisect_right(self._times, moment) - 1)][1] if self._said else NO_PROMISE


class PromiseAudit:
    """A fold over first outcomes, status records and what is registered; ``report`` recounts."""

    def __init__(self) -> None:
        self._registered: defaultdict[str, list[tuple[float, Promise]]] = defaultdict(list)
        self._streams: defaultdict[tuple[str, str], _Stream] = defaultdict(_Stream)
        self._decided: defaultdict[tuple[str, str], _Said] = defaultdict(_Said)
        self._appended: defaultdict[tuple[str, str], _Said] = defaultdict(_Said)

    def add_outcome(self, outcome: Outcome, order: int, at: float) -> None:
        """``order``: position of its query in its stream (the query record's offset). ``at``: when it was written."""
        if outcome.query_class is not QueryClass.STRICT:
            return
        stream = self._streams[outcome.app, outcome.stream or outcome.app]
        stream.ends.append((order, at, outcome))
        state = outcome.promise
        if state is not None:
            place = (outcome.device, outcome.slice)
            before = stream.states.get(place)
            if before is None or state.queries >= before.queries:
                stream.states[place] = state

    def add_status(self, announcer: str, said: Announce, at: float, decided: float | None = None) -> None:
        """A status record of ``announcer`` (its key), written at ``at`` and ``decided`` before, by its own clock."""
        if said.state in {"safe_mode", "promise_kept"}:
            place = said.subject.removeprefix("app:"), announcer
            self._appended[place].say(said.state == "safe_mode", at)
            self._decided[place].say(said.state == "safe_mode", at if decided is None else decided)

    def add_promise(self, app: str, promise: Promise, at: float) -> None:
        """The registry says so of ``app`` from ``at`` on."""
        self._registered[app].append((at, promise))

    def report(self) -> tuple[StreamReport, ...]:
        """Every stream that was promised something."""
        found = []
        said: dict[str, _Told] = {}
        for (app, name), stream in sorted(self._streams.items()):
            ends = sorted(stream.ends, key=lambda end: end[0])
            if stream.states:
                told = _promised(outcome for _, _, outcome in ends)
            else:
                if app not in said:
                    said[app] = self._told_of(app)
                told = [said[app].at(at) for _, at, _ in ends]
            if any(promise.active for promise in told):
                found.append(self._judge(app, name, stream, list(zip(ends, told, strict=True))))
        return tuple(found)

    def _told_of(self, app: str) -> "_Told":
        outcomes = (
            (at, _promise(outcome.promise.max_consecutive, outcome.promise.weakly_hard))
            for (of, _), stream in self._streams.items()
            if of == app
            for _, at, outcome in stream.ends
            if outcome.promise is not None
        )
        return _Told((*self._registered[app], *outcomes))

    def _judge(
        self, app: str, name: str, stream: _Stream, ends: list[tuple[tuple[int, float, Outcome], Promise]]
    ) -> StreamReport:
        kept = [(at, o, promise) for (_, at, o), promise in ends if o.kind is not OutcomeKind.REJECTED]
        counted = [outcome for _, outcome, _ in kept]
        promise = ends[-1][1]
        tracker = _recount(counted, promise)
        breaks = _breaks(kept)
        silent = [misses for misses in breaks if not self._announced(app, misses)]
        return StreamReport(
            app=app,
            stream=name,
            queries=len(counted),
            rejected=len(ends) - len(counted),
            misses=tracker.misses,
            mcd=tracker.mcd,
            worst=dict(tracker.worst),
            kept=not breaks,
            broken=len(breaks),
            unannounced=len(silent),
            agrees=_agrees(counted, stream, promise),
            example=tuple(o.query_id for _, o in silent[0]) if silent else (),
            broken_at=tuple(_spell(misses)[1] for misses in breaks),
            unannounced_at=tuple(_spell(misses)[1] for misses in silent),
        )

    def _announced(self, app: str, misses: tuple[_Written, ...]) -> bool:
        decided = min(o.at for _, o in misses), max(o.at for _, o in misses)
        return any(
            said.within(*spell)
            for told, spell in ((self._appended, _spell(misses)), (self._decided, decided))
            for (of, _), said in told.items()
            if of == app
        )


def _recount(outcomes: Iterable[Outcome], promise: Promise) -> MissTracker:
    """The stream counted again."""
    tracker = MissTracker(k for _, k in promise.constraints)
    for outcome in outcomes:
        tracker.record(outcome.miss)
    return tracker


def _promised(ends: Iterable[Outcome]) -> list[Promise]:
    """What was promised when each of these ended, some of which say so."""
    told: list[Promise | None] = []
    last: Promise | None = None
    for outcome in ends:
        if (said := outcome.promise) is not None:
            last = _promise(said.max_consecutive, said.weakly_hard)
        told.append(last)
    first = next(promise for promise in told if promise is not None)
    return [promise or first for promise in told]


@lru_cache(maxsize=1024)
def _promise(max_consecutive: int | None, weakly_hard: tuple[tuple[int, int], ...]) -> Promise:
    pairs = tuple(WeaklyHard(m, k) for m, k in weakly_hard)
    return Promise(max_consecutive=max_consecutive, weakly_hard=pairs)


def _breaks(written: Iterable[tuple[float, Outcome, Promise]]) -> list[tuple[_Written, ...]]:
    """The last m + 1 misses of each window that ends with a miss and holds too many; for the first promise broken."""
    recent: list[tuple[int, _Written]] = []
    breaks = []
    for position, (at, outcome, promise) in enumerate(written):
        if not outcome.miss:
            continue
        recent.append((position, (at, outcome)))
        for m, k in promise.constraints:
            if len(recent) > m and position - recent[-m - 1][0] < k:
                breaks.append(tuple(missed for _, missed in recent[-m - 1 :]))
                break
    return breaks


def _spell(misses: tuple[_Written, ...]) -> tuple[float, float]:
    times = [at for at, _ in misses]
    return min(times), max(times)


def _agrees(outcomes: list[Outcome], stream: _Stream, promise: Promise) -> bool:
    """Whether each slice's last tracker is what its outcomes give."""
    for place, state in stream.states.items():
        own = [o for o in outcomes if state.turns == 1 or (o.device, o.slice) == place]
        tracker = _recount(own, promise)
        if state.turns == 1 and len(stream.states) > 1:
            continue  # served by several one after the other: none of them saw all of it
        if (state.mcd, dict(state.worst)) != (tracker.mcd, dict(tracker.worst)) or state.queries != len(own):
            return False
    return True
