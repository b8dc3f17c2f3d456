"""What the stages of one process share: its settings and catalogue, the broker, the devices, the logs of decisions.

``sluicegate.sluice.system.process_stages`` makes stages of it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, final

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.executor import Executor
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.models.app import App
from sluicegate.policies.batching.registry import check_shared, check_whole, keeps_promises, selects, takes
from sluicegate.policies.routing.weighted import WeightedRouting
from sluicegate.profiles.catalogue.catalogue import Catalogue, KnownCatalogue
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.sluice.settings.elastic_settings import driven
from sluicegate.sluice.settings.settings import Settings
from sluicegate.sluice.system.deployed_gpus import Gpus
from sluicegate.sluice.system.promise_terms import check_promises, rows_refused
from sluicegate.sluice.system.slice_executor import executor_of
from sluicegate.stages.connections import Connections
from sluicegate.stages.following.registry_follower import RegistryStage
from sluicegate.stages.runtime.decision_log import Action, DecisionLog, Event, Handle, recording
from sluicegate.stages.runtime.exactly_once import ExactlyOnce
from sluicegate.stages.runtime.system_clock import SystemClock
from sluicegate.stages.telemetry.process_notices import Notices
from sluicegate.stages.telemetry.telemetry import Telemetry
from sluicegate.streams.ports import Broker, Producer
from sluicegate.streams.topics import Topics

if TYPE_CHECKING:
    from sluicegate.planner.control.controller_settings import ControllerSettings
    from sluicegate.stages.admission import NextHop


@final
@dataclass
class System:
    """What the stages of one process share. ``models``: the catalogue's folder.

    ``hardware``: the devices, and ``rules``: of the planner's decisions, in place of what the settings say of them.
    ``solves_apart``: plans are solved in a process of their own. ``make_executor`` may be set before stages are made.
    Nothing derives from it: a method that was overridden once and is called no more would pass unseen.
    """

    settings: Settings
    catalogue: Catalogue
    models: Path
    broker: Broker
    producer: Producer
    run_folder: Path
    telemetry: Telemetry = field(default_factory=Telemetry)
    hardware: tuple[Device, ...] | None = None
    rules: "ControllerSettings | None" = None
    solves_apart: bool = False

    def __post_init__(self) -> None:
        self.topics = Topics(self.settings.prefix)
        self.clock = SystemClock()
        self.notices = Notices(self.producer, self.topics, self.clock, self.telemetry.meters)
        self.devices = self.settings.all_devices() if self.hardware is None else self.hardware
        self.gpus = Gpus(self.settings)
        self.driven = frozenset(driven(self.settings.scaling, self.settings.procurement, self.devices))
        if both := sorted(self.driven & set(self.settings.planner.spare)):
            raise ConfigurationError(f"planner.spare: {both[0]!r} is driven by scaling or procurement already")
        self.driven |= set(self.settings.planner.spare)
        said = self.settings
        named = {*said.apps, *said.slo_s, *said.slo_classes_s, *said.min_accuracy, *said.weights, *said.promises}
        check_has(self.catalogue.apps, named)
        if self.settings.slo_classes_s and not (self.chooses and self.settings.planner.name.startswith("allocation")):
            raise ConfigurationError(
                "slo_classes_s: workers of their own take planner.name allocation and worker.batching table"
            )
        every = {name: self.settings.as_set(app) for name, app in self.catalogue.apps.items()}
        self.catalogue = replace(self.catalogue, apps=every)
        self.apps = {name: app for name, app in every.items() if not self.settings.apps or name in self.settings.apps}
        if len(self.apps) < len(every):  # what is not served here must not be planned for
            self.catalogue = self.catalogue.only(self.apps)
        for name, least in said.min_accuracy.items():
            if least > (best := self.catalogue.best_accuracy(name)):
                raise ConfigurationError(f"min_accuracy.{name}: {least:g}, and its best variant has {best:.4g}")
        worker = self.settings.worker
        counts = {app: len(self.catalogue.of_app(app)) for app in self.apps}
        check_whole(worker.batching, worker.batching_options, counts)
        self.catalogue = self.gpus.profiled(self.catalogue)
        self.promised = {name: app for name, app in self.apps.items() if app.promise.active}
        check_shared(worker.batching, worker.slices.executors, self.promised)
        self.bound = {*self.promised, *self.settings.slo_classes_s}
        if self.promised:
            self.check_keeps(self.promised)
        self.known = KnownCatalogue(self.catalogue)
        self.objects = said.objects.store(said.admission.max_element_bytes)
        self.registry: RegistryStage | None = None
        self.chained = False
        self.routers: dict[str, NextHop] = {}
        """Of this process by app, where admission hands over to them."""
        self.exactly_once: Callable[[str], ExactlyOnce] | None = None
        if self.settings.delivery == "exactly_once":
            self.broker.transactions("check")  # a broker without transactions is an error now
            self.exactly_once = partial(ExactlyOnce, self.broker.transactions)
        self._logs: dict[str, DecisionLog] = {}
        self.make_executor: Callable[[Device, Slice], Executor] = partial(
            executor_of, self.settings, self.known, self.model_folders
        )

    @property
    def chooses(self) -> bool:
        """Whether workers choose among the variants that a slice holds, so that plans may have it hold several."""
        return selects(self.settings.worker.batching) or self.settings.admission.mode == "degrade"

    @property
    def connections(self) -> Connections:
        """What its stages are handed."""
        return Connections(
            broker=self.broker,
            producer=self.producer,
            topics=self.topics,
            clock=self.clock,
            telemetry=self.telemetry,
            objects=self.objects,
        )

    async def create_topics(self, apps: Mapping[str, App] | None = None) -> None:
        """Create what does not exist, of all that is served where ``apps`` are not named."""
        apps = self.apps if apps is None else apps
        partitions = self.settings.partitions_of(list(apps), {n for n, app in apps.items() if app.promise.active})
        shared = self.settings.planner.demand_partitions
        devices = [d.name for d in self.devices]
        specs = self.topics.specs(
            list(apps),
            devices,
            partitions=partitions,
            demand_partitions=shared,
            policies=self.settings.topics.policies(),
        )
        admin = self.broker.admin()
        await admin.create_topics(specs)
        await admin.limits(spec.name for spec in specs)

    def device(self, name: str) -> Device:
        """By name. Raises ConfigurationError."""
        for device in self.devices:
            if device.name == name:
                return device
        known = ", ".join(d.name for d in self.devices)
        raise ConfigurationError(f"device {name!r} is not among the settings' devices: {known}")

    def check_keeps(self, promised: Collection[str], catalogue: Catalogue | None = None) -> None:
        """Raises ConfigurationError where the batching rule keeps no promises, or no device what was promised.

        Says of which queries that an app declares to take none could come.
        ``catalogue``: what is to be served, where that is not what is served now.
        """
        served = self.catalogue if catalogue is None else self.gpus.profiled(catalogue)
        rule = self.settings.worker.batching
        if not keeps_promises(rule):
            raise ConfigurationError(
                f"worker.batching: {rule!r} keeps no promises, and {', '.join(promised)} was promised something; "
                "choose adaptive, greedy or balanced"
            )
        check_shared(rule, self.settings.worker.slices.executors, promised)
        apps = [served.apps[name] for name in promised if name in served.apps]
        hops = self.settings.admission.hops()
        check_promises(served, self.devices, hops, apps)
        for said in rows_refused(served, self.devices, hops, apps):
            self.notices.warn(said)

    def serve(self, catalogue: Catalogue) -> None:
        """Serve these apps, and no others, from now on. What was served before stays known to who still runs it."""
        catalogue = self.catalogue = self.gpus.profiled(catalogue)
        self.apps = dict(catalogue.apps)
        self.known.add(catalogue)
        for name, app in self.apps.items():
            if app.promise.active:
                self.promised[name] = app
                self.bound.add(name)
            elif self.promised.pop(name, None) is not None:
                self.bound.discard(name)

    @property
    def model_folders(self) -> tuple[Path, Path]:
        """Where models lie."""
        return self.models, Registered(self.settings.home).folder

    @property
    def turns_told(self) -> bool:
        """Whether routers count turns for workers whose tables tell phases apart."""
        settings = self.settings
        tables = takes(settings.worker.batching, "tables")
        return tables and settings.tables.phases > 1 and settings.routes_by == WeightedRouting.name

    def recording(self, handle: Handle[Event, Action], name: str) -> Handle[Event, Action]:
        """``handle`` of a core, its decisions written under the run's folder where the settings ask for it."""
        return recording(handle, self._log(name)) if self.settings.record else handle

    def _log(self, name: str) -> DecisionLog:
        """Each core has a log of its own, or none could be replayed: what takes another's place, whose log is whole
        then, is numbered."""
        folder = self.run_folder / "decisions"
        folder.mkdir(parents=True, exist_ok=True)
        names = chain([name], (f"{name}.{number}" for number in count(2)))
        file = next(file for one in names if not (file := folder / f"{one}.jsonl").exists())
        log = DecisionLog(file, monotonic=self.clock.monotonic, say=self.notices.say)
        if (before := self._logs.pop(name, None)) is not None:
            before.close()
        self._logs[name] = log
        return log

    def close(self) -> None:
        """Close decision logs."""
        for log in self._logs.values():
            log.close()


def check_has(apps: Collection[str], named: Collection[str]) -> None:
    """Raises ConfigurationError where an app that is ``named`` is not among ``apps``."""
    unknown = sorted(set(named) - set(apps))
    if unknown:
        known = ", ".join(sorted(apps))
        raise ConfigurationError(f"apps: {', '.join(unknown)} not in the catalogue; it has {known}")
