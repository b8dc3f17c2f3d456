"""Whether the machines that workers run on keep up, and what that takes from the capacity that profiles promise.

Rules:
- Each heartbeat tells how late its worker's event loop woke. The host of a device is starved once that was over
  ``late`` of the tightest SLO (``least`` seconds at least) in the mean over ``window`` seconds while queries are
  missed, and keeps up again once it was below half of that for ``calm`` seconds: what waits for the machine, no profile
  knows.
- While any host is starved, each batch takes the mean delay of the worst longer than profiled.
- While any host is starved, misses that the plan in force has no reason for raise the app's strain, a factor on the
  demand that is planned for, by as much as was missed and at most ``step`` at a time: from ``few`` queries and
  ``missed`` of them on, in ``window`` seconds of one plan. A plan that says that it cannot serve all has its reason.
- Strain falls by half a ``step`` after each ``calm`` seconds with hardly a miss. Where misses come back after that, it
  waits twice as long the next time, at most ``longest``: what is tried again and again disturbs who is served.
- A device that is not heard for ``window`` seconds counts no more.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sluicegate.domain.events import EndsCounted, HostHeard

_QUIET = 0.02
"""Of the queries missed: no reason to go on counting on less."""
_TICK = 0.01
"""Seconds that a delay is rounded up to, so that plans do not follow its every move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrainSettings:
    """Seconds, shares (``late``, ``missed``), factors. ``highest``: strain. ``rest``: while a host is starved,
    a plan that load alone asks for waits so many times as long as the last one took, or twice as long as the last wait.
    """

    late: float = 0.1
    least: float = 0.01
    window: float = 3.0
    calm: float = 10.0
    longest: float = 80.0
    missed: float = 0.1
    few: int = 20
    step: float = 2.0
    highest: float = 16.0
    rest: float = 10.0


@dataclass(slots=True)
class _Host:
    """A device's: (when, how late), newest last."""

    delays: deque[tuple[float, float]] = field(default_factory=deque)
    heard: float = 0.0


@dataclass(slots=True)
class _Strain:
    """Of an app. ``since``: when it was last changed, or last missed much; ``fell``: whether it fell since it rose."""

    factor: float = 1.0
    since: float = 0.0
    calm: float = 0.0
    fell: bool = False


class HostStrain:
    """Fold heartbeats in, ask what they come to. Pure: time comes with the calls."""

    def __init__(self, settings: StrainSettings | None = None) -> None:
        self._settings = settings or StrainSettings()
        self._hosts: dict[str, _Host] = {}
        self._ended: deque[tuple[float, EndsCounted]] = deque()
        self._strains: dict[str, _Strain] = {}
        self._kept_up: float | None = None
        self._plan_since = 0.0
        self._late = self._settings.least
        self.starved = False

    def heard(self, event: HostHeard, now: float) -> None:
        """A heartbeat."""
        host = self._hosts.setdefault(event.device, _Host())
        host.delays.append((now, event.late))
        host.heard = now
        self._ended.extend((now, one) for one in event.ended)
        # Who stands by is told and never asked: what no judgement would look at goes here as well.
        oldest = now - self._settings.window
        while host.delays[0][0] < oldest:
            host.delays.popleft()
        self._forget_ended(oldest)

    def planned(self, now: float) -> None:
        """Another plan is in force: misses from now on are its."""
        self._plan_since = now
        self._ended.clear()

    def judge(
        self, slo: float, served: Mapping[str, float], bursting: Collection[str], now: float
    ) -> tuple[str, dict[str, float]]:
        """What to say where hosts began or ceased to be starved, else "", and apps that have missed what the plan in
        force does not explain, with the share of it. ``slo``: the tightest, seconds.

        ``served``: of each app's demand by that plan, 0..1; ``bursting``: apps that get more than it was made for.
        """
        s = self._settings
        self._forget(now)
        self._late = max(s.least, s.late * slo)
        said = self._told() if self._look(now) else ""
        wrong: dict[str, float] = {}
        for app, (total, share) in self._misses().items():
            strain = self._strains.get(app)
            if strain is not None and share > _QUIET:
                strain.since = max(strain.since, now)
            if not self.starved or app in bursting or served.get(app, 0.0) < 0.999:
                continue
            if now - self._plan_since < s.window or total < s.few or share < s.missed:
                continue
            wrong[app] = share
            self._rise(app, share, now)
        for app, strain in self._strains.items():
            if app not in wrong and strain.factor > 1.0 and now - strain.since >= strain.calm:
                fallen = strain.factor / (0.5 * (1.0 + s.step))
                strain.factor, strain.since, strain.fell = (fallen if fallen > 1.05 else 1.0), now, True
        if wrong:
            self.planned(now)  # what is asked for now is held against misses that come after it
        return said, wrong

    @property
    def delay(self) -> float:
        """Seconds by which the worst of starved hosts is late, 0 where none is starved."""
        worst = max((self._mean(host) for host in self._hosts.values()), default=0.0) if self.starved else 0.0
        return _TICK * math.ceil(worst / _TICK - 1e-6)  # a mean of equal delays is that delay, however it is summed

    @property
    def strains(self) -> dict[str, float]:
        """Factors above 1 by app."""
        return {app: strain.factor for app, strain in sorted(self._strains.items()) if strain.factor > 1.0}

    def _told(self) -> str:
        """In a sentence, for people."""
        if not self.starved:
            return "event loops wake in time again"
        late = {name: mean for name, host in sorted(self._hosts.items()) if (mean := self._mean(host)) > self._late}
        missed = [
            f"{share:.0%} of {app} missed" for app, (_, share) in sorted(self._misses().items()) if share > _QUIET
        ]
        said = f"event loops wake {1e3 * max(late.values(), default=0.0):.0f} ms late ({', '.join(late)}); "
        said += f"{', '.join(missed)}; " if missed else ""
        return f"{said}plans count on less and are made less often; run fewer stages here, or give workers cores"

    def _rise(self, app: str, share: float, now: float) -> None:
        s = self._settings
        strain = self._strains.setdefault(app, _Strain(calm=s.calm))
        strain.factor = min(s.highest, strain.factor * min(s.step, 1.0 / (1.0 - min(share, 0.99))))
        strain.since = now
        if strain.fell:
            strain.calm, strain.fell = min(s.longest, 2.0 * strain.calm), False

    def _look(self, now: float) -> bool:
        s = self._settings
        worst = max((self._mean(host) for host in self._hosts.values() if self._known(host)), default=0.0)
        if not self.starved:
            self.starved = worst > self._late and any(share > _QUIET for _, share in self._misses().values())
            self._kept_up = None
            return self.starved
        if worst > 0.5 * self._late:
            self._kept_up = None
            return False
        self._kept_up = now if self._kept_up is None else self._kept_up
        self.starved = now - self._kept_up < s.calm
        return not self.starved

    def _known(self, host: _Host) -> bool:
        """Heard for most of the window: one late look is none."""
        return len(host.delays) > 1 and host.delays[-1][0] - host.delays[0][0] >= 0.5 * self._settings.window

    @staticmethod
    def _mean(host: _Host) -> float:
        return sum(late for _, late in host.delays) / len(host.delays) if host.delays else 0.0

    def _misses(self) -> dict[str, tuple[int, float]]:
        counted: dict[str, tuple[int, int]] = {}
        for _, one in self._ended:
            total, missed = counted.get(one.app, (0, 0))
            counted[one.app] = total + one.on_time + one.missed, missed + one.missed
        return {app: (total, missed / total) for app, (total, missed) in counted.items() if total}

    def _forget(self, now: float) -> None:
        oldest = now - self._settings.window
        self._forget_ended(oldest)
        for name, host in list(self._hosts.items()):
            if host.heard < oldest:
                del self._hosts[name]
                continue
            while host.delays[0][0] < oldest:
                host.delays.popleft()

    def _forget_ended(self, oldest: float) -> None:
        while self._ended and self._ended[0][0] < oldest:
            self._ended.popleft()
