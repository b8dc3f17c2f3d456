"""GPUs being cut otherwise in a running system: which may be, which are, and when a geometry is thought about.

Rules:
- Only GPUs whose workers state their slices, and whose type has a placement table, are ever cut otherwise.
- Asked: plans name the slices that a GPU is to have, and place nothing there. Done: its worker states slices of these
  profiles, or any others than it had: it is taken as it is. Failed: it states a fault of a plan that asked for this; or
  ``timeout`` has passed; or its worker no longer states slices. It goes on as it was and is let be for ``hold``.
- At most max(1, floor(``fraction`` * GPUs)) are being cut at a time, and each once at a time. One that has been cut
  counts for ``loads`` more: routers still send what its new slices are to take to others.
- A geometry is thought about once demand or devices have differed for ``patience`` seconds from what the present one
  was last found right for: an app's demand by more than the part ``drift`` of it and ``noise`` standard deviations of
  its counts. It is thought about until an answer changes nothing. Until then no GPU is cut twice: demand that stays
  comes to rest after one change a GPU at most, and demand that only fluctuates begins none.
- A GPU that was cut is let be for ``rest`` seconds.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sluicegate.domain.events import DeviceSeen
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.plan import NO_EPOCH, Epoch, Plan
from sluicegate.planner.geometry.gpu_pools import can_be_cut
from sluicegate.planner.geometry.mig_tables import shown
from sluicegate.planner.geometry.reconfigurator import change_limit
from sluicegate.planner.problems.problem import AppDemand, Problem, RecutGroup, Recuts

_COUNTED = 4.0
"""Seconds of counts that an estimate of demand rests on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSettings:
    """Seconds, unless said otherwise; see the rules. ``drift``: 0..1; ``noise``: standard deviations."""

    fraction: float = 0.3
    timeout: float = 60.0
    hold: float = 300.0
    rest: float = 60.0
    loads: float = 5.0
    patience: float = 5.0
    drift: float = 0.2
    noise: float = 2.0


@dataclass(frozen=True, slots=True)
class CutNews:
    """How a change of a GPU goes. ``state``: "recutting", "recut" or "recut_failed"."""

    device: str
    state: str
    detail: str


@dataclass(frozen=True, slots=True)
class _Change:
    """A cut under way. ``before``: profiles that it had; ``target``: slices that it is to have; ``asked``: the plan,
    and when."""

    before: Counter[str]
    target: tuple[Slice, ...]
    asked: Epoch
    since: float


@dataclass(frozen=True, slots=True)
class _Ground:
    """What a geometry rests on: queries/s by app, and devices by type."""

    demand: Mapping[str, float]
    devices: Counter[str]


class GeometryChanges:
    """Tracks GPUs that are being cut. ``enabled``: whether a geometry is thought about here; slices are told in plans
    all the same."""

    def __init__(self, settings: ChangeSettings | None, *, enabled: bool) -> None:
        self._settings = settings or ChangeSettings()
        self._enabled = enabled
        self._changing: dict[str, _Change] = {}
        self._stated: dict[str, tuple[Slice, ...]] = {}
        self._inherited: dict[str, tuple[tuple[Slice, ...], Epoch]] = {}
        self._let_be: dict[str, float] = {}
        self._held: dict[str, float] = {}
        self._loading: dict[str, float] = {}
        self._done: set[str] = set()
        self._open = False
        self._ground: _Ground | None = None
        self._differs_since: float | None = None

    @property
    def changing(self) -> frozenset[str]:
        """GPUs that nothing may be placed on."""
        return frozenset(self._changing)

    def seen(self, event: DeviceSeen, now: float) -> CutNews | None:
        """A heartbeat: what it says of a change that was asked for."""
        if event.slices:
            self._stated[event.device] = event.slices
        else:
            self._stated.pop(event.device, None)
        self._inherit(event.device, now)
        change = self._changing.get(event.device)
        if change is None:
            return None
        profiles = _profiles(event.slices)
        if not event.slices:
            return self._failed(event.device, "its worker cannot cut it", now)
        if profiles != change.before:
            return self._ended(event.device, profiles, change, now)
        if event.fault and event.fault_epoch >= change.asked:
            return self._failed(event.device, event.fault, now)
        return None

    def left(self, device: str) -> None:
        """The device is dead or leaving."""
        self._changing.pop(device, None)
        self._loading.pop(device, None)
        self._stated.pop(device, None)

    def overdue(self, now: float) -> list[CutNews]:
        """Time passed: changes that took too long."""
        for device in [d for d, until in self._held.items() if until <= now]:
            del self._held[device]
            self._begin_thinking()
        late = [d for d, c in sorted(self._changing.items()) if now - c.since > self._settings.timeout]
        return [self._failed(d, f"not cut within {self._settings.timeout:.0f} s", now) for d in late]

    def take_over(self, plan: Plan | None, now: float) -> None:
        """This planner leads from now on: what ``plan`` asked for and is not there yet goes on."""
        self._changing.clear()
        placed = {p.device for p in plan.placements} if plan is not None else set()
        asked = plan.geometries.items() if plan is not None else ()
        self._inherited = {device: (parts, plan.epoch) for device, parts in asked if plan and device not in placed}
        for device in sorted(self._stated):
            self._inherit(device, now)

    def _inherit(self, device: str, now: float) -> None:
        stated = self._stated.get(device)
        if stated is None:
            return
        target, asked = self._inherited.pop(device, ((), NO_EPOCH))
        if target and _profiles(target) != _profiles(stated):
            self._changing[device] = _Change(_profiles(stated), target, asked, now)

    def due(self, now: float) -> bool:
        """Whether what a geometry rests on has differed for long enough, so that a plan should be asked for."""
        since = self._differs_since
        return not self._open and since is not None and now - since >= self._settings.patience

    def notice(self, devices: Iterable[Device], demands: Iterable[AppDemand], now: float) -> None:
        """A plan is asked for with these: whether a geometry is to be thought about."""
        if self._open or not self._enabled or not self._stated:
            return
        ground = _ground(devices, demands)
        if self._ground is not None and not self._moved(self._ground, ground):
            self._differs_since = None
            return
        if self._differs_since is None:
            self._differs_since = now
        if self.due(now):
            self._begin_thinking()

    def question(self, devices: Sequence[Device], demands: Iterable[AppDemand], now: float) -> Recuts | None:
        """Which of ``devices``, all that live, may be cut otherwise now; None: none."""
        gpus = [d for d in devices if d.name in self._stated and can_be_cut(d)]
        if not self._enabled or not self._open or not gpus:
            return None
        changing = tuple(replace(d, slices=self._changing[d.name].target) for d in gpus if d.name in self._changing)
        self._loading = {device: until for device, until in self._loading.items() if until > now}
        tokens = change_limit(len(gpus), self._settings.fraction) - len(changing) - len(self._loading)
        free = tuple(sorted(d.name for d in gpus if self._may_change(d.name, now)))
        if tokens >= 1 and free:
            return Recuts((RecutGroup(free, tokens),), changing)
        if not changing and not self._loading and not self._resting(gpus, now):
            self._settle(_ground(devices, demands))
        return None

    def answered(
        self, problem: Problem, geometries: Mapping[str, tuple[Slice, ...]] | None, asked: Epoch, now: float
    ) -> list[CutNews]:
        """``problem`` was answered so. ``asked``: epoch of the plan that is about to say it."""
        if problem.recuts is None or geometries is None:
            return []
        if not geometries:
            devices = (*problem.devices, *problem.recuts.changing)
            if not self._changing and not self._resting(devices, now):
                self._settle(_ground(devices, problem.demands))
            return []
        return self.begin(problem.devices, geometries, asked, now)

    def begin(
        self, devices: Iterable[Device], geometries: Mapping[str, tuple[Slice, ...]], asked: Epoch, now: float
    ) -> list[CutNews]:
        """Those of ``devices`` that ``geometries`` names are to be cut so. ``asked``: see ``answered``."""
        said = []
        for device in devices:
            target, before = geometries.get(device.name), _profiles(device.slices)
            there = _profiles(self._stated.get(device.name, ()))
            if target and before == there and device.name not in self._changing:
                self._changing[device.name] = _Change(before, target, asked, now)
                self._done.add(device.name)
                said.append(CutNews(device.name, "recutting", f"{_shown(before)} -> {_shown(_profiles(target))}"))
        return said

    def stating(self, devices: Iterable[Device]) -> list[Device]:
        """Those whose workers state their slices."""
        return [d for d in devices if d.name in self._stated]

    def let_be(self, now: float) -> frozenset[str]:
        """GPUs that could not be cut a while ago, or have been."""
        return frozenset(self._held) | {d for d, until in self._let_be.items() if until > now}

    def geometries(self, devices: Iterable[Device]) -> dict[str, tuple[Slice, ...]]:
        """Slices of every GPU that states its own: those that it is to have, or has."""
        found = {}
        for device in devices:
            change = self._changing.get(device.name)
            stated = self._stated.get(device.name)
            if stated:
                found[device.name] = change.target if change else stated
        return found

    def _begin_thinking(self) -> None:
        self._open = True
        self._done.clear()

    def _settle(self, ground: _Ground) -> None:
        self._open = False
        self._ground = ground
        self._differs_since = None

    def _moved(self, before: _Ground, now: _Ground) -> bool:
        if before.devices != now.devices or before.demand.keys() != now.demand.keys():
            return True
        s = self._settings
        for app, qps in now.demand.items():
            most = max(qps, before.demand[app])
            if abs(qps - before.demand[app]) > s.drift * most + s.noise * math.sqrt(most / _COUNTED):
                return True
        return False

    def _may_change(self, device: str, now: float) -> bool:
        return (
            device not in self._changing
            and device not in self._done
            and device not in self._held
            and self._let_be.get(device, -math.inf) <= now
        )

    def _resting(self, gpus: Iterable[Device], now: float) -> bool:
        """Whether some GPU may be cut again later that has not been cut since it was last thought about."""
        return any(d.name not in self._done and self._let_be.get(d.name, -math.inf) > now for d in gpus)

    def _ended(self, device: str, profiles: Counter[str], change: _Change, now: float) -> CutNews:
        del self._changing[device]
        self._let_be[device] = now + self._settings.rest
        self._loading[device] = now + self._settings.loads
        asked = _profiles(change.target)
        detail = f"{_shown(change.before)} -> {_shown(profiles)} in {now - change.since:.1f} s"
        return CutNews(device, "recut", detail + ("" if profiles == asked else f", not {_shown(asked)} as asked"))

    def _failed(self, device: str, why: str, now: float) -> CutNews:
        change = self._changing[device]
        del self._changing[device]
        self._held[device] = now + self._settings.hold
        wanted = _shown(_profiles(change.target))
        return CutNews(device, "recut_failed", f"{_shown(change.before)} stays, not {wanted}: {why:.300}")


def _ground(devices: Iterable[Device], demands: Iterable[AppDemand]) -> _Ground:
    qps: dict[str, float] = {}
    for d in demands:
        qps[d.app] = qps.get(d.app, 0.0) + d.qps
    return _Ground(qps, Counter(d.type for d in devices))


def _profiles(slices: Iterable[Slice]) -> Counter[str]:
    return Counter(s.profile for s in slices)


def _shown(profiles: Counter[str]) -> str:
    return shown(tuple(sorted(profiles.elements(), reverse=True)))
