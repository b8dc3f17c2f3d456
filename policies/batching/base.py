"""The frame of every batching policy: its queue, its expiry, its wakes. A policy adds one method, ``decide``.

Rules.
- Arrived enqueues. Offered expires what is past its deadline, drops the heads that no batch can save any more
  (``now + latency(rows of the head) > deadline``), then lets ``decide`` run a batch or wait.
- Where a slice runs several batches at a time (``Hosted.executors``) Offered comes again while one of them runs.
- A wake is asked for only where none is outstanding that comes as early; it stands until its time comes, even where the
  query it was asked for is gone by then. One wake an SLO is enough for a queue that never lets anything expire.
- Woke before its time asks again, once for each time asked for: an early timer is made good, and a second timer that
  went off for the same reason ends there.
- Where inputs vary in length a batch takes as long as its longest. A rule that says so (``counts_length``) then sees,
  at each decision, latency curves of its queue: b rows take what the first b rows take, padded to the longest of them.
  Other rules see what the longest inputs take, and so do all where streams were promised something.
- What is run, given up or expired is told to hooks (``missed``, ``finished``), for policies that keep promises.
- Comparisons are exact (no tolerance), and they are the ones that judge the outcome: a query runs only where
  ``now + latency <= deadline`` holds in floating point.
"""

from bisect import bisect_left
from dataclasses import replace
from math import inf, nextafter
from operator import attrgetter
from typing import assert_never

from sluicegate.domain.actions import Drop, Expire, Run, StationAction, WakeAt
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import (
    Arrived,
    BatchingEvent,
    Finished,
    Hosted,
    HostingChanged,
    Offered,
    Refused,
    StreamResumed,
    Woke,
)
from sluicegate.domain.models.app import NO_PROMISE
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.outcome import Reason
from sluicegate.domain.query import Query
from sluicegate.policies.batching.queue import DeadlineQueue

_by_deadline = attrgetter("deadline")


def last_start(deadline: float, latency: float) -> float:
    """Latest time t with ``t + latency <= deadline`` in floating point."""
    at = deadline - latency
    while at + latency > deadline:
        at = nextafter(at, -inf)
    return at


class QueueingPolicy:
    """Base of batching policies: see the module's rules. Not a policy by itself.

    For ``decide``: ``queue`` is not empty and its head can be saved, ``seconds[b - 1]`` is the latency of b rows of
    ``hosted[0]`` (the most accurate variant), ``slo`` the app's.
    """

    name: str = ""
    counts_length: bool = False
    __slots__ = (
        "_armed", "_asked_again", "_running", "_seats", "app", "began", "by_length", "hosted", "part", "peers",
        "promise", "queue", "seconds", "shares", "slo",
    )  # fmt: skip

    def __init__(self) -> None:
        self.queue = DeadlineQueue()
        self.hosted: tuple[Hosted, ...] = ()
        self.seconds: tuple[float, ...] = ()
        self.app = ""
        self.slo = inf
        self.promise = NO_PROMISE
        self.peers: tuple[tuple[str, str], ...] = ()
        self.shares: tuple[tuple[str, str, float], ...] = ()
        self.part = NO_PROMISE
        self.by_length = False
        self._armed = inf
        self._asked_again = False
        self.began = 0.0  # when the executor was offered last; within ``finished``, when that batch began
        self._running: list[tuple[Run, float]] = []
        self._seats = 1

    @property
    def queued(self) -> int:
        """Queries waiting."""
        return len(self.queue.items)

    @property
    def rows(self) -> int:
        """Rows waiting."""
        return self.queue.rows

    @property
    def head_deadline(self) -> float:
        """Deadline of the most urgent query waiting; infinity when none."""
        items = self.queue.items
        return items[0].deadline if items else inf

    def handle(self, event: BatchingEvent, now: float) -> list[StationAction]:
        """Decide. Raises IllegalEventError for Offered while as many run as may, and for Finished while none does."""
        actions: list[StationAction] = []
        if isinstance(event, Arrived):
            query = event.query
            self.queue.push(query)
            self.arrived(query, now, actions)
            if query.deadline < self._armed:
                self.wake_by(query.deadline, actions)
        elif isinstance(event, Offered):
            self._offered(now, actions)
        elif isinstance(event, Finished):
            self._finished(event, now, actions)
        else:
            self._change(event, now, actions)
        return actions

    def _change(
        self, event: Woke | HostingChanged | StreamResumed | Refused, now: float, actions: list[StationAction]
    ) -> None:
        match event:
            case Woke():
                self._woke(now, actions)
            case HostingChanged():
                self.hosted = event.hosted
                self._seats = max([h.executors for h in event.hosted], default=self._seats)
                self.seconds = event.hosted[0].curve.seconds if event.hosted else ()
                self.app = event.app
                self.slo = event.slo
                self.promise = event.promise
                self.peers = event.peers
                self.shares = event.shares
                self.part = event.own
                self.by_length = (
                    self.counts_length
                    and not event.promise.active
                    and any(h.curve.lengths is not None for h in event.hosted)
                )
                self.hosting_changed()
            case StreamResumed():
                self.resumed(event)
            case Refused(query):
                self.missed(query, actions)
            case _:
                assert_never(event)

    def drain(self) -> tuple[Query, ...]:
        """Take everything out of the queue."""
        return self.queue.clear()

    def lend(self, rows: int, end: float) -> tuple[Query, ...]:
        """Take out the first queries due at or after ``end``, at most ``rows`` rows; those before them are left."""
        queue = self.queue
        items = queue.items
        if not items:
            return ()
        if items[0].deadline >= end:
            return queue.take(rows) if queue.fit(rows) else ()
        first = bisect_left(items, end, key=_by_deadline)
        taken: list[Query] = []
        while first < len(items) and items[first].rows <= rows:
            rows -= items[first].rows
            taken.append(queue.remove(first))
        return tuple(taken)

    def decide(self, now: float, actions: list[StationAction]) -> None:
        """Call ``run`` once, or ``wake_by``, or neither to wait for the next event or the head's deadline."""
        raise NotImplementedError

    def arrived(self, query: Query, now: float, actions: list[StationAction]) -> None:
        """Note an arrival. ``query`` is in the queue already."""

    def finished(self, event: Finished, run: Run, now: float, actions: list[StationAction]) -> None:
        """Note the end of the batch ``run``."""

    def missed(self, query: Query, actions: list[StationAction]) -> None:
        """Note that ``query``, which is not in the queue any more, is about to be given up, refused or to expire."""

    def prune(self, now: float, actions: list[StationAction]) -> None:
        """Give up heads before ``decide``: those that no batch can save, unless a policy says otherwise."""
        self.drop_hopeless(now, actions)

    def resumed(self, event: StreamResumed) -> None:
        """Note the past of a stream that goes on here."""

    def hosting_changed(self) -> None:
        """Derive what depends on ``hosted`` and ``slo``."""

    def curves_changed(self) -> None:
        """Derive what depends on the curves of ``hosted``, which are of another queue now. Before each decision."""
        self.seconds = self.hosted[0].curve.seconds

    def run(self, limit: int, actions: list[StationAction], hosted: Hosted | None = None) -> None:
        """Run the longest prefix of at most ``limit`` rows, on ``hosted`` (default: the most accurate variant)."""
        queue = self.queue
        before = queue.rows
        batch = queue.take(limit)
        self.run_batch(batch, before - queue.rows, actions, hosted)

    def run_batch(
        self, batch: tuple[Query, ...], rows: int, actions: list[StationAction], hosted: Hosted | None = None
    ) -> None:
        """Run ``batch``, which has left the queue."""
        run = Run((hosted or self.hosted[0]).variant, batch, rows)
        self._running.append((run, self.began))
        actions.append(run)

    def wake_by(self, at: float, actions: list[StationAction]) -> None:
        """Be woken at ``at`` at the latest."""
        if at < self._armed:
            self._armed = at
            self._asked_again = False
            actions.append(WakeAt(at))

    def drop_head(self, reason: Reason, actions: list[StationAction]) -> None:
        """Give the head up."""
        query = self.queue.pop()
        self.missed(query, actions)
        actions.append(Drop(query, reason))

    def largest_on_time(self, limit: int, now: float) -> int:
        """Rows of the longest prefix, at most ``limit`` rows, with which the head is still on time.

        At least the head's own rows. Latency need not grow with the batch, so every size is looked at.
        """
        queue = self.queue
        seconds = self.seconds
        head = queue.items[0]
        if len(queue.items) == 1:
            return head.rows
        deadline = head.deadline
        rows = queue.fit(limit if limit < len(seconds) else len(seconds))
        while rows > head.rows and now + seconds[rows - 1] > deadline:
            rows = queue.fit(rows - 1)
        return rows or head.rows

    def look_at_lengths(self) -> None:
        """Have the curves say what batches of this queue take, padded to their longest."""
        spans = self.queue.spans(max(h.curve.max_batch for h in self.hosted))
        self.hosted = tuple([self._seen(h, spans) for h in self.hosted])
        self.curves_changed()

    @staticmethod
    def _seen(hosted: Hosted, spans: list[tuple[int, int]]) -> Hosted:
        lengths = hosted.curve.lengths
        if lengths is None:
            return hosted
        return replace(hosted, curve=LatencyCurve(lengths.padded(spans), lengths))

    def drop_hopeless(self, now: float, actions: list[StationAction]) -> None:
        """Give up the heads that no batch can save."""
        items = self.queue.items
        limit = len(self.seconds)
        while items:
            head = items[0]
            if head.rows > limit:
                self.drop_head(Reason.TOO_LARGE, actions)
            elif now + self.seconds[head.rows - 1] > head.deadline:
                self.drop_head(Reason.HOPELESS, actions)
            else:
                return
            if self.by_length and items:
                self.look_at_lengths()

    def drop_too_large(self, actions: list[StationAction]) -> None:
        """Give up the heads that have more rows than any batch."""
        items = self.queue.items
        while items and items[0].rows > len(self.seconds):
            self.drop_head(Reason.TOO_LARGE, actions)

    def _offered(self, now: float, actions: list[StationAction]) -> None:
        if len(self._running) >= self._seats:
            raise IllegalEventError(f"{self.name}: offered the executor at {now} while {self._running[0][0]} runs")
        self.began = now
        items = self.queue.items
        if self._armed < now:  # its timer went off too early, twice: it will not come back
            self._armed = inf
        if items and items[0].deadline <= now:
            self._expire(now, actions)
        if items and self.seconds:
            if self.by_length:
                self.look_at_lengths()
            self.prune(now, actions)
            if items:
                self.decide(now, actions)
        if items and items[0].deadline < self._armed:
            self.wake_by(items[0].deadline, actions)

    def _finished(self, event: Finished, now: float, actions: list[StationAction]) -> None:
        if not self._running:
            raise IllegalEventError(f"{self.name}: {event} at {now} while no batch runs")
        ended = 0
        if len(self._running) > 1:
            alike = [i for i, (run, _) in enumerate(self._running) if run.variant == event.variant] or [0]
            ended = next((i for i in alike if self._running[i][0].rows == event.rows), alike[0])
        running, self.began = self._running.pop(ended)
        self.finished(event, running, now, actions)

    def _woke(self, now: float, actions: list[StationAction]) -> None:
        self._expire(now, actions)
        items = self.queue.items
        if now >= self._armed:
            self._armed = inf
            if items:
                self.wake_by(items[0].deadline, actions)
        elif not items:
            self._armed = inf
        elif not self._asked_again:
            self._asked_again = True
            actions.append(WakeAt(self._armed))

    def _expire(self, now: float, actions: list[StationAction]) -> None:
        queue = self.queue
        items = queue.items
        while items and items[0].deadline <= now:
            query = queue.pop()
            self.missed(query, actions)
            actions.append(Expire(query))
