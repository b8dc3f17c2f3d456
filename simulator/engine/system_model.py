"""What is simulated, and what a run of it comes to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from numpy.random import Generator

from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.fold import Summary
from sluicegate.domain.models.app import App
from sluicegate.policies.protocols import StagingPolicy, StationPolicy
from sluicegate.policies.serving.admission import AdmissionRules
from sluicegate.policies.serving.router import RouterRules
from sluicegate.policies.serving.slices import DeviceRules
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.simulator.arrivals.promised_load import PromisedArrivals, PromisedLoad
from sluicegate.simulator.engine.control_plane import ControlPlane
from sluicegate.simulator.engine.faults import Faults
from sluicegate.simulator.engine.service_times import ServiceMode, ServiceTimes
from sluicegate.simulator.engine.slice_model import SharingModel
from sluicegate.simulator.engine.varied_queries import OwnWish, VariedHop, Variety, varieties
from sluicegate.simulator.promise_watch import PromiseFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds. ``to_router``: from a query's arrival to its router; ``to_device``: on to the device, up to ``spread``
    longer: any of that is equally likely, and queries of one device keep their order.

    ``control``: plans and acknowledgements on their way. ``heartbeat``: between heartbeats of a device. ``warm_up``:
    control and devices run this long before the first arrival. ``drain``: longest wait for open queries after the last
    arrival.
    """

    to_router: float = 0.0
    to_device: float = 0.0
    spread: float = 0.0
    control: float = 0.0
    heartbeat: float = 0.5
    warm_up: float = 5.0
    drain: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What the registry says: ``served`` are the apps and variants from ``at`` seconds on, and no others."""

    at: float
    served: Catalogue


@dataclass(frozen=True, kw_only=True)
class SystemModel:
    """What is simulated: nouns, and a factory for each decision. ``apps`` in the order of the arrivals' indices.

    ``catalogue``: all that there ever is. ``registry``: what is registered, the first from the start; () all of it.

    By app: ``lengths``, what its queries' lengths are drawn from, all equally likely; apps without vary in none;
    ``asked``, what part of its queries ask of their own. ``load``: queries of an app that go by the bound announced.
    """

    catalogue: Catalogue
    apps: tuple[App, ...]
    registry: tuple[Registration, ...] = ()
    devices: tuple[Device, ...]
    make_control: Callable[[], ControlPlane]
    make_station: Callable[[], StationPolicy]
    make_staging: Callable[[Device, Slice, Catalogue], StagingPolicy]
    routers: RouterRules
    admission: AdmissionRules = field(default_factory=AdmissionRules)
    lengths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    asked: Mapping[str, tuple[OwnWish, ...]] = field(default_factory=dict)
    load: PromisedLoad | None = None
    batching: str
    service: ServiceMode = "median"
    slow_probability: float = 0.0
    slow_factor: float = 1.0
    rules: DeviceRules = field(default_factory=DeviceRules)
    sharing: SharingModel = field(default_factory=SharingModel)
    exclusive_loads: bool = False
    timing: Timing = field(default_factory=Timing)
    faults: Faults = field(default_factory=Faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """What chance decides in a run. Each takes a generator of its own from the run's, in a fixed order: who makes them
    anew from an equal one, as the bound does, draws the same; and those that a system has no use for are taken too, so
    that of two systems with the same apps the rest is the same."""

    load: PromisedArrivals | None
    hop: VariedHop | None
    service: ServiceTimes
    varieties: Mapping[str, Variety]

    @staticmethod
    def of(system: SystemModel, rng: Generator) -> "Draws":
        """Those of ``system``."""
        timing = system.timing
        service = ServiceTimes(
            system.catalogue,
            system.service,
            rng,
            slow_probability=system.slow_probability,
            slow_factor=system.slow_factor,
        )
        varied = varieties([app.name for app in system.apps], system.lengths, system.asked, rng)
        hop, load = rng.spawn(2)
        return Draws(
            load=PromisedArrivals(system.load, load) if system.load is not None else None,
            hop=VariedHop(timing.to_device, timing.spread, hop) if timing.spread else None,
            service=service,
            varieties=varied,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run came to.

    ``summary``: the metrics. ``epochs``: plans published. ``solve_s``: wall seconds of each solve.

    ``nondeterministic``: solves cut off by a limit in seconds. ``cost``: money, by kind of instance. ``promises``: None
    where nothing was promised.
    """

    summary: Summary
    epochs: int
    solve_s: tuple[float, ...]
    nondeterministic: int
    cost: Mapping[str, float] = field(default_factory=dict)
    promises: PromiseFigures | None
