"""Our default: serves ahead of trouble, gives up what is hopeless, waits where a setup saved is worth the wait.

Rules.
1. Wait, while fewer rows than the largest batch are there, only where one more row in the batch saves more than half of
   what the batch takes (``saved = l(1) + l(q) - l(q + 1) > l(q) / 2``: batches cost about the same whatever their
   size) and at the usual rate of arrivals one is expected within ``saved`` seconds (else idling costs more than it
   saves). Never longer than ``patience * saved`` seconds of idleness: who stakes on waiting no more than a separate
   batch would cost never pays more than twice what a clairvoyant would (ski rental). Never past the last moment.
2. A queue that one batch serves in time, no slower than several would, runs at once and whole.
3. Otherwise compare (s, b): give up the first s rows, run the next b. Each is worth b, plus what will be answered in
   time after it (``lookahead``), less a little for every row given up: arrivals to come are a guess, a row that can be
   saved now is none. So small batches rescue heads where that costs nothing behind them, and under overload heads are
   given up as far as efficient batches need it, no further.
4. Accuracy before drops: where the most accurate variant would give rows up and a faster one is hosted beside it, the
   most accurate variant that gives none up runs; where none can, the one whose plan is worth most.
5. Where streams were promised something, batches are chosen as by ``GreedySpread``, which keeps the promise.

The derivation and the measurements are in docs/reference/batching.md.
"""

from collections import deque
from dataclasses import dataclass
from math import exp, inf

from domain.actions import Run, StationAction
from domain.errors import ConfigurationError
from domain.events import Finished, Hosted
from domain.outcome import Reason
from domain.query import Query
from policies.batching.lookahead import Lookahead
from policies.batching.queueing import last_start
from policies.batching.spread import GreedySpread

RATE_WINDOW = 0.5
"""Seconds over which arrivals are counted, as a share of the SLO."""
LONG_WINDOW = 10.0
"""Mean age of the arrivals that make the usual rate, as a multiple of the SLO."""
COMPANY = 1.0
"""Arrivals expected while waiting, at the usual rate, below which waiting is not worth its while."""
BIRD_IN_HAND = 0.04
"""What giving up a row costs beyond the row, in rows answered later."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """Give up ``skip`` rows, run the next ``rows`` on ``hosted``. ``worth``: rows answered in time, now and later."""

    worth: float
    skip: int
    rows: int
    hosted: Hosted


class AdaptiveBatching(GreedySpread):
    """See the module's rules. ``patience``: factor of the time waited for company; 0 never waits.

    ``guard_s``: seconds by which waiting ends before the last moment (live timers go off late).
    The further options are those of ``GreedySpread``, for apps with a promise.
    """

    name = "adaptive"
    __slots__ = ("_free_at", "_looks", "_recent", "_usual", "guard_s", "patience")

    def __init__(
        self,
        *,
        patience: float = 0.5,
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
        self.patience = patience
        self.guard_s = guard_s
        self._looks: list[Lookahead] = []
        self._recent: deque[float] = deque()
        self._free_at = -inf
        self._usual = 0.0

    def hosting_changed(self) -> None:
        """Prepare a lookahead for each variant."""
        super().hosting_changed()
        self._looks = [Lookahead(h.curve.seconds, self.slo) for h in self.hosted]

    def arrived(self, query: Query, now: float, actions: list[StationAction]) -> None:
        """Count the arrival."""
        recent = self._recent
        if recent:
            self._usual = 1.0 + self._usual * exp((recent[-1] - now) / (LONG_WINDOW * self.slo))
        recent.append(now)
        since = now - RATE_WINDOW * self.slo
        while recent[0] < since:
            recent.popleft()

    def finished(self, event: Finished, run: Run, now: float, actions: list[StationAction]) -> None:
        """Idleness begins."""
        super().finished(event, run, now, actions)
        self._free_at = now

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

    def decide(self, now: float, actions: list[StationAction]) -> None:
        """Wait, or run the choice worth most."""
        if self.promise.active:
            super().decide(now, actions)
            return
        rows = self.queue.rows
        head = self.queue.items[0]
        seconds = self.seconds
        if rows < len(seconds):
            saved = seconds[0] + seconds[rows - 1] - seconds[rows]
            if saved > 0.5 * seconds[rows - 1] and saved * self._usual > COMPANY * LONG_WINDOW * self.slo:
                until = last_start(head.deadline, seconds[rows]) - self.guard_s
                until = min(until, max(self._free_at, head.arrival) + self.patience * saved)
                if now < until:
                    self.wake_by(until, actions)
                    return
        if rows <= len(seconds) and self._looks[0].whole[rows] and now + seconds[rows - 1] <= head.deadline:
            self.run(rows, actions)
            return
        self._carry_out(self._choose(now), now, actions)

    def _choose(self, now: float) -> _Choice:
        slacks = self._slacks(now)
        rate = self._rate(now)
        best: _Choice | None = None
        for hosted, look in zip(self.hosted, self._looks, strict=True):
            choice = self._best_of(hosted, look, slacks, rate)
            if choice is None:
                continue
            if choice.skip == 0:
                return choice
            if best is None or choice.worth > best.worth:
                best = choice
        return best or _Choice(0.0, 0, self.queue.items[0].rows, self._able(now))

    @staticmethod
    def _best_of(hosted: Hosted, look: Lookahead, slacks: list[float], rate: float) -> _Choice | None:
        best: tuple[float, float, int, int] | None = None
        for skip, rows in look.candidates(slacks):
            took = look.seconds[rows - 1]
            worth = rows - BIRD_IN_HAND * skip + look.on_time(slacks, rate, took, skip + rows)
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
        if choice.skip:
            self.prune(now, actions)
        if not items:
            return
        hosted = choice.hosted
        if items[0].rows > choice.rows:  # a query of many rows that the choice would have cut
            hosted = self._able(now)
        self.run(max(choice.rows, items[0].rows), actions, hosted)

    def _able(self, now: float) -> Hosted:
        """The most accurate variant that saves the head, which some variant does."""
        head = self.queue.items[0]
        return next(
            h
            for h in self.hosted
            if head.rows <= h.curve.max_batch and now + h.curve.seconds[head.rows - 1] <= head.deadline
        )

    def _slacks(self, now: float) -> list[float]:
        items = self.queue.items
        if self.queue.rows == len(items):
            return [q.deadline - now for q in items]
        return [q.deadline - now for q in items for _ in range(q.rows)]

    def _rate(self, now: float) -> float:
        """Rows per second that arrived lately."""
        recent = self._recent
        since = now - RATE_WINDOW * self.slo
        while recent and recent[0] < since:
            recent.popleft()
        rows_each = self.queue.rows / len(self.queue.items)
        return len(recent) * rows_each / (RATE_WINDOW * self.slo)
