"""What dead devices left on their work topics: what goes back, what ends, up to which fence.

Rules.
- The committed offset of a dead worker is where its sweep begins: records below it are answered. The end of its topic
  when the sweep began is the fence. Between the two each record is decided once: what cannot be read becomes a dead
  letter, what was answered is left, what still has time goes back, the rest expires.
- A sweep is repeated every ``AGAIN`` seconds while the device is absent, since a router with an old plan may still
  write there; so is one that was cut short, which begins again at the committed offset.
- Who takes over keeps the fences of the newest plan that lie below what was committed on their topics.
- Once the device is back it is let in at the end of the sweep under way, not before: its worker reads from the fence.
  Its next heartbeat ends its sweeps. Where none comes for ``patience`` it is absent as before: no one else misses it.
- Where what expires belongs to an app with a promise, safe mode is announced first, and its end once it is let in, or
  its work topic is gone.
  Who takes over knows from the status topic which announcements stand, and ends those of devices that are back.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.outcome import Outcome, OutcomeKind, Reason
from sluicegate.domain.query import Query
from sluicegate.planner.control.events import (
    Bury,
    End,
    Leave,
    Left,
    LetIn,
    Move,
    Readmit,
    SafeMode,
    Sweep,
    SweepBegan,
    SweepFailed,
    Swept,
    TooLarge,
    Verdict,
    WorkLeft,
)

AGAIN = 0.5
"""Seconds between sweeps of one device."""

MOST_READ = 4096
"""Announcements of others that are kept."""

_GONE = "has no work topic any more"

ReclaimEvent = SweepBegan | WorkLeft | TooLarge | Swept | SweepFailed
ReclaimAction = Sweep | Move | End | LetIn | SafeMode


@dataclass(slots=True)
class _Sweep:
    """A sweep of a dead device's work topic. ``due``: when it begins, None while it is under way. ``returning``: the
    device was heard meanwhile; ``let_in``: and has not been since it was let in. ``next``: first offset that is not
    decided; ``end``: the fence; both None before its offsets are known."""

    due: float | None
    returning: bool = False
    let_in: bool = False
    next: int | None = None
    end: int | None = None


class Reclaiming:
    """The sweeps of one leader. ``promised``: apps with a promise. ``patience``: seconds in which a device that is let
    in is heard again."""

    def __init__(self, promised: Iterable[str], patience: float) -> None:
        self.promised = set(promised)
        self._patience = patience
        self._fences: dict[str, int] = {}
        self._sweeps: dict[str, _Sweep] = {}
        self._announced: set[tuple[str, str]] = set()

    @property
    def fences(self) -> Mapping[str, int]:
        """By device: the offset below which everything is done."""
        return dict(self._fences)

    def begin(self, fences: Mapping[str, int], committed: Mapping[str, int]) -> list[Announce]:
        """A term begins, after a plan with these; those of them that are refused are announced.

        Who swept has committed up to the fence before a plan has it: one beyond ``committed`` was made up, and would
        hide what nobody has decided. Those of this one's own sweeps stay.
        """
        self._sweeps.clear()
        refused = []
        for device, told in sorted(fences.items()):
            own, done = self._fences.get(device, 0), committed.get(device, 0)
            if told > max(own, done):
                why = f"the newest plan has its worker begin at {told}; what lies below {done} is done, and no more"
                refused.append(Announce(f"device:{device}", "fence_refused", why))
            elif told > own:
                self._fences[device] = told
        return refused

    def end(self) -> None:
        """Sweeping is another's from now on."""
        self._sweeps.clear()

    def read(self, app: str, device: str, *, on: bool) -> None:
        """Another leader has announced safe mode for the sake of ``device``, or its end; or a stranger, at will."""
        if not on:
            self._announced.discard((app, device))
        elif len(self._announced) < MOST_READ:
            self._announced.add((app, device))

    def taken_over(self, living: Collection[str], there: Collection[str]) -> list[SafeMode]:
        """A term began while these lived, and ``there`` had work topics: what stands of those that live and wait for no
        sweep, or that are gone, is over."""
        named = {*living, *(device for _, device in self._announced)} - self._sweeps.keys()
        said = []
        for device in sorted(named):
            if device in living:
                said += self._kept(device)
            elif device not in there:
                said += self._kept(device, _GONE)
        return said

    def dead(self, device: str, now: float) -> None:
        """``device`` is to be swept from now on."""
        self._sweeps.setdefault(device, _Sweep(now))

    def absent(self, device: str) -> bool:
        """A heartbeat of ``device`` came: whether it must wait for a sweep to end, after which it is let in."""
        sweep = self._sweeps.get(device)
        if sweep is None:
            return False
        if sweep.let_in:
            del self._sweeps[device]
            return False
        sweep.returning = True
        return True

    def due(self, now: float) -> list[Sweep]:
        """Sweeps that begin now."""
        begun = [device for device, s in sorted(self._sweeps.items()) if s.due is not None and s.due <= now]
        for device in begun:
            sweep = self._sweeps[device]
            sweep.due, sweep.let_in = None, False
        return [Sweep(device) for device in begun]

    def next_due(self) -> float | None:
        """When the next one does."""
        return min((s.due for s in self._sweeps.values() if s.due is not None), default=None)

    def handle(self, event: ReclaimEvent, now: float, wall: float) -> list[ReclaimAction]:
        """Decide. ``wall``: what deadlines are compared with. Raises IllegalEventError for what was not asked for."""
        sweep = self._sweeps.get(event.device)
        if sweep is None or sweep.due is not None:
            raise IllegalEventError(f"{event!r:.200} while no sweep of {event.device} is under way", self._story())
        match event:
            case SweepBegan(device, start, end):
                if sweep.end is not None:
                    raise IllegalEventError(f"the sweep of {device} to {sweep.end} begins twice", self._story())
                sweep.next, sweep.end = start, end
                return self._over(device, sweep, now) if start >= end else []
            case WorkLeft(device, records):
                return self._decide(device, sweep, records, wall)
            case TooLarge(device, query, problem):
                why = {"reason": Reason.TOO_LARGE, "detail": problem[:500], "device": device}
                return [End(Outcome.of(query, OutcomeKind.FAILED, wall, queue_s=wall - query.arrival, **why))]
            case Swept(device):
                if sweep.end is None:
                    raise IllegalEventError(f"{device} is swept before its fence is known", self._story())
                return self._over(device, sweep, now)
            case SweepFailed(device, gone):
                if gone:
                    del self._sweeps[device]
                    return [*self._kept(device, _GONE)]
                self._again(sweep, now)
                return []
            case _:
                assert_never(event)

    def _decide(self, device: str, sweep: _Sweep, records: Sequence[Left], wall: float) -> list[ReclaimAction]:
        expected, end = sweep.next, sweep.end
        for record in records:
            if expected is None or end is None or not expected <= record.offset < end:
                told = f"offset {record.offset} of {device}, where {expected} to {end} is to be decided"
                raise IllegalEventError(told, self._story())
            expected = record.offset + 1
        sweep.next = expected
        said: list[ReclaimAction] = []
        verdicts = tuple(self._verdict(device, record, wall, said) for record in records)
        return [*said, Move(device, verdicts)]

    def _verdict(self, device: str, record: Left, wall: float, said: list[ReclaimAction]) -> Verdict:
        query = record.query
        if query is None:
            return Bury()
        if record.answered:
            return Leave()
        if query.deadline > wall:
            return Readmit()
        if query.app in self.promised and (query.app, device) not in self._announced:
            self._announced.add((query.app, device))
            said.append(SafeMode(query.app, device, True, f"{device} was lost with queries of this app"))
        return End(_expired(query, device, wall))

    def _over(self, device: str, sweep: _Sweep, now: float) -> list[ReclaimAction]:
        assert sweep.end is not None
        self._fences[device] = sweep.end
        self._again(sweep, now)
        if not sweep.returning:
            return []
        sweep.due, sweep.returning, sweep.let_in = now + self._patience, False, True
        return [LetIn(device), *self._kept(device)]

    def _kept(self, device: str, why: str = "is back") -> list[SafeMode]:
        kept = sorted(app for app, of in self._announced if of == device)
        self._announced -= {(app, device) for app in kept}
        return [SafeMode(app, device, False, f"{device} {why}") for app in kept]

    @staticmethod
    def _again(sweep: _Sweep, now: float) -> None:
        sweep.due, sweep.next, sweep.end = now + AGAIN, None, None

    def _story(self) -> tuple[str, ...]:
        return tuple(f"{device}: {sweep}" for device, sweep in sorted(self._sweeps.items()))


def _expired(query: Query, device: str, wall: float) -> Outcome:
    return Outcome.of(
        query,
        OutcomeKind.EXPIRED,
        wall,
        reason=Reason.DEVICE_LOST,
        device=device,
        queue_s=wall - query.arrival,
    )
