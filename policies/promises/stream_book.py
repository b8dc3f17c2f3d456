"""What one slice knows of the streams that were promised something: each one's tracker, and where it comes from.

Rules.
- Queries are numbered per stream as they arrive here, which is the order of their stream; outcomes are counted in that
  order whatever order they come in.
- After a restart the results topic tells what happened before. A stream goes on exactly where the outcomes of all its
  last queries are known, without a gap up to the one that comes first; otherwise its past is unknown, and whoever keeps
  the promise takes it for missed.
- A record that was written twice, for its acknowledgement was lost, is one query: the second is known by its place in
  the stream, as long as it is among the last 16,384 that came.
- Best-effort queries are not in the sequence. At most 16,384 streams are remembered, the least recently begun go first.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sluicegate.domain.events import HostingChanged, StreamResumed
from sluicegate.domain.models.app import NO_PROMISE, Promise, QueryClass
from sluicegate.domain.outcome import Outcome, OutcomeKind, PromiseState
from sluicegate.domain.query import Query, QueryKey
from sluicegate.policies.promises.stream_places import moved
from sluicegate.policies.promises.tracker import StreamState, StreamTracker

_STREAMS = 16_384
_KNOWN = 16_384

Place = tuple[str | None, str | None]
"""Device and slice."""


@dataclass(slots=True)
class _Live:
    tracker: StreamTracker
    next: int = 0

    def spent(self) -> "_Live":
        """Its past is not known from here on."""
        self.tracker.spend(self.next)
        return self


@dataclass(slots=True)
class PastStream:
    """The end of a stream as the results topic tells it: (sequence, in the stream, missed, place, state)."""

    app: str
    stream: str
    ends: deque[tuple[int, bool, bool, Place, PromiseState | None]]


class Recall:
    """A fold over outcomes of apps with a promise: the last of each stream. ``remember``: outcomes kept of each."""

    def __init__(self, remember: int) -> None:
        self._remember = max(1, remember)
        self._streams: OrderedDict[tuple[str, str], PastStream] = OrderedDict()

    @staticmethod
    def of(streams: Iterable[PastStream]) -> "Recall":
        """One that holds these."""
        found = Recall(1)
        found._streams.update(((past.app, past.stream), past) for past in streams)
        return found

    @property
    def streams(self) -> tuple[PastStream, ...]:
        """All of them."""
        return tuple(self._streams.values())

    def add(self, outcome: Outcome) -> None:
        """An outcome, in the order of the topic."""
        if outcome.sequence < 0 or outcome.query_class is not QueryClass.STRICT:
            return
        key = (outcome.app, outcome.stream)
        past = self._streams.get(key)
        if past is None:
            if len(self._streams) >= _STREAMS:
                self._streams.popitem(last=False)
            past = self._streams[key] = PastStream(outcome.app, outcome.stream, deque(maxlen=self._remember))
        counts = outcome.kind is not OutcomeKind.REJECTED
        place = (outcome.device, outcome.slice)
        past.ends.append((outcome.sequence, counts, outcome.miss, place, outcome.promise))

    def before(
        self, query: Query, place: Place, turns: int, look: int
    ) -> tuple[StreamState, PromiseState | None] | None:
        """Outcomes of the stream's last ``look`` turns of ``place`` before ``query``; None where any may be missing."""
        past = self._streams.get((query.app, query.stream))
        if past is None:
            return None
        known = sorted({e[0]: e for e in past.ends if e[0] < query.sequence}.values(), key=lambda e: e[0])
        recent: list[bool] = []
        state: PromiseState | None = None
        expected = query.sequence - 1
        for sequence, counts, missed, at, told in reversed(known):
            if sequence != expected or len(recent) >= look:
                break
            expected -= 1
            if counts and (turns == 1 or at == place):
                recent.append(missed)
                state = state or told
        if expected >= 0 and len(recent) < look:
            return None
        recent.reverse()
        return StreamState(len(recent), tuple(recent)), state


class StreamBook:
    """See the module's rules. ``place``: the device and slice that this is the book of; ``promised``: whether an app
    was promised anything, hosted here or not."""

    def __init__(self, place: Place, promised: Callable[[str], bool] = lambda _app: False) -> None:
        self._place = place
        self._promised = promised
        self._hosted: dict[str, tuple[Promise, int]] = {}
        self._promises: dict[str, Promise] = {}
        self._live: OrderedDict[tuple[str, str], _Live] = OrderedDict()
        self._last: dict[str, HostingChanged] = {}
        self._numbers: dict[Query, tuple[_Live, int]] = {}
        self._known: OrderedDict[tuple[QueryKey, int], None] = OrderedDict()
        self._safe: set[str] = set()
        self._recall: Recall | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing hosted here was promised anything, and no query that was counted is still here."""
        return not self._hosted and not self._numbers

    def hosting(self, change: HostingChanged) -> None:
        """Something else is hosted for an app. Streams that were promised something else are begun anew; of those that
        may have been elsewhere nothing is left, as batching rules take it."""
        app, before = change.app, self._last.pop(change.app, None)
        anew = bool(change.hosted) and self._promises.get(app, change.promise) != change.promise
        if change.hosted:
            self._last[app] = change
            self._promises[app] = change.promise
        for key, live in self._live.items():
            if key[0] == app and anew:
                self._live[key] = _Live(StreamTracker.for_promise(change.promise)).spent()
            elif key[0] == app and (before is None or self._may_have_moved(key[1], before, change)):
                live.spent()
        if change.promise.active and change.hosted:
            self._hosted[app] = (change.promise, change.turns)
        else:
            self._hosted.pop(app, None)

    @staticmethod
    def _may_have_moved(stream: str, before: HostingChanged, after: HostingChanged) -> bool:
        if not after.hosted:
            return True
        if stream in {"", after.app}:
            return (before.own.constraints, before.turns) != (after.own.constraints, after.turns)
        return before.peers != after.peers or moved(stream, before.shares, after.shares)

    def recalled(self, recall: Recall) -> None:
        """What the results topic told at the start."""
        self._recall = recall

    def unheard(self, query: Query) -> bool:
        """Whether a miss of ``query`` counts for a promise, and no policy here would hear of it, nor has any spoken."""
        app = query.app
        if query.query_class is not QueryClass.STRICT or app in self._hosted or app in self._safe:
            return False
        return self._promised(app)

    def announced(self, app: str, state: str) -> None:
        """The policy has spoken of the promise of ``app``."""
        if state == "safe_mode":
            self._safe.add(app)
        elif state == "promise_kept":
            self._safe.discard(app)

    def repeated(self, query: Query) -> bool:
        """Whether ``query`` has come before: what is known by nothing but its id is not."""
        if query.sequence < 0 or query.app not in self._hosted or query.query_class is not QueryClass.STRICT:
            return False
        known = (query.key, query.sequence)
        if known in self._known:
            return True
        if len(self._known) >= _KNOWN:
            self._known.popitem(last=False)
        self._known[known] = None
        return False

    def arrived(self, query: Query) -> StreamResumed | None:
        """Number ``query``. Says how its stream went on so far, where it is new here and its past is known."""
        hosted = self._hosted.get(query.app)
        if hosted is None or query.query_class is not QueryClass.STRICT:
            return None
        key = (query.app, query.stream)
        live = self._live.get(key)
        resumed = None
        if live is None:
            live, resumed = self._begin(query, *hosted)
            if len(self._live) >= _STREAMS:
                self._live.popitem(last=False)
            self._live[key] = live
        self._numbers[query] = live, live.next
        live.next += 1
        return resumed

    def counts(self, query: Query) -> bool:
        """Whether ``query`` has its number here, which waits for its outcome."""
        return query in self._numbers

    def ended(self, query: Query, missed: bool) -> PromiseState | None:
        """Count the outcome of ``query``; how its stream stands now, None for one without a promise."""
        counted = self._numbers.pop(query, None)
        if counted is None or counted[0] is not self._live.get((query.app, query.stream)):
            return None
        live, number = counted
        live.tracker.record(number, missed)
        promise, turns = self._hosted.get(query.app, (NO_PROMISE, 1))
        seen = live.tracker.tracker
        alone = turns == 1 or query.stream not in {"", query.app}
        return PromiseState(
            max_consecutive=promise.max_consecutive,
            weakly_hard=tuple((w.m, w.k) for w in promise.weakly_hard),
            turns=turns if query.stream in {"", query.app} else 1,
            queries=seen.count,
            misses=seen.misses,
            mcd=seen.mcd,
            worst=tuple(seen.worst.items()),
            safe_mode=query.app in self._safe,
            left=seen.left(promise) if alone else (),
        )

    def abandon(self) -> None:
        """All that waits is others' now: their streams are unknown here from now on."""
        self._numbers.clear()
        self._live.clear()
        self._known.clear()
        self._recall = None

    def _begin(self, query: Query, promise: Promise, turns: int) -> tuple[_Live, StreamResumed | None]:
        look = max((k for _, k in promise.constraints), default=0)
        own = query.stream in {"", query.app}
        found = None
        if self._recall is not None and query.sequence >= 0:
            found = self._recall.before(query, self._place, turns if own else 1, look)
        if found is None:
            begun = _Live(StreamTracker.for_promise(promise))
            return begun.spent() if query.sequence >= max(1, turns) else begun, None  # as batching rules take it
        state, told = found
        tracker = StreamTracker.resume(state, (k for _, k in promise.constraints))
        if told is not None:
            tracker.tracker.continues(told.queries, told.misses, told.mcd, dict(told.worst))
        return _Live(tracker, state.next), StreamResumed(query.app, query.stream, state.recent)
