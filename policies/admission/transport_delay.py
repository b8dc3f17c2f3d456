"""What the way of a query takes besides its queue and its batch, and whom a front had better not send on it.

Rules.
- A front learns from each answer when its query was sent, when the device was done with it and how long it had it. What
  is left is transport: topics, stages, the loops that serve them. ``way_back`` is what of it comes behind the device's
  last decision: deadlines are earlier by it, or answers that were just in time come late.
- The clocks of a front and a device may differ. Neither way can take less than nothing, so where one seems to, the
  difference is taken out of both.
- Transport that takes long means a host that does not keep up: queries wait where no policy sees them, all of them end
  late and none is given up in time. Then no more are under way than come back within what they may take: the most that
  came back lately in an SLO, times the target and the time that a device holds them (Little's law). Others are refused
  at the front, which costs least.
- What has come back lately says what transport was when it was sent. Where nothing has for an SLO, whoever has been
  under way for longer than that and than a device holds him says that it takes that much longer by now.
"""

from collections import deque
from math import ceil

RECENT = 128
"""Answers that are remembered."""
LOOK = 16
"""Answers after which the way back is reckoned anew."""
USUAL = 0.95
"""Quantile of the ways back that deadlines allow for."""
TARGET = 0.25
"""Transport that a host which keeps up may take, as a share of the SLO; it keeps up again at half of that."""
WINDOWS = 8
"""SLOs over which the most that came back in one is remembered."""
LEAST = 4
"""Queries that are sent in any case: something must come back for a host to show that it keeps up again."""


class TransportDelay:
    """Of one front and app. ``slo``: seconds. Times are absolute seconds.

    ``behind``: whether the host does not keep up. ``way_back``: seconds.
    """

    __slots__ = (
        "_answers",
        "_backs",
        "_came",
        "_forths",
        "_held",
        "_rates",
        "_since",
        "_under_way",
        "_window",
        "behind",
        "slo",
        "way_back",
    )

    def __init__(self, slo: float) -> None:
        self.slo = slo
        self.way_back = 0.0
        self.behind = False
        self._forths: deque[float] = deque(maxlen=RECENT)
        self._backs: deque[float] = deque(maxlen=RECENT)
        self._held: deque[float] = deque(maxlen=RECENT)
        self._under_way: dict[str, float] = {}
        self._rates: deque[int] = deque(maxlen=WINDOWS)
        self._answers = 0
        self._came = 0.0
        self._since = 0.0
        self._window = 0

    def comes(self, now: float) -> bool:
        """Whether one who comes now is to be sent."""
        transport = self._lately()
        if self._backs and now - self._came > self.slo:
            oldest = next(iter(self._under_way.values()), now)
            transport = max(transport, now - oldest - self.slo - self._usually_held())
        if transport > TARGET * self.slo:
            self.behind = True
        elif transport < TARGET / 2 * self.slo:
            self.behind = False
        if not self.behind:
            return True
        per_slo = max(self._rates, default=self._window)
        return len(self._under_way) < max(LEAST, per_slo * (TARGET + self._usually_held() / self.slo))

    def sent(self, query_id: str, now: float) -> None:
        """A query is under way."""
        self._under_way[query_id] = now

    def ended(self, query_id: str, now: float, left: float | None = None, held_s: float = 0.0) -> None:
        """It is not any more. ``left``: when a device, which held it for ``held_s``, was done with it, by its clock."""
        sent = self._under_way.pop(query_id, None)
        if sent is None or left is None:
            return
        self._came = now
        self._forths.append(left - held_s - sent)
        self._backs.append(now - left)
        self._held.append(held_s)
        if not 0.0 <= now - self._since < self.slo:
            if self._since and now - self._since < 2 * self.slo:
                self._rates.append(self._window)
            self._since, self._window = now, 0
        self._window += 1
        self._answers += 1
        if self._answers < LOOK or self._answers % LOOK == 0:
            self.way_back = self._usual_way_back()

    def _lately(self) -> float:
        """Transport, there and back, of the median of the latest answers."""
        latest = sorted(self._forths[-i] + self._backs[-i] for i in range(1, min(9, len(self._backs)) + 1))
        return latest[len(latest) // 2] if latest else 0.0

    def _usually_held(self) -> float:
        return sum(self._held) / len(self._held) if self._held else 0.0

    def _usual_way_back(self) -> float:
        backs = sorted(self._backs)
        apart = max(0.0, -min(self._forths)) - max(0.0, -backs[0])
        return max(0.0, backs[ceil(USUAL * len(backs)) - 1] - apart)
