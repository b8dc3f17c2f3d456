"""The composition root: settings in, stages out. The only place that knows every part.

Each role imports what it needs when it is built: a stage in a process of its own starts without solvers or servers.
"""

import os
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from domain.app import App
from domain.device import Device, Slice, profile_type
from domain.errors import ConfigurationError
from domain.events import HostedOn, PlanActivated
from domain.executor import Executor
from domain.plan import Plan
from domain.profile import LatencyCurve
from policies.admission.bounds import Turn, sustained
from policies.admission.goals import GoalAdmission
from policies.admission.registry import admission
from policies.admission.sustainable import SustainableAdmission
from policies.batching.duty_cycle import turn_of
from policies.batching.registry import STATIONS, batching, keeps_promises, takes
from policies.placement.hosting import hosted_on
from policies.placement.staging import Staging
from policies.protocols import AdmissionPolicy
from policies.routing.activation import Activation
from policies.routing.goals import GoalRouting
from policies.routing.packing import Packing
from policies.routing.registry import routing
from policies.routing.streams import StreamRouting
from policies.routing.weighted import WeightedRouting
from profiles.catalogue import Catalogue, KnownCatalogue
from profiles.registered import Registered
from sluice.capacity import driven, procurement, scaler
from sluice.goals import goal_variants, highest_costs
from sluice.gpus import Gpus
from sluice.live_registry import LiveRegistry
from sluice.one_partition import spread_over
from sluice.settings import Settings
from stages.admission import AdmissionStage, DedupeWindow
from stages.clock import SystemClock
from stages.control import Follower
from stages.eventlog import Recorded
from stages.exactly_once import ExactlyOnce
from stages.holding import HoldingOptions
from stages.outbox import Outbox
from stages.registry import RegistryStage
from stages.router import RouterStage, Routes
from stages.run import Stage
from stages.sink import OutcomeStore, SinkStage
from stages.slice import SliceRunner
from stages.tables import TableLibrary
from stages.telemetry import Telemetry
from stages.worker import WorkerOptions, WorkerStage
from streams import codec
from streams.memory import MemoryBroker
from streams.ports import Broker, Producer
from streams.topics import Topics

if TYPE_CHECKING:
    from executors.devices.gpu import Gpu
    from stages.table_publishing import TablePublisher

_UNHURRIED = 20.0

ROLES = ("admission", "router", "worker", "demand", "planner", "scaler", "procurement", "sink", "http", "web")
"""Process roles, upstream first. Those that the settings do not ask for are not part of "all"."""


@dataclass
class System:
    """What the stages of one process share. ``models``: the catalogue's folder."""

    settings: Settings
    catalogue: Catalogue
    models: Path
    broker: Broker
    producer: Producer
    run_folder: Path
    telemetry: Telemetry = field(default_factory=Telemetry)

    def __post_init__(self) -> None:
        self.topics = Topics(self.settings.prefix)
        self.clock = SystemClock()
        self.devices = self.settings.all_devices()
        self._gpus = Gpus(self.settings)
        self._driven = frozenset(driven(self.settings.scaling, self.settings.procurement, self.devices))
        if both := sorted(self._driven & set(self.settings.planner.spare)):
            raise ConfigurationError(f"planner.spare: {both[0]!r} is driven by scaling or procurement already")
        self._driven |= set(self.settings.planner.spare)
        self._threads = {d.name: d.threads for d in self.settings.devices}
        named = {*self.settings.apps, *self.settings.slo_s, *self.settings.slo_classes_s, *self.settings.promises}
        unknown = named - set(self.catalogue.apps)
        if unknown:
            known = ", ".join(sorted(self.catalogue.apps))
            raise ConfigurationError(f"apps: {', '.join(sorted(unknown))} not in the catalogue; it has {known}")
        if self.settings.slo_classes_s and self.settings.planner.name != "co-resident":
            raise ConfigurationError("slo_classes_s: only planner.name co-resident gives classes workers of their own")
        every = {name: self.as_set(app) for name, app in self.catalogue.apps.items()}
        self.catalogue = replace(self.catalogue, apps=every)
        self.apps = {name: app for name, app in every.items() if not self.settings.apps or name in self.settings.apps}
        if len(self.apps) < len(every):  # what is not served here must not be planned for
            self.catalogue = self.catalogue.only(self.apps)
        self.catalogue = self._gpus.profiled(self.catalogue)
        self.promised = {name: app for name, app in self.apps.items() if app.promise.active}
        self._bound = {*self.promised, *self.settings.slo_classes_s}
        if self.promised:
            self.check_keeps(self.promised)
        self.known = KnownCatalogue(self.catalogue)
        self._costs = highest_costs(self.catalogue, self.devices)
        self._goal_variants = goal_variants(self.catalogue, self.devices)
        self._goals: list[GoalAdmission] = []
        self._registry: RegistryStage | None = None
        self._exactly_once: Callable[[str], ExactlyOnce] | None = None
        if self.settings.delivery == "exactly_once":
            self.broker.transactions("check")  # a broker without transactions is an error now
            self._exactly_once = partial(ExactlyOnce, self.broker.transactions)
        self._logs: list[TextIO] = []
        self._libraries: defaultdict[str, TableLibrary] = defaultdict(TableLibrary)

    async def create_topics(self, apps: Mapping[str, App] | None = None) -> None:
        """Create what does not exist, of all that is served where ``apps`` are not named."""
        apps = self.apps if apps is None else apps
        partitions = self.settings.partitions_of(list(apps), {n for n, app in apps.items() if app.promise.active})
        shared = self.settings.planner.demand_partitions
        devices = [d.name for d in self.devices]
        specs = self.topics.specs(list(apps), devices, partitions=partitions, demand_partitions=shared)
        admin = self.broker.admin()
        await admin.create_topics(specs)
        if why := await spread_over(admin, self.topics, [n for n, app in apps.items() if app.promise.active]):
            raise ConfigurationError(why)

    def check_keeps(self, promised: Collection[str]) -> None:
        """Raises ConfigurationError where the batching rule keeps no promises."""
        rule = self.settings.worker.batching
        if not keeps_promises(rule):
            raise ConfigurationError(
                f"worker.batching: {rule!r} keeps no promises, and {', '.join(promised)} was promised something; "
                "choose adaptive, greedy or balanced"
            )

    def serve(self, catalogue: Catalogue) -> None:
        """Serve these apps, and no others, from now on. What was served before stays known to who still runs it."""
        catalogue = self.catalogue = self._gpus.profiled(catalogue)
        self.apps = dict(catalogue.apps)
        self.known.add(catalogue)
        for name, app in self.apps.items():
            if app.promise.active:
                self.promised[name] = app
                self._bound.add(name)
            elif self.promised.pop(name, None) is not None:
                self._bound.discard(name)
        self._costs.update(highest_costs(catalogue, self.devices))
        self._goal_variants.clear()
        self._goal_variants.update(goal_variants(catalogue, self.devices))
        for policy in self._goals:
            policy.registered(self._goal_variants)

    def stages(self, roles: Sequence[str], *, apps: Sequence[str] = (), devices: Sequence[str] = ()) -> list[Stage]:
        """Stages of ``roles`` (all where empty), of some apps and devices only where named."""
        unknown = set(roles) - set(ROLES)
        if unknown:
            raise ConfigurationError(f"stage {sorted(unknown)[0]!r} is unknown; choose of {', '.join(ROLES)}")
        chosen = [role for role in ROLES if role in roles or (not roles and self._asked_for(role))]
        live = LiveRegistry(self, roles=chosen, only=apps)
        stages: list[Stage] = []
        for role in ROLES:
            if role in chosen:
                stages += getattr(self, f"_{role}")(apps or tuple(self.apps), devices)
            if role == "router" and live.needed:  # stopped with the routers that it started: before the workers
                self._registry = live.stage()
                stages.append(self._registry)
        live.tell(stages)
        if self.settings.metrics.port is not None:
            stages.append(self._metrics(",".join(roles) or "all"))
        return stages

    def _asked_for(self, role: str) -> bool:
        asked = {
            "demand": self.settings.planner.demand == "faust",
            "scaler": self.settings.scaling is not None,
            "procurement": self.settings.procurement is not None,
        }
        return asked.get(role, True)

    def close(self) -> None:
        """Close decision logs."""
        for log in self._logs:
            log.close()

    # -- one builder a role

    def _admission(self, apps: Sequence[str], devices: Sequence[str]) -> list[Stage]:
        del devices
        limits = self.settings.admission
        horizon = limits.max_latency_s + limits.max_skew_s
        policy: AdmissionPolicy
        activated = None
        if limits.policy == "sustainable":
            policy = sustainable = SustainableAdmission(bound=None, mode=limits.mode, max_horizon_s=horizon)
            activated = partial(self._resized, sustainable)
        else:
            policy = admission(limits.policy, max_horizon_s=horizon)()
        goals = GoalAdmission(policy, self._goal_variants, self.promised)
        self._goals.append(goals)
        return [
            AdmissionStage(
                {name: self.apps[name] for name in apps},
                broker=self.broker,
                producer=self.producer,
                topics=self.topics,
                clock=self.clock,
                policy=goals,
                activated=activated,
                exactly_once=self._exactly_once,
                limits=codec.Limits(
                    max_body_bytes=limits.max_body_bytes,
                    max_skew_s=limits.max_skew_s,
                    max_latency_s=limits.max_latency_s,
                ),
                dedupe=DedupeWindow(limits.dedupe_window_s, limits.dedupe_entries),
                source=f"admission-{os.getpid()}",
                member=self.settings.member,
                telemetry=self.telemetry,
            )
        ]

    def _router(self, apps: Sequence[str], devices: Sequence[str]) -> list[Stage]:
        del devices
        return [self.router(name) for name in apps]

    def router(self, name: str) -> RouterStage:
        """The router of one app."""
        return RouterStage(
            name,
            broker=self.broker,
            producer=self.producer,
            topics=self.topics,
            clock=self.clock,
            routes=partial(self._routes, name),
            exactly_once=self._exactly_once,
            activation=Activation(name),
            exclusive=takes(self.settings.worker.batching, "tables"),
            member=self.settings.member,
            activated=partial(self._activated, name),
            recut=self._recut,
            telemetry=self.telemetry,
        )

    def _worker(self, apps: Sequence[str], devices: Sequence[str]) -> list[Stage]:
        del apps
        named = {d.name: d for d in self.devices}
        for name in devices:
            if name not in named:
                raise ConfigurationError(f"device {name!r} is not among the settings' devices: {', '.join(named)}")
        driven = self._driven if not devices else frozenset()
        return [self.worker(name) for name in (devices or named) if name not in driven]

    def worker(self, name: str) -> WorkerStage:
        """The worker of a device."""
        return self._worker_of(next(d for d in self.devices if d.name == name))

    def _worker_of(self, device: Device) -> WorkerStage:
        worker = self.settings.worker
        gpu = self._gpus.gpu(device)
        tables = self._libraries[device.name]

        def make_slices(stage: WorkerStage, device: Device) -> list[SliceRunner]:
            tables.leave()
            return [self._slice(stage, device, part, gpu) for part in device.slices]

        stage = WorkerStage(
            device,
            broker=self.broker,
            producer=self.producer,
            topics=self.topics,
            clock=self.clock,
            new_incarnation=lambda: uuid.uuid4().hex[:12],
            make_slices=make_slices,
            catalogue=self.known,
            promised=self.promised,
            exactly_once=self._exactly_once,
            options=WorkerOptions(heartbeat=worker.heartbeat_s, max_in_flight=worker.max_in_flight),
            telemetry=self.telemetry,
            gpu=gpu,
            holding=HoldingOptions(
                patience=worker.slices.drain_s,
                first=self._gpus.first_cut(device) if gpu is not None else (),
                bound=self._bound,
                make_sharing=self._gpus.sharing,
            ),
        )
        if takes(worker.batching, "tables"):
            stage.followers.append(Follower(self.broker, self.topics.policies, tables.handle))
            if self._turns_told:
                stage.followers.append(Follower(self.broker, self.topics.turns, stage.turned, start_at="end"))
        return stage

    def _slice(self, stage: WorkerStage, device: Device, part: Slice, gpu: "Gpu | None" = None) -> SliceRunner:
        worker = self.settings.worker
        name = worker.batching
        guard = {"guard_s": worker.guard_s} if takes(name, "guard_s") else {}
        if takes(name, "tables"):
            guard["margin"] = self.settings.tables.margin
        station = STATIONS[worker.turns](batching(name, **{**guard, **worker.batching_options}))
        runner = SliceRunner(
            device=device,
            part=part,
            station=self._recorded(station, f"worker-{device.name}-{part.name}"),
            staging=Staging(device, part, self.known),
            policy=name,
            executor=self._executor(device)
            if gpu is None
            else self._gpus.executor(gpu, device, part, self.known, self._folders),
            catalogue=self.known,
            clock=self.clock,
            ends=stage.ends,
            acknowledge=stage.acknowledge,
            announce=stage.announce,
            telemetry=self.telemetry,
        )
        self._libraries[device.name].follow(profile_type(device.type, part.profile), runner.swap)
        return runner

    def _executor(self, device: Device) -> Executor:
        from executors.emulated import EmulatedExecutor
        from executors.onnx import OnnxExecutor
        from executors.runtime import Runtime

        if self.settings.worker.executor == "emulated":
            return EmulatedExecutor(self.known, device.type)
        return OnnxExecutor(self._folders, self.known.apps, Runtime(threads=self._threads.get(device.name, 1)))

    @property
    def _folders(self) -> tuple[Path, Path]:
        """Where models lie."""
        return self.models, Registered(self.settings.home).folder

    def _demand(self, apps: Sequence[str], devices: Sequence[str]) -> list[Stage]:
        from stages.demand import DemandStage

        del apps, devices
        return [
            DemandStage(
                broker=self.broker,
                servers=self._kafka_for("stage demand"),
                kafka=self.settings.kafka.settings(),
                topics=self.topics,
                clock=self.clock,
                port=self.settings.faust.port,
            )
        ]

    def _kafka_for(self, what: str) -> str:
        """Servers of Apache Kafka. Raises ConfigurationError on any other broker."""
        if not self.broker.url.startswith("kafka://"):
            raise ConfigurationError(
                f"{what}: windows of demand are made by Faust, which needs Apache Kafka, not {self.broker.url}; give "
                "--broker kafka://host:port, or leave planner.demand at plain, which counts the same on any broker"
            )
        return self.broker.url.removeprefix("kafka://")

    def _planner(self, apps: Sequence[str], devices: Sequence[str]) -> list[Stage]:
        from planner.controller import Controller
        from planner.controller_settings import ControllerSettings
        from planner.geometry.changes import ChangeSettings
        from planner.geometry.planning import JointGeometry
        from planner.registry import planner
        from planner.scaling.planners import TICK, ScalingPlanner
        from sluice.scaling import scaling
        from stages.planner import PlannerStage

        del devices
        settings = self.settings.planner
        if settings.demand == "faust":
            self._kafka_for("planner.demand: faust")
        scales = settings.scaling != "off"
        shares = settings.name.startswith("allocation") and settings.geometry == "off" and not scales
        chosen = ScalingPlanner(exact=settings.scaling == "ilp") if scales else planner(settings.name)
        stage = PlannerStage(
            broker=self.broker,
            producer=self.producer,
            topics=self.topics,
            clock=self.clock,
            planner=JointGeometry(chosen) if settings.geometry == "joint" else chosen,
            apps=apps,
            promised=self.promised,
            exactly_once=self.settings.delivery == "exactly_once",
            telemetry=self.telemetry,
            make_controller=lambda term, previous: Controller(
                self.catalogue,
                settings=ControllerSettings(
                    plan_period=min(settings.period_s, TICK) if scales else settings.period_s,
                    device_timeout=settings.device_timeout_s,
                    quantile=settings.quantile,
                    headroom=settings.headroom,
                    variants_per_device=settings.variants_per_device or (None if shares else 1),
                    switching_weight=settings.switching_weight,
                    max_loads=settings.max_loads,
                    money_weight=settings.money_weight,
                    budget=settings.budget_per_hour,
                    strict_on_demand=settings.strict_on_demand,
                    geometry=settings.geometry,
                    changes=ChangeSettings(patience=settings.geometry_patience_s, rest=settings.geometry_rest_s),
                ),
                term=term,
                devices=self.devices,
                previous=previous,
            ),
            lease=settings.lease_s,
            make_tables=self._table_publisher if takes(self.settings.worker.batching, "tables") else None,
            demand_windows=settings.demand == "faust",
            # No solver can be late there, and a stand-in would load variants only to forget them.
            patience=_UNHURRIED if scales or settings.name == "co-resident" else 1.0,
        )
        return [stage, scaling(self, stage, chosen)] if isinstance(chosen, ScalingPlanner) else [stage]

    def _table_publisher(self, outbox: Outbox) -> "TablePublisher":
        from planner.selection.library import LibraryRules
        from planner.tables.questions import TableRules
        from stages.table_publishing import TablePublisher

        settings = self.settings.tables
        options = self.settings.worker.batching_options
        rules = TableRules(
            hop_s=settings.hop_s,
            guard_s=float(options.get("guard_s", self.settings.worker.guard_s)),
            margin=float(options.get("margin", settings.margin)),
            criterion=settings.criterion,
            violation_price=settings.violation_price,
            grid=settings.grid,
            arrival_shape=settings.arrival_shape,
            batching=settings.batching,
            late=settings.late,
            phases=settings.phases,
            watch_s=settings.watch_s,
            library=LibraryRules(spacing=settings.spacing, max_violation=settings.max_violation),
        )
        return TablePublisher(
            broker=self.broker,
            topics=self.topics,
            clock=self.clock,
            catalogue=self.known,
            rules=rules,
            outbox=outbox,
        )

    def _scaler(self, apps: Sequence[str], devices: Sequence[str]) -> list[Stage]:
        del apps, devices
        return [scaler(self)]

    def _procurement(self, apps: Sequence[str], devices: Sequence[str]) -> list[Stage]:
        del apps, devices
        return [procurement(self)]

    def _sink(self, apps: Sequence[str], devices: Sequence[str]) -> list[Stage]:
        del devices
        store = OutcomeStore(self.run_folder)
        return [
            SinkStage(
                apps,
                broker=self.broker,
                topics=self.topics,
                store=store,
                member=self.settings.member,
                telemetry=self.telemetry,
            )
        ]

    def _http(self, apps: Sequence[str], devices: Sequence[str]) -> list[Stage]:
        from stages.http import HttpStage
        from streams.remote import routes

        del devices
        return [
            HttpStage(
                {name: self.apps[name] for name in apps},
                broker=self.broker,
                producer=self.producer,
                topics=self.topics,
                clock=self.clock,
                access=self.settings.http.access("http"),
                registry=self._registry.catch_up if self._registry is not None else None,
                versions={name: [v.name for v in self.catalogue.of_app(name)] for name in apps},
                routes=routes(self.broker) if isinstance(self.broker, MemoryBroker) else (),
                max_body_bytes=self.settings.admission.max_body_bytes,
                telemetry=self.telemetry,
            )
        ]

    def _web(self, apps: Sequence[str], devices: Sequence[str]) -> list[Stage]:
        from stages.web import WebStage

        del devices
        return [
            WebStage(
                {name: self.apps[name] for name in apps},
                {name: variant.accuracy for name, variant in self.catalogue.variants.items()},
                broker=self.broker,
                topics=self.topics,
                clock=self.clock,
                access=self.settings.web.access("web"),
                telemetry=self.telemetry,
            )
        ]

    def _metrics(self, roles: str) -> Stage:
        from stages.metrics_http import MetricsStage

        access = self.settings.metrics.access("metrics")
        return MetricsStage(self.telemetry.meters, access=access, clock=self.clock, roles=roles)

    # -- what they are made of

    def as_set(self, app: App) -> App:
        """``app`` as the settings change it."""
        promised = self.settings.promises.get(app.name)
        return replace(
            app,
            slo=self.settings.slo_s.get(app.name, app.slo),
            slo_classes=tuple(sorted(self.settings.slo_classes_s.get(app.name, ()))),
            promise=app.promise if promised is None else promised.promise(),
        )

    def _routes(self, app: str) -> Routes:
        log = f"router-{app}"
        if app in self.promised:
            return Routes(self._recorded(StreamRouting(app), log), promised=True)
        counted = {"turns_s": self.settings.tables.turns_s} if self._turns_told else {}
        rule = self.settings.routing
        packing = rule == Packing.name
        policy = GoalRouting(routing(rule, **counted)(app), self._costs, self._goal_variants, packing=packing)
        on_demand = self.settings.planner.scaling != "off"
        return Routes(self._recorded(policy, log), wanted=policy.wanted if on_demand else None)

    @property
    def _turns_told(self) -> bool:
        """Whether routers count turns for workers whose tables tell phases apart."""
        settings = self.settings
        tables = takes(settings.worker.batching, "tables")
        return tables and settings.tables.phases > 1 and settings.routing == WeightedRouting.name

    def _resized(self, policy: SustainableAdmission, app: str, plan: Plan) -> None:
        """Admission keeps to what ``plan`` sustains from now on."""
        known = self.known.apps[app]
        cycles = self._cycles(app, plan) if self.settings.worker.turns == "duty-cycle" else {}
        bounds = sustained(self._hosted(app, plan, burst=True), known.slo, known.promise, cycles)
        if bounds is not None:
            policy.resize(app, bounds.bound, bounds.window_s, bounds.degraded)

    def _cycles(self, app: str, plan: Plan) -> dict[tuple[str, str], Turn]:
        """The turns of ``app`` on slices that serve others as well."""
        curves: dict[tuple[str, str], dict[str, LatencyCurve]] = {}
        for served in sorted({p.app for p in plan.placements}):
            for part in self._hosted(served, plan, burst=True):
                if part.hosted:
                    curves.setdefault((part.device, part.slice), {})[served] = part.hosted[0].curve
        slos = {name: known.slo for name, known in self.known.apps.items()}
        return {
            place: turn_of(app, shared, {a: slos[a] for a in shared})
            for place, shared in curves.items()
            if app in shared and len(shared) > 1
        }

    def _activated(self, app: str, plan: Plan) -> PlanActivated:
        """The event a router gets: the plan, and what its slices can run."""
        return PlanActivated(plan, self._hosted(app, plan))

    def _hosted(self, app: str, plan: Plan, *, burst: bool = False) -> tuple[HostedOn, ...]:
        devices = {d.name: replace(d, slices=plan.geometries.get(d.name, d.slices)) for d in self.devices}
        placed = [p for p in plan.of_app(app) if p.device in devices]
        return tuple(hosted_on(self.known, devices[p.device], p, "p95", burst=burst) for p in placed)

    def _recut(self, device: str, slices: tuple[Slice, ...]) -> None:
        """A worker states the slices of its device."""
        self.devices = tuple(replace(d, slices=slices) if d.name == device else d for d in self.devices)

    def _recorded(self, policy: Any, name: str) -> Any:
        """``policy``, its decisions written under the run's folder where the settings ask for it.

        Each policy has a log of its own, or none could be replayed: what takes another's place is numbered.
        """
        if not self.settings.record:
            return policy
        folder = self.run_folder / "decisions"
        folder.mkdir(parents=True, exist_ok=True)
        names = chain([name], (f"{name}.{number}" for number in count(2)))
        file = next(file for one in names if not (file := folder / f"{one}.jsonl").exists())
        log = file.open("x", encoding="utf-8")
        self._logs.append(log)
        return Recorded(policy, log)
