"""An app and class on a slice: its batching policy, what is hosted for it, what it asks of the slice."""

from collections import deque
from collections.abc import Mapping
from math import inf

from sluicegate.domain.actions import Announce, Run
from sluicegate.domain.events import Hosted, HostingChanged
from sluicegate.domain.models.app import NO_PROMISE
from sluicegate.domain.query import Query
from sluicegate.policies.batching.spread import SpreadBatching
from sluicegate.policies.promises.hop_watch import HopWatch
from sluicegate.policies.promises.keeper import Party, Share, within
from sluicegate.policies.protocols import BatchingPolicy, FollowsTables


class Lane:
    """An app and class on a slice. ``wake``: when its policy wants to be woken; ``follows``: one that has tables.

    ``since``: what waits came then or later; infinity where nothing does. ``told``: what its policy may run.
    ``crowded``: when more rows had last come within a turn than its batch takes, where anything was promised.
    """

    __slots__ = (
        "_came",
        "_hops",
        "_rows",
        "app",
        "asked",
        "crowded",
        "follows",
        "policy",
        "since",
        "strict",
        "told",
        "wake",
    )

    def __init__(self, app: str, strict: bool, policy: BatchingPolicy) -> None:
        self.app = app
        self.policy = policy
        self.follows = policy if isinstance(policy, FollowsTables) else None
        self.strict = strict
        self.asked = HostingChanged(app, (), inf)
        self.told: HostingChanged | None = None
        self.wake = inf
        self.since = inf
        self.crowded = -inf
        self._hops = HopWatch(app)
        self._came: deque[tuple[float, int]] = deque()
        self._rows = 0  # of those

    def came(self, query: Query, share: Share, now: float) -> tuple[Announce, ...]:
        """A query waits from now on where ``share`` says how; what is to be said of its way here."""
        self._came.append((now, query.rows))
        self._rows += query.rows
        while self._came[0][0] <= now - share.window_s:
            self._rows -= self._came.popleft()[1]
        if self._rows > share.batch:
            self.crowded = now
        return self._hops.came(now - query.arrival, share.hop_s, now)

    @property
    def hosted(self) -> tuple[Hosted, ...]:
        """What is hosted for it, whatever it may use of that."""
        return self.asked.hosted

    def party(self, margins: Mapping[str, float]) -> Party:
        """What it asks of the slice."""
        policy, asked = self.policy, self.asked
        own = policy.own if isinstance(policy, SpreadBatching) else NO_PROMISE
        promise = own.over(asked.turns) if own.active else asked.own
        return Party.of(shown(asked.hosted, margins), asked.slo, promise)

    @property
    def in_turn(self) -> bool:
        """Whether it takes turns where anything was promised: what asks for best effort as a rule does not."""
        return self.strict and not self.asked.loose and not self.asked.aside

    def urgency(self) -> tuple[bool, float, str]:
        """Least first."""
        return (not self.strict, self.policy.head_deadline, self.app)

    def lent_within(self, room: float, now: float) -> Run | None:
        """A batch of those that come in time, which takes ``room`` seconds at most; None where it would not be worth
        its start: less than half of what waits and fits into the longest. On the most accurate variant that does."""
        waiting = self.policy.rows
        for hosted in self.told.hosted if self.told is not None else ():
            rows = min(within(hosted.longest, room), waiting)
            if rows and 2 * rows >= min(waiting, hosted.curve.max_batch):
                lent = self.policy.lend(rows, now + max(hosted.longest[:rows]))
                if lent:
                    return Run(hosted.variant, lent, sum([query.rows for query in lent]))
        return None


def shorter(hosted: tuple[Hosted, ...], seconds: float) -> tuple[Hosted, ...]:
    """In batches of which hardly any takes longer than ``seconds``; without variants that have none."""
    if seconds == inf:
        return hosted
    rows = [within(one.longest, seconds) for one in hosted]
    return tuple([one.within(most) for one, most in zip(hosted, rows, strict=True) if most])


def shown(hosted: tuple[Hosted, ...], margins: Mapping[str, float]) -> tuple[Hosted, ...]:
    """What hardly any batch exceeds, as far as others have shown."""
    if not margins:
        return hosted
    return tuple([one.shown(margins[one.variant]) if one.variant in margins else one for one in hosted])
