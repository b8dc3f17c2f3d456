"""The devices of a scenario: as they are cut at the start, what their slices share, what is profiled on them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.domain.fleet.device import Device, Slice, profile_type
from sluicegate.planner.geometry.first_cut import first_cut, laid_out, profiled
from sluicegate.planner.geometry.mig_tables import TABLES
from sluicegate.policies.batching.registry import takes
from sluicegate.policies.placement.strategies import sharing
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.slice_profiles import shared
from sluicegate.profiles.formats.proteus_csv import DEVICE_TYPES
from sluicegate.simulator.engine.slice_model import SharingModel
from sluicegate.simulator.scenario.scenario_fields import DeviceSpec, Scenario

MB = 1 << 20


def devices_of(scenario: Scenario) -> tuple[Device, ...]:
    """Devices by the order of the file. Raises ConfigurationError."""
    return tuple(device for device, _ in _specified(scenario))


def sharing_of(scenario: Scenario, catalogue: Catalogue) -> SharingModel:
    """What slices share, and which GPUs plans may cut otherwise. Raises ConfigurationError."""
    simulation, slices = scenario.simulation, scenario.slices
    instances: dict[tuple[str, str], str] = {}
    cuttable: set[str] = set()
    for device, spec in _specified(scenario):
        if spec.geometry is not None:
            if device.type in simulation.shared:
                raise ConfigurationError(f"simulation.shared: {device.type!r} is cut, and its slices share nothing")
            cuttable.add(device.name)
        elif device.type in simulation.shared:
            instances |= {(device.name, part.name): "all" for part in device.slices}
        else:
            instances |= {(device.name, part.name): part.instance for part in spec.slices if part.instance}
    types = {device.type for device in devices_of(scenario)}
    _check_types("simulation.shared", simulation.shared, types)
    cut = {kind: TABLES[kind].profiles for kind in _cut(scenario)}
    parts = {profile_type(device.type, part.profile) for device in devices_of(scenario) for part in device.slices}
    parts |= {profile_type(kind, profile) for kind, profiles in cut.items() for profile in profiles}
    _check_types("slices.executors", slices.executors, types | parts)
    for profile in slices.rdf:
        if not any(profile in profiles for profiles in cut.values()):
            raise ConfigurationError(f"slices.rdf: no GPU here has slices of profile {profile!r}")
    for variant in simulation.bandwidth:
        if variant not in catalogue.variants:
            raise ConfigurationError(f"simulation.bandwidth: the catalogue has no variant {variant!r}")
        if not instances and not slices.executors:
            raise ConfigurationError(f"simulation.bandwidth: {variant!r} shares nothing; see simulation.shared")
    # What profiles of shared slices say, and what the scenario says of all variants, is one and the same by now.
    taken = {p.variant: p.fbr for p in catalogue.profiles.values() if p.executors > 1} | dict(simulation.bandwidth)
    by_tables = takes(scenario.policies.batching.name, "tables")  # which count on strict turns
    return SharingModel(
        cuttable=frozenset(cuttable),
        step_s=slices.step_s,
        make_sharing=lambda device: None if by_tables else sharing(slices.choice, device),
        instances=instances,
        parts=taken,
        executors=slices.executors,
    )


def _check_types(setting: str, given: Iterable[str], types: Collection[str]) -> None:
    """Raises ConfigurationError for what would do nothing."""
    for kind in given:
        if kind not in types:
            raise ConfigurationError(f"{setting}: no device is of type {kind!r}; there are {', '.join(sorted(types))}")


def profiled_on(catalogue: Catalogue, scenario: Scenario) -> Catalogue:
    """``catalogue`` with profiles on all slices that the GPUs can have, and one for every device.

    Raises ConfigurationError.
    """
    catalogue = shared(
        profiled(_measured(catalogue, scenario.simulation.bandwidth), _cut(scenario), rdf=scenario.slices.rdf),
        scenario.slices.executors,
    )
    _check(catalogue, devices_of(scenario))
    return catalogue


def _cut(scenario: Scenario) -> list[str]:
    """Types of GPUs that have slices, now or by a plan, of those that their placement table knows."""
    return sorted(
        {
            device.type
            for device in devices_of(scenario)
            if device.type in TABLES and any(part.profile in TABLES[device.type].profiles for part in device.slices)
        }
    )


def _measured(catalogue: Catalogue, parts: Mapping[str, float]) -> Catalogue:
    """With these parts of a slice that batches take, by variant."""
    if not parts:
        return catalogue
    found = {key: replace(p, fbr=parts.get(p.variant, p.fbr)) for key, p in catalogue.profiles.items()}
    return Catalogue(catalogue.apps, catalogue.variants, found)


def _check(catalogue: Catalogue, devices: Sequence[Device]) -> None:
    known = set(catalogue.device_types)
    for kind in (profile_type(device.type, part.profile) for device in devices for part in device.slices):
        if kind not in known:
            raise ConfigurationError(
                f"devices: nothing is profiled on type {kind!r}; the catalogue has {', '.join(sorted(known))}"
            )


def _specified(scenario: Scenario) -> list[tuple[Device, DeviceSpec]]:
    proteus = scenario.catalogue.format == "proteus-csv"
    found: dict[str, tuple[Device, DeviceSpec]] = {}
    numbers: Counter[str] = Counter()
    for number, spec in enumerate(scenario.devices):
        kind = DEVICE_TYPES.get(spec.type, spec.type) if proteus else spec.type
        parts = _slices(spec, kind, number)
        for _ in range(spec.count):
            prefix = spec.name or kind
            device = Device(
                name=f"{prefix}{numbers[prefix]}",
                type=kind,
                memory_bytes=int(spec.memory_mb * MB),
                slices=parts,
                price=spec.price,
                spot=spec.spot,
            )
            numbers[prefix] += 1
            if device.name in found:
                raise ConfigurationError(f"devices: two are called {device.name}; give one of them another name")
            found[device.name] = (device, spec)
    return list(found.values())


def _slices(spec: DeviceSpec, kind: str, number: int) -> tuple[Slice, ...]:
    if spec.geometry is None:
        return tuple(Slice(s.name, s.profile, int(s.memory_mb * MB)) for s in spec.slices) or (Slice(),)
    try:
        return laid_out(kind, first_cut(kind, spec.geometry))
    except (ConfigurationError, InvalidInputError) as error:
        raise ConfigurationError(f"devices.{number}.{error}") from error
