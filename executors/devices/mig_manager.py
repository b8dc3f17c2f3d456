"""Cutting GPUs: what there is, the steps to what is wanted, and taking them in order.

Rules:
- Compute instances are destroyed before their GPU instance, everything that goes before anything that comes.
- Instances that the new geometry can keep stay where they are, with their UUIDs and what runs there. One without a
  compute instance, left by whoever was ended while he cut, is of no use and goes.
- UUIDs are read anew after every change.
- A dry run lists the steps and touches nothing. A step that fails stops the rest; the message says what to do.
"""

from dataclasses import dataclass
from enum import StrEnum

from typing_extensions import override

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.executors.devices.gpu_library import (
    DeviceError,
    DeviceLibrary,
    Fault,
    GpuInfo,
    GpuReadings,
    InstanceInfo,
)
from sluicegate.planner.geometry.mig_tables import Geometry, Instance, PlacementTable

_REMEDIES = {
    Fault.NO_PERMISSION: "run as root, or give the service the right to configure MIG (CAP_SYS_ADMIN)",
    Fault.IN_USE: "drain the GPU first: stop what runs there, its MPS daemon included",
    Fault.NO_ROOM: "list the instances with `sluice devices list`; others were made meanwhile",
    Fault.NOT_SUPPORTED: "the GPU cannot be cut like this; `sluice devices list` shows what it is",
    Fault.UNAVAILABLE: "install the NVIDIA driver and nvidia-ml-py, or use --fake-gpu a100x8",
    Fault.NOT_FOUND: "list the GPUs again; they changed meanwhile",
}


class StepKind(StrEnum):
    """What a step does."""

    ENABLE_MIG = "enable MIG"
    DESTROY = "destroy"
    CREATE = "create"


@dataclass(frozen=True, slots=True)
class Step:
    """One change of a GPU's slices. ``profile`` at ``start`` on ``gpu``; ``instance`` where one is destroyed."""

    kind: StepKind
    gpu: int
    profile: str = ""
    start: int = -1
    instance: int = -1

    @override
    def __str__(self) -> str:
        if self.kind is StepKind.ENABLE_MIG:
            return f"GPU {self.gpu}: enable MIG mode"
        return f"GPU {self.gpu}: {self.kind} {self.profile} at slot {self.start}"


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """A GPU, what it is cut into and what it can be cut into."""

    info: GpuInfo
    readings: GpuReadings
    instances: tuple[InstanceInfo, ...]
    table: PlacementTable | None

    @property
    def usable(self) -> tuple[InstanceInfo, ...]:
        """Instances that something can run on."""
        return tuple(i for i in self.instances if i.compute)

    @property
    def geometry(self) -> Geometry:
        """Profiles of its usable instances, largest first."""
        return self.table.ordered([i.profile for i in self.usable]) if self.table is not None else ()

    def device(self, name: str, kind: str) -> Device:
        """As planner and stages see it: a slice a usable instance, or whole."""
        if self.table is None or not self.usable:
            return Device(name=name, type=kind, memory_bytes=self.info.memory_bytes)
        parts = tuple(Slice(slice_name(i), i.profile, self.table.profile(i.profile).memory_bytes) for i in self.usable)
        return Device(name=name, type=kind, memory_bytes=self.info.memory_bytes, slices=parts)


def slice_name(instance: InstanceInfo) -> str:
    """Profile and first memory slot: the same for whatever instance comes to lie there."""
    return f"{instance.profile}.{instance.start}"


def discover(library: DeviceLibrary) -> tuple[FoundGpu, ...]:
    """All GPUs. Raises ConfigurationError with a remedy."""
    try:
        return tuple(look(library, gpu) for gpu in range(library.count()))
    except DeviceError as error:
        raise explained(error) from error


def look(library: DeviceLibrary, gpu: int) -> FoundGpu:
    """One GPU as it is now. Raises DeviceError."""
    info = library.info(gpu)
    if not info.mig:
        return FoundGpu(info, library.readings(gpu), (), None)
    profiles = library.profiles(gpu)
    slots = max(p.span + max(p.starts) for p in profiles)
    table = PlacementTable(info.name, slots, max(p.compute for p in profiles), {p.name: p for p in profiles})
    return FoundGpu(info, library.readings(gpu), library.instances(gpu), table)


def steps_to(library: DeviceLibrary, gpu: int, geometry: Geometry) -> list[Step]:
    """What cuts ``gpu`` like ``geometry``, in order; empty where it is so.

    Raises ConfigurationError, InvalidInputError.
    """
    try:
        found = look(library, gpu)
        if found.info.mig is None:
            raise ConfigurationError(f"GPU {gpu} ({found.info.name}) cannot be cut: it has no MIG mode")
        if found.table is None:
            # Placements can be read only once the mode is on: geometry is checked then.
            return [Step(StepKind.ENABLE_MIG, gpu)]
    except DeviceError as error:
        raise explained(error) from error
    usable = frozenset(Instance(i.profile, i.start) for i in found.usable)
    layout = found.table.layout_of(geometry, keep=usable)
    kept = usable & frozenset(layout)
    steps = [
        Step(StepKind.DESTROY, gpu, i.profile, i.start, i.id)
        for i in found.instances
        if Instance(i.profile, i.start) not in kept
    ]
    new = sorted((i for i in layout if i not in kept), key=lambda i: i.start)
    return steps + [Step(StepKind.CREATE, gpu, i.profile, i.start) for i in new]


def apply(library: DeviceLibrary, gpu: int, geometry: Geometry) -> FoundGpu:
    """Cut ``gpu`` like ``geometry``. Returns it as it is then, with new UUIDs. Raises ConfigurationError."""
    steps = steps_to(library, gpu, geometry)
    if steps and steps[0].kind is StepKind.ENABLE_MIG:
        _take(library, steps[0])
        steps = steps_to(library, gpu, geometry)
    for step in steps:
        _take(library, step)
    try:
        return look(library, gpu)
    except DeviceError as error:
        raise explained(error) from error


def explained(error: DeviceError) -> ConfigurationError:
    """One line with a remedy."""
    remedy = _REMEDIES.get(error.fault)
    return ConfigurationError(f"{error} ({error.fault})" + (f"; {remedy}" if remedy else ""))


def _take(library: DeviceLibrary, step: Step) -> None:
    try:
        match step.kind:
            case StepKind.ENABLE_MIG:
                library.set_mig(step.gpu, True)
            case StepKind.DESTROY:
                one = next((i for i in library.instances(step.gpu) if i.id == step.instance), None)
                for compute in one.compute if one is not None else ():
                    library.destroy_compute(step.gpu, step.instance, compute)
                library.destroy_instance(step.gpu, step.instance)
            case StepKind.CREATE:
                made = library.create_instance(step.gpu, step.profile, step.start)
                library.create_compute(step.gpu, made)
    except DeviceError as error:
        raise explained(error) from error
