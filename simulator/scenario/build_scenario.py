"""A validated scenario made runnable: catalogue, devices, arrivals, and the system with its policies and planner."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, get_type_hints

from numpy.random import Generator

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App, QueryClass
from sluicegate.domain.models.profile import BatchLatency, LengthPoints, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.query import Goal
from sluicegate.planner.estimates.device_liveness import SELF_FENCE
from sluicegate.policies.admission.registry import admission
from sluicegate.policies.admission.sustainable import SustainableAdmission
from sluicegate.policies.batching.registry import STATIONS, batching, check_shared, check_whole
from sluicegate.policies.mdp_serving.jellyfish_model_switching import ModelSwitching, PublishedModelSwitching
from sluicegate.policies.mdp_serving.table_policy import TableSelection
from sluicegate.policies.named_options import typed
from sluicegate.policies.placement.model_staging import Staging
from sluicegate.policies.promises.keeper import Hops
from sluicegate.policies.routing.packing import Packing
from sluicegate.policies.routing.registry import routing
from sluicegate.policies.serving.admission import AdmissionRules
from sluicegate.policies.serving.router import RouterRules
from sluicegate.policies.serving.slices import DeviceRules
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import load_catalogue
from sluicegate.profiles.formats.proteus_csv import load_proteus
from sluicegate.profiles.formats.ramsis_json import load_ramsis
from sluicegate.simulator.arrivals.promised_load import PromisedLoad
from sluicegate.simulator.arrivals.sampling import ArrivalSource
from sluicegate.simulator.engine.faults import ExecutorFailure, Failure, Faults, StarvedHost, Straggler, hits
from sluicegate.simulator.engine.system_model import SystemModel, Timing
from sluicegate.simulator.engine.varied_queries import OwnWish
from sluicegate.simulator.scenario.build_control import control_of
from sluicegate.simulator.scenario.mdp_scenario import rules_of_tables, switching_batching, table_batching, turns_told
from sluicegate.simulator.scenario.registrations import asking, registry_of
from sluicegate.simulator.scenario.scenario_fields import (
    AppSpec,
    CatalogueSpec,
    InlineVariant,
    Latencies,
    Scenario,
    SimulationSpec,
    WishSpec,
)
from sluicegate.simulator.scenario.sliced_devices import MB, devices_of, profiled_on, sharing_of

_WARM_UP = 5.0
_ON_TOP = 2.0
"""Seconds of a warm-up, and beyond the slowest load."""


def build(scenario: Scenario, timer: Callable[[], float]) -> SystemModel:
    """The system of ``scenario``. ``timer``: wall seconds, to measure solves. Raises ConfigurationError."""
    catalogue = profiled_on(catalogue_of(scenario), scenario)
    devices = devices_of(scenario)
    registry = registry_of(scenario, catalogue)
    first = registry[0].served if registry else catalogue
    policies, routed, simulation = scenario.policies, scenario.routes_by, scenario.simulation
    promised = [name for name, app in catalogue.apps.items() if app.promise.active]
    check_shared(policies.batching.name, scenario.slices.executors, promised)
    scales = scenario.planner.scales
    specs = {name: spec for name, spec in (scenario.apps or {}).items() if spec is not None}
    sharing = sharing_of(scenario, catalogue)
    tables = rules_of_tables(scenario.tables, policies)
    if tables is not None or policies.batching.name == TableSelection.name:
        check_whole(policies.batching.name, {}, {app: len(catalogue.of_app(app)) for app in catalogue.apps})
    if scenario.tables is not None:
        options = {"margin": scenario.tables.margin, **policies.batching.options}
        make_batching = batching(policies.batching.name, **options)
    elif policies.batching.name == TableSelection.name:
        make_batching = table_batching(policies.batching.options, catalogue, devices, _app_names(scenario, catalogue))
    elif policies.batching.name in {ModelSwitching.name, PublishedModelSwitching.name}:
        served = _app_names(scenario, catalogue)
        options = policies.batching.options
        make_batching = switching_batching(policies.batching.name, options, catalogue, devices, served)
    else:
        make_batching = batching(policies.batching.name, **policies.batching.options)
    return SystemModel(
        catalogue=catalogue,
        apps=tuple(catalogue.apps[name] for name in _app_names(scenario, catalogue)),
        registry=registry,
        devices=devices,
        make_control=lambda: control_of(scenario, timer, first, devices, tables),
        make_station=lambda: STATIONS[policies.turns](make_batching, hops_of(simulation)),
        make_staging=partial(Staging, quantile=policies.quantile),
        routers=RouterRules(
            make_policy=routing(routed.name, **{**turns_told(scenario.tables, routed), **routed.options}),
            quantile=policies.quantile,
            packing=routed.name == Packing.name,
            on_demand=scales,
        ),
        admission=_admission(scenario),
        lengths=_lengths(specs, catalogue),
        asked={name: tuple(_wish(one) for one in spec.queries) for name, spec in specs.items() if spec.queries},
        load=_load(scenario, first),
        batching=policies.batching.name,
        service=simulation.service,
        slow_probability=simulation.slow_batches.probability,
        slow_factor=simulation.slow_batches.factor,
        rules=DeviceRules(
            instances=scales,
            self_fence=SELF_FENCE * scenario.planner.device_timeout_s,
            patience=scenario.slices.drain_s,
            bound=tuple(name for name, app in first.apps.items() if app.promise.active),
        ),
        sharing=sharing,
        exclusive_loads=simulation.loads == "exclusive",
        timing=_timing(simulation, catalogue),
        faults=_faults(simulation, devices, sharing.cuttable),
    )


def _lengths(specs: Mapping[str, AppSpec], catalogue: Catalogue) -> dict[str, tuple[int, ...]]:
    varying = {catalogue.variants[profile.variant].app for profile in catalogue.profiles.values() if profile.shorter}
    found = {name: spec.lengths for name, spec in specs.items() if spec.lengths}
    for name in found.keys() - varying:
        raise ConfigurationError(f"apps.{name}.lengths: the latency of none of its variants goes with the length")
    return found


def _wish(spec: WishSpec) -> OwnWish:
    goal = Goal(spec.accuracy, spec.cost, spec.model)
    return OwnWish(
        share=spec.share,
        slo=None if spec.latency_ms is None else spec.latency_ms / 1e3,
        query_class=None if spec.query_class is None else QueryClass(spec.query_class),
        priority=spec.priority,
        client=spec.client,
        goal=goal if goal != Goal() else None,
        rows=spec.rows,
    )


def hops_of(spec: SimulationSpec) -> Hops:
    """How long queries are on their way, at most."""
    return Hops((spec.to_router_ms + spec.to_device_ms + spec.hop_spread_ms) / 1e3)


def _admission(scenario: Scenario) -> AdmissionRules:
    """Bounds that are not given follow the plans, as live."""
    policies, quantile = scenario.policies, scenario.policies.quantile
    spec = policies.admission
    # Where all queries of an app are one client's, shares do not limit it while it asks with one priority.
    ordered = any(wish.priority or wish.client for app in (scenario.apps or {}).values() if app for wish in app.queries)
    shares: Mapping[str, float] | None = {} if ordered else None
    if spec is None:
        return AdmissionRules(quantile=quantile, shares=shares)
    by_plan = spec.name == SustainableAdmission.name and "bound" not in spec.options
    options = {"bound": None, **spec.options} if by_plan else spec.options
    return AdmissionRules(
        make_policy=admission(spec.name, **options),
        by_plan=by_plan,
        hops=hops_of(scenario.simulation),
        quantile=quantile,
        shares=shares,
    )


def source_of(scenario: Scenario, catalogue: Catalogue, rng: Generator) -> ArrivalSource:
    """The arrivals of ``scenario``. Raises InvalidInputError where the trace cannot be read."""
    return scenario.traces.open(_app_names(scenario, catalogue), rng, scenario.duration_s)


def check_begins(scenario: Scenario, end: float) -> None:
    """Raises ConfigurationError for what is said to begin once the arrivals are over, at ``end`` seconds."""
    simulation, bought = scenario.simulation, scenario.procurement
    begins = {
        "simulation.failures": [one.at_s for one in simulation.failures],
        "simulation.executor_failures": [one.at_s for one in simulation.executor_failures],
        "simulation.stragglers": [one.at_s for one in simulation.stragglers],
        "simulation.starved_hosts": [one.at_s for one in simulation.starved_hosts],
        "planner.failures": [one.at_s for one in scenario.planner.failures],
        "procurement.notices": [one.at_s for one in bought.notices] if bought is not None else [],
        "registrations": [one.at_s for one in scenario.registrations],
    }
    for field, times in begins.items():
        for number, at in enumerate(times):
            if at >= end:
                raise ConfigurationError(
                    f"{field}.{number}.at_s: {at:g} is not before the end, {end:g} s: "
                    "give an earlier time, or a longer duration_s"
                )


def catalogue_of(scenario: Scenario) -> Catalogue:
    """The catalogue, of the scenario's apps alone, with what they ask. Raises ConfigurationError."""
    whole = _read(scenario.catalogue, scenario.apps)
    names = _app_names(scenario, whole)
    specs = scenario.apps or {}
    apps = [_promised(_sized(asking(whole.apps[name], specs.get(name)), specs.get(name)), scenario) for name in names]
    variants = [v for v in whole.variants.values() if v.app in names]
    kept = {v.name for v in variants}
    profiles = [p for p in whole.profiles.values() if p.variant in kept]
    without = [name for name in names if not any(v.app == name for v in variants)]
    if without:
        raise ConfigurationError(f"apps.{without[0]}: the catalogue has no variant of it")
    return Catalogue.of(apps, variants, profiles)


def _sized(app: App, spec: AppSpec | None) -> App:
    """With the rows that one of its queries may carry. Raises ConfigurationError where some carry more."""
    if spec is None:
        return app
    most = spec.max_rows or app.max_rows
    for number, wish in enumerate(spec.queries):
        if wish.rows > most:
            raise ConfigurationError(
                f"apps.{app.name}.queries.{number}.rows: {wish.rows}, and a query may carry {most}: "
                f"give fewer, or a greater apps.{app.name}.max_rows"
            )
    return replace(app, max_rows=most)


def _promised(app: App, scenario: Scenario) -> App:
    spec = scenario.promise
    if spec is None or spec.app != app.name:
        return app
    return replace(app, promise=spec.promised(), max_rows=max(app.max_rows, spec.least_and_most[1]))


def _load(scenario: Scenario, first: Catalogue) -> PromisedLoad | None:
    """``first``: what is registered at the start. Raises ConfigurationError for an app that is not among it, that asks
    something else, or that nothing keeps to its bound."""
    spec = scenario.promise
    if spec is None:
        return None
    if spec.app not in first.apps:
        raise ConfigurationError(
            f"promise.app: {spec.app!r} is none of those registered first, {', '.join(first.apps)}"
        )
    if first.apps[spec.app].query_class is not QueryClass.STRICT:
        raise ConfigurationError(
            f"promise.app: {spec.app!r} is best effort, and only strict queries are promised anything"
        )
    if (asks := (scenario.apps or {}).get(spec.app)) is not None and asks.queries:
        raise ConfigurationError(f"apps.{spec.app}.queries: promise says what is asked of this app; leave them out")
    admission = scenario.policies.admission
    if admission is None or admission.name != SustainableAdmission.name:
        raise ConfigurationError("promise: only policies.admission: sustainable announces a bound to take a share of")
    return PromisedLoad(app=spec.app, queries=spec.queries, rows=spec.least_and_most, share=spec.share_of_bound)


def _app_names(scenario: Scenario, catalogue: Catalogue) -> tuple[str, ...]:
    if scenario.apps is None:
        return tuple(catalogue.apps)
    for name in scenario.apps:
        if name not in catalogue.apps:
            raise ConfigurationError(f"apps.{name}: not in the catalogue; it has {', '.join(catalogue.apps)}")
    return tuple(scenario.apps)


def _read(spec: CatalogueSpec, apps: Mapping[str, AppSpec | None] | None) -> Catalogue:
    path = spec.path or Path()
    match spec.format:
        case "inline":
            _check_options(spec, {})
            return _inline(spec.variants, apps or {})
        case "sluice":
            _check_options(spec, {})
            return load_catalogue(path, verify=False)
        case "proteus-csv":
            return load_proteus(path, **_check_options(spec, get_type_hints(load_proteus, include_extras=True)))
        case "ramsis-json":
            return load_ramsis(path, **_check_options(spec, get_type_hints(load_ramsis, include_extras=True)))


def _check_options(spec: CatalogueSpec, hints: Mapping[str, Any]) -> dict[str, Any]:
    """``hints``: of a reader, whose first argument is the path."""
    allowed = [name for name in hints if name != "return"][1:]
    for option in spec.options:
        if option not in allowed:
            known = ", ".join(allowed) or "none"
            raise ConfigurationError(f"catalogue.options.{option}: {spec.format} has no such option; it takes {known}")
    return {name: typed(f"catalogue.options.{name}", hints[name], value) for name, value in spec.options.items()}


def _inline(variants: tuple[InlineVariant, ...], apps: Mapping[str, AppSpec | None]) -> Catalogue:
    names = sorted({v.app for v in variants})
    for name in names:
        spec = apps.get(name)
        if spec is None or spec.slo_ms is None:
            raise ConfigurationError(f"apps.{name}.slo_ms: an inline catalogue needs it")
    profiles = []
    for variant in variants:
        for kind, latencies in variant.latency_ms.items():
            shorter = {n: by_kind[kind] for n, by_kind in variant.shorter_latency_ms.items() if kind in by_kind}
            profiles.append(
                Profile(
                    variant=variant.name,
                    device_type=kind,
                    points=_points(latencies),
                    length=variant.length,
                    shorter=tuple(LengthPoints(n, _points(shorter[n])) for n in sorted(shorter)),
                    memory_bytes=int(variant.memory_mb * MB),
                    load=variant.load_s,
                )
            )
    return Catalogue.of(
        [App(name=name, slo=1.0) for name in names],
        [Variant(name=v.name, app=v.app, accuracy=v.accuracy, nominal=True) for v in variants],
        profiles,
    )


def _points(latencies: Latencies) -> tuple[BatchLatency, ...]:
    return tuple(_point(batch, latencies[batch]) for batch in sorted(latencies))


def _point(batch: int, latency: float | tuple[float, float]) -> BatchLatency:
    median, p95 = latency if isinstance(latency, tuple) else (latency, latency)
    return BatchLatency(batch, median / 1e3, max(median, p95) / 1e3)


def warm_up_of(spec: SimulationSpec, catalogue: Catalogue) -> float:
    """Seconds that control and devices run before the first arrival."""
    if spec.warm_up_s is not None:
        return spec.warm_up_s
    return max(_WARM_UP, _ON_TOP + max((profile.load for profile in catalogue.profiles.values()), default=0.0))


def _timing(spec: SimulationSpec, catalogue: Catalogue) -> Timing:
    return Timing(
        to_router=spec.to_router_ms / 1e3,
        to_device=spec.to_device_ms / 1e3,
        spread=spec.hop_spread_ms / 1e3,
        control=spec.control_ms / 1e3,
        heartbeat=spec.heartbeat_s,
        warm_up=warm_up_of(spec, catalogue),
        drain=spec.drain_s,
    )


def _faults(spec: SimulationSpec, devices: tuple[Device, ...], cuttable: Collection[str]) -> Faults:
    """``cuttable``: devices whose slices come and go. Raises ConfigurationError for what would hit nothing."""
    faults = Faults(
        tuple(Failure(f.device, f.at_s, f.until_s or inf) for f in spec.failures),
        tuple(Straggler(s.device, s.factor, s.at_s, s.until_s or inf) for s in spec.stragglers),
        tuple(ExecutorFailure(f.device, f.at_s, f.slice) for f in spec.executor_failures),
        spec.executor_start_s,
        tuple(StarvedHost(s.device, s.delay_ms / 1e3, s.at_s, s.until_s or inf) for s in spec.starved_hosts),
    )
    named = [("failures", f.device) for f in spec.failures]
    named += [("executor_failures", f.device) for f in spec.executor_failures]
    named += [("stragglers", s.device) for s in spec.stragglers]
    named += [("starved_hosts", s.device) for s in spec.starved_hosts]
    for kind, pattern in named:
        if not any(hits(pattern, device) for device in devices):
            names = [d.name for d in devices]
            some = ", ".join([*names[:6], "..."] if len(names) > 6 else names)
            raise ConfigurationError(f"simulation.{kind}: no device is called {pattern!r}; there are {some}")
    for ending in faults.executors:
        hit = [device for device in devices if hits(ending.device, device)]
        parts = {part.name for device in hit for part in device.slices}
        if ending.part not in {"", *parts} and not any(device.name in cuttable for device in hit):
            raise ConfigurationError(
                f"simulation.executor_failures: {ending.device} has no slice {ending.part!r}; there are "
                f"{', '.join(sorted(parts))}"
            )
    return faults
