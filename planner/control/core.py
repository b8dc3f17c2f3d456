"""The planner's core: one machine that leads or stands by, and owns everything that a leader decides.

Rules.
- Any number may run, one leads: who holds the lease (``sluicegate.planner.control.leader_lease``). The others hear what
  it hears and decide nothing. Who takes over reads the newest plan first and goes on in a higher term, so that whatever
  an older leader still publishes is refused everywhere; that one looks at its lease before it decides anything.
- Plans: ``sluicegate.planner.control.controller``. Their fences are those up to which dead devices' work was moved
  (``reclaiming``).
- A device that was declared dead is let in again under another incarnation, once the sweep under way is over; under the
  same one where no plan ever named it, since its worker has begun nothing, and no plan tells it to rejoin. Where it is
  silent from then on it is swept again. Who takes over sweeps every device that is neither in the newest plan nor heard
  of: the one before may have been cut short.
- A device is one worker's: another that beats for it meanwhile is not heard (``sluicegate.planner.estimates``).
- A device on which nothing advances (``STUCK``) is taken for one that is leaving, while another advances.
- While the log is silent (``sluicegate.planner.control.log_liveness``) nobody is missed, and no plan is asked for.
- A stranger's plan is put behind by leading in a higher term, from the plan that this one had in force. One that counts
  for nothing lies over the leader's once the topic is compacted: that is published again, once in ``_UNHIDE``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from sluicegate.domain.actions import Announce, ControllerAction, Publish, Reclaim, WakeAt
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import ControllerEvent, DemandCounted, HostHeard, PlanAcknowledged, Registered, Ticked
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.lease import Lease
from sluicegate.domain.plan import NO_EPOCH, Epoch, Plan, follows
from sluicegate.planner.control.controller import Controller
from sluicegate.planner.control.controller_settings import ControllerSettings
from sluicegate.planner.control.events import (
    CatchUp,
    ClockRead,
    DeviceHeard,
    DeviceNoted,
    Heard,
    LogReached,
    Parted,
    PlanHidden,
    PlannerAction,
    PlannerEvent,
    PlanRead,
    PlansRead,
    SafeModeRead,
    Stopping,
    SweepBegan,
    SweepFailed,
    Swept,
    TableRead,
    TablesReached,
    TooLarge,
    WorkLeft,
)
from sluicegate.planner.control.leader_lease import (
    RENEWALS,
    CaughtUp,
    Lead,
    LeaderLease,
    LeaseAction,
    LeaseEvent,
    LeaseRead,
    StepDown,
    TermSeen,
    Write,
    leaps,
)
from sluicegate.planner.control.leader_lease import Stopping as GiveBack
from sluicegate.planner.control.log_liveness import Hearing
from sluicegate.planner.control.notes import DeviceNotes
from sluicegate.planner.control.planned_tables import PlannedTables, TableEvent
from sluicegate.planner.control.questions import Questions
from sluicegate.planner.control.reclaiming import Reclaiming
from sluicegate.planner.control.replan_trigger import Solve, Solved
from sluicegate.planner.policy_tables.table_requests import TableRules
from sluicegate.planner.policy_tables.table_schedule import LoadMissing, Made
from sluicegate.planner.problems.problem import Problem
from sluicegate.profiles.catalogue.catalogue import Catalogue, KnownCatalogue

LogEvent = LogReached | Heard | LeaseRead | PlanRead | PlanHidden | PlansRead | Stopping | Parted
SystemEvent = DemandCounted | DeviceHeard | DeviceNoted | PlanAcknowledged | Registered

_UNHIDE, _STRANGE = 1.0, "a stranger wrote over the plan"
_VOID = 10.0
"""Seconds between two announcements that a record of the lease counts for nothing, at least."""
STUCK = 0.25
"""Seconds by which a device may be overdue before plans leave it out; routers do at once."""
_TICK = 0.1
"""Seconds between looks at the clock, at most."""
_HEARING_MARGIN = 0.25
"""Seconds by which a renewal of the lease may be read late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """Settings of the planner's core. ``lease``: seconds that a leader may be silent before another takes over.
    ``patience``: that an urgent plan may take before a stand-in is asked for. ``tables``: how selection tables are
    made; None where batching needs none. ``noting``: stages whose notes on devices count; None: anybody's.
    """

    rules: ControllerSettings = field(default_factory=ControllerSettings)
    lease: float = 3.0
    patience: float = 1.0
    tables: TableRules | None = None
    noting: frozenset[str] | None = None


class PlannerCore:
    """One planner. ``holder``: its name on the lease, never used again. ``devices``: what is known of devices beyond
    their heartbeats. ``now`` of every event: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        holder: str,
        settings: CoreSettings | None = None,
        devices: Sequence[Device] = (),
    ) -> None:
        self._settings = settings or CoreSettings()
        self._known = KnownCatalogue(catalogue)
        self._controller = Controller(catalogue, settings=self._settings.rules, term=0, devices=devices)
        self._lease = LeaderLease(holder, lease=self._settings.lease)
        self._hearing = Hearing(self._settings.lease / RENEWALS + _HEARING_MARGIN)
        self._notes = DeviceNotes()
        self._questions = Questions(self._settings.patience)
        promised = (app.name for app in catalogue.apps.values() if app.promise.active)
        self._reclaiming = Reclaiming(promised, self._settings.rules.device_timeout)
        tables = self._settings.tables
        self._tables = PlannedTables(self._known, tables) if tables is not None else None
        self._now = float("-inf")
        self._ahead = 0.0  # of the wall clock
        self._to_lead: Lead | None = None
        self._catching_up = False
        self._leading = False
        self._stopping = False
        self._newest: Plan | None = None
        self._problem: Problem | None = None
        self._dead: dict[str, str] = {}  # device -> incarnation declared dead
        self._stuck: set[str] = set()
        self._hidden = False  # the newest plan, by a record that counts for nothing
        self._published = float("-inf")
        self._void = float("-inf")  # when a record of the lease was last said to count for nothing

    @property
    def settings(self) -> CoreSettings:
        """What was set of its decisions."""
        return self._settings

    @property
    def controller(self) -> Controller:
        """What it thinks of plans."""
        return self._controller

    @property
    def fences(self) -> Mapping[str, int]:
        """Of the newest plan that was read."""
        return self._newest.fences if self._newest is not None else {}

    def leads(self, now: float) -> bool:
        """Whether it may act as the leader: ask before each act, since time may have passed since the last event."""
        return self._leading and self._lease.leads(now)

    def handle(self, event: PlannerEvent, now: float) -> list[PlannerAction]:
        """Decide. Raises IllegalEventError for an event that the state forbids, and is then as before."""
        if now < self._now:
            raise IllegalEventError(f"{type(event).__name__} at {now}, after an event at {self._now}", self._story())
        actions: list[PlannerAction] = []
        match event:
            case DeviceHeard() | DemandCounted() | DeviceNoted() | PlanAcknowledged() | Registered():
                self._of_the_system(event, now, actions)
            case ClockRead(wall):
                self._ahead = wall - now
                self._woke(now, actions)
            case LogReached() | Heard() | LeaseRead() | PlanRead() | PlanHidden() | PlansRead() | Stopping() | Parted():
                self._of_the_log(event, now, actions)
            case SafeModeRead(app, device, on):
                if not self.leads(now):
                    self._reclaiming.read(app, device, on=on)
            case Solved():
                self._solved(event, now, actions)
            case TableRead() | TablesReached() | LoadMissing() | Made():
                self._tables_tell(event, now, actions)
            case SweepBegan() | WorkLeft() | TooLarge() | Swept() | SweepFailed():
                if self.leads(now):
                    actions += self._reclaiming.handle(event, now, now + self._ahead)
            case _:
                assert_never(event)
        self._now = now
        return actions

    def _of_the_log(self, event: LogEvent, now: float, actions: list[PlannerAction]) -> None:
        match event:
            case LogReached():
                self._lease_tell(CaughtUp(), now, actions)
            case Heard():
                self._heard(now, actions)
            case LeaseRead(lease):
                self._heard(now, actions)
                self._void_lease(lease, now, actions)
                self._lease_tell(event, now, actions)
            case PlanRead(plan):
                self._plan_read(plan, now, actions)
            case PlanHidden():
                self._hidden = True
            case PlansRead():
                self._plans_read(event, now, actions)
            case Stopping():
                self._stopping = True
                self._stand_by("", actions)
            case Parted():
                self._lease_tell(GiveBack(), now, actions)
            case _:
                assert_never(event)

    def _woke(self, now: float, actions: list[PlannerAction]) -> None:
        if not self._stopping:
            self._lease_tell(Ticked(), now, actions)
        if self._to_lead is not None and not self._catching_up:
            self._catching_up = True
            actions.append(CatchUp(self._to_lead.term))
        if not self._hearing.deaf(now):
            self._tell(Ticked(), now, actions)
        if self.leads(now):
            if self._hidden and now - self._published >= _UNHIDE:
                actions.append(Announce("planner", "overrules", _STRANGE))
                self._do(self._controller.again(_STRANGE, now), now, actions)
            actions += self._questions.late(now)
            actions += self._reclaiming.due(now)
        due = self._reclaiming.next_due()
        actions.append(WakeAt(now + _TICK if due is None else min(now + _TICK, max(now, due))))

    def _lease_tell(self, event: LeaseEvent, now: float, actions: list[PlannerAction]) -> None:
        said: Iterable[LeaseAction] = self._lease.handle(event, now)
        for action in said:
            match action:
                case Write():
                    actions.append(action)
                case Lead(term):
                    self._to_lead, self._catching_up = action, True
                    actions.append(CatchUp(term))
                case StepDown(reason):
                    self._stand_by(reason, actions)
                case _:
                    assert_never(action)

    def _void_lease(self, lease: Lease, now: float, actions: list[PlannerAction]) -> None:
        """Say that a stranger claims what nobody who leads could."""
        newest = self._lease.newest
        if newest is None or not leaps(lease, newest) or not self.leads(now) or now - self._void < _VOID:
            return
        self._void = now
        told = f"{lease.holder} claims term {lease.term}, which cannot follow {newest.term}: it counts for nothing"
        actions.append(Announce("planner", "refuses_lease", told))

    def _plan_read(self, plan: Plan, now: float, actions: list[PlannerAction]) -> None:
        if not follows(plan.epoch, self._newest.epoch if self._newest is not None else NO_EPOCH):
            self._hidden = self._hidden or self._newest is None or plan.epoch.term != self._newest.epoch.term
            return
        self._newest = plan
        own = self._controller.plan.epoch if self._controller.plan is not None and self.leads(now) else plan.epoch
        strange = own < plan.epoch or own.term != plan.epoch.term
        self._hidden = self._hidden or strange
        self._lease_tell(TermSeen(plan.epoch.term + (strange and own.term == plan.epoch.term)), now, actions)

    def _plans_read(self, read: PlansRead, now: float, actions: list[PlannerAction]) -> None:
        """Take over, once every plan that was published has been read; else it is tried again."""
        if (lead := self._to_lead) is None or lead.term != read.term:
            return
        self._catching_up = False
        if not read.ok or self._stopping or not self._lease.leads(now):
            return
        self._to_lead, self._leading = None, True
        actions += self._reclaiming.begin(self.fences, read.committed)
        newest, own = self._newest, self._controller.plan
        if lead.again and newest is not None and own is not None:  # what came since is a stranger's
            actions += [Announce("planner", "overrules", _STRANGE)] if newest.epoch != own.epoch else []
            newest = replace(own, epoch=newest.epoch)
        if newest is not None:  # who declared these dead may not have come to the end of their sweeps
            for device in sorted({*read.devices} - {*newest.incarnations, *self._controller.living}):
                self._reclaiming.dead(device, now)
        if self._tables is not None:
            self._tables.begin()
        actions.append(lead)
        actions += self._reclaiming.taken_over(self._controller.living, read.devices)
        reason = "first plan"
        if lead.before or newest is not None:
            reason = f"term {lead.term} follows {lead.before or 'the one before'}"
            actions.append(Announce("planner", "took_over", reason))
        self._do(self._controller.lead(lead.term, newest, reason, now), now, actions)

    def _stand_by(self, reason: str, actions: list[PlannerAction]) -> None:
        """Solving, sweeping and tables are another's from now on."""
        self._to_lead = None
        self._catching_up = False
        self._leading = False
        self._questions.drop()
        self._reclaiming.end()
        self._dead.clear()
        if self._tables is not None:
            self._tables.begin()
        actions.append(StepDown(reason))

    def _of_the_system(self, event: SystemEvent, now: float, actions: list[PlannerAction]) -> None:
        match event:
            case DeviceHeard():
                self._heard(now, actions)
                self._device_heard(event, now, actions)
            case DemandCounted():
                self._heard(now, actions)
                self._tell(event, now, actions)
            case DeviceNoted():
                if self._settings.noting is None or event.by in self._settings.noting:
                    self._notes.put(event)
            case PlanAcknowledged():
                self._acknowledged(event, now, actions)
            case Registered(apps, variants, profiles):
                self._registered(Catalogue.of(apps, variants, profiles), now, actions)
            case _:
                assert_never(event)

    def _heard(self, now: float, actions: list[PlannerAction]) -> None:
        """Something was read of what comes at least twice a second, or with each renewal of the lease."""
        if self._hearing.heard(now):
            self._controller.excuse(now)
            if self.leads(now):
                told = "the log was silent; devices are given time to be heard again"
                actions.append(Announce("planner", "hears_again", told))

    def _device_heard(self, beat: DeviceHeard, now: float, actions: list[PlannerAction]) -> None:
        seen = self._notes.noted(beat.seen)
        if self._dead.get(seen.device) == seen.incarnation:
            # It learns that from the plan, and comes back under another incarnation.
            if self.leads(now):
                self._do(self._controller.refused(seen.device, seen.incarnation, now), now, actions)
            return
        withdrawn = self._notes.withdrawn(seen.device)
        if self._reclaiming.absent(seen.device) or self._controller.is_another(seen, now, withdrawn=withdrawn):
            return
        if self._stands_still(beat, now, actions):
            seen = replace(seen, leaving=True)
        self._tell(seen, now, actions)
        self._tell(HostHeard(seen.device, beat.late, beat.ended), now, actions)
        for measured in beat.measured:
            self._tell(measured, now, actions)
        if self._tables is not None and self.leads(now):
            actions += self._tables.counted(beat.observed, now)

    def _stands_still(self, beat: DeviceHeard, now: float, actions: list[PlannerAction]) -> bool:
        """Whether plans are to leave the device out: nothing on it advances, and others do."""
        device = beat.seen.device
        if beat.overdue < STUCK:
            self._stuck.discard(device)
            return False
        news = device not in self._stuck
        self._stuck.add(device)
        if {*self._controller.alive} <= self._stuck:
            return False
        if news and self.leads(now):
            told = f"nothing advances there for {beat.overdue:.1f} s; plans leave it out until it does"
            actions.append(Announce(f"device:{device}", "overdue", told))
        return True

    def _acknowledged(self, event: PlanAcknowledged, now: float, actions: list[PlannerAction]) -> None:
        if self._strange(event.epoch, now):
            told = f"{event.device} acknowledges {event.epoch}, which nobody published"
            raise IllegalEventError(told, self._story())
        self._tell(event, now, actions)

    def _registered(self, catalogue: Catalogue, now: float, actions: list[PlannerAction]) -> None:
        self._known.add(catalogue)
        for app in catalogue.apps.values():
            (self._reclaiming.promised.add if app.promise.active else self._reclaiming.promised.discard)(app.name)
        leads = self.leads(now)
        if self._tables is not None and leads:
            actions += self._tables.ask()
        self._do(self._controller.registered(catalogue, now, leads=leads), now, actions)

    def _tell(self, event: ControllerEvent | Solved, now: float, actions: list[PlannerAction]) -> None:
        if self.leads(now):
            self._do(self._controller.handle(event, now), now, actions)
        else:
            self._controller.listen(event, now)

    def _do(self, said: Iterable[ControllerAction | Solve], now: float, actions: list[PlannerAction]) -> None:
        for action in said:
            match action:
                case Publish(plan):
                    fenced = replace(plan, fences=self._reclaiming.fences, created=now + self._ahead)
                    self._hidden, self._published = False, now
                    actions.append(Publish(fenced))
                    self._follow(fenced, actions)
                case Solve():
                    self._problem = action.problem
                    self._questions.asked(action, now)
                    actions.append(action)
                case Reclaim(device, incarnation):
                    if self._controller.counted_on(device, incarnation):
                        self._dead[device] = incarnation
                    self._reclaiming.dead(device, now)
                    actions.append(action)
                    actions += self._reclaiming.due(now)
                case Announce():
                    actions.append(action)
                case _:
                    assert_never(action)

    def _solved(self, event: Solved, now: float, actions: list[PlannerAction]) -> None:
        if not self.leads(now):
            self._questions.ignore(event)
            return  # another leads: it asks for plans of its own
        asked = self._questions.answered(event)
        if asked is None:
            return
        self._tell(event, now, actions)
        in_force = self._controller.plan
        if event.provisional or in_force is None:
            return
        demand: dict[str, float] = {}
        for d in asked.problem.demands:
            demand[d.app] = demand.get(d.app, 0.0) + d.qps * d.headroom
        self._problem = asked.problem
        self._follow(replace(in_force, demand=demand), actions)

    def _follow(self, plan: Plan, actions: list[PlannerAction]) -> None:
        """Have tables made for ``plan``, with devices and latencies as the newest question had them."""
        if self._tables is not None and self._problem is not None:
            actions += self._tables.follow(plan, self._problem.devices, self._problem.latency_factor)

    def _tables_tell(self, event: TableEvent, now: float, actions: list[PlannerAction]) -> None:
        if self._tables is not None and (isinstance(event, TableRead | TablesReached) or self.leads(now)):
            actions += self._tables.handle(event)

    def _strange(self, epoch: Epoch, now: float) -> bool:
        """Whether ``epoch`` is of the term that this one leads, and it did not publish it."""
        own, lease = self._controller.plan, self._lease.newest
        if own is None or lease is None or not self.leads(now):
            return False
        return lease.term == own.epoch.term == epoch.term and own.epoch < epoch

    def _story(self) -> tuple[str, ...]:
        own = self._controller.plan
        return (
            f"leading: {self._leading}, lease: {self._lease.newest}",
            f"own plan: {own.epoch if own is not None else None}, newest read: {self._newest and self._newest.epoch}",
            f"declared dead: {self._dead}",
        )
