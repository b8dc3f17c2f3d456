"""Who leads: a lease of records on a log that all candidates read in one order. Clocks are never compared.

Rules:
- A claim begins a term and names the record that it follows upon. It is void unless that record is still the newest
  valid one where the claim lies in the log: of two claims upon the same record the one at the lower offset wins, and a
  renewal that the claimant had not read yet defeats it. Every reader decides the same.
- A renewal or release is valid in its holder's term only. One of a higher term tells a reader that a claim escaped it
  (compaction); it is believed.
- A holder renews every third of the lease. It believes in a record of its own once it has read it back, for
  ``BELIEVED`` of the lease counted from when it was *sent*. Past that it steps down, and leads again, in the same term,
  once a later renewal is read back.
- A candidate claims where nobody holds the lease, at once where it was released, else ``lease`` seconds on its own
  clock after it *read* the newest valid record. Since nothing is read before it is sent, no two believe at once,
  whatever the delays, as long as clocks run at rates that differ by less than 1 / ``BELIEVED``.
- A claim that is not read back within ``lease`` is repeated in a higher term. No two records of one holder are alike.
- Terms are above those of the lease and of the plans that were seen. They grow by ones: a record FAR above the newest
  was written by nobody who leads and is void; one FAR below shows that the newest was not. Where a plan of a higher
  term than that of the lease is published, its holder steps down and claims anew, above it.

After Gray and Cheriton (1989), Leases; the compare-and-set on a log is that of replicated state machines.
"""

from dataclasses import dataclass
from typing import assert_never

from sluicegate.domain.events import Ticked
from sluicegate.domain.lease import Lease
from sluicegate.domain.plan import FAR

BELIEVED = 0.9
"""Part of the lease that its holder counts on; the rest is for clocks that run at other rates."""

RENEWALS = 3
"""Of a lease that its holder writes."""

_VACANT = (0, 0)


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Everything that stood on the log at the start has been read."""


@dataclass(frozen=True, slots=True)
class TermSeen:
    """A plan of this term was published."""

    term: int


@dataclass(frozen=True, slots=True)
class LeaseRead:
    """A record of the lease, in log order; one's own come back so as well."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Stopping:
    """This candidate ends in good order: it acts no more, and need not be told to step down."""


LeaseEvent = CaughtUp | TermSeen | LeaseRead | Ticked | Stopping


@dataclass(frozen=True, slots=True)
class Write:
    """Put this record on the log, now: its belief counts from here."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Lead:
    """From now on this candidate leads. ``before``: the holder that it follows, "" for none."""

    term: int
    before: str = ""


@dataclass(frozen=True, slots=True)
class StepDown:
    """From now on it does not."""

    reason: str


LeaseAction = Write | Lead | StepDown


def valid(lease: Lease, newest: Lease | None) -> bool:
    """Whether ``lease`` counts after ``newest``, the last valid record before it."""
    if newest is None:
        return True
    if abs(lease.term - newest.term) > FAR:
        return lease.term < newest.term
    if lease.claims is not None:
        return lease.claims == newest.place and lease.term > newest.term
    if lease.term == newest.term:
        return lease.holder == newest.holder and lease.renewals > newest.renewals and not newest.released
    return lease.term > newest.term


class LeaderLease:
    """One candidate. ``holder``: its name, never used again. ``lease``: seconds. ``now``: seconds on its own clock."""

    def __init__(self, holder: str, *, lease: float) -> None:
        self._holder = holder
        self._lease = lease
        self._newest: Lease | None = None
        self._heard = 0.0  # when the newest valid record was read
        self._caught_up = False
        self._stopping = False
        self._planned = 0  # term of the newest plan
        self._used = 0  # highest term of a claim of its own
        self._count = 0  # of the renewals of the term that is held
        self._sent: dict[tuple[int, int], float] = {}
        self._wrote = 0.0
        self._claim: Lease | None = None
        self._before = ""
        self._until = 0.0
        self._leading = False

    @property
    def newest(self) -> Lease | None:
        """The newest valid record that was read."""
        return self._newest

    def leads(self, now: float) -> bool:
        """Whether it may act as the leader. Ask before each act: time may have passed since the last event."""
        return self._leading and now < self._until

    def handle(self, event: LeaseEvent, now: float) -> list[LeaseAction]:
        """Decide."""
        match event:
            case CaughtUp():
                self._caught_up = True
                self._heard = now
            case TermSeen(term):
                self._planned = term
            case LeaseRead(lease):
                return self._read(lease, now)
            case Ticked():
                pass
            case Stopping():
                return self._stop(now)
            case _:
                assert_never(event)
        return self._ticked(now)

    def _read(self, lease: Lease, now: float) -> list[LeaseAction]:
        if lease == self._claim:
            self._claim = None
        if not valid(lease, self._newest):
            return self._ticked(now)
        if lease.claims is not None:
            self._before = self._newest.holder if self._newest is not None and not self._newest.released else ""
        self._newest = lease
        self._heard = now
        if lease.holder != self._holder or lease.released:
            return [*self._lost(f"{lease.holder} holds term {lease.term}"), *self._ticked(now)]
        if lease.claims is not None:
            self._count = 0
        sent = self._sent.get(lease.place)
        self._sent = {place: at for place, at in self._sent.items() if place > lease.place}
        if sent is not None:
            self._until = max(self._until, sent + BELIEVED * self._lease)
        if not self._leading and not self._stopping and now < self._until:
            self._leading = True
            return [Lead(lease.term, self._before), *self._ticked(now)]
        return self._ticked(now)

    def _ticked(self, now: float) -> list[LeaseAction]:
        actions: list[LeaseAction] = []
        if self._leading and now >= self._until:
            actions += self._lost("the lease could not be renewed in time")
        if self._stopping or not self._caught_up:
            return actions
        if self._holds and self._outrun and self._claim is None:
            actions += self._lost("a plan of a higher term was published")
            actions.append(self._claimed(now))
        elif self._holds and not self._outrun:
            if now - self._wrote >= self._lease / RENEWALS:
                self._count += 1
                actions.append(self._write(self._own(self._count), now))
        elif self._free(now) and (self._claim is None or now - self._wrote >= self._lease):
            actions.append(self._claimed(now))
        return actions

    def _claimed(self, now: float) -> Write:
        """A claim upon the newest record, in a term above all that leaders can have had."""
        seen = self._newest.term if self._newest is not None else 0
        self._used = 1 + max(t for t in (self._planned, self._used, seen) if t <= self._planned + FAR)
        upon = self._newest.place if self._newest is not None else _VACANT
        self._claim = Lease(term=self._used, holder=self._holder, claims=upon)
        return self._write(self._claim, now)

    @property
    def _outrun(self) -> bool:
        """Whether plans are of a higher term than the lease, by so little that it can be overtaken."""
        return self._newest is not None and self._newest.term < self._planned <= self._newest.term + FAR

    @property
    def _holds(self) -> bool:
        newest = self._newest
        return newest is not None and newest.holder == self._holder and not newest.released

    def _free(self, now: float) -> bool:
        return self._newest is None or self._newest.released or now - self._heard >= self._lease

    def _own(self, renewals: int, *, released: bool = False) -> Lease:
        assert self._newest is not None
        return Lease(term=self._newest.term, holder=self._holder, renewals=renewals, released=released)

    def _write(self, lease: Lease, now: float) -> Write:
        self._sent[lease.place] = now
        self._wrote = now
        return Write(lease)

    def _lost(self, reason: str) -> list[LeaseAction]:
        self._until = 0.0 if not self._holds else self._until
        if not self._leading:
            return []
        self._leading = False
        return [StepDown(reason)]

    def _stop(self, now: float) -> list[LeaseAction]:
        self._stopping = True
        self._leading = False
        if not self._holds:
            return []
        self._count += 1
        return [self._write(self._own(self._count, released=True), now)]
