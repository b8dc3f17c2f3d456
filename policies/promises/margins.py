"""How long the batches of a slice take at most, as those that ran have shown: a margin by variant.

Rules.
- A margin is a factor on ``Hosted.longest``: what the worst of the last ``LATELY`` batches but ``OUTLIERS`` took: a
  machine that stood still once, or the first batch of all, says nothing of the next. It is ``UNKNOWN`` until so many
  have run, or more than ``OUTLIERS`` took longer than ``Hosted.least``; from these few it is 1 at least.
- Batches much shorter than a turn show nothing by being quick. Where one overruns, what it took too long counts against
  half a turn at least: timers and stalls of the process cost large batches no more than small ones.
- A margin is told first and counts from ``ADOPTED`` seconds later, so that who lets queries in has heard of it: until
  then both bounds are kept to.
"""

from collections import deque
from heapq import nlargest
from math import ceil

from sluicegate.domain.events import Hosted

LATELY = 512
OUTLIERS = 2
UNKNOWN = 0.0
MOST = 1.5
"""Allowed for overruns at most."""
ADOPTED = 2.0
_STEP = 0.01
_NEWS = 0.015


class _Ran:
    """Batches of one variant: how many there were, and the factors of those above ``least``, by number."""

    __slots__ = ("above", "count", "worst")

    def __init__(self) -> None:
        self.count = 0
        self.above: deque[tuple[int, float]] = deque()
        self.worst: float | None = 0.0  # of all above but OUTLIERS; None: to be found again

    def add(self, factor: float, least: float) -> None:
        self.count += 1
        above, worst = self.above, self.worst
        if factor > least:
            above.append((self.count, min(MOST, factor)))
            if worst is not None and factor > worst:
                self.worst = None
        while above and above[0][0] <= self.count - LATELY:
            _, gone = above.popleft()
            if worst is not None and gone >= worst:
                self.worst = None

    def margin(self, least: float) -> float:
        few = len(self.above) <= OUTLIERS
        if self.count < LATELY and few:
            return UNKNOWN
        if self.worst is None:
            factors = nlargest(OUTLIERS + 1, [factor for _, factor in self.above])
            self.worst = 0.0 if few else factors[-1]
        worst = max(least, self.worst, 1.0 if self.count < LATELY else 0.0)
        return ceil(worst / _STEP - 1e-9) * _STEP


class Margins:
    """Of one slice. ``told``: by variant, what is to be told; ``in_force``: what counts now; not named is unknown."""

    __slots__ = ("_due", "_ran", "in_force", "told")

    def __init__(self) -> None:
        self.told: dict[str, float] = {}
        self.in_force: dict[str, float] = {}
        self._ran: dict[str, _Ran] = {}
        self._due = 0.0

    def ran(self, hosted: Hosted, rows: int, seconds: float, turn_s: float, now: float) -> None:
        """A batch of ``hosted`` took so long, where no batch may take longer than ``turn_s``."""
        longest = max(hosted.longest[:rows])
        if seconds > longest:
            factor = 1.0 + (seconds - longest) / max(longest, 0.5 * turn_s)
        elif longest < 0.25 * turn_s:
            return
        else:
            factor = seconds / longest
        ran = self._ran.get(hosted.variant) or self._ran.setdefault(hosted.variant, _Ran())
        ran.add(factor, hosted.least)
        if self.told == self.in_force:
            margin = ran.margin(hosted.least)
            if abs(margin - self.told.get(hosted.variant, UNKNOWN)) > _NEWS:
                self.told = {**self.told, hosted.variant: margin}
                self._due = now + ADOPTED

    def adopt(self, now: float) -> bool:
        """Whether other margins count from now on."""
        if self.told is self.in_force or now < self._due or self.told == self.in_force:
            return False
        self.in_force = self.told
        return True
