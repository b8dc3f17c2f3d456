"""Our default: serves ahead of trouble, gives up what is hopeless, waits where a setup saved is worth the wait.

Rules.
1. Wait for company where it is worth more than the idleness. Where a batch costs the same whatever its size, an early
   start only keeps out those who come later: wait for a full batch until the last moment, if at the usual rate anybody
   is expected within the time saved. Elsewhere one more query makes each row of the batch cheaper by some time: wait
   as long as the gaps seen lately promise the next arrival within half of that (twice what is paid), and never
   longer than a batch of its own would cost it (ski rental: at most twice what a clairvoyant would pay).
2. A queue that one batch serves in time, within half the SLO, no slower than several would, runs at once and whole.
3. Otherwise compare (s, b): give up the first s rows, run the next b. Each is worth b, plus what will be answered in
   time after it (``lookahead``), less a little for every row given up: arrivals to come are a guess, a row that can be
   saved now is none. It is the less, the more arrive than can be served: most of them are given up then, now or later.
   So small batches rescue heads where that costs nothing behind them, under overload heads are given up as far as
   efficient batches need it, no further, and a burst is served by batches as large as its heads bear, beyond half the
   SLO where that pays.
4. Accuracy before drops: where the most accurate variant would give rows up and a faster one is hosted beside it, the
   most accurate variant that gives none up runs; where none can, the one whose plan is worth most.
5. Executions that overrun their profile are allowed for: deadlines count as earlier by what batches overran lately,
   except for a head that would then be given up. Nothing overran: nothing changes.
6. Where inputs vary in length, what waits is run in two batches where that takes less than one padded to the longest
   of all. What a plan of several batches is worth is reckoned with the longest that could be in the next one.
7. Where streams were promised something, batches are chosen as by ``GreedySpread``, which keeps the promise.

The derivation and the measurements are in docs/reference/batching.md.
"""

from collections import deque
from dataclasses import dataclass
from itertools import accumulate, islice
from math import exp, inf
from sys import maxsize

from typing_extensions import override

from sluicegate.domain.actions import Run, StationAction
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import Finished, Hosted
from sluicegate.domain.outcome import Reason
from sluicegate.domain.query import Query
from sluicegate.policies.batching.arrival_gaps import ArrivalGaps
from sluicegate.policies.batching.base import last_start
from sluicegate.policies.batching.lookahead import LASTING, Lookahead
from sluicegate.policies.batching.spread import GreedySpread
from sluicegate.policies.recent_arrivals import RecentArrivals

RATE_WINDOW = 0.25
"""Seconds over which arrivals are counted, as a share of the SLO."""
LONG_WINDOW = 10.0
"""Mean age of the arrivals that make the usual rate, as a multiple of the SLO."""
FREE = 0.95
"""Share of a batch's time saved by one more query from which on company is as good as free."""
RETURN = 2.0
"""Waiting must bring that many times what it costs."""
RECENT = 32
"""Batches whose overrun is remembered."""
OUTLIERS = 2
"""As many of them, the worst, are not allowed for: with profiles at the 95th percentile as many are to be expected."""
NEGLIGIBLE = 0.01
"""Overrun, as a share of what was expected, that counts as none."""
MOST_MARGIN = 0.25
"""Share of the SLO that the allowance for overruns takes at most."""
LOOKS = 16
"""Lookaheads kept of a variant, by length."""
BIRD_IN_HAND = 0.04
"""What giving up a row costs beyond the row, in rows answered later; under overload, times the share that is served."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """Give up ``skip`` rows, run the next ``rows`` on ``hosted``. ``worth``: rows answered in time, now and later."""

    worth: float
    skip: int
    rows: int
    hosted: Hosted


class AdaptiveBatching(GreedySpread):
    """See the module's rules. ``patience``: factor of the time waited for company; 0 never waits.

    ``guard_s``: seconds by which waiting ends before the last moment (live timers go off late); what saves no more is
    not waited for. The further options are those of ``GreedySpread``, for apps with a promise.
    """

    name = "adaptive"
    counts_length = True
    __slots__ = (
        "_free_at", "_gaps", "_last", "_looks", "_looks_by_length", "_overruns", "_recent", "_scale",
        "_usual", "guard_s", "margin", "patience",
    )  # fmt: skip

    def __init__(
        self,
        *,
        patience: float = 1.0,
        guard_s: float = 0.0,
        batch: int | None = None,
        max_consecutive: int | None = None,
        weakly_hard: tuple[tuple[int, int], ...] = (),
        others_s: float = 0.0,
        calm: int = 200,
    ) -> None:
        super().__init__(
            batch=batch, max_consecutive=max_consecutive, weakly_hard=weakly_hard, others_s=others_s, calm=calm
        )
        if not 0.0 <= patience < inf:
            raise ConfigurationError(f"adaptive: patience is {patience}; give 0 or more")
        if not 0.0 <= guard_s < inf:
            raise ConfigurationError(f"adaptive: guard_s is {guard_s}; give seconds, 0 or more")
        self.patience = patience
        self.guard_s = guard_s
        self.margin = 0.0
        self._looks: list[Lookahead] = []
        self._looks_by_length: dict[tuple[str, int], Lookahead] = {}
        self._recent = RecentArrivals()
        self._overruns: deque[float] = deque(maxlen=RECENT)
        self._gaps = ArrivalGaps(1.0)
        self._scale = 1.0
        self._free_at = self._last = -inf
        self._usual = 0.0

    @override
    def hosting_changed(self) -> None:
        """Prepare a lookahead for each variant."""
        super().hosting_changed()
        if self.hosted and self._scale != self.slo:
            self._scale = self.slo
            self._gaps = ArrivalGaps(self.slo)
        self._looks = [Lookahead(h.curve.seconds, self.slo) for h in self.hosted]
        self._looks_by_length.clear()

    @override
    def curves_changed(self) -> None:
        """Look ahead with what the longest of this queue takes, or a little more: one lookahead serves many lengths."""
        super().curves_changed()
        longest = max([q.length or maxsize for q in islice(self.queue.items, len(self.seconds))])
        self._looks = [self._look(h, longest) for h in self.hosted]

    def _look(self, hosted: Hosted, longest: int) -> Lookahead:
        lengths = hosted.curve.lengths
        key = (hosted.variant, lengths.step(longest, LOOKS) if lengths is not None else 0)
        found = self._looks_by_length.get(key)
        if found is None:
            seconds = hosted.curve.seconds if lengths is None else lengths.at(key[1])
            found = self._looks_by_length[key] = Lookahead(seconds, self.slo)
        return found

    @override
    def arrived(self, query: Query, now: float, actions: list[StationAction]) -> None:
        """Count the arrival."""
        gap = max(0.0, now - self._last)  # a clock may be set back
        if gap < inf:
            self._usual = 1.0 + self._usual * exp(-gap / (LONG_WINDOW * self.slo))
            self._gaps.add(gap)
        self._last = now
        self._recent.add(now, now - RATE_WINDOW * self.slo)

    @override
    def finished(self, event: Finished, run: Run, now: float, actions: list[StationAction]) -> None:
        """Idleness begins; by how much did the batch overrun?"""
        super().finished(event, run, now, actions)
        self._free_at = now
        curve = next((h.curve for h in self.hosted if h.variant == run.variant), None)
        if curve is not None and not event.failed:
            expected = curve.at(min(event.rows, curve.max_batch), run.length if self.by_length else 0)
            overrun = now - self.began - expected
            self._overruns.append(overrun if overrun > NEGLIGIBLE * expected else 0.0)
            if len(self._overruns) > OUTLIERS:
                self.margin = min(sorted(self._overruns)[-1 - OUTLIERS], MOST_MARGIN * self.slo)

    @override
    def prune(self, now: float, actions: list[StationAction]) -> None:
        """Give up heads that no variant can save."""
        if self.promise.active:
            super().prune(now, actions)
            return
        items = self.queue.items
        while items:
            rows, left = items[0].rows, items[0].deadline
            able = [h for h in self.hosted if rows <= h.curve.max_batch]
            if not able:
                self.drop_head(Reason.TOO_LARGE, actions)
            elif all(now + h.curve.seconds[rows - 1] > left for h in able):
                self.drop_head(Reason.HOPELESS, actions)
            else:
                return
            if self.by_length and items:
                self.look_at_lengths()

    @override
    def decide(self, now: float, actions: list[StationAction]) -> None:
        """Wait, or run the choice worth most."""
        if self.promise.active:
            super().decide(now, actions)
            return
        rows = self.queue.rows
        head = self.queue.items[0]
        seconds = self.seconds
        if rows < len(seconds) and self.patience:
            until = self._company_until(now, rows, head)
            if now < until:
                self.wake_by(until, actions)
                return
        if rows <= len(seconds):
            took = seconds[rows - 1]
            whole = took <= LASTING * self.slo and self._looks[0].whole[rows]
            if whole and now + took <= head.deadline - self.margin:
                self.run(self._in_one(rows) if self.by_length else rows, actions)
                return
        self._carry_out(self._choose(now), now, actions)

    def _in_one(self, rows: int) -> int:
        """Rows to run at once of ``rows``, all that wait: fewer where two batches, padded less, take less than one."""
        lengths = self.hosted[0].curve.lengths
        items = self.queue.items
        if lengths is None or len({q.length for q in items}) == 1:
            return rows
        best, least = rows, self.seconds[rows - 1]
        behind = longest = 0
        for query in reversed(items):
            behind += query.rows
            longest = max(longest, query.length or maxsize)
            if behind < rows:
                took = self.seconds[rows - behind - 1] + lengths.at(longest)[behind - 1]
                if took < least:
                    best, least = rows - behind, took
        return best

    def _company_until(self, now: float, rows: int, head: Query) -> float:
        """Until when the executor had better stay idle; a time past for not at all."""
        seconds = self.seconds
        each = rows // len(self.queue.items)
        together = rows + each
        if together > len(seconds):
            return -inf
        alone, here, joined = seconds[each - 1], seconds[rows - 1], seconds[together - 1]
        saved = alone + here - joined
        slowest = max(seconds[:together])  # a smaller batch may take longer: the head must still fit whichever runs
        latest = last_start(head.deadline - self.margin, slowest) - self.guard_s
        if saved <= self.guard_s or latest <= now:
            return -inf
        latest = min(latest, max(self._free_at, head.arrival) + self.patience * saved)
        if saved >= FREE * here:
            return latest if saved * self._usual >= LONG_WINDOW * self.slo else -inf
        cheaper = here * together / rows - joined
        if cheaper <= 0.0:
            return -inf
        since = now - self._last
        return min(latest, self._last + self._gaps.wait_until(since, RETURN / cheaper))

    def _choose(self, now: float) -> _Choice:
        slacks = self._slacks(now)
        cuts = self._cuts()
        rate = self._rate(now)
        best: _Choice | None = None
        for hosted, look in zip(self.hosted, self._looks, strict=True):
            choice = self._best_of(hosted, look, slacks, cuts, rate)
            if choice is None:
                continue
            if choice.skip == 0:
                return choice
            if best is None or choice.worth > best.worth:
                best = choice
        return best or _Choice(0.0, 0, self.queue.items[0].rows, self._able(now))

    @staticmethod
    def _best_of(hosted: Hosted, look: Lookahead, slacks: list[float], cuts: list[int], rate: float) -> _Choice | None:
        best: tuple[float, float, int, int] | None = None
        lost = BIRD_IN_HAND * min(1.0, look.throughput / rate) if rate > 0.0 else BIRD_IN_HAND
        choices = look.candidates(slacks)
        for skip, rows in look.between_queries(choices, slacks, cuts) if cuts else choices:
            took = look.seconds[rows - 1]
            worth = rows - lost * skip
            if best is not None and worth + look.at_most(took) < best[0] - 1e-6:
                continue
            worth += look.on_time(slacks, rate, took, skip + rows)
            found = (
                round(worth, 6),
                round(rows / took, 6),
                rows,
                skip,
            )  # of equals the most efficient, then the largest
            if best is None or found > best:
                best = found
        return _Choice(best[0], best[3], best[2], hosted) if best else None

    def _carry_out(self, choice: _Choice, now: float, actions: list[StationAction]) -> None:
        items = self.queue.items
        goal = self.queue.rows - choice.skip
        while self.queue.rows > goal:
            self.drop_head(Reason.SHED, actions)
        hosted, rows = choice.hosted, choice.rows
        if choice.skip and self.by_length:  # elsewhere the batch chosen saves all that it holds, its head too
            self.look_at_lengths()
            self.prune(now, actions)
        if not items:
            return
        if items[0].rows > rows:  # nothing fits better than one large query by itself
            hosted, rows = self._able(now), items[0].rows
        elif self.by_length:
            hosted, rows = self._as_seen(hosted, rows, now)
        self.run(rows, actions, hosted)

    def _as_seen(self, chosen: Hosted, rows: int, now: float) -> tuple[Hosted, int]:
        """The variant chosen and the rows that save the head: behind those skipped may be longer ones than reckoned."""
        head = self.queue.items[0]
        hosted = next(h for h in self.hosted if h.variant == chosen.variant)
        if now + hosted.curve.seconds[head.rows - 1] > head.deadline:
            return self._able(now), head.rows
        rows = self.queue.fit(rows)
        while rows > head.rows and now + hosted.curve.seconds[rows - 1] > head.deadline:
            rows = self.queue.fit(rows - 1)
        return hosted, max(rows, head.rows)

    def _able(self, now: float) -> Hosted:
        """The most accurate variant that saves the head, which some variant does."""
        head = self.queue.items[0]
        return next(
            h
            for h in self.hosted
            if head.rows <= h.curve.max_batch and now + h.curve.seconds[head.rows - 1] <= head.deadline
        )

    def _slacks(self, now: float) -> list[float]:
        """Seconds to the deadline of each row queued, less the margin where that gives none up."""
        items = self.queue.items
        margin, seconds = self.margin, self.seconds
        if not margin:
            slacks = [q.deadline - now for q in items]
        else:
            alone = [seconds[min(q.rows, len(seconds)) - 1] for q in items]
            left = [q.deadline - now for q in items]
            slacks = [max(slack - margin, min(slack, least)) for slack, least in zip(left, alone, strict=True)]
            slacks = list(accumulate(slacks, max))  # ascending, whatever their rows
        if self.queue.rows == len(items):
            return slacks
        return [slack for slack, q in zip(slacks, items, strict=True) for _ in range(q.rows)]

    def _cuts(self) -> list[int]:
        """Rows before each query queued, and in all; empty where every query is one row."""
        items = self.queue.items
        if self.queue.rows == len(items):
            return []
        return [0, *accumulate(q.rows for q in items)]

    def _rate(self, now: float) -> float:
        """Rows per second that arrived lately."""
        self._recent.forget(now - RATE_WINDOW * self.slo)
        rows_each = self.queue.rows / len(self.queue.items)
        return len(self._recent) * rows_each / (RATE_WINDOW * self.slo)
