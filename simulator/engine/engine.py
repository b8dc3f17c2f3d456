"""The simulator: queries flow through the live policies and planner under a virtual clock.

A run is a function of its system, its arrivals and its generator: the same three give the same outcomes, bit for bit,
in any process. Arrivals come vectorised and are walked in time order beside the event heap; nothing of a query is kept
once it has ended, so memory does not grow with the trace.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import assert_never

from numpy.random import Generator

from sluicegate.domain.actions import (
    Accept,
    Acknowledge,
    Activate,
    Announce,
    End,
    Send,
    TellTurns,
    WakeAt,
)
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import (
    Arrived,
    DemandCounted,
    DeviceReported,
    DeviceSeen,
    InstanceRead,
    MarginsTold,
    PlanAcknowledged,
    PlanPublished,
    TurnsTold,
    Woke,
)
from sluicegate.domain.fleet.device import Device, Slice, executors_of, profile_type
from sluicegate.domain.fleet.instance import Instance
from sluicegate.domain.outcome import Outcome, OutcomeKind, Reason
from sluicegate.domain.plan import Plan
from sluicegate.domain.query import Query
from sluicegate.planner.capacity.events import VariantWanted
from sluicegate.planner.geometry.first_cut import laid_out
from sluicegate.planner.policy_tables.table_schedule import missing_load
from sluicegate.policies.admission.sustainable import SustainableAdmission
from sluicegate.policies.placement.hosted_variants import profile_on
from sluicegate.policies.serving.admission import (
    AdmissionCore,
    AdmissionEvent,
    Came,
    DemandAsked,
    Duplicate,
    Looked,
    RouterHeard,
    Serve,
)
from sluicegate.policies.serving.device_core import DeviceCore
from sluicegate.policies.serving.device_events import TableCame
from sluicegate.policies.serving.router import Ignore, LookedUp, LookUp, RouterCore, RouterEvent, Want
from sluicegate.policies.serving.slices import DeviceParts
from sluicegate.profiles.catalogue.catalogue import Catalogue, KnownCatalogue
from sluicegate.simulator.arrivals.promised_load import PromisedArrivals
from sluicegate.simulator.arrivals.sampling import ArrivalSource
from sluicegate.simulator.engine.device_model import DeviceModel, SimulatedDevice
from sluicegate.simulator.engine.faults import hits
from sluicegate.simulator.engine.ledger import ConservationError, Ledger, Observer
from sluicegate.simulator.engine.slice_model import SliceModel
from sluicegate.simulator.engine.system_model import Draws, Registration, RunResult, SystemModel
from sluicegate.simulator.engine.timeline import Alarm, Timeline
from sluicegate.simulator.promise_watch import PromiseWatch

_TOLD_EVERY = 0.5
"""Seconds between what live admission and routers write of themselves, whatever the heartbeats of devices."""


class Engine:
    """One run. ``observers`` are shown every outcome."""

    def __init__(self, system: SystemModel, rng: Generator, observers: Sequence[Observer] = ()) -> None:
        timing = system.timing
        self.timeline = Timeline(-timing.warm_up)
        registry = system.registry or (Registration(at=0.0, served=system.catalogue),)
        first, *self._later = registry
        self._watch = PromiseWatch([change.served.apps.values() for change in registry])
        self.ledger = Ledger(system.catalogue, (*observers, self._watch) if self._watch.watches else observers)
        self.ledger.registered(first.served)
        draws = Draws.of(system, rng)
        self._load, self._hop, self._service, self._varieties = draws.load, draws.hop, draws.service, draws.varieties
        self._system = system
        self._timing = timing
        self._to_router = timing.to_router
        self._to_device = timing.to_device
        self.instances: dict[str, Instance] = {}
        self._fallen: set[str] = set()  # devices whose worker died and returns
        self._served = first.served
        self._known = KnownCatalogue(first.served) if self._later else first.served
        self._bound = set(system.rules.bound)
        self._coming = {app.name for app in system.apps} - first.served.apps.keys()  # never registered so far
        self._admission = AdmissionCore(system.devices, system.admission)
        self._alarm = Alarm(self.timeline, lambda now: self._ask(Looked(now), now))
        self._control = system.make_control()
        self._device_model = DeviceModel(
            make_core=self._core,
            make_slice=self._slice,
            policy=system.batching,
            step_s=system.sharing.step_s,
            slices_of=laid_out,
            instances=system.sharing.instances,
            delay_of=system.faults.delay_of,
        )
        self._devices: Mapping[str, SimulatedDevice] = {d.name: self._device(d) for d in system.devices}
        self._routers = [
            RouterCore(
                self._served.apps.get(app.name, app),
                catalogue=self._served if app.name in self._served.apps else system.catalogue,
                devices=system.devices,
                rules=system.routers,
            )
            for app in system.apps
        ]
        self._alarms = {router: Alarm(self.timeline, partial(self._woke, router)) for router in self._routers}
        self._by_app = {router.app.name: router for router in self._routers}
        self._serial = [0] * len(self._routers)

    def run(self, source: ArrivalSource) -> RunResult:
        """Simulate all of ``source``. Raises ConservationError unless every query had exactly one end."""
        names = tuple(app.name for app in self._system.apps)
        if source.apps != names:
            raise ConfigurationError(f"arrivals are of {', '.join(source.apps)}; the system serves {', '.join(names)}")
        self._start()
        arrive = self._arrive_registered if self._coming else self._arrive
        for times, apps in source.chunks():
            self.timeline.walk(self._while_asked(zip(times.tolist(), apps.tolist(), strict=True)), arrive)
        ends, load = source.duration, self._load
        if load is not None:
            while load.left and self.timeline.step(source.duration):
                pass
            if not load.left:
                ends = self.timeline.now
            load.left = 0
        self.timeline.run_until(max(self.timeline.now, ends))
        self._drain()
        self.ledger.check()
        return RunResult(
            summary=self.ledger.fold.summary(ends or None),
            promises=self._watch.figures if self._watch.watches else None,
            epochs=self._control.epochs,
            solve_s=tuple(self._control.solve_s),
            nondeterministic=self._control.nondeterministic,
            cost={str(kind): money for kind, money in self._control.cost.items()},
        )

    def _while_asked(self, arrivals: Iterable[tuple[float, int]]) -> Iterable[tuple[float, int]]:
        """All ``arrivals``, or those until the promised load has been asked for."""
        load = self._load
        return arrivals if load is None else takewhile(lambda _: load.left > 0, arrivals)

    def _start(self) -> None:
        now = self.timeline.now
        for name, device in self._devices.items():
            for dies, returns in self._system.faults.downtimes_of(device.device):
                self.timeline.at(dies, self._fails, name)
                self.timeline.at(returns, self._recovers, name)
            for ending in self._system.faults.executors:
                if hits(ending.device, device.device):
                    self.timeline.at(ending.at, device.executor_dies, ending.part)
        for change in self._later:
            self.timeline.at(change.at + self._timing.control, self._registered, change.served)
        if self._load is not None:
            self.timeline.at(0.0, self._promised_arrives, self._load)
        self._ask(Serve(self._served.registered, now), now)
        self._control.start(self, now)
        self._stages_tell(None, now)
        self._beat(None, now)

    def _drain(self) -> None:
        limit = self.timeline.now + self._timing.drain
        while self.ledger.open:
            if self.timeline.now > limit or not self.timeline.step():
                raise ConservationError(
                    f"{len(self.ledger.open)} queries are still open {self._timing.drain} s after the last arrival"
                )

    def _registered(self, served: Catalogue, now: float) -> None:
        """The registry has changed: who runs and routes is told, then who lets in."""
        self._served = served
        self._coming -= served.apps.keys()
        promised = {name for name, app in served.apps.items() if app.promise.active}
        self._bound -= served.apps.keys() - promised
        self._bound |= promised
        self.ledger.registered(served)
        self._watch.registered(served.apps.values())
        for device in self._devices.values():
            device.registered(served.registered, now)
        for app, router in self._by_app.items():
            self._tell(router, served.only({app}).registered, now)
        self._control.heard(served.registered, now)
        self._ask(Serve(served.registered, now), now)

    def _arrive_registered(self, index: int, now: float) -> None:
        """Before its app was ever registered a query is refused where it is written: there is no topic for it."""
        app = self._routers[index].app.name
        if app not in self._coming:
            self._arrive(index, now)
            return
        query = Query(f"{app}-before-{self.ledger.opened}", app, now, now)
        self.ledger.begin(query)
        self.ledger.ended(query, OutcomeKind.REJECTED, now, Reason.UNKNOWN_APP)

    def _promised_arrives(self, load: PromisedArrivals, now: float) -> None:
        if not load.left:
            return
        app, rows = load.load.app, load.rows()
        policy = self._admission.policy
        bound = policy.bound_of(app, rows) if isinstance(policy, SustainableAdmission) else None
        self._arrive(next(i for i, known in enumerate(self._system.apps) if known.name == app), now, rows)
        after = load.after(now, bound)
        if load.left:
            self.timeline.at(after, self._promised_arrives, load)

    def _arrive(self, index: int, now: float, rows: int = 1) -> None:
        app = self._routers[index].app
        serial = self._serial[index]
        self._serial[index] = serial + 1
        name = app.name
        query = Query(f"{name}-{serial}", name, now, now + app.slo, rows, app.query_class, "", serial)
        if self._varieties and (variety := self._varieties.get(name)) is not None:
            variety.apply(query)
        self.ledger.begin(query)
        self._ask(Came(query, serial, now), now)

    def _ask(self, event: AdmissionEvent, now: float) -> None:
        for action in self._admission.handle(event, now):
            if isinstance(action, Accept):  # most of what is said
                if self._to_router:
                    self.timeline.at(now + self._to_router, self._reach_router, action.query)
                else:
                    self._tell(self._by_app[action.query.app], Arrived(action.query), now)
                continue
            match action:
                case End(query, kind, reason):
                    self.ledger.ended(query, kind, now, reason)
                case DemandCounted():
                    self._control.heard(action, now)
                case WakeAt(at):
                    self._alarm.set(at)
                case Announce():
                    self._watch.said("admission", action)
                case Duplicate():
                    pass
                case _:
                    assert_never(action)

    def _reach_router(self, query: Query, now: float) -> None:
        self._tell(self._by_app[query.app], Arrived(query), now)

    def _tell(self, router: RouterCore, event: RouterEvent, now: float) -> None:
        for action in router.handle(event, now):
            if isinstance(action, Send):  # most of what is said
                if self._hop is not None:
                    self.timeline.at(self._hop.reaches(action.device, now), self._reach_device, action)
                elif self._to_device:
                    self.timeline.at(now + self._to_device, self._reach_device, action)
                else:
                    self._devices[action.device].deliver(action, now)
                continue
            match action:
                case End(query, kind, reason):
                    self.ledger.ended(query, kind, now, reason)
                case TellTurns(told):
                    self.timeline.at(now + self._timing.to_device, self._turns_reach_devices, told)
                case WakeAt(at):
                    self._alarms[router].set(at)
                case LookUp(devices):
                    self._tell(router, LookedUp(tuple(d for d in devices if d in self._devices)), now)
                case Want(variant):
                    self.timeline.at(now + self._timing.control, self._control.heard, VariantWanted(variant))
                case Announce():
                    self._watch.said("router", action)
                case Activate() | Ignore():
                    pass
                case _:
                    assert_never(action)

    def _woke(self, router: RouterCore, now: float) -> None:
        self._tell(router, Woke(), now)

    def _reach_device(self, sent: Send, now: float) -> None:
        self._devices[sent.device].deliver(sent, now)

    def _turns_reach_devices(self, told: TurnsTold, now: float) -> None:
        for device in self._devices.values():
            device.turned(told, now)

    def publish(self, plan: Plan, now: float) -> None:
        """A plan goes out to routers and devices."""
        self.timeline.at(now + self._timing.control, self._plan_arrives, plan)

    @property
    def work_topics(self) -> Sequence[str]:
        """Devices that have one."""
        return tuple(self._devices)

    def left(self, device: str) -> tuple[int, Sequence[Query]]:
        """What a dead device has left on its work topic is taken from it."""
        return self._devices[device].left()

    def readmit(self, query: Query, now: float) -> None:
        """A query goes to its router again."""
        self._reach_router(query, now)

    def ended(self, query: Query, outcome: Outcome) -> None:
        """A query ends without having been answered."""
        self.ledger.ended(query, outcome.kind, outcome.at, outcome.reason)

    def begin_worker(self, device: str, now: float) -> None:
        """The worker of ``device`` starts."""
        self._devices[device].recover(now)

    def stop_worker(self, device: str, now: float) -> None:
        """It ends in good order, and says so."""
        self._fallen.discard(device)
        last = self._devices[device].leave(now)
        if last is not None:
            self.timeline.at(now, self._control.heard, last)

    def end_worker(self, device: str, now: float) -> None:
        """It ends without a word, whatever it holds."""
        self._fallen.discard(device)
        self._devices[device].fail(now)

    def record(self, key: str, instance: Instance | None, now: float) -> None:
        """To the topic of instances, and who follows it; None: it ends."""
        self.instances.pop(key, None)
        if instance is not None:
            self.instances[key] = instance
        self.timeline.at(now + self._timing.control, self._recorded, InstanceRead(key, instance))

    def _recorded(self, event: InstanceRead, now: float) -> None:
        for router in self._routers:
            self._tell(router, event, now)
        self._control.heard(event, now)

    def instances_of(self, device: str) -> tuple[Instance, ...]:
        """What stands there of a device."""
        return tuple(instance for instance in self.instances.values() if instance.device == device)

    def _plan_arrives(self, plan: Plan, now: float) -> None:
        if self._admission.follows_plans or self._admission.shares_out:
            self._ask(PlanPublished(plan), now)
        for router in self._routers:
            self._tell(router, PlanPublished(plan), now)
        for device in self._devices.values():
            device.publish(plan, now)

    def staged(self, device: str, report: Acknowledge, now: float) -> None:
        """A device acknowledges an epoch."""
        event = PlanAcknowledged(device, report.epoch, report.variants, report.failed)
        self.timeline.at(now + self._timing.control, self._acknowledged, event)

    def _acknowledged(self, event: PlanAcknowledged, now: float) -> None:
        if self._admission.follows_plans:
            self._ask(event, now)
        for router in self._routers:
            self._tell(router, event, now)
        self._control.heard(event, now)

    def _stages_tell(self, _: object, now: float) -> None:
        """Counts of demand, and that routers live."""
        self.timeline.at(now + _TOLD_EVERY, self._stages_tell)
        self._ask(DemandAsked(_TOLD_EVERY), now)
        for app in self._by_app:
            if app not in self._coming:
                self._ask(RouterHeard(app, now), now)

    def _beat(self, _: object, now: float) -> None:
        self.timeline.at(now + self._timing.heartbeat, self._beat)
        for device in self._devices.values():
            if device.alive:
                self._report(device, now)

    def beats(self, device: str, now: float) -> None:
        """A heartbeat out of turn."""
        self._report(self._devices[device], now)

    def _report(self, device: SimulatedDevice, now: float) -> None:
        beat = device.beat(now)
        if beat.seen.slices:
            self._cut_told(beat.seen, now)
        self._control.heard(beat, now)
        for part in beat.slices:
            if part.margins and self._admission.follows_plans:
                self._ask(MarginsTold(device.device.name, part.slice, part.margins), now)
            report = DeviceReported(device.device.name, part.slice, part.rows, part.busy_for, part.overdue)
            for router in self._routers:
                self._tell(router, report, now)

    def announced(self, announcer: str, said: Announce, now: float) -> None:
        """A word on the status topic: the planners look for loads that no table covers."""
        self._watch.said(announcer, said)
        missing = missing_load(said)
        if missing is not None:
            self.timeline.at(now + self._timing.control, self._control.heard, missing)

    def table(self, came: TableCame, now: float) -> None:
        """Devices read of a selection table."""
        for device in self._devices.values():
            device.table(came, now)

    def _cut_told(self, seen: DeviceSeen, now: float) -> None:
        """It may be cut otherwise: what it can host is another matter then."""
        if self._admission.follows_plans:
            self._ask(seen, now)
        for router in self._routers:
            self._tell(router, seen, now)

    def _fails(self, device: str, now: float) -> None:
        if self._devices[device].alive:
            self._fallen.add(device)
            self._devices[device].fail(now)

    def _recovers(self, device: str, now: float) -> None:
        if device in self._fallen:  # else it had no worker, or was ended meanwhile
            self._fallen.discard(device)
            self._devices[device].recover(now)

    def _device(self, device: Device) -> SimulatedDevice:
        return SimulatedDevice(device, self._device_model, self.timeline, self.ledger, self)

    def _core(self, device: Device) -> DeviceCore:
        system = self._system
        parts = DeviceParts(
            make_station=system.make_station,
            make_staging=lambda device, part: system.make_staging(device, part, self._known),
            make_sharing=system.sharing.make_sharing,
        )
        cuttable = device.name in system.sharing.cuttable
        rules = replace(system.rules, bound=self._bound, cuttable=cuttable, executors=system.sharing.executors)
        return DeviceCore(device, parts, self._known, rules)

    def _slice(self, owner: SimulatedDevice, part: Slice) -> SliceModel:
        system, device = self._system, owner.device
        kind = profile_type(device.type, part.profile)
        executors = executors_of(system.sharing.executors, device.type, part.profile)
        return SliceModel(
            service=self._service.of(kind),
            load=lambda variant: profile_on(system.catalogue, device, part.name, variant).load,
            by_length=self._service.by_length(kind),
            slowdown=system.faults.slowdown_of(device),
            processor=owner.processor_of(part.name, executors),
            parts=system.sharing.parts,
            executors=executors,
            exclusive_loads=system.exclusive_loads,
            start_s=system.faults.executor_start_s,
        )
