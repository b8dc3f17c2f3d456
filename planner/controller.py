"""The planner stage's decisions: when to plan, with what, what to publish, whom to declare dead.

Rules:
- A device is alive from its first heartbeat until ``device_timeout`` without one, or until it says that it is leaving.
  One that fell silent is dead at once: an epoch without it is published from the plan in force, then its work is
  reclaimed, then a new plan is asked for. It rejoins by any later heartbeat, whatever its incarnation.
- A plan names the incarnation of each device it counts on. A worker that was restarted before it was missed gets an
  epoch that names its new one. Devices that the plan before this term counted on and that stay silent for
  ``device_timeout`` are reclaimed as well.
- At most one Solve is out. What happens meanwhile is remembered and asked for again once it is answered. An answer
  that comes after ``solve_timeout`` is ignored.
- A plan is asked for: when the first device is seen; ``join_grace`` after further ones (they come in flocks); at once
  when one left or died; every ``plan_period``; on a burst, at most every ``burst_interval``, and ``burst_period`` after
  it; when measured latency contradicts a profile; when a variant failed to load.
- An answer is published if devices changed since the plan in force, if it holds other variants, or if a share moved by
  more than ``publish_change``: an epoch that changes nothing costs routers a switch for nothing. Placements on devices
  that died while it was solved are left out.
- Epochs are (term, number), numbers from 1, strictly increasing.
- A standby's controller listens: it knows demand, devices, measured latencies and failed loads, and decides nothing.
  Once it leads, the newest plan goes on at once in the new term, on the devices that are heard, and a new one is asked
  for.
- Shortage is announced with the first plan that cannot serve an app, and its end after ``calm_plans`` that can.

A plan's fences are the shell's: it knows offsets.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from domain.actions import Announce, ControllerAction, Publish, Reclaim
from domain.device import Device
from domain.events import ControllerEvent, DemandCounted, DeviceSeen, LatencyMeasured, PlanAcknowledged, Ticked
from domain.plan import Epoch, Placement, Plan
from domain.profile import Quantile
from planner.demand import DemandEstimator, DemandSettings, Estimate
from planner.fleet import Change, Fleet
from planner.latency import LatencyFactors, LatencySettings
from planner.problem import Allocation, AppDemand, Capacity, Problem
from planner.shortage import ShortageWatch
from profiles.catalogue import Catalogue

_BURST = "burst of"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Seconds unless said otherwise. ``headroom``: a uniform one instead of each app's own."""

    plan_period: float = 10.0
    burst_interval: float = 1.0
    burst_period: float = 3.0
    device_timeout: float = 2.0
    join_grace: float = 0.25
    solve_timeout: float = 60.0
    load_failure_hold: float = 60.0
    publish_change: float = 0.01
    served_enough: float = 0.999
    calm_plans: int = 2
    headroom: float | None = None
    capacity: Capacity = "best-batch"
    quantile: Quantile = "median"
    variants_per_device: int = 1
    switching_weight: float = 0.0
    max_loads: int | None = None
    money_weight: float = 0.0
    budget: float | None = None
    strict_on_demand: float = 0.0
    demand: DemandSettings = field(default_factory=DemandSettings)
    latency: LatencySettings = field(default_factory=LatencySettings)


@dataclass(frozen=True, slots=True)
class Solve:
    """Give ``problem`` to the planner and send Solved. ``urgent``: capacity is missing now; a fast answer is better."""

    problem: Problem
    reason: str
    urgent: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True)
class Solved:
    """What the planner answered, after ``solve_s`` seconds. ``number``: of the Solve (0: the one that is out).

    ``provisional``: a stand-in while the planner is still at work: published, but the Solve stays out.
    """

    allocation: Allocation
    reason: str
    solve_s: float
    number: int = 0
    provisional: bool = False


@dataclass(slots=True)
class _Pending:
    """The Solve that is out: what was asked, when, and whether devices changed before it was asked."""

    number: int
    asked: float
    problem: Problem
    devices_changed: bool


class Controller:
    """One leader's term. ``devices``: what is known of devices beyond their heartbeats (slices).

    ``assume_alive``: those devices are there without heartbeats (a simulation without faults). ``previous``: the plan
    in force when the term began.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        settings: ControllerSettings | None = None,
        term: int = 1,
        devices: Sequence[Device] = (),
        assume_alive: bool = False,
        previous: Plan | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._settings = settings or ControllerSettings()
        self._term = term
        self._number = 0
        self._fleet = Fleet(devices, self._settings.device_timeout)
        self._assume_alive = assume_alive
        self._demand = DemandEstimator(self._settings.demand)
        self._classes = DemandEstimator(self._settings.demand)
        self._factors = LatencyFactors(catalogue, self._settings.quantile, self._settings.latency)
        self._failed: dict[tuple[str, str], float] = {}
        self._plan = previous
        self._missing = dict(previous.incarnations) if previous is not None else {}
        self._began: float | None = None
        self._pending: _Pending | None = None
        self._solves = 0
        self._last_solve: float | None = None
        self._wanted: dict[str, float] = {}
        self._urgent = False
        self._after_burst = False
        self._devices_changed = False
        self._shortage = ShortageWatch(self._settings.served_enough, self._settings.calm_plans)

    @property
    def plan(self) -> Plan | None:
        """The plan in force."""
        return self._plan

    @property
    def alive(self) -> tuple[str, ...]:
        """Devices that plans may use, by name."""
        return tuple(d.name for d in self._fleet.usable())

    def estimates(self, now: float) -> Mapping[str, Estimate]:
        """Demand of each app in the catalogue as it would be planned for now."""
        return {app: self._demand.estimate(app, now) for app in sorted(self._catalogue.apps)}

    def handle(self, event: ControllerEvent | Solved, now: float) -> list[ControllerAction | Solve]:
        """Decide. Unknown apps, devices and epochs are ignored."""
        actions: list[ControllerAction | Solve] = []
        match event:
            case DemandCounted():
                self._counted(event, now)
            case DeviceSeen():
                self._device_seen(event, now, actions)
            case PlanAcknowledged():
                self._acknowledged(event, now, actions)
            case LatencyMeasured():
                self._measured(event, now, actions)
            case Ticked():
                self._ticked(now, actions)
            case Solved():
                self._solved(event, now, actions)
            case _:
                assert_never(event)
        self._maybe_solve(now, actions)
        return actions

    def _counted(self, event: DemandCounted, now: float) -> None:
        if event.app in self._catalogue.apps:
            self._demand.handle(event, now)
            for slo, count in event.classes:
                self._classes.handle(replace(event, app=_class_name(event.app, slo), count=count, classes=()), now)

    def excuse(self, now: float) -> None:
        """The log was silent until now: no device is to be missed for that."""
        self._fleet.excuse(now)

    def listen(self, event: ControllerEvent | Solved, now: float) -> None:
        """Stand by: take note, decide nothing."""
        match event:
            case DemandCounted():
                self._counted(event, now)
            case DeviceSeen():
                self._fleet.seen(event, now)
            case LatencyMeasured():
                self._factors.handle(event)
            case PlanAcknowledged():
                device_type = self._fleet.type_of(event.device)
                if device_type is not None:
                    for variant in event.failed:
                        self._failed[variant, device_type] = now + self._settings.load_failure_hold
            case Ticked() | Solved():
                pass
            case _:
                assert_never(event)

    def lead(self, term: int, newest: Plan | None, reason: str, now: float) -> list[ControllerAction | Solve]:
        """Decide from now on, in ``term``, which may be one that was led before. ``newest``: the plan in force."""
        if term != self._term:
            self._term, self._number = term, 0
        if newest is not None and newest.epoch.term == term:
            self._number = max(self._number, newest.epoch.number)
        self._plan = newest
        named = newest.incarnations if newest is not None else {}
        heard = self._fleet.incarnations()
        self._missing = {name: incarnation for name, incarnation in named.items() if name not in heard}
        self._began = self._pending = self._last_solve = None
        self._wanted.clear()
        self._urgent = self._after_burst = False
        self._devices_changed = True
        self._shortage = ShortageWatch(self._settings.served_enough, self._settings.calm_plans)
        actions: list[ControllerAction | Solve] = []
        before = self._number
        self._ticked(now, actions)
        if newest is not None and not self._missing and self._fleet.usable() and self._number == before:
            self._carry_on(newest, reason, now, actions)
        # Devices that are not heard yet may be about to be: whoever took over at once has listened to nobody.
        self._want(reason, now + (self._settings.join_grace if self._missing else 0.0))
        self._maybe_solve(now, actions)
        return actions

    def _carry_on(self, newest: Plan, reason: str, now: float, actions: list[ControllerAction | Solve]) -> None:
        usable = {d.name for d in self._fleet.usable()}
        kept = tuple(p for p in newest.placements if p.device in usable)
        served = _served_by(newest, kept)
        self._publish(replace(newest, placements=kept, served=served, reason=reason, solve_s=0.0), now, actions)

    def _device_seen(self, event: DeviceSeen, now: float, actions: list[ControllerAction | Solve]) -> None:
        change = self._fleet.seen(event, now)
        self._missing.pop(event.device, None)
        if change is Change.NONE:
            return
        subject = f"device:{event.device}"
        actions.append(Announce(subject, str(change), f"{event.type}, incarnation {event.incarnation}"))
        reason = f"device {event.device} {change}"
        match change:
            case Change.RESTARTED:
                # Placements stay, but the new worker serves only once a plan names it.
                if self._plan is not None:
                    self._publish(replace(self._plan, reason=reason, solve_s=0.0), now, actions)
                return
            case Change.LEAVING:
                self._without(reason, now, actions)
            case Change.JOINED | Change.RETURNED:
                first = len(self._fleet.usable()) == 1
                self._want(reason, now if first else now + self._settings.join_grace)
            case Change.STAYS | Change.CHANGED:
                self._want(reason, now)
        self._devices_changed = True

    def _ticked(self, now: float, actions: list[ControllerAction | Solve]) -> None:
        if self._assume_alive:
            if self._fleet.assume(now):
                self._devices_changed = True
                self._want("first plan", now)
            return
        self._reclaim_missing(now, actions)
        dead = self._fleet.bury(now)
        if any(not state.leaving for state in dead):
            names = ", ".join(state.device.name for state in dead)
            self._without(f"device {names} lost", now, actions)
        for state in dead:
            silence = f"no heartbeat for {now - state.seen:.1f} s"
            actions.append(Announce(f"device:{state.device.name}", "left" if state.leaving else "lost", silence))
            actions.append(Reclaim(state.device.name, state.incarnation))

    def _reclaim_missing(self, now: float, actions: list[ControllerAction | Solve]) -> None:
        """Devices of the plan before this term that have not been heard of since it began."""
        if self._began is None:
            self._began = now
        if now - self._began <= self._settings.device_timeout:
            return
        for name, incarnation in sorted(self._missing.items()):
            actions.append(Announce(f"device:{name}", "lost", "not heard of since this planner took over"))
            actions.append(Reclaim(name, incarnation))
        self._missing.clear()

    def _without(self, reason: str, now: float, actions: list[ControllerAction | Solve]) -> None:
        """Publish the plan in force without the devices that are gone, and ask for a better one."""
        self._devices_changed = True
        self._want(reason, now)
        self._urgent = True
        if self._plan is None:
            return
        usable = {d.name for d in self._fleet.usable()}
        kept = tuple(p for p in self._plan.placements if p.device in usable)
        if len(kept) == len(self._plan.placements):
            return
        self._publish(
            replace(self._plan, placements=kept, served=_served_by(self._plan, kept), reason=reason, solve_s=0.0),
            now,
            actions,
        )

    def _measured(self, event: LatencyMeasured, now: float, actions: list[ControllerAction | Solve]) -> None:
        factor = self._factors.handle(event)
        if factor is None:
            return
        name = f"{event.variant}@{event.device_type}"
        actions.append(
            Announce(
                f"profile:{name}",
                "wrong" if factor != 1.0 else "right",
                f"measured latency is {factor:.2f} times the profile's",
                {"factor": factor},
            )
        )
        self._want(f"latency of {name} is {factor:.2f} times its profile", now)

    def _acknowledged(self, event: PlanAcknowledged, now: float, actions: list[ControllerAction | Solve]) -> None:
        device_type = self._fleet.type_of(event.device)
        if device_type is None or event.epoch.term != self._term:
            return
        for variant in event.failed:
            key = (variant, device_type)
            fresh = self._failed.get(key, -1.0) < now
            self._failed[key] = now + self._settings.load_failure_hold
            if fresh:
                actions.append(Announce(f"device:{event.device}", "load_failed", f"{variant} could not be loaded"))
                self._want(f"{variant} failed to load on {event.device}", now)

    def _usable_catalogue(self, now: float) -> Catalogue:
        """Without what failed to load a short while ago, unless the app has nothing else."""
        barred = {key for key, until in self._failed.items() if until > now}
        if not barred:
            return self._catalogue
        profiles = {key: p for key, p in self._catalogue.profiles.items() if key not in barred}
        left = {self._catalogue.variants[variant].app for variant, _ in profiles}
        for key in sorted(barred):
            if key in self._catalogue.profiles and self._catalogue.variants[key[0]].app not in left:
                profiles[key] = self._catalogue.profiles[key]
        return Catalogue(self._catalogue.apps, self._catalogue.variants, dict(sorted(profiles.items())))

    def _want(self, reason: str, at: float) -> None:
        self._wanted.setdefault(reason, at)

    def _maybe_solve(self, now: float, actions: list[ControllerAction | Solve]) -> None:
        s = self._settings
        if self._pending is not None and now - self._pending.asked > s.solve_timeout:
            actions.append(Announce("planner", "late", f"no answer for {s.solve_timeout:.0f} s; asking again"))
            self._devices_changed = self._devices_changed or self._pending.devices_changed
            self._pending = None
            self._want("the planner did not answer", now)
        since = now - self._last_solve if self._last_solve is not None else None
        if since is not None:
            if since >= (min(s.burst_period, s.plan_period) if self._after_burst else s.plan_period):
                self._want("period", now)
            if since >= s.burst_interval:
                for app in self._demand.bursting(now):
                    self._want(f"{_BURST} {app}", now)
                    self._urgent = True
        due = [reason for reason, at in self._wanted.items() if at <= now]
        if not due or self._pending is not None or not self._fleet.usable():
            return
        reasons = sorted(self._wanted)
        problem = self.problem(now)
        self._solves += 1
        self._pending = _Pending(self._solves, now, problem, self._devices_changed)
        self._after_burst = any(reason.startswith(_BURST) for reason in reasons)
        actions.append(Solve(problem, "; ".join(reasons), self._urgent, self._solves))
        self._wanted.clear()
        self._urgent = self._devices_changed = False
        self._last_solve = now

    def problem(self, now: float) -> Problem:
        """What would be asked of the planner now."""
        s = self._settings
        demands = []
        for app, estimate in self.estimates(now).items():
            goal = self._catalogue.apps[app]
            headroom = estimate.headroom if s.headroom is None else s.headroom
            demands += [
                AppDemand(
                    app=app,
                    qps=estimate.qps * part,
                    slo=slo,
                    headroom=headroom,
                    spread=estimate.spread if s.headroom is None else 0.0,
                    min_accuracy=goal.min_accuracy,
                    query_class=goal.query_class,
                )
                for slo, part in self._slo_parts(app, now)
            ]
        return Problem(
            demands=tuple(demands),
            devices=tuple(self._fleet.usable()),
            catalogue=self._usable_catalogue(now),
            previous=self._plan.placements if self._plan else (),
            capacity=s.capacity,
            quantile=s.quantile,
            latency_factor=self._factors.factors,
            variants_per_device=s.variants_per_device,
            switching_weight=s.switching_weight,
            max_loads=s.max_loads,
            money_weight=s.money_weight,
            budget=s.budget,
            strict_on_demand=s.strict_on_demand,
        )

    def _slo_parts(self, app: str, now: float) -> list[tuple[float, float]]:
        """(SLO, part of the demand) of each SLO class, as counted; an app without classes is one."""
        goal = self._catalogue.apps[app]
        if not goal.slo_classes:
            return [(goal.slo, 1.0)]
        counted = [self._classes.estimate(_class_name(app, slo), now).qps for slo in goal.slo_classes]
        return [(slo, qps / sum(counted)) for slo, qps in zip(goal.slo_classes, counted, strict=True)]

    def _solved(self, event: Solved, now: float, actions: list[ControllerAction | Solve]) -> None:
        pending = self._pending
        if pending is None or (event.number and event.number != pending.number):
            return
        if not event.provisional:
            self._pending = None
        allocation = event.allocation
        usable = {d.name for d in self._fleet.usable()}
        placements = tuple(p for p in allocation.placements if p.device in usable)
        if not usable:
            return
        demand: dict[str, float] = {}
        for d in pending.problem.demands:
            demand[d.app] = demand.get(d.app, 0.0) + d.qps
            self._demand.cover(d.app, demand[d.app] * allocation.headroom.get(d.app, d.headroom))
        plan = Plan(
            epoch=Epoch(self._term, self._number),
            created=now,
            placements=placements,
            demand=demand,
            served=dict(allocation.served),
            objective=allocation.objective,
            bound=allocation.bound,
            reason=event.reason,
            solve_s=event.solve_s,
            nondeterministic=allocation.nondeterministic,
        )
        if len(placements) < len(allocation.placements):
            plan = replace(plan, served=_served_by(plan, placements))
        actions.extend(self._shortage.observe(plan))
        if pending.devices_changed or self._plan is None or self._differs(plan.placements):
            self._publish(plan, now, actions)

    def _publish(self, plan: Plan, now: float, actions: list[ControllerAction | Solve]) -> None:
        self._number += 1
        named = self._fleet.incarnations()
        self._plan = replace(plan, epoch=Epoch(self._term, self._number), created=now, incarnations=named)
        actions.append(Publish(self._plan))

    def _differs(self, placements: Iterable[Placement]) -> bool:
        assert self._plan is not None
        old = {(p.device, p.slice, p.app): p for p in self._plan.placements}
        new = {(p.device, p.slice, p.app): p for p in placements}
        if old.keys() != new.keys():
            return True
        return any(
            p.variants != old[key].variants
            or p.slo != old[key].slo
            or p.max_batch != old[key].max_batch
            or abs(p.share - old[key].share) > self._settings.publish_change
            for key, p in new.items()
        )


def _class_name(app: str, slo: float) -> str:
    return f"{app} {slo!r}"


def _served_by(plan: Plan, kept: Sequence[Placement]) -> dict[str, float]:
    """Served fractions of what is left of a plan."""
    before: dict[str, float] = {}
    after: dict[str, float] = {}
    for p in plan.placements:
        before[p.app] = before.get(p.app, 0.0) + p.share
    for p in kept:
        after[p.app] = after.get(p.app, 0.0) + p.share
    return {
        app: fraction * (after.get(app, 0.0) / before[app] if before.get(app) else 1.0)
        for app, fraction in plan.served.items()
    }
