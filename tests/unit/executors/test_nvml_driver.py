"""The NVML driver against a module of NVML's own shape: ids of profiles, C arrays, error codes, UUIDs read anew."""

from ctypes import c_void_p, cast
from types import SimpleNamespace
from typing import Any

import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.executors.devices.fake_gpus import FakeLibrary
from sluicegate.executors.devices.gpu_library import DeviceError, Fault
from sluicegate.executors.devices.mig_manager import apply, discover
from sluicegate.executors.devices.nvml import PynvmlLibrary
from sluicegate.planner.geometry.mig_tables import table_of

pynvml = pytest.importorskip("pynvml")
CODES = {
    Fault.NO_ROOM: pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES,
    Fault.IN_USE: pynvml.NVML_ERROR_IN_USE,
    Fault.NOT_FOUND: pynvml.NVML_ERROR_NOT_FOUND,
    Fault.NO_PERMISSION: pynvml.NVML_ERROR_NO_PERMISSION,
    Fault.NOT_SUPPORTED: pynvml.NVML_ERROR_NOT_SUPPORTED,
}
# As NVML does: the id of a profile is another number than the one it is asked for by.
IDS = {"7g": 0, "4g": 5, "3g": 9, "2g": 14, "1g": 19}
BY_NUMBER = {0: "1g", 1: "2g", 2: "3g", 3: "4g", 4: "7g"}


class Module:
    """The functions of pynvml that the driver uses, over the fake; structures and constants are the real ones."""

    def __init__(self, fake: FakeLibrary) -> None:
        self.fake = fake
        self.table = table_of("a100")

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("NVML", "c_nvml")):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def guarded(self, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except DeviceError as error:
            raise pynvml.NVMLError(CODES[error.fault]) from error

    def nvmlInit(self) -> None: ...  # noqa: N802

    def nvmlShutdown(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.fake.count()

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, gpu: int) -> bytes:  # noqa: N802
        return self.fake.info(gpu).name.encode()

    def nvmlDeviceGetUUID(self, handle: Any) -> str:  # noqa: N802
        return str(handle.uuid) if hasattr(handle, "uuid") else self.fake.info(handle).uuid

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=self.fake.info(gpu).memory_bytes, used=self.fake.readings(gpu).memory_used_bytes)

    def nvmlDeviceGetMigMode(self, gpu: int) -> list[int]:  # noqa: N802
        return [int(bool(self.fake.info(gpu).mig))] * 2

    def nvmlDeviceSetMigMode(self, gpu: int, mode: int) -> int:  # noqa: N802
        self.guarded(self.fake.set_mig, gpu, bool(mode))
        return 0

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> Any:  # noqa: N802
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetTemperature(self, gpu: int, sensor: int) -> int:  # noqa: N802
        return 41

    def nvmlDeviceGetTotalEccErrors(self, gpu: int, kind: int, counter: int) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetGpuInstanceProfileInfo(self, gpu: int, number: int) -> Any:  # noqa: N802
        profile = self.table.profile(BY_NUMBER[number])
        return SimpleNamespace(
            id=IDS[profile.name], memorySizeMB=profile.memory_bytes >> 20, instanceCount=profile.limit
        )

    def nvmlDeviceGetGpuInstancePossiblePlacements(self, gpu: int, number: int, array: Any, count: Any) -> None:  # noqa: N802
        profile = self.by_id(number)
        for i, start in enumerate(profile.starts):
            array[i].start, array[i].size = start, profile.span
        count._obj.value = len(profile.starts)

    def nvmlDeviceGetGpuInstances(self, gpu: int, number: int, array: Any, count: Any) -> None:  # noqa: N802
        found = [i for i in self.fake.instances(gpu) if i.profile == self.by_id(number).name]
        for i, one in enumerate(found):
            array[i] = self.pointer(gpu, one.id)
        count._obj.value = len(found)

    def nvmlGpuInstanceGetInfo(self, handle: Any) -> Any:  # noqa: N802
        gpu, number = self.address(handle)
        one = next(i for i in self.fake.instances(gpu) if i.id == number)
        return SimpleNamespace(id=one.id, placement=SimpleNamespace(start=one.start))

    def nvmlDeviceGetGpuInstanceById(self, gpu: int, number: int) -> Any:  # noqa: N802
        return self.pointer(gpu, number)

    def nvmlDeviceCreateGpuInstanceWithPlacement(self, gpu: int, number: int, placement: Any) -> Any:  # noqa: N802
        profile = self.by_id(number)
        assert placement._obj.size == profile.span
        made = self.guarded(self.fake.create_instance, gpu, profile.name, placement._obj.start)
        return self.pointer(gpu, made)

    def nvmlGpuInstanceDestroy(self, handle: Any) -> None:  # noqa: N802
        self.guarded(self.fake.destroy_instance, *self.address(handle))

    def nvmlGpuInstanceGetComputeInstanceProfileInfo(self, handle: Any, number: int, engine: int) -> Any:  # noqa: N802
        gpu, instance = self.address(handle)
        one = next(i for i in self.fake.instances(gpu) if i.id == instance)
        if BY_NUMBER[number] != one.profile:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(id=number)

    def nvmlGpuInstanceCreateComputeInstance(self, handle: Any, number: int) -> Any:  # noqa: N802
        gpu, instance = self.address(handle)
        return self.compute(gpu, instance, self.guarded(self.fake.create_compute, gpu, instance))

    def nvmlGpuInstanceGetComputeInstances(self, handle: Any, number: int, array: Any, count: Any) -> None:  # noqa: N802
        gpu, instance = self.address(handle)
        one = next(i for i in self.fake.instances(gpu) if i.id == instance)
        for i, made in enumerate(one.compute):
            array[i] = self.compute(gpu, instance, made)
        count._obj.value = len(one.compute)

    def nvmlComputeInstanceGetInfo(self, handle: Any) -> Any:  # noqa: N802
        return SimpleNamespace(id=self.number(handle) % 1000)

    def nvmlComputeInstanceDestroy(self, handle: Any) -> None:  # noqa: N802
        number = self.number(handle)
        self.guarded(self.fake.destroy_compute, number // 1_000_000 - 1, number // 1000 % 1000, number % 1000)

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: int) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: int, index: int) -> Any:  # noqa: N802
        found = [i for i in self.fake.instances(gpu) if i.uuid]
        if index >= len(found):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found[index]

    def nvmlDeviceGetGpuInstanceId(self, device: Any) -> int:  # noqa: N802
        return int(device.id)

    def by_id(self, number: int) -> Any:
        return self.table.profile(next(name for name, known in IDS.items() if known == number))

    def pointer(self, gpu: int, instance: int) -> Any:
        return cast(1000 * (gpu + 1) + instance, pynvml.c_nvmlGpuInstance_t)

    def compute(self, gpu: int, instance: int, number: int) -> Any:
        return cast(1_000_000 * (gpu + 1) + 1000 * instance + number, pynvml.c_nvmlComputeInstance_t)

    def number(self, handle: Any) -> int:
        return int(cast(handle, c_void_p).value or 0)

    def address(self, handle: Any) -> tuple[int, int]:
        number = self.number(handle)
        return number // 1000 - 1, number % 1000


def test_the_driver_finds_cuts_and_recuts_as_the_fake_does() -> None:
    library = PynvmlLibrary(Module(FakeLibrary("a100", 2)))
    before = apply(library, 1, ("4g", "3g"))
    assert [(i.profile, i.start, len(i.compute)) for i in before.instances] == [("4g", 0, 1), ("3g", 4, 1)]
    after = apply(library, 1, ("4g", "2g", "1g"))
    assert after.geometry == ("4g", "2g", "1g")
    assert after.instances[0].uuid == before.instances[0].uuid
    assert after.instances[1].uuid not in {i.uuid for i in before.instances}
    found = discover(library)
    assert (found[0].readings.temperature_c, found[0].readings.ecc_errors) == (41, 2)
    assert found[0].readings.utilisation is None
    assert found[0].table is not None
    assert len(found[0].table.undominated) == 12
    library.close()


def test_errors_of_nvml_become_messages_with_a_remedy() -> None:
    fake = FakeLibrary("a100", 1)
    library = PynvmlLibrary(Module(fake))
    found = apply(library, 0, ("7g",))
    fake.busy.add((0, found.instances[0].id))
    with pytest.raises(ConfigurationError, match="drain the GPU first"):
        apply(library, 0, ("4g", "3g"))
    with pytest.raises(ConfigurationError, match="run as root"):
        apply(PynvmlLibrary(Module(FakeLibrary("a100", 1, privileged=False))), 0, ("7g",))
    off = PynvmlLibrary(Module(FakeLibrary("a100", 1, mig=False)))
    assert apply(off, 0, ("3g", "3g")).geometry == ("3g", "3g")


def test_without_a_driver_the_error_says_what_to_do() -> None:
    class Missing(Module):
        def nvmlInit(self) -> None:  # noqa: N802
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    with pytest.raises(DeviceError) as caught:
        PynvmlLibrary(Missing(FakeLibrary("a100", 1)))
    assert caught.value.fault is Fault.UNAVAILABLE
