"""A fake NVML: GPUs in memory that enforce the same placement rules, for tests and for machines without a GPU.

Rules:
- Placements, counts and compute are checked against the GPU type's table, overlap included.
- A compute instance can be destroyed only while no process runs on it, a GPU instance only without compute instances.
- UUIDs change with every instance created. MIG mode can be switched only while there are no instances.
- Creating or destroying an instance takes ``step_s`` seconds, in the thread that asks for it.
- Without ``privileged`` everything that changes something fails as it does for a user who is not root.
"""

import re
import threading
import time
from collections import Counter

from sluicegate.domain.errors import ConfigurationError
from sluicegate.executors.devices.gpu_library import DeviceError, Fault, GpuInfo, GpuReadings, InstanceInfo
from sluicegate.planner.geometry.mig_tables import TABLES, Instance, MigProfile, PlacementTable, table_of

MAX_GPUS = 1024
_NAMES = {
    "a100": "NVIDIA A100-SXM4-40GB",
    "a100-80gb": "NVIDIA A100-SXM4-80GB",
    "h100": "NVIDIA H100 80GB HBM3",
    "h200": "NVIDIA H200",
    "a30": "NVIDIA A30",
}


class _FakeGpu:
    def __init__(self, index: int, table: PlacementTable, mig: bool) -> None:
        self.index = index
        self.table = table
        self.mig = mig
        self.instances: dict[int, Instance] = {}
        self.compute: dict[int, int] = {}
        self.uuids: dict[int, str] = {}


class FakeLibrary:
    """Implements DeviceLibrary. ``busy``: (gpu, instance) pairs on which a process runs."""

    def __init__(
        self, kind: str, count: int, *, mig: bool = True, privileged: bool = True, step_s: float = 0.0
    ) -> None:
        table = table_of(kind)
        self.busy: set[tuple[int, int]] = set()
        self.log: list[str] = []
        self._kind = kind
        self._privileged = privileged
        self._gpus = [_FakeGpu(i, table, mig) for i in range(count)]
        self._created = 0
        self._step_s = step_s
        self._lock = threading.Lock()

    def count(self) -> int:
        """GPUs there are."""
        return len(self._gpus)

    def info(self, gpu: int) -> GpuInfo:
        """What the GPU is."""
        one = self._gpu(gpu)
        memory = max(p.memory_bytes for p in one.table.profiles.values())
        return GpuInfo(gpu, f"GPU-fake-{gpu:04d}", _NAMES.get(self._kind, self._kind), memory, one.mig, one.mig)

    def readings(self, gpu: int) -> GpuReadings:
        """An idle GPU at room temperature, except for what is busy."""
        one = self._gpu(gpu)
        used = sum(one.table.profile(one.instances[i].profile).memory_bytes for g, i in self.busy if g == gpu)
        return GpuReadings(None if one.mig else 0.0, used, 30.0, 0)

    def set_mig(self, gpu: int, enabled: bool) -> None:
        """At once: nothing needs a reset here."""
        one = self._changing(gpu, f"mig {'on' if enabled else 'off'}")
        if one.instances:
            raise DeviceError(Fault.IN_USE, f"GPU {gpu} still has instances")
        one.mig = enabled

    def profiles(self, gpu: int) -> tuple[MigProfile, ...]:
        """Those of the type's table."""
        return tuple(self._cuttable(gpu).table.profiles.values())

    def instances(self, gpu: int) -> tuple[InstanceInfo, ...]:
        """By start."""
        one = self._gpu(gpu)
        found = [
            InstanceInfo(i, x.profile, x.start, (one.compute[i],) if i in one.compute else (), one.uuids.get(i, ""))
            for i, x in one.instances.items()
        ]
        return tuple(sorted(found, key=lambda x: x.start))

    def create_instance(self, gpu: int, profile: str, start: int) -> int:
        """Raises DeviceError(NO_ROOM) where the placement rules forbid it."""
        one = self._changing(gpu, f"create {profile}@{start}")
        self._cuttable(gpu)
        wanted = Instance(profile, start)
        if profile not in one.table.profiles or not one.table.fits(tuple(one.instances.values()), wanted):
            held = Counter(i.profile for i in one.instances.values())
            raise DeviceError(Fault.NO_ROOM, f"GPU {gpu} has no room for {profile} at slot {start} beside {dict(held)}")
        time.sleep(self._step_s)
        number = self._number()
        one.instances[number] = wanted
        return number

    def create_compute(self, gpu: int, instance: int) -> int:
        """One for each instance."""
        one = self._changing(gpu, f"create compute of {instance}")
        self._instance(one, instance)
        if instance in one.compute:
            raise DeviceError(Fault.NO_ROOM, f"instance {instance} of GPU {gpu} has a compute instance already")
        number = self._number()
        one.compute[instance] = number
        one.uuids[instance] = f"MIG-fake-{gpu:04d}-{number:06d}"
        return number

    def destroy_compute(self, gpu: int, instance: int, compute: int) -> None:
        """Raises DeviceError(IN_USE) while a process runs there."""
        one = self._changing(gpu, f"destroy compute of {instance}")
        self._instance(one, instance)
        if one.compute.get(instance) != compute:
            raise DeviceError(Fault.NOT_FOUND, f"instance {instance} of GPU {gpu} has no compute instance {compute}")
        if (gpu, instance) in self.busy:
            raise DeviceError(Fault.IN_USE, f"a process runs on instance {instance} of GPU {gpu}")
        del one.compute[instance], one.uuids[instance]

    def destroy_instance(self, gpu: int, instance: int) -> None:
        """Raises DeviceError(IN_USE) while it has a compute instance."""
        one = self._changing(gpu, f"destroy {instance}")
        self._instance(one, instance)
        if instance in one.compute:
            raise DeviceError(Fault.IN_USE, f"instance {instance} of GPU {gpu} still has a compute instance")
        time.sleep(self._step_s)
        del one.instances[instance]

    def _number(self) -> int:
        with self._lock:  # workers of several GPUs ask at once, each in a thread
            self._created += 1
            return self._created

    def _gpu(self, gpu: int) -> _FakeGpu:
        if not 0 <= gpu < len(self._gpus):
            raise DeviceError(Fault.NOT_FOUND, f"there is no GPU {gpu}; there are {len(self._gpus)}")
        return self._gpus[gpu]

    def _cuttable(self, gpu: int) -> _FakeGpu:
        one = self._gpu(gpu)
        if not one.mig:
            raise DeviceError(Fault.NOT_SUPPORTED, f"MIG mode of GPU {gpu} is off")
        return one

    def _changing(self, gpu: int, what: str) -> _FakeGpu:
        one = self._gpu(gpu)
        if not self._privileged:
            raise DeviceError(Fault.NO_PERMISSION, f"GPU {gpu}: {what}")
        self.log.append(f"{gpu} {what}")
        return one

    def _instance(self, one: _FakeGpu, instance: int) -> None:
        if instance not in one.instances:
            raise DeviceError(Fault.NOT_FOUND, f"GPU {one.index} has no instance {instance}")


def fake_library(text: str, *, step_s: float = 0.0) -> FakeLibrary:
    """``a100x8``: eight A100. Raises ConfigurationError for anything else."""
    kind, count = fake_gpus(text)
    return FakeLibrary(kind, count, step_s=step_s)


def fake_gpus(text: str) -> tuple[str, int]:
    """Type and number of the GPUs that ``text`` asks for. Raises ConfigurationError."""
    match = re.fullmatch(r"([a-z0-9-]+?)(?:x(\d{1,4}))?", text)
    if match is None or match.group(1) not in TABLES or not 1 <= int(match.group(2) or 1) <= MAX_GPUS:
        raise ConfigurationError(f"--fake-gpu {text!r}: give a type and a count, such as a100x8; {', '.join(TABLES)}")
    return match.group(1), int(match.group(2) or 1)
