"""Spread-drop: when more queries are about to expire than a batch holds, choose which of them are missed.

Rules (spread-drop paper, section 4, with its errors mended; all inequalities exact).
- Batches hold at most B rows and take at most P seconds; starts are S seconds apart (S = P, or the duty cycle where
  several apps take turns). S + P <= SLO is required for the guarantee; B and P are those of the slice's ``Share``
  (``sluicegate.policies.promises.keeper``), or where there is none, those of the highest sustainable rate.
- A batch may start at any time from the head's arrival until P before its deadline. ``lateness`` 0 starts as soon as
  the executor is free, 1 at the last moment; both keep the guarantee.
- At a start t the candidates are the queries that end before t + S + P (strictly), S being that of the batch which
  would run. At most B rows of candidates: the first B rows of the queue run. More: a selection rule keeps what fits.
- Where a faster variant is hosted beside the most accurate one and nobody need be dropped on it, it runs instead.
- Hence decided queries are always a prefix of the arrivals, start times, sizes and miss counts do not depend on the
  selection rule where each query is one row, and no query that is kept misses.
- Heads that a batch of B would make late (the executor was held up for longer than was reckoned with) are saved by a
  smaller batch where that costs nobody behind them, or where the promise does not bear their loss.
- What would have to be missed against a promise waits for the next batch where that saves it if batches take no longer
  than usual: one that overran let more queries come than a batch's candidates.
- Before a query is missed against the promise of its stream, safe mode is announced.
- The app's own stream (queries without a key) may be spread over several slices in strict turns: this slice keeps its
  part of the promise. Other streams are served by one slice at a time.
- A past that is not known counts as missed, as far back as the promise looks: that of a stream first seen in its
  middle, of one that may have been elsewhere meanwhile (the set of peers changed), and of the own stream where the
  number of turns changed. This is sound, since the next miss then waits until K - m queries have been served. Of the
  own stream the part of before is kept beside the new one for as many queries as it looks back: those that wait, or
  are on their way, were sent here by the turns of before.
- A miss of a query that is older than one already decided (it was served elsewhere before) cannot be placed in the
  history: safe mode is announced.

A query of r rows takes r places. Streams are judged in the order of deadlines, which is that of arrivals where all
queries have one SLO.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import compress
from math import inf
from operator import attrgetter

from typing_extensions import override

from sluicegate.domain.actions import Announce, Drop, Run, StationAction
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import Finished, Hosted, StreamResumed
from sluicegate.domain.models.app import Promise, WeaklyHard
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.models.sustainable_rate import max_rate, window_bound
from sluicegate.domain.outcome import Reason
from sluicegate.domain.query import Query
from sluicegate.policies.batching.base import QueueingPolicy
from sluicegate.policies.promises.batch_places import Places, places_of, shared_places, surely_fit
from sluicegate.policies.promises.drop_choice import balanced, blockwise, borne, greedy, greedy_rows, grouped
from sluicegate.policies.promises.history import MissHistory
from sluicegate.policies.promises.keeper import Share
from sluicegate.policies.promises.safe_mode import SafeModeSwitch
from sluicegate.policies.promises.stream_places import Shares, moved

_by_deadline = attrgetter("deadline")
_STREAMS = 16_384
"""Streams remembered: beyond it the one that was seen first is forgotten, so that keys from outside cost no memory."""


class SpreadBatching(QueueingPolicy):
    """The scheduler; a subclass selects. ``max_consecutive`` and ``weakly_hard`` override what the app was promised.

    ``batch``: B (None: the one with the highest sustainable rate). ``others_s``: seconds of the duty cycle that go to
    other variants. ``calm``: queries within the promise after which safe mode ends.
    """

    __slots__ = (
        "_by", "_constraints", "_fastest", "_kept", "_places", "_share", "_shared", "_streams", "_with",
        "fixed_batch", "lateness", "others_s", "own", "safety",
    )  # fmt: skip

    def __init__(
        self,
        *,
        batch: int | None = None,
        max_consecutive: int | None = None,
        weakly_hard: Sequence[Sequence[int]] = (),
        lateness: float = 0.0,
        others_s: float = 0.0,
        calm: int = 200,
    ) -> None:
        super().__init__()
        pairs = tuple(WeaklyHard(m, k) for m, k in weakly_hard)
        self.own = Promise(max_consecutive=max_consecutive, weakly_hard=pairs)
        window_bound(1, self.own)
        if not 0.0 <= lateness <= 1.0 or (batch is not None and batch < 1) or not 0.0 <= others_s < inf or calm < 1:
            raise ConfigurationError(
                f"{self.name}: batch {batch}, lateness {lateness}, others_s {others_s}, calm {calm}: "
                "give batch >= 1, 0 <= lateness <= 1, others_s >= 0, calm >= 1"
            )
        self.fixed_batch = batch
        self.lateness = lateness
        self.others_s = others_s
        self._share: Share | None = None
        self.safety = SafeModeSwitch(calm)
        self._places: tuple[Places, ...] = ()
        self._fastest: Places | None = None
        self._constraints: tuple[tuple[int, int], ...] = ()
        self._shared: tuple[tuple[int, int], ...] = ()
        self._with: tuple[tuple[str, str], ...] = ()
        self._by: Shares = ()
        self._streams: dict[str, MissHistory] = {}
        self._kept: list[tuple[MissHistory, int]] = []

    def select(self, candidates: Sequence[Query], places: int) -> list[bool]:
        """Keep ``places`` of ``candidates``, which are more."""
        raise NotImplementedError

    def keep_rows(self, candidates: Sequence[Query], rows: int) -> tuple[list[bool], bool]:
        """Keep as many of ``candidates``, which have more rows, as fit into ``rows`` whichever they are; whether it
        is known that the promise bears it."""
        return self.select(candidates, surely_fit(candidates, rows)), False

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
        if self.own.active:
            self.promise = self.own
            self.part = self.own.over(len(self.peers))
        self._place()
        if not self.hosted:
            self._streams.clear()
        constraints, shared = self.promise.constraints, self.part.constraints
        changed = constraints != self._constraints
        others, by = self.peers != self._with, self._by
        dealt = shared != self._shared or len(self.peers) != len(self._with)
        self._constraints, self._shared, self._with, self._by = constraints, shared, self.peers, self.shares
        for stream, history in tuple(self._streams.items()):
            own = self._is_own(stream)
            if own and dealt and not changed:
                self._streams[stream] = history.succeeded(shared)
            elif changed or (not own and (others or moved(stream, by, self.shares))):
                self._begin(stream).spend()

    def allot(self, share: Share | None) -> None:
        """Keep to this part of the slice from the next HostingChanged on; None: it is this app's alone."""
        self._share = share

    def _place(self) -> None:
        """Choose the batches."""
        share = self._share
        if share is not None and self.fixed_batch is None:
            self.others_s = share.others_s
            self._places = shared_places(self.hosted, share)
        else:
            self._places = tuple([places_of(h, self._batch_on(h)) for h in self.hosted])
        holding = [p for p in self._places if p.batch >= self._places[0].batch]  # or bursts would not fit
        self._fastest = max(holding, key=attrgetter("rate"), default=None)

    def _batch_on(self, hosted: Hosted) -> int:
        if self.fixed_batch is not None:
            return self.fixed_batch
        best = max_rate(LatencyCurve(hosted.longest), self.slo, self.part, others_s=self.others_s)
        return best.batch if best else 1

    @override
    def prune(self, now: float, actions: list[StationAction]) -> None:
        """Give up what no batch can save."""
        items = self.queue.items
        while items:
            head = items[0]
            fitting = [p.upto[head.rows - 1] for p in self._places if head.rows <= p.batch]
            if not fitting:
                self.drop_head(Reason.TOO_LARGE, actions)
            elif now + min(fitting) > head.deadline:
                self.drop_head(Reason.HOPELESS, actions)
            else:
                return

    @override
    def decide(self, now: float, actions: list[StationAction]) -> None:
        """Wait for the start, then run the head of the queue or a selection of the candidates."""
        items = self.queue.items
        if self.lateness and self._may_wait(items[0], now, actions):
            return
        for places in self._places:
            if rows := places.in_time(items[0], now):
                _, due = self._rows_due(places, rows, now)
                if due <= rows:
                    kept = self.queue.take(rows)
                    self._note(kept, kept, actions)
                    self.run_batch(kept, sum([q.rows for q in kept]), actions, places.hosted)
                    return
        assert self._fastest is not None  # something is hosted, or nothing is decided
        self._run_selection(self._fastest, now, actions)

    def _run_selection(self, places: Places, now: float, actions: list[StationAction]) -> None:
        """Somebody must be missed."""
        queue = self.queue
        items = queue.items
        rows = places.batch
        late = bisect_left(items, now + places.processing_s, key=_by_deadline)
        if late:
            saved = places.in_time(items[0], now)
            if saved and not self._bears([items[i] for i in range(late)]):
                rows = saved
            else:
                while items and now + places.processing_s > items[0].deadline:
                    self.drop_head(Reason.HOPELESS, actions)
                if not items:
                    return
        count, due_rows = self._rows_due(places, rows, now)
        if due_rows <= rows:
            due = kept = queue.take(rows)
        else:
            due = tuple([items[i] for i in range(count)])
            kept = able = tuple([q for q in due if q.rows <= rows])
            if sum([q.rows for q in able]) > rows:
                keep, is_borne = self.keep_rows(able, rows)
                kept = tuple(compress(able, keep))
                if not is_borne and (first := self._first_borne(due, places, rows, now)) is not None:
                    due, kept = due[: len(first)], tuple(compress(due, first))
            queue.take(sum([q.rows for q in due]))
        self._note(due, kept, actions)
        if kept:
            self.run_batch(kept, sum([q.rows for q in kept]), actions, places.hosted)
        elif items:  # nobody of them fitted: it is the turn of those behind, or of a variant that takes more rows
            self.prune(now, actions)
            if due and items:
                self.decide(now, actions)
            elif items:
                self._run_selection(next(p for p in self._places if p.in_time(items[0], now)), now, actions)

    def _first_borne(self, due: Sequence[Query], places: Places, rows: int, now: float) -> list[bool] | None:
        """Which of the first of ``due`` to keep, where missing so many of all of them breaks the promise and the rest
        can wait: the next batch saves them if this one and itself take no longer than usual."""
        if not self.promise.active or max([q.rows for q in due]) > rows:
            return None
        assert self._fastest is not None  # something is hosted, or nothing is decided
        following = now + places.usual_s(rows) + self.others_s + self._fastest.usual_s(self._fastest.batch)
        if due[-1].deadline < following:
            return None
        first = borne(due, rows, self.history)
        if not first:
            return None
        return first if due[len(first)].deadline >= following else None

    def _bears(self, queries: Sequence[Query]) -> bool:
        """Whether all of ``queries`` may be missed."""
        trials: dict[str, MissHistory] = {}
        for query in queries:
            trial = trials.get(query.stream) or trials.setdefault(query.stream, self.history(query).fork())
            if not trial.may_miss():
                return False
            trial.record(True)
        return True

    def _may_wait(self, head: Query, now: float, actions: list[StationAction]) -> bool:
        processing_s = self._places[0].processing_s
        start = head.arrival + self.lateness * (head.deadline - processing_s - head.arrival)
        if now >= start or now + processing_s >= head.deadline:
            return False
        self.wake_by(start, actions)
        return True

    def _rows_due(self, places: Places, limit: int, now: float) -> tuple[int, int]:
        """Candidates and their rows: those that the batch after one of ``limit`` rows could not save, on the variant
        that serves most, which runs where the others would have to drop."""
        queue = self.queue
        items = queue.items
        assert self._fastest is not None  # something is hosted, or nothing is decided
        following = now + (places.upto[limit - 1] + self.others_s) + self._fastest.processing_s
        count = bisect_left(items, following, key=_by_deadline)
        return count, count if queue.rows == len(items) else sum([items[i].rows for i in range(count)])

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
            detail = (
                "more queries must be missed than were promised: the load is above the sustainable rate, or batches or "
                "ways here take longer than it allows for"
            )
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
        """Even distances: where greed is not enough."""
        return balanced(len(candidates), max(1, places))

    @override
    def keep_rows(self, candidates: Sequence[Query], rows: int) -> tuple[list[bool], bool]:
        """As early as allowed, until the others fit; what was dropped in vain is kept after all."""
        one_by_one = len(candidates) == sum([q.rows for q in candidates])
        if one_by_one and all(q.stream == candidates[0].stream for q in candidates):
            keep = greedy(len(candidates), rows, self.history(candidates[0]))
        else:
            keep = greedy_rows(candidates, rows, self.history)
        return super().keep_rows(candidates, rows) if keep is None else (keep, True)
