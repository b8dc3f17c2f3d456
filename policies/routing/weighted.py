"""Spreads an app's queries over its placements in proportion to their shares, smoothly and deterministically.

Placement i with share w_i is to get its k-th query (k = 0, 1, ...) while ``k <= w_i n < k + 1``, n queries having been
routed in all. Slot n goes, among the placements whose turn has begun (``k_i / w_i < n + 1``), to the one whose turn
ends first (``(k_i + 1) / w_i``): earliest deadline first, which is optimal on one resource, hence
``|count_i - w_i n| < 1`` at every n for any shares (Tijdeman's chairman assignment; Baruah's proportionate fairness).
Two heaps make it O(log placements) a query.

Where workers are to know how far their turn is, turns are counted: each query carries the count, and the count is told
to all at most every ``turns_s`` seconds.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import ceil, floor, inf, isfinite
from typing import assert_never

from sluicegate.domain.actions import Drop, RoutingAction, Send, TellTurns
from sluicegate.domain.errors import ConfigurationError, IllegalEventError
from sluicegate.domain.events import Arrived, DeviceReported, PartRead, PlanActivated, RoutingEvent, TurnsTold
from sluicegate.domain.models.app import slo_class
from sluicegate.domain.outcome import Reason
from sluicegate.domain.plan import Placement, Plan
from sluicegate.domain.query import Query

_RESTART = 1 << 24
"""Slots after which the counts start again, so that quotients keep their precision."""


class ProportionalSequence:
    """An endless sequence over 0..n-1 in which every prefix of length N holds i ``w_i N`` times, give or take one.

    ``weights`` need not sum to 1; negative and non-finite ones count as 0, and where all are 0 all are equal.
    """

    __slots__ = ("_eligible", "_future", "_only", "_periods", "_slot", "_taken", "shares")

    def __init__(self, weights: Sequence[float]) -> None:
        usable = [w if w > 0.0 and isfinite(w) else 0.0 for w in weights]
        total = sum(usable)
        if not total > 0.0:
            usable, total = [1.0] * len(usable), float(len(usable))
        self.shares = tuple(w / total for w in usable)
        self._periods = [1.0 / w if w > 0.0 else 0.0 for w in self.shares]
        positive = [i for i, w in enumerate(self.shares) if w > 0.0]
        self._only = positive[0] if len(positive) == 1 else -1
        self._start()

    def _start(self) -> None:
        self._slot = 0
        self._taken = [0] * len(self._periods)
        self._eligible = [(ceil(period), i) for i, period in enumerate(self._periods) if period > 0.0]
        heapify(self._eligible)
        self._future: list[tuple[int, int, int]] = []

    def next(self) -> int:
        """The next index."""
        if self._only >= 0:
            return self._only
        slot = self._slot
        eligible = self._eligible
        future = self._future
        while future and future[0][0] <= slot:
            _, ends, chosen = heappop(future)
            heappush(eligible, (ends, chosen))
        if eligible:
            chosen = heappop(eligible)[1]
        else:  # rounding made every turn begin a slot late
            chosen = heappop(future)[2]
        taken = self._taken[chosen] + 1
        self._taken[chosen] = taken
        period = self._periods[chosen]
        heappush(future, (floor(taken * period), ceil((taken + 1) * period), chosen))
        self._slot = slot + 1
        if slot >= _RESTART:
            self._start()
        return chosen


class WeightedRouting:
    """Routes ``app`` by the shares of the plan in force, each SLO class among the placements that serve it.

    A query is dropped (NO_CAPACITY) only where that plan hosts nothing for the app. A query before the first plan is
    an error of the shell, which holds arrivals back until then. ``turns_s``: turns are counted, and told that often;
    None: they are not.
    """

    name = "weighted"
    __slots__ = ("_classes", "_sequence", "_story", "_targets", "_told_at", "_turns", "_turns_s", "app")

    def __init__(self, app: str, *, turns_s: float | None = None) -> None:
        if turns_s is not None and not 0.0 <= turns_s < inf:
            raise ConfigurationError(
                f"weighted routing: turns_s {turns_s}; give seconds of at least 0, or leave it out"
            )
        self.app = app
        self._turns_s = turns_s
        self._turns: dict[float, int] = {}
        self._told_at: dict[float, float] = {}
        self._targets: tuple[Placement, ...] = ()
        self._sequence: ProportionalSequence | None = None
        self._classes: dict[float, tuple[tuple[Placement, ...], ProportionalSequence]] = {}
        self._story: deque[str] = deque(maxlen=8)

    def handle(self, event: RoutingEvent, now: float) -> list[RoutingAction]:
        """Decide. Raises IllegalEventError for a query before the first plan."""
        match event:
            case Arrived():
                if self._sequence is None:
                    raise IllegalEventError(f"query {event.query.id} at {now} before any plan", tuple(self._story))
                if not self._targets:
                    return [Drop(event.query, Reason.NO_CAPACITY)]
                asked = 0.0
                if self._classes:
                    asked = slo_class(tuple(self._classes), event.query.deadline - event.query.arrival)
                    targets, sequence = self._classes[asked]
                    target = targets[sequence.next()]
                else:
                    target = self._targets[self._sequence.next()]
                if self._turns_s is not None:
                    return self._counted(event.query, target, asked, self._turns_s, now)
                return [Send(event.query, target.device, target.slice)]
            case PlanActivated():
                self._follow(event.plan, now)
            case DeviceReported() | PartRead():
                pass
            case _:
                assert_never(event)
        return []

    def _counted(self, query: Query, target: Placement, slo: float, every: float, now: float) -> list[RoutingAction]:
        """The query with its turn, and a word to all workers where one is due."""
        count = self._turns[slo] = self._turns.get(slo, 0) + 1
        actions: list[RoutingAction] = [Send(query, target.device, target.slice, count)]
        if now - self._told_at.get(slo, -inf) >= every:
            self._told_at[slo] = now
            actions.append(TellTurns(TurnsTold(self.app, slo, count, now)))
        return actions

    @property
    def shares(self) -> dict[tuple[str, str], float]:
        """(device, slice) -> share of the app's queries it gets, 0..1."""
        shares = self._sequence.shares if self._sequence else ()
        return {(p.device, p.slice): share for p, share in zip(self._targets, shares, strict=True)}

    def _follow(self, plan: Plan, now: float) -> None:
        targets = hosting(plan, self.app)
        self._story.append(f"{now:.6f} PlanActivated {tuple(plan.epoch)}: {len(targets)} placements of {self.app}")
        if targets != self._targets or self._sequence is None:
            self._targets = targets
            self._sequence = ProportionalSequence([p.share for p in targets])
            self._classes = {}
            for slo in sorted({p.slo for p in targets} - {0.0}):
                mine = tuple(p for p in targets if p.slo in {slo, 0.0})
                self._classes[slo] = mine, ProportionalSequence([p.share for p in mine])


def hosting(plan: Plan, app: str) -> tuple[Placement, ...]:
    """Placements that host something for ``app``, ordered by device and slice: equal plans route equally."""
    return tuple(sorted((p for p in plan.of_app(app) if p.variants), key=lambda p: (p.device, p.slice)))
