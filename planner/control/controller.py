"""The planner stage's decisions: when to plan, with what, what to publish, whom to declare dead.

Rules:
- A device is alive from its first heartbeat until ``device_timeout`` without one, or until it says that it is leaving.
  One that fell silent is dead at once: an epoch without it is published from the plan in force, then its work is
  reclaimed, then a new plan is asked for. It rejoins by any later heartbeat, whatever its incarnation.
- A plan names the incarnation of each device it counts on. A worker that was restarted before it was missed gets an
  epoch that names its new one, and so does one that is leaving: what lies on its topic waits for it. Devices that the
  plan before this term counted on and that stay silent for ``device_timeout`` leave the plan and are reclaimed as well.
- Where a plan in force still names an incarnation that was declared dead (a device that was leaving, or had nothing
  placed on it) and that beats again, an epoch that does not name it tells its worker that it must rejoin.
- A plan is asked for (how often: ``sluicegate.planner.control.replan_trigger``) when the first device is seen;
  ``join_grace`` after further ones, and after GPUs that were cut otherwise (they come in flocks); at once when one left
  or died; on a burst; when measured latency contradicts a profile; when a variant failed to load; when the registry
  says otherwise.
- Where the machine itself is short (``sluicegate.planner.estimates.host_strain``) that is said, plans count on less of
  it, and what load alone asks for is asked for less and less often.
- What failed to load is tried again where the plan in force still counts on it: a worker tries that with a newer plan
  only, so it is published anew, ``load_failure_hold`` after the failure.
- An answer is published if devices or the registry changed since the plan in force (who registers waits for it), if it
  holds other variants, or if a share moved by more than ``publish_change``: an epoch that changes nothing costs routers
  a switch for nothing. Placements on devices that died while it was solved are left out.
- Epochs are (term, number), numbers from 1, strictly increasing.
- A standby's controller listens: it knows demand, devices, measured latencies and failed loads, and decides nothing.
  Once it leads, the newest plan goes on at once in the new term, on the devices that are heard, and a new one is asked
  for.
- A GPU that is to be cut otherwise hosts nothing from the plan that says so until its worker states other slices or a
  fault; which GPUs, and when that is thought about, is ``sluicegate.planner.geometry.recut_tracker`` (or
  ``sluicegate.planner.geometry.protean_controller``). An urgent question is asked without it. Where a device states
  slices unasked, an epoch without what was placed on those that are gone is published at once.
- Shortage is announced with the first plan that cannot serve an app, and its end after ``calm_plans`` that can.

A plan's fences are added by the core: it knows what was reclaimed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from sluicegate.domain.actions import Announce, ControllerAction, Publish, Reclaim
from sluicegate.domain.events import (
    ControllerEvent,
    DemandCounted,
    DeviceSeen,
    HostHeard,
    LatencyMeasured,
    PlanAcknowledged,
    Ticked,
)
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.plan import Epoch, Plan
from sluicegate.planner.control.controller_settings import ControllerSettings
from sluicegate.planner.control.plan_diff import differs, reduced
from sluicegate.planner.control.replan_trigger import MEASURED, Asking, Solve, Solved
from sluicegate.planner.control.shortage_alerts import ShortageWatch
from sluicegate.planner.estimates.demand_estimate import Estimate
from sluicegate.planner.estimates.device_liveness import Change, Fleet
from sluicegate.planner.estimates.load_refusals import LoadRefusals
from sluicegate.planner.estimates.problem_builder import Outlook
from sluicegate.planner.geometry.protean_controller import ProteanRule, RuleSettings
from sluicegate.planner.geometry.recut_tracker import CutNews, GeometryChanges
from sluicegate.planner.problems.problem import Problem
from sluicegate.planner.problems.promised_shares import with_promised_shares
from sluicegate.profiles.catalogue.catalogue import Catalogue

_ANOTHER = frozenset({Change.RESTARTED, Change.LEAVING, Change.JOINED, Change.RETURNED})
"""What is heard of a device that says nothing of what it loads from here on."""


class Controller:
    """One leader's term. ``devices``: what is known of devices beyond their heartbeats (slices).

    ``previous``: the plan in force when the term began.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        settings: ControllerSettings | None,
        term: int = 1,
        devices: Sequence[Device] = (),
        previous: Plan | None = None,
    ) -> None:
        self._settings = settings or ControllerSettings()
        self._term = term
        self._number = 0
        self._fleet = Fleet(devices, self._settings.device_timeout)
        self._changes = GeometryChanges(self._settings.changes, enabled=self._settings.geometry == "joint")
        by_rule = self._settings.geometry == "protean"
        self._rule = ProteanRule(RuleSettings(quantile=self._settings.quantile)) if by_rule else None
        self._outlook = Outlook(catalogue, self._settings)
        self._plan = previous
        self._asking = Asking(self._settings)
        self._refusals = LoadRefusals(self._settings.load_failure_hold, self._outlook.is_all_there_is)
        self._unloaded: dict[tuple[str, str], float] = {}  # (device, variant) -> when it is to be tried again
        self._named = dict(previous.incarnations) if previous is not None else {}
        self._fleet.expect(self._named)
        self._shortage = ShortageWatch(self._settings.served_enough, self._settings.calm_plans)

    @property
    def settings(self) -> ControllerSettings:
        """What was set of its decisions."""
        return self._settings

    @property
    def plan(self) -> Plan | None:
        """The plan in force."""
        return self._plan

    @property
    def alive(self) -> tuple[str, ...]:
        """Devices that plans may use, by name."""
        return tuple(d.name for d in self._fleet.usable())

    @property
    def living(self) -> tuple[str, ...]:
        """Devices that are heard of, also those that are leaving."""
        return tuple(self._fleet.incarnations())

    def is_another(self, beat: DeviceSeen, now: float, *, withdrawn: bool) -> bool:
        """Whether a worker beats for a device that another runs, which is counted on and lives."""
        return self._fleet.is_another(beat, now, withdrawn=withdrawn)

    def counted_on(self, device: str, incarnation: str) -> bool:
        """Whether a plan of this term, or the one that it began with, named this incarnation of the device last."""
        return self._named.get(device) == incarnation

    def again(self, reason: str, now: float) -> list[ControllerAction | Solve]:
        """The plan in force as a new epoch, where there is one."""
        actions: list[ControllerAction | Solve] = []
        if self._plan is not None:
            self._publish(replace(self._plan, reason=reason, solve_s=0.0), now, actions)
        return actions

    def estimates(self, now: float) -> Mapping[str, Estimate]:
        """Demand of each app in the catalogue as it would be planned for now."""
        return self._outlook.estimates(now)

    def handle(self, event: ControllerEvent | Solved, now: float) -> list[ControllerAction | Solve]:
        """Decide. Unknown apps, devices and epochs are ignored."""
        actions: list[ControllerAction | Solve] = []
        match event:
            case LatencyMeasured():
                self._measured(event, now, actions)
            case DeviceSeen():
                self._device_seen(event, now, actions)
                self._name_leaving(event, now, actions)
            case DemandCounted():
                self._outlook.counted(event, now)
            case HostHeard():
                self._outlook.strain.heard(event, now)
            case PlanAcknowledged():
                self._acknowledged(event, now, actions)
            case Ticked():
                self._ticked(now, actions)
            case Solved():
                self._solved(event, now, actions)
            case _:
                assert_never(event)
        self._maybe_solve(now, actions)
        return actions

    def registered(self, catalogue: Catalogue, now: float, *, leads: bool) -> list[ControllerAction | Solve]:
        """Other apps or variants are served from now on. Who stands by only takes note."""
        changed = self._outlook.registered(catalogue)
        actions: list[ControllerAction | Solve] = []
        if leads and changed:
            self._asking.drop()  # its answer would be about what is served no more
            self._asking.publish_anyway = True
            self._asking.want(f"registry: {', '.join(changed)}", now)
            self._maybe_solve(now, actions)
        return actions

    def refused(self, device: str, incarnation: str, now: float) -> list[ControllerAction | Solve]:
        """An incarnation that was declared dead beats again: an epoch without it, where the plan in force names it."""
        actions: list[ControllerAction | Solve] = []
        self._disown([(device, incarnation)], now, actions)
        return actions

    def excuse(self, now: float) -> None:
        """The log was silent until now: no device is to be missed for that."""
        self._fleet.excuse(now)

    def listen(self, event: ControllerEvent | Solved, now: float) -> None:
        """Stand by: take note, decide nothing."""
        match event:
            case DemandCounted():
                self._outlook.counted(event, now)
            case DeviceSeen():
                if self._fleet.seen(event, now) in _ANOTHER:
                    self._refusals.forget(event.device)
                self._changes.seen(event, now)
            case HostHeard():
                self._outlook.strain.heard(event, now)
            case LatencyMeasured():
                self._outlook.measured(event, now)
            case PlanAcknowledged():
                device_type = self._fleet.type_of(event.device)
                if device_type is not None:
                    for variant in event.failed:
                        self._outlook.failed(variant, device_type, now)
                    self._refused(event, device_type, now)
            case Ticked():  # who leads says so, and who takes over where nobody did
                for state in self._fleet.bury(now):
                    self._changes.left(state.device.name)
            case Solved():
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
        self._changes.take_over(newest, now)
        if self._rule is not None:
            self._rule.begin()
        self._named = dict(newest.incarnations) if newest is not None else {}
        self._fleet.expect(self._named, now)
        self._asking.begin()
        self._unloaded.clear()
        self._shortage = ShortageWatch(self._settings.served_enough, self._settings.calm_plans)
        actions: list[ControllerAction | Solve] = []
        before = self._number
        self._ticked(now, actions)
        if newest is not None and not self._fleet.expected and self._fleet.incarnations() and self._number == before:
            self._carry_on(newest, reason, now, actions)
        # Devices that are not heard yet may be about to be: whoever took over at once has listened to nobody.
        self._asking.want(reason, now + (self._settings.join_grace if self._fleet.expected else 0.0))
        self._maybe_solve(now, actions)
        return actions

    def _carry_on(self, newest: Plan, reason: str, now: float, actions: list[ControllerAction | Solve]) -> None:
        left = reduced(newest, self._hosts(), reason) or replace(newest, reason=reason, solve_s=0.0)
        self._publish(left, now, actions)

    def _device_seen(self, event: DeviceSeen, now: float, actions: list[ControllerAction | Solve]) -> None:
        change = self._fleet.seen(event, now)
        news = self._changes.seen(event, now)
        self._recut([news] if news else [], now, actions)
        if change is Change.NONE or (news and change is Change.CHANGED):
            return
        subject = f"device:{event.device}"
        told = f"{event.type}, incarnation {event.incarnation}"
        if change is Change.CONTESTED:
            told += "; another worker beats for it too and is not counted on: stop it, or give it another --device"
        actions.append(Announce(subject, str(change), told))
        reason = f"device {event.device} {change}"
        if change in _ANOTHER and self._refusals.forget(event.device):
            self._asking.want(f"device {event.device} may load again", now)
        match change:
            case Change.CONTESTED:
                return
            case Change.RESTARTED:
                # Placements stay, but the new worker serves only once a plan names it.
                if self._plan is not None:
                    self._publish(replace(self._plan, reason=reason, solve_s=0.0), now, actions)
                return
            case Change.LEAVING:
                self._changes.left(event.device)
                self._without(reason, now, actions)
            case Change.JOINED | Change.RETURNED:
                first = len(self._fleet.usable()) == 1
                self._asking.want(reason, now if first else now + self._settings.join_grace)
            case Change.STAYS | Change.CHANGED:
                self._asking.want(reason, now)
                self._reduce(reason, now, actions)
                plan = self._plan
                if plan is not None and plan.incarnations.get(event.device, event.incarnation) != event.incarnation:
                    self._carry_on(plan, reason, now, actions)
        self._asking.publish_anyway = True

    def _name_leaving(self, event: DeviceSeen, now: float, actions: list[ControllerAction | Solve]) -> None:
        """No plan may follow where nobody else hosts, and what lies on its topic waits for one that names it."""
        plan = self._plan
        if event.leaving and plan is not None and plan.incarnations.get(event.device) != event.incarnation:
            self._carry_on(plan, f"device {event.device} leaving", now, actions)

    def _ticked(self, now: float, actions: list[ControllerAction | Solve]) -> None:
        unheard = self._fleet.unheard(now)
        dead = self._fleet.bury(now)
        before = self._number
        for state in dead:
            self._changes.left(state.device.name)
        if any(not state.leaving for state in dead):
            names = ", ".join(state.device.name for state in dead)
            self._without(f"device {names} lost", now, actions)
        if self._number == before:
            self._disown(unheard, now, actions)
        for name, incarnation in unheard:
            actions.append(Announce(f"device:{name}", "lost", "not heard of since this planner took over"))
            actions.append(Reclaim(name, incarnation))
        for state in dead:
            silence = f"no heartbeat for {now - state.seen:.1f} s"
            actions.append(Announce(f"device:{state.device.name}", "left" if state.leaving else "lost", silence))
            actions.append(Reclaim(state.device.name, state.incarnation))
        self._recut(self._changes.overdue(now), now, actions)
        self._wish(now, actions)
        self._weigh_hosts(now, actions)
        self._load_again(now, actions)

    def _load_again(self, now: float, actions: list[ControllerAction | Solve]) -> None:
        """Publish the plan in force anew where it counts on what failed to load a while ago."""
        if back := self._refusals.due(now):
            self._asking.want(f"device {', '.join(back)} may load again", now)
        due = sorted(key for key, at in self._unloaded.items() if at <= now)
        if not due or self._plan is None:
            return
        for key in due:
            del self._unloaded[key]
        placed = {(p.device, variant) for p in self._plan.placements for variant in p.variants}
        if told := ", ".join(f"{variant} on {device}" for device, variant in due if (device, variant) in placed):
            actions += self.again(f"loading {told} again", now)

    def _disown(self, gone: Iterable[tuple[str, str]], now: float, actions: list[ControllerAction | Solve]) -> None:
        """Have the plan in force name none of these: a worker that lives learns from that that it must rejoin."""
        plan = self._plan
        named = [name for name, incarnation in gone if plan is not None and plan.incarnations.get(name) == incarnation]
        if plan is not None and named:
            self._asking.publish_anyway = True
            self._carry_on(plan, f"device {', '.join(named)} gone", now, actions)

    def _weigh_hosts(self, now: float, actions: list[ControllerAction | Solve]) -> None:
        """What the machine itself is short of, no profile tells: plans count on less, and are made less often."""
        strain = self._outlook.strain
        bursting = self._outlook.bursting(now) if strain.starved else ()
        slo = min((app.slo for app in self._outlook.catalogue.apps.values()), default=math.inf)
        said, wrong = strain.judge(slo, self._plan.served if self._plan is not None else {}, bursting, now)
        self._asking.damped = strain.starved
        if said:
            actions.append(Announce("host", "starved" if strain.starved else "keeps_up", said))
            self._asking.want("a host is starved" if strain.starved else "hosts keep up", now, by_load=True)
        for app, share in wrong.items():
            self._asking.want(f"{share:.0%} of {app} missed where the plan has room", now, by_load=True)

    def _without(self, reason: str, now: float, actions: list[ControllerAction | Solve]) -> None:
        """Publish the plan in force without the devices that are gone, and ask for a better one."""
        self._asking.publish_anyway = True
        self._asking.want(reason, now)
        self._asking.urgent = True
        self._reduce(reason, now, actions)

    def _reduce(self, reason: str, now: float, actions: list[ControllerAction | Solve]) -> None:
        """Publish the plan in force without what is placed on devices or slices that are gone, where anything is."""
        left = reduced(self._plan, self._hosts(), reason) if self._plan is not None else None
        if left is not None:
            self._asking.urgent = True
            self._publish(left, now, actions)

    def _recut(self, news: Iterable[CutNews], now: float, actions: list[ControllerAction | Solve]) -> None:
        """GPUs have other slices, or have to do with those they had: either way they can host again."""
        for one in news:
            actions.append(Announce(f"device:{one.device}", one.state, one.detail))
            if self._rule is not None and one.state == "recut_failed":
                self._rule.ended(one.device)
            self._asking.want(f"{one.device} {one.state}", now + self._settings.join_grace)
            self._asking.publish_anyway = True

    def _wish(self, now: float, actions: list[ControllerAction | Solve]) -> None:
        """Where a rule says how GPUs are to be cut: begin what it says, and plan without them."""
        if self._rule is None:
            return
        alive, changes = self._fleet.usable(), self._changes
        wanted = self._rule.tick(
            changes.stating(alive),
            self._plan,
            self._outlook.catalogue,
            now,
            changing=changes.changing,
            let_be=changes.let_be(now),
        )
        self._recut(changes.begin(alive, wanted, self._next, now), now, actions)
        if wanted and not self._hosts():
            self._reduce("all devices are being cut otherwise", now, actions)

    def _hosts(self) -> list[Device]:
        """Devices that something may be placed on."""
        without = {*self._changes.changing, *self._refusals.aside}
        return [d for d in self._fleet.usable() if d.name not in without]

    def _measured(self, event: LatencyMeasured, now: float, actions: list[ControllerAction | Solve]) -> None:
        factor = self._outlook.measured(event, now)
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
        self._asking.want(f"{MEASURED} {name} is {factor:.2f} times its profile", now, by_load=True)

    def _acknowledged(self, event: PlanAcknowledged, now: float, actions: list[ControllerAction | Solve]) -> None:
        device_type = self._fleet.type_of(event.device)
        if device_type is None or event.epoch.term != self._term:
            return
        for variant in event.failed:
            if self._plan is not None and event.epoch == self._plan.epoch:
                self._unloaded[event.device, variant] = now + self._settings.load_failure_hold
            if self._outlook.failed(variant, device_type, now):
                actions.append(Announce(f"device:{event.device}", "load_failed", f"{variant} could not be loaded"))
                self._asking.want(f"{variant} failed to load on {event.device}", now)
        hold = self._settings.load_failure_hold
        for device, refused in self._refused(event, device_type, now).items():
            lacks = f"it loads neither {' nor '.join(refused)}" if refused[1:] else f"it does not load {refused[0]}"
            told = f"{lacks}; plans do without it for {hold:g} s"
            actions.append(Announce(f"device:{device}", "set_aside", told))
            self._asking.want(f"device {device} loads nothing", now)

    def _refused(self, event: PlanAcknowledged, device_type: str, now: float) -> Mapping[str, tuple[str, ...]]:
        """Of devices that load nothing, what they refused: plans do without these devices alone."""
        others = [device.name for device in self._hosts() if device.type == device_type]
        known = [name for name in event.failed if name in self._outlook.catalogue.variants]
        found = self._refusals.acknowledged(event.device, event.variants, known, others, now)
        for variant in {variant for refused in found.values() for variant in refused}:
            self._outlook.forgive(variant, device_type)
        return found

    def _maybe_solve(self, now: float, actions: list[ControllerAction | Solve]) -> None:
        asking = self._asking
        if asking.late(now):
            waited = self._settings.solve_timeout
            actions.append(Announce("planner", "late", f"no answer for {waited:.0f} s; asking again"))
        if asking.expects_bursts(now):
            for app in self._outlook.bursting(now):
                asking.burst(app, now)
        if self._changes.due(now):
            asking.want("demand or devices have moved", now)
        if not asking.due(now) or not self._hosts():
            return
        problem = self.problem(now)
        alive = self._fleet.usable()
        self._changes.notice(alive, problem.demands, now)
        if not asking.urgent:
            problem = replace(problem, recuts=self._changes.question(alive, problem.demands, now))
        actions.append(asking.ask(problem, now))

    def problem(self, now: float) -> Problem:
        """What would be asked of the planner now."""
        return self._outlook.problem(self._hosts(), self._plan.placements if self._plan else (), now)

    def _solved(self, event: Solved, now: float, actions: list[ControllerAction | Solve]) -> None:
        pending = self._asking.answered(event)
        if pending is None or not self._fleet.usable():
            return
        allocation = event.allocation
        recut = self._changes.answered(pending.problem, allocation.geometries, self._next, now)
        actions.extend(Announce(f"device:{one.device}", one.state, one.detail) for one in recut)
        plan = Plan(
            epoch=self._next,
            created=now,
            placements=with_promised_shares(allocation.placements, pending.problem.catalogue, pending.problem.devices),
            demand=self._outlook.planned(pending.problem, allocation),
            served=dict(allocation.served),
            objective=allocation.objective,
            bound=allocation.bound,
            reason=event.reason,
            solve_s=event.solve_s,
            nondeterministic=allocation.nondeterministic,
        )
        left = reduced(plan, self._hosts(), event.reason)
        plan = plan if left is None else replace(left, solve_s=event.solve_s)
        actions.extend(self._shortage.observe(plan))
        if pending.publish_anyway or recut or self._plan is None or self._worth(self._plan, plan):
            self._publish(plan, now, actions)

    @property
    def _next(self) -> Epoch:
        return Epoch(self._term, self._number + 1)

    def _worth(self, old: Plan, new: Plan) -> bool:
        """Whether ``new`` is worth an epoch: it places otherwise, or GPUs are cut otherwise than ``old`` says."""
        changed = old.geometries != self._changes.geometries(self._fleet.usable())
        return changed or differs(old.placements, new.placements, self._settings.publish_change)

    def _publish(self, plan: Plan, now: float, actions: list[ControllerAction | Solve]) -> None:
        epoch = self._next
        self._number = epoch.number
        named = self._fleet.incarnations()
        self._named.update(named)
        geometries = self._changes.geometries(self._fleet.usable())
        self._plan = replace(plan, epoch=epoch, created=now, incarnations=named, geometries=geometries)
        self._outlook.strain.planned(now)
        self._unloaded.clear()
        actions.append(Publish(self._plan))
