"""NVML through the module ``pynvml`` (distribution nvidia-ml-py), in plain values.

Rules:
- Profiles and placements are read from the device: memory sizes differ between GPUs of one slot layout.
- Functions that take a profile want the ``id`` of its profile info, not the number it was asked for by.
- A compute instance covers its whole GPU instance: its profile has as many slices.
- UUIDs of MIG devices are read anew at every look: they change whenever instances do.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_uint
from importlib import import_module
from typing import Any

from sluicegate.executors.devices.gpu_library import DeviceError, Fault, GpuInfo, GpuReadings, InstanceInfo
from sluicegate.planner.geometry.mig_tables import MigProfile

_SLICES = {1: "1g", 2: "2g", 3: "3g", 4: "4g", 7: "7g"}
_MOST = 16
_MB = 1 << 20


class PynvmlLibrary:
    """Implements DeviceLibrary on the real one. Raises DeviceError(UNAVAILABLE) where there is no driver."""

    def __init__(self, module: Any | None = None) -> None:
        if module is None:
            try:
                module = import_module("pynvml")
            except ImportError as error:
                raise DeviceError(Fault.UNAVAILABLE, "the module pynvml is missing; install nvidia-ml-py") from error
        self._n = module
        with self._faults("start NVML"):
            self._n.nvmlInit()

    def close(self) -> None:
        """Let NVML go."""
        with self._faults("stop NVML"):
            self._n.nvmlShutdown()

    def count(self) -> int:
        """GPUs there are."""
        with self._faults("count GPUs"):
            return int(self._n.nvmlDeviceGetCount())

    def info(self, gpu: int) -> GpuInfo:
        """What the GPU is."""
        with self._faults(f"look at GPU {gpu}"):
            handle = self._handle(gpu)
            name, uuid = self._n.nvmlDeviceGetName(handle), self._n.nvmlDeviceGetUUID(handle)
            memory = int(self._n.nvmlDeviceGetMemoryInfo(handle).total)
        current = pending = None
        try:
            with self._faults(f"read MIG mode of GPU {gpu}"):
                current, pending = (bool(x) for x in self._n.nvmlDeviceGetMigMode(handle))
        except DeviceError as error:
            if error.fault is not Fault.NOT_SUPPORTED:
                raise
        return GpuInfo(gpu, _text(uuid), _text(name), memory, current, pending)

    def readings(self, gpu: int) -> GpuReadings:
        """What it measures now; what this GPU does not say is None."""
        handle = self._handle(gpu)
        n = self._n
        used = self._maybe(lambda: int(n.nvmlDeviceGetMemoryInfo(handle).used))
        utilisation = self._maybe(lambda: int(n.nvmlDeviceGetUtilizationRates(handle).gpu))
        temperature = self._maybe(lambda: int(n.nvmlDeviceGetTemperature(handle, n.NVML_TEMPERATURE_GPU)))
        errors = self._maybe(
            lambda: int(
                n.nvmlDeviceGetTotalEccErrors(handle, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, n.NVML_VOLATILE_ECC)
            )
        )
        return GpuReadings(None if utilisation is None else utilisation / 100.0, used or 0, temperature, errors)

    def set_mig(self, gpu: int, enabled: bool) -> None:
        """Switch MIG mode."""
        with self._faults(f"switch MIG mode of GPU {gpu}"):
            mode = self._n.NVML_DEVICE_MIG_ENABLE if enabled else self._n.NVML_DEVICE_MIG_DISABLE
            status = self._n.nvmlDeviceSetMigMode(self._handle(gpu), mode)
        if status:
            raise DeviceError(Fault.IN_USE, f"MIG mode of GPU {gpu} changes at its next reset; reset it when idle")

    def profiles(self, gpu: int) -> tuple[MigProfile, ...]:
        """Plain profiles with their possible placements."""
        return tuple(profile for profile, _ in self._known(gpu).values())

    def instances(self, gpu: int) -> tuple[InstanceInfo, ...]:
        """By start, with the UUIDs of their MIG devices."""
        uuids = self._uuids(gpu)
        found = []
        for name, (_, number) in self._known(gpu).items():
            for handle in self._of_profile(gpu, number):
                with self._faults(f"look at an instance of GPU {gpu}"):
                    info = self._n.nvmlGpuInstanceGetInfo(handle)
                    compute = tuple(int(c.id) for c in self._compute_infos(handle))
                uuid = uuids.get(int(info.id), "")
                found.append(InstanceInfo(int(info.id), name, int(info.placement.start), compute, uuid))
        return tuple(sorted(found, key=lambda x: x.start))

    def create_instance(self, gpu: int, profile: str, start: int) -> int:
        """At the placement asked for."""
        known, number = self._profile(gpu, profile)
        with self._faults(f"create {profile} at slot {start} of GPU {gpu}"):
            placement = self._n.c_nvmlGpuInstancePlacement_t(start, known.span)
            handle = self._n.nvmlDeviceCreateGpuInstanceWithPlacement(self._handle(gpu), number, byref(placement))
            return int(self._n.nvmlGpuInstanceGetInfo(handle).id)

    def create_compute(self, gpu: int, instance: int) -> int:
        """The compute instance that covers the whole GPU instance."""
        handle = self._instance(gpu, instance)
        name = next(i.profile for i in self.instances(gpu) if i.id == instance)
        slices = int(name.rstrip("g"))
        with self._faults(f"create the compute instance of instance {instance} of GPU {gpu}"):
            asked = getattr(self._n, f"NVML_COMPUTE_INSTANCE_PROFILE_{slices}_SLICE")
            shared = self._n.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            info = self._n.nvmlGpuInstanceGetComputeInstanceProfileInfo(handle, asked, shared)
            made = self._n.nvmlGpuInstanceCreateComputeInstance(handle, info.id)
            return int(self._n.nvmlComputeInstanceGetInfo(made).id)

    def destroy_compute(self, gpu: int, instance: int, compute: int) -> None:
        """Raises DeviceError(IN_USE) while a process runs on it."""
        handle = self._instance(gpu, instance)
        with self._faults(f"destroy the compute instance of instance {instance} of GPU {gpu}"):
            for one in self._computes(handle):
                if int(self._n.nvmlComputeInstanceGetInfo(one).id) == compute:
                    self._n.nvmlComputeInstanceDestroy(one)
                    return
        raise DeviceError(Fault.NOT_FOUND, f"instance {instance} of GPU {gpu} has no compute instance {compute}")

    def destroy_instance(self, gpu: int, instance: int) -> None:
        """Raises DeviceError(IN_USE) while it has a compute instance."""
        with self._faults(f"destroy instance {instance} of GPU {gpu}"):
            self._n.nvmlGpuInstanceDestroy(self._instance(gpu, instance))

    def _handle(self, gpu: int) -> Any:
        with self._faults(f"find GPU {gpu}"):
            return self._n.nvmlDeviceGetHandleByIndex(gpu)

    def _instance(self, gpu: int, instance: int) -> Any:
        with self._faults(f"find instance {instance} of GPU {gpu}"):
            return self._n.nvmlDeviceGetGpuInstanceById(self._handle(gpu), instance)

    def _profile(self, gpu: int, name: str) -> tuple[MigProfile, int]:
        known = self._known(gpu)
        if name not in known:
            raise DeviceError(Fault.NOT_SUPPORTED, f"GPU {gpu} has no profile {name}; it has {', '.join(known)}")
        return known[name]

    def _known(self, gpu: int) -> dict[str, tuple[MigProfile, int]]:
        """Profile and the id to name it by."""
        handle = self._handle(gpu)
        found: dict[str, tuple[MigProfile, int]] = {}
        for slices, name in _SLICES.items():
            asked = getattr(self._n, f"NVML_GPU_INSTANCE_PROFILE_{slices}_SLICE")
            try:
                with self._faults(f"read profile {name} of GPU {gpu}"):
                    info = self._n.nvmlDeviceGetGpuInstanceProfileInfo(handle, asked)
                    places = self._placements(handle, info.id)
            except DeviceError as error:
                if error.fault is Fault.NOT_SUPPORTED:
                    continue
                raise
            starts = tuple(sorted(int(p.start) for p in places))
            if not starts:
                continue
            memory = int(info.memorySizeMB) * _MB
            limit = int(info.instanceCount)
            found[name] = MigProfile(name, slices, int(places[0].size), starts, memory, limit), int(info.id)
        return found

    def _placements(self, handle: Any, number: int) -> list[Any]:
        count = c_uint(_MOST)
        array = (self._n.c_nvmlGpuInstancePlacement_t * _MOST)()
        self._n.nvmlDeviceGetGpuInstancePossiblePlacements(handle, number, array, byref(count))
        return list(array[: count.value])

    def _of_profile(self, gpu: int, number: int) -> list[Any]:
        with self._faults(f"list instances of GPU {gpu}"):
            count = c_uint(_MOST)
            array = (self._n.c_nvmlGpuInstance_t * _MOST)()
            self._n.nvmlDeviceGetGpuInstances(self._handle(gpu), number, array, byref(count))
            return list(array[: count.value])

    def _computes(self, instance: Any) -> list[Any]:
        found: list[Any] = []
        for slices in _SLICES:
            asked = getattr(self._n, f"NVML_COMPUTE_INSTANCE_PROFILE_{slices}_SLICE")
            shared = self._n.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            try:
                with self._faults("read a compute profile"):
                    info = self._n.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, asked, shared)
            except DeviceError as error:
                if error.fault is Fault.NOT_SUPPORTED:
                    continue
                raise
            count = c_uint(_MOST)
            array = (self._n.c_nvmlComputeInstance_t * _MOST)()
            self._n.nvmlGpuInstanceGetComputeInstances(instance, info.id, array, byref(count))
            found += list(array[: count.value])
        return found

    def _compute_infos(self, instance: Any) -> list[Any]:
        return [self._n.nvmlComputeInstanceGetInfo(one) for one in self._computes(instance)]

    def _uuids(self, gpu: int) -> dict[int, str]:
        """By GPU instance."""
        handle = self._handle(gpu)
        most = self._maybe(lambda: int(self._n.nvmlDeviceGetMaxMigDeviceCount(handle))) or 0
        found: dict[int, str] = {}
        for i in range(most):
            try:
                with self._faults(f"look at a MIG device of GPU {gpu}"):
                    device = self._n.nvmlDeviceGetMigDeviceHandleByIndex(handle, i)
                    found[int(self._n.nvmlDeviceGetGpuInstanceId(device))] = _text(self._n.nvmlDeviceGetUUID(device))
            except DeviceError as error:
                if error.fault is not Fault.NOT_FOUND:
                    raise
        return found

    def _maybe(self, read: Any) -> int | None:
        try:
            with self._faults("read"):
                value: int = read()
                return value
        except DeviceError as error:
            if error.fault in (Fault.NOT_SUPPORTED, Fault.NO_PERMISSION):
                return None
            raise

    @contextmanager
    def _faults(self, doing: str) -> Iterator[None]:
        """NVML's errors as ours."""
        n = self._n
        try:
            yield
        except n.NVMLError as error:
            faults = {
                n.NVML_ERROR_NOT_SUPPORTED: Fault.NOT_SUPPORTED,
                n.NVML_ERROR_INVALID_ARGUMENT: Fault.NOT_SUPPORTED,
                n.NVML_ERROR_NO_PERMISSION: Fault.NO_PERMISSION,
                n.NVML_ERROR_IN_USE: Fault.IN_USE,
                n.NVML_ERROR_INSUFFICIENT_RESOURCES: Fault.NO_ROOM,
                n.NVML_ERROR_NOT_FOUND: Fault.NOT_FOUND,
                n.NVML_ERROR_LIBRARY_NOT_FOUND: Fault.UNAVAILABLE,
                n.NVML_ERROR_DRIVER_NOT_LOADED: Fault.UNAVAILABLE,
            }
            raise DeviceError(faults.get(error.value, Fault.OTHER), f"cannot {doing}: {error}") from error


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
