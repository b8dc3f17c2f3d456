"""The seam to a management library: what NVML offers, in plain values. The fake and the real one implement it.

Rules:
- A GPU is named by its index. A GPU instance and its compute instance are named by the ids that the library gives.
- Everything raises DeviceError with a code; who calls it turns that into a message with a remedy.
- Sizes of placements are in memory slots: 3g has size 4.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from sluicegate.domain.errors import SluiceError
from sluicegate.planner.geometry.mig_tables import MigProfile


class Fault(StrEnum):
    """What a library can complain of."""

    NOT_SUPPORTED = "not supported"
    NO_PERMISSION = "no permission"
    IN_USE = "in use"
    NO_ROOM = "no room"
    NOT_FOUND = "not found"
    UNAVAILABLE = "unavailable"
    OTHER = "other"


class DeviceError(SluiceError):
    """A call of the library failed. ``fault`` says how."""

    def __init__(self, fault: Fault, problem: str) -> None:
        super().__init__(problem)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """A GPU as found. ``mig``: None where the GPU cannot be cut; ``mig_pending``: after the next reset."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    mig: bool | None
    mig_pending: bool | None


@dataclass(frozen=True, slots=True)
class GpuReadings:
    """What a GPU measures of itself. ``utilisation``: 0..1, None where a MIG GPU does not say. ``ecc_errors``:
    uncorrected since the driver loaded."""

    utilisation: float | None
    memory_used_bytes: int
    temperature_c: float | None
    ecc_errors: int | None


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """A GPU instance. ``compute``: ids of its compute instances; ``uuid``: of its MIG device, "" without one."""

    id: int
    profile: str
    start: int
    compute: tuple[int, ...]
    uuid: str


class DeviceLibrary(Protocol):
    """NVML, or what stands for it."""

    def count(self) -> int:
        """GPUs there are."""
        ...

    def info(self, gpu: int) -> GpuInfo:
        """What the GPU is."""
        ...

    def readings(self, gpu: int) -> GpuReadings:
        """What it measures now."""
        ...

    def set_mig(self, gpu: int, enabled: bool) -> None:
        """Switch MIG mode; some GPUs do so at their next reset only."""
        ...

    def profiles(self, gpu: int) -> tuple[MigProfile, ...]:
        """Profiles with their possible placements, as the device reports them."""
        ...

    def instances(self, gpu: int) -> tuple[InstanceInfo, ...]:
        """GPU instances there are, by start."""
        ...

    def create_instance(self, gpu: int, profile: str, start: int) -> int:
        """A GPU instance at a placement; its id."""
        ...

    def create_compute(self, gpu: int, instance: int) -> int:
        """One compute instance over the whole of a GPU instance; its id."""
        ...

    def destroy_compute(self, gpu: int, instance: int, compute: int) -> None:
        """Raises DeviceError(IN_USE) while a process runs on it."""
        ...

    def destroy_instance(self, gpu: int, instance: int) -> None:
        """Raises DeviceError(IN_USE) while it has a compute instance."""
        ...
