"""Which devices there are: alive, leaving, dead.

Rules:
- A device is alive from a heartbeat until ``timeout`` seconds without one. It rejoins by any later heartbeat, whatever
  its incarnation. One that says it is leaving is alive but not usable.
- Another incarnation takes its place if it follows it in the same worker, or once the one that is counted on leaves or
  has been silent for ``SILENCE`` of ``timeout``: a worker that starts again has not beaten meanwhile. Of two that both
  beat the first stays and the other is nobody: each that took the other's place would do anew what the other answers,
  again and again. A term begins with the one that the plan before it counted on, if that is one of them.
- Where nothing could be heard of anyone, nobody was silent: all of them get the whole timeout anew, expected ones too.
- Devices that the plan before this term counted on are expected; those that stay silent for ``timeout`` since it began
  are gone, and at once those that had died before.
- Nothing is decided here but that; the controller turns changes into plans.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from sluicegate.domain.events import DeviceSeen
from sluicegate.domain.fleet.device import Device

SILENCE = 0.75
"""Share of the timeout after which another worker of the device takes the place of one that says nothing."""
SELF_FENCE = 0.5
"""Share of the timeout after which a worker that said nothing itself asks whether one has: sooner than one can."""


class Change(StrEnum):
    """What a heartbeat told."""

    NONE = "none"
    JOINED = "joined"
    RETURNED = "returned"
    RESTARTED = "restarted"
    LEAVING = "leaving"
    STAYS = "stays"
    CHANGED = "changed"
    CONTESTED = "contested"


@dataclass(slots=True)
class DeviceState:
    """A device as it was last heard of. ``said``: its last heartbeat; ``beside``: that of another worker of it, which
    came at ``another``, -inf: there was none; ``contested``: whether that was told."""

    said: DeviceSeen
    device: Device
    incarnation: str
    seen: float
    alive: bool = True
    leaving: bool = False
    beside: DeviceSeen | None = None
    another: float = -inf
    contested: bool = False


class Fleet:
    """Which devices are alive, leaving or dead. ``known``: what is known of devices beyond their heartbeats (slices,
    price)."""

    def __init__(self, known: Sequence[Device], timeout: float) -> None:
        self._known = {d.name: d for d in known}
        self._timeout = timeout
        self._states: dict[str, DeviceState] = {}
        self._expected: dict[str, str] = {}
        self._began: float | None = None

    def expect(self, incarnations: Mapping[str, str], now: float = -inf) -> None:
        """A term begins, and the plan before counted on these; those that live need not be waited for."""
        for name, state in self._states.items():
            state.contested = False
            beside = state.beside
            if beside is None or beside.incarnation != incarnations.get(name) or self._silent(state.another, now):
                continue
            self._states[name] = DeviceState(
                beside,
                self._described(beside),
                beside.incarnation,
                state.another,
                leaving=beside.leaving,
                beside=state.said,
                another=state.seen,
            )
        heard = self.incarnations()
        self._expected = {name: incarnation for name, incarnation in incarnations.items() if name not in heard}
        self._began = None

    @property
    def expected(self) -> bool:
        """Whether devices are waited for."""
        return bool(self._expected)

    def unheard(self, now: float) -> list[tuple[str, str]]:
        """Expected devices that were not heard of in time, with their incarnation, told once."""
        if self._began is None:
            self._began = now
        late = now - self._began > self._timeout
        gone = [(name, one) for name, one in sorted(self._expected.items()) if late or self._died(name, one)]
        for name, _ in gone:
            del self._expected[name]
        return gone

    def _died(self, device: str, incarnation: str) -> bool:
        state = self._states.get(device)
        return state is not None and not state.alive and state.incarnation == incarnation

    def incarnations(self) -> dict[str, str]:
        """Incarnation of each device that lives: one that is leaving may still finish what it has."""
        return {name: s.incarnation for name, s in sorted(self._states.items()) if s.alive}

    def usable(self) -> list[Device]:
        """Devices that plans may use, by name."""
        return [s.device for _, s in sorted(self._states.items()) if s.alive and not s.leaving]

    def type_of(self, device: str) -> str | None:
        """Type of a device that was ever seen."""
        state = self._states.get(device)
        return state.device.type if state else None

    def is_another(self, event: DeviceSeen, now: float, *, withdrawn: bool = False) -> bool:
        """Whether it is of a worker beside the one that is counted on. It is noted, and counts for nothing else.

        ``withdrawn``: the device, so that whoever runs it is leaving.
        """
        state = self._states.get(event.device)
        if state is None or not state.alive or state.incarnation in {event.incarnation, event.after}:
            return False
        if (state.leaving and not withdrawn) or self._silent(state.seen, now):
            return False
        state.beside, state.another = event, now
        return True

    def _silent(self, since: float, now: float) -> bool:
        return now - since > SILENCE * self._timeout

    def _contested(self, state: DeviceState, now: float) -> Change:
        """Told once, until the other has been silent for as long as the dead are."""
        both = now - state.another <= self._timeout
        news, state.contested = both and not state.contested, both
        return Change.CONTESTED if news else Change.NONE

    def seen(self, event: DeviceSeen, now: float) -> Change:
        """Fold a heartbeat in."""
        state = self._states.get(event.device)
        if state is not None and state.alive and state.said == event:
            state.seen = now
            return self._contested(state, now)
        device = self._described(event)
        self._expected.pop(event.device, None)
        if state is None or not state.alive:
            self._states[event.device] = DeviceState(event, device, event.incarnation, now, leaving=event.leaving)
            if event.leaving:
                return Change.NONE
            return Change.JOINED if state is None else Change.RETURNED
        change = Change.NONE
        if event.leaving and not state.leaving:
            change = Change.LEAVING
        elif state.leaving and not event.leaving:
            change = Change.STAYS
        elif state.device != device:
            change = Change.CHANGED
        elif state.incarnation != event.incarnation:
            change = Change.RESTARTED
        if state.incarnation != event.incarnation:
            state.beside, state.another, state.contested = None, -inf, False
        state.said, state.seen = event, now
        state.device, state.incarnation, state.leaving = device, event.incarnation, event.leaving
        return change

    def excuse(self, now: float) -> None:
        """Nothing could be heard until now."""
        for state in self._states.values():
            state.seen = max(state.seen, now)
        if self._began is not None:
            self._began = max(self._began, now)

    def bury(self, now: float) -> list[DeviceState]:
        """Declare dead what has been silent for too long; those that died now, by name."""
        dead = [s for s in self._states.values() if s.alive and now - s.seen > self._timeout]
        dead.sort(key=lambda state: state.device.name)
        for state in dead:
            state.alive = False
        return dead

    def _described(self, event: DeviceSeen) -> Device:
        known = self._known.get(event.device) or Device(name=event.device, type=event.type)
        return Device(
            name=event.device,
            type=event.type,
            memory_bytes=event.memory_bytes or known.memory_bytes,
            slices=event.slices or known.slices,
            price=event.price or known.price,
            spot=event.spot or known.spot,
        )
