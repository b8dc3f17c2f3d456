"""Spread-drop: when more queries are about to expire than a batch holds, choose which of them are missed.

Rules (spread-drop paper, section 4, with its errors mended; all inequalities exact).
- Batches hold at most B rows and take at most P seconds; starts are S seconds apart (S = P, or the duty cycle where
  several variants take turns). S + P <= SLO is required for the guarantee; B is that of the highest sustainable rate.
- A batch may start at any time from the head's arrival until P before its deadline. ``lateness`` 0 starts as soon as
  the executor is free, 1 at the last moment; both keep the guarantee.
- At a start t, what ends before t + P is missed; the candidates are the queries that end before t + S + P (strictly).
  At most B candidates: the first B of the queue run. More: a selection rule keeps B of them, the others are dropped.
- Where a faster variant is hosted beside the most accurate one and nobody need be dropped on it, it runs instead.
- Hence decided queries are always a prefix of the arrivals, start times, sizes and miss counts do not depend on the
  selection rule, and no query that is kept misses.
- Before a query is missed against the promise of its stream, safe mode is announced.
- The app's own stream (queries without a key) may be spread over several slices in strict turns: this slice keeps its
  part of the promise. Other streams are served by one slice at a time.
- A past that is not known counts as missed, as far back as the promise looks: that of a stream first seen in its
  middle, of one that may have been elsewhere meanwhile (the set of peers changed), and of the own stream where the
  number of turns changed. This is sound, since the next miss then waits until K - m queries have been served.
- A miss of a query that is older than one already decided (it was served elsewhere before) cannot be placed in the
  history: safe mode is announced.

A query of several rows takes several places; with mixed sizes B is divided by the largest among the candidates, which
is safe. Streams are judged in the order of deadlines, which is that of arrivals where all queries have one SLO.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter

from typing_extensions import override

from sluicegate.domain.actions import Announce, Drop, Run, StationAction
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import Finished, Hosted, StreamResumed
from sluicegate.domain.models.app import Promise, WeaklyHard
from sluicegate.domain.outcome import Reason
from sluicegate.domain.query import Query
from sluicegate.policies.batching.base import QueueingPolicy
from sluicegate.policies.promises.drop_choice import balanced, blockwise, greedy, grouped
from sluicegate.policies.promises.history import MissHistory, constraints_of
from sluicegate.policies.promises.safe_mode import SafeModeSwitch
from sluicegate.policies.promises.sustainable_rate import max_rate, processing_bound, window_bound

_by_deadline = attrgetter("deadline")
_STREAMS = 16_384
"""Streams remembered: beyond it the one that was seen first is forgotten, so that keys from outside cost no memory."""


@dataclass(frozen=True, slots=True)
class _Places:
    """A variant and the B and P of its batches."""

    hosted: Hosted
    batch: int
    processing_s: float

    def rate(self) -> float:
        """Rows per second."""
        return self.batch / self.processing_s


class SpreadBatching(QueueingPolicy):
    """The scheduler; a subclass selects. ``max_consecutive`` and ``weakly_hard`` override what the app was promised.

    ``batch``: B (None: the one with the highest sustainable rate). ``others_s``: seconds of the duty cycle that go to
    other variants. ``calm``: queries within the promise after which safe mode ends.
    """

    __slots__ = (
        "_constraints", "_kept", "_own", "_places", "_shared", "_streams", "_with",
        "fixed_batch", "lateness", "others_s", "safety",
    )  # fmt: skip

    def __init__(
        self,
        *,
        batch: int | None = None,
        max_consecutive: int | None = None,
        weakly_hard: Iterable[Sequence[int]] = (),
        lateness: float = 0.0,
        others_s: float = 0.0,
        calm: int = 200,
    ) -> None:
        super().__init__()
        pairs = tuple(WeaklyHard(m, k) for m, k in weakly_hard)
        self._own = Promise(max_consecutive=max_consecutive, weakly_hard=pairs)
        window_bound(1, self._own)
        if not 0.0 <= lateness <= 1.0 or (batch is not None and batch < 1) or others_s < 0.0 or calm < 1:
            raise ConfigurationError(
                f"{self.name}: batch {batch}, lateness {lateness}, others_s {others_s}, calm {calm}: "
                "give batch >= 1, 0 <= lateness <= 1, others_s >= 0, calm >= 1"
            )
        self.fixed_batch = batch
        self.lateness = lateness
        self.others_s = others_s
        self.safety = SafeModeSwitch(calm)
        self._places: tuple[_Places, ...] = ()
        self._constraints: tuple[tuple[int, int], ...] = ()
        self._shared: tuple[tuple[int, int], ...] = ()
        self._with: tuple[tuple[str, str], ...] = ()
        self._streams: dict[str, MissHistory] = {}
        self._kept: list[tuple[MissHistory, int]] = []

    def select(self, candidates: Sequence[Query], places: int) -> list[bool]:
        """Keep ``places`` of ``candidates``, which are more."""
        raise NotImplementedError

    def history(self, query: Query) -> MissHistory:
        """The history of the stream of ``query``."""
        history = self._streams.get(query.stream)
        if history is None:
            history = self._begin(query.stream)
            if query.sequence >= max(1, len(self.peers)):
                history.spend()
        return history

    def _is_own(self, stream: str) -> bool:
        return not stream or stream == self.app

    def _begin(self, stream: str) -> MissHistory:
        if len(self._streams) >= _STREAMS:
            del self._streams[next(iter(self._streams))]
        history = MissHistory(self._shared if self._is_own(stream) else self._constraints)
        self._streams[stream] = history
        return history

    @override
    def resumed(self, event: StreamResumed) -> None:
        """Go on with a stream whose last outcomes are known."""
        if self.promise.active:
            history = self._begin(event.stream)
            for missed in event.recent:
                history.record(missed)

    @override
    def hosting_changed(self) -> None:
        """Choose B. Histories stay, so that promises hold across plans, or are spent where they may be out of date."""
        if self._own.active:
            self.promise = self._own
        shared = self.promise.over(len(self.peers))
        self._places = tuple(self._places_on(h, shared) for h in self.hosted)
        if not self.hosted:
            self._streams.clear()
        constraints, turns = constraints_of(self.promise), len(self._with)
        changed = constraints != self._constraints
        moved = self.peers != self._with
        self._constraints, self._shared, self._with = constraints, constraints_of(shared), self.peers
        for stream in tuple(self._streams):
            if changed or (turns != len(self.peers) if self._is_own(stream) else moved):
                self._begin(stream).spend()

    def in_cycle(self, batch: int, others_s: float) -> None:
        """Take turns with others: batches of ``batch``, ``others_s`` seconds of each cycle for them."""
        self.fixed_batch = batch
        self.others_s = others_s
        self.hosting_changed()

    def _places_on(self, hosted: Hosted, promise: Promise) -> "_Places":
        curve = hosted.curve
        if self.fixed_batch is not None:
            batch = min(self.fixed_batch, curve.max_batch)
        else:
            best = max_rate(curve, self.slo, promise, others_s=self.others_s)
            batch = best.batch if best else 1
        return _Places(hosted, batch, processing_bound(curve, batch))

    @override
    def prune(self, now: float, actions: list[StationAction]) -> None:
        """Give up what ends before a batch of B would."""
        self._give_up(now, max(p.batch for p in self._places), min(p.processing_s for p in self._places), actions)

    def _give_up(self, now: float, largest: int, processing_s: float, actions: list[StationAction]) -> None:
        items = self.queue.items
        while items:
            if items[0].rows > largest:
                self.drop_head(Reason.TOO_LARGE, actions)
            elif now + processing_s > items[0].deadline:
                self.drop_head(Reason.HOPELESS, actions)
            else:
                return

    @override
    def decide(self, now: float, actions: list[StationAction]) -> None:
        """Wait for the start, then run the head of the queue or a selection of the candidates."""
        items = self.queue.items
        if self.lateness and self._may_wait(items[0], now, actions):
            return
        places = self._undropping(now)
        if places is None:
            places = max(self._places, key=_Places.rate)
            self._give_up(now, places.batch, places.processing_s, actions)
            if not items:
                return
        count, rows = self._rows_due(places, now)
        if rows <= places.batch:
            kept = self.queue.take(places.batch)
            self._note(kept, kept, actions)
        else:
            due = [items[i] for i in range(count)]
            self.queue.take(rows)
            kept = self._keep([q for q in due if q.rows <= places.batch], places.batch)
            self._note(due, kept, actions)
        self.run_batch(kept, sum(q.rows for q in kept), actions, places.hosted)

    def _undropping(self, now: float) -> "_Places | None":
        """The most accurate variant on which nobody need be dropped."""
        head = self.queue.items[0]
        for places in self._places:
            if head.rows > places.batch or now + places.processing_s > head.deadline:
                continue
            if self._rows_due(places, now)[1] <= places.batch:
                return places
        return None

    def _may_wait(self, head: Query, now: float, actions: list[StationAction]) -> bool:
        processing_s = self._places[0].processing_s
        start = head.arrival + self.lateness * (head.deadline - processing_s - head.arrival)
        if now >= start or now + processing_s >= head.deadline:
            return False
        self.wake_by(start, actions)
        return True

    def _rows_due(self, places: "_Places", now: float) -> tuple[int, int]:
        """Candidates and their rows: those that the batch after this one, on the first variant, could not save."""
        items = self.queue.items
        following = now + (places.processing_s + self.others_s) + self._places[0].processing_s
        count = bisect_left(items, following, key=_by_deadline)
        return count, count if self.queue.rows == len(items) else sum(items[i].rows for i in range(count))

    def _keep(self, candidates: Sequence[Query], batch: int) -> tuple[Query, ...]:
        places = batch // max(q.rows for q in candidates)
        if len(candidates) <= places:
            return tuple(candidates)
        return tuple(compress(candidates, self.select(candidates, places)))

    @override
    def missed(self, query: Query, actions: list[StationAction]) -> None:
        """Count a miss that was not chosen."""
        if self.promise.active:
            history = self.history(query)
            if not history.may_miss() or history.is_past(query.sequence):
                self._announce_trouble(actions)
            history.record(True)

    @override
    def finished(self, event: Finished, run: Run, now: float, actions: list[StationAction]) -> None:
        """Queries that were kept and are missed after all (a model that raised, a batch that overran) count."""
        for query, (history, position) in zip(run.queries, self._kept, strict=False):
            if (event.failed or now > query.deadline) and not history.revise(position):
                self._announce_trouble(actions)
        self._kept = []

    def _note(self, decided: Sequence[Query], kept: Sequence[Query], actions: list[StationAction]) -> None:
        """Record what was decided and drop what is not kept; a broken promise is announced first."""
        keep = {id(q) for q in kept}
        gone: list[StationAction] = [Drop(q, Reason.SPREAD) for q in decided if id(q) not in keep]
        self._kept = []
        if self.promise.active:
            if not self._recorded(decided, keep):
                self._announce_trouble(actions)
            elif self.safety.calm_for(len(decided)):
                actions.append(Announce(f"app:{self.app}", "promise_kept", "misses are within the promise again"))
        actions += gone

    def _recorded(self, decided: Sequence[Query], keep: set[int]) -> bool:
        holds = True
        for query in decided:
            history = self.history(query)
            kept = id(query) in keep
            if kept:
                self._kept.append((history, history.position))
                history.is_past(query.sequence)
            elif not history.may_miss() or history.is_past(query.sequence):
                holds = False
            history.record(not kept)
        return holds

    def _announce_trouble(self, actions: list[StationAction]) -> None:
        if self.safety.trouble():
            detail = "more queries must be missed than were promised: the load is above the sustainable rate"
            actions.append(Announce(f"app:{self.app}", "safe_mode", detail))


class GroupedSpread(SpreadBatching):
    """Algorithm 3: the shortest runs of drops a single batch allows. Promises a longest run, not (m, K)."""

    name = "spread-drop"
    __slots__ = ()

    @override
    def select(self, candidates: Sequence[Query], places: int) -> list[bool]:
        """Groups of drops that end with a keep."""
        return grouped(len(candidates), places)


class WeaklyHardSpread(SpreadBatching):
    """Algorithm 4 for the first (m, K) promised; balanced where it is out of its range or nothing was promised."""

    name = "weakly-hard"
    __slots__ = ()

    @override
    def select(self, candidates: Sequence[Query], places: int) -> list[bool]:
        """Blocks of m drops and K - m keeps."""
        n = len(candidates)
        for pair in self.promise.weakly_hard[:1]:
            keep = blockwise(n, places, pair.m, pair.k)
            if keep is not None:
                return keep
        return balanced(n, places)


class BalancedSpread(SpreadBatching):
    """Keeps at even distances: meets any promise whose window bound the arrivals keep."""

    name = "balanced"
    __slots__ = ()

    @override
    def select(self, candidates: Sequence[Query], places: int) -> list[bool]:
        """Even distances."""
        return balanced(len(candidates), places)


class GreedySpread(SpreadBatching):
    """Drops as soon as every promise of the stream allows it: optimal. Balanced where even that is not enough."""

    name = "greedy"
    __slots__ = ()

    @override
    def select(self, candidates: Sequence[Query], places: int) -> list[bool]:
        """As early as allowed."""
        keep = self._greedy(candidates, places)
        return balanced(len(candidates), places) if keep is None else keep

    def _greedy(self, candidates: Sequence[Query], places: int) -> list[bool] | None:
        first = self.history(candidates[0])
        if all(q.stream == candidates[0].stream for q in candidates):
            return greedy(len(candidates), places, first)
        owed = len(candidates) - places
        trials: dict[str, MissHistory] = {}
        keep = []
        for query in candidates:
            trial = trials.get(query.stream) or trials.setdefault(query.stream, self.history(query).fork())
            drop = owed > 0 and trial.may_miss()
            trial.record(drop)
            owed -= drop
            keep.append(not drop)
        return None if owed else keep
