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
- A valid record in a candidate's own name that it did not write counts as another's: none of its renewals may come
  after it, so that it claims upon it once a lease has passed.
- Terms are above those of the lease and of the plans that were seen. They grow by ones: a record far above the newest
  was written by nobody who leads and is void; one far below shows that the newest was not (``term_follows``). Where a
  plan is published that none of the lease's term follows, its holder steps down and claims a term that follows both.

After Gray and Cheriton (1989), Leases; the compare-and-set on a log is that of replicated state machines.
"""

from dataclasses import dataclass
from typing import assert_never

from sluicegate.domain.events import Ticked
from sluicegate.domain.lease import Lease
from sluicegate.domain.plan import MAX_TERM, term_follows

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
    """From now on this candidate leads. ``before``: the holder that it follows, "" for none; ``again``: nobody else has
    led since it did."""

    term: int
    before: str = ""
    again: bool = False


@dataclass(frozen=True, slots=True)
class StepDown:
    """From now on it does not."""

    reason: str


LeaseAction = Write | Lead | StepDown


def valid(lease: Lease, newest: Lease | None) -> bool:
    """Whether ``lease`` counts after ``newest``, the last valid record before it."""
    if newest is None:
        return True
    if lease.term < newest.term or not (lease.term == newest.term or term_follows(lease.term, newest.term)):
        return term_follows(lease.term, newest.term)
    if lease.claims is not None:
        return lease.claims == newest.place and lease.term > newest.term
    if lease.term == newest.term:
        return lease.holder == newest.holder and lease.renewals > newest.renewals and not newest.released
    return lease.term > newest.term


def leaps(lease: Lease, newest: Lease) -> bool:
    """Whether ``lease`` is of a term above that of the newest valid record that no candidate could claim."""
    return lease.term > newest.term and not term_follows(lease.term, newest.term)


class LeaderLease:
    """One candidate. ``holder``: its name, never used again. ``lease``: seconds. ``now``: seconds on its own clock."""

    def __init__(self, holder: str, *, lease: float) -> None:
        self._holder = holder
        self._lease = lease
        self._newest: Lease | None = None
        self._heard = 0.0  # when the newest valid record was read
        self._mine = False  # whether it wrote that
        self._caught_up = False
        self._stopping = False
        self._planned = 0  # term of the newest plan
        self._used = 0  # highest term of a claim of its own
        self._count = 0  # of the renewals of the term that is held
        self._sent: dict[tuple[int, int], float] = {}
        self._wrote = 0.0
        self._claim: Lease | None = None
        self._before = ""
        self._led = 0  # the last term that it led
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
        sent = self._sent.get(lease.place) if lease.holder == self._holder else None
        self._mine = sent is not None
        if sent is None or lease.released:
            who = "a stranger in its name" if lease.holder == self._holder and sent is None else lease.holder
            return [*self._lost(f"{who} holds term {lease.term}"), *self._ticked(now)]
        if lease.claims is not None:
            self._count = 0
        self._sent = {place: at for place, at in self._sent.items() if at >= sent and place != lease.place}
        self._until = max(self._until, sent + BELIEVED * self._lease)
        if not self._leading and not self._stopping and now < self._until:
            again = self._before == self._holder or lease.term == self._led
            self._leading, self._led = True, lease.term
            return [Lead(lease.term, self._before, again), *self._ticked(now)]
        return self._ticked(now)

    def _ticked(self, now: float) -> list[LeaseAction]:
        actions: list[LeaseAction] = []
        if self._leading and now >= self._until:
            actions += self._lost("the lease could not be renewed in time")
        if self._stopping or not self._caught_up:
            return actions
        if self._holds and self._outrun and self._claim is None:
            actions += self._lost("a plan was published that no other of its term follows")
            actions.append(self._claimed(now))
        elif self._holds and not self._outrun:
            if now - self._wrote >= self._lease / RENEWALS:
                self._count += 1
                actions.append(self._write(self._own(self._count), now))
        elif self._free(now) and (self._claim is None or now - self._wrote >= self._lease):
            actions.append(self._claimed(now))
        return actions

    def _claimed(self, now: float) -> Write:
        """A claim upon the newest record, in a term that follows its and the plan's; behind the highest comes 1."""
        seen = self._newest.term if self._newest is not None else 0
        low, high = sorted((self._planned, seen))
        behind = (1 + last % MAX_TERM for last in (max(self._used, high), max(self._used, low), high, low))
        fit = (t for t in behind if all(not of or term_follows(t, of) for of in (low, high)))
        self._used = next(fit, 1)
        upon = self._newest.place if self._newest is not None else _VACANT
        self._claim = Lease(term=self._used, holder=self._holder, claims=upon)
        return self._write(self._claim, now)

    @property
    def _outrun(self) -> bool:
        """Whether no plan of the lease's term can follow the newest one that was published."""
        held = self._newest.term if self._newest is not None else self._planned
        return self._planned not in (0, held) and not term_follows(held, self._planned)

    @property
    def _holds(self) -> bool:
        return self._mine and self._newest is not None and not self._newest.released

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
