"""What a process holds of a GPU's memory, by an NVML that lists it, that does not, and that is not there."""

import hashlib
import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import onnxruntime as ort
import pytest
from typing_extensions import override

from sluicegate.executors.devices.gpu_memory import GpuMemory, Held, taken
from sluicegate.executors.onnx import sessions
from sluicegate.executors.onnx.runtime_options import Runtime
from sluicegate.executors.onnx.sessions import Sessions
from tests.models.registration_models import linear, write_model

MIB = 1 << 20
OTHER = os.getpid() + 1


class Nvml:
    """Two devices by number, one by UUID; ``held``: bytes by process, on the second and on the one by UUID."""

    class NVMLError(Exception):
        """Of NVML."""

    def __init__(self, held: dict[int, int | None], *, others: int = 0) -> None:
        self.held = held
        self.others = others

    def nvmlInit(self) -> None:  # noqa: N802
        """Start."""

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        """A handle."""
        if index > 1:
            raise self.NVMLError
        return f"gpu{index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        """A handle."""
        if uuid != "MIG-one":
            raise self.NVMLError
        return "gpu1"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> Sequence[SimpleNamespace]:  # noqa: N802
        """Those on the device."""
        listed = self.held if handle == "gpu1" else {}
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in listed.items()]

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
        """All that is used."""
        used = sum(amount or 0 for amount in self.held.values()) if handle == "gpu1" else 0
        return SimpleNamespace(used=used + self.others)


@pytest.mark.parametrize(
    ("shown", "own", "everyone"),
    [("1", 300, 550), ("MIG-one", 300, 550), ("MIG-one,MIG-two", 300, 550), ("0", None, 50), ("", None, 50)],
)
def test_it_looks_at_the_device_that_cuda_shows(shown: str, own: int | None, everyone: int) -> None:
    nvml = Nvml({OTHER: 200, os.getpid(): 300}, others=50)
    assert GpuMemory({"CUDA_VISIBLE_DEVICES": shown}, module=nvml).held() == Held(own, everyone)


def test_what_nvml_does_not_tell_is_none() -> None:
    assert GpuMemory({"CUDA_VISIBLE_DEVICES": "GPU-gone"}, module=Nvml({})).held() is None

    class Absent(Nvml):
        @override
        def nvmlInit(self) -> None:
            raise self.NVMLError

    assert GpuMemory({}, module=Absent({})).held() is None


@pytest.mark.parametrize(
    ("before", "after", "bytes_taken"),
    [
        (Held(100, 900), Held(350, 700), 250),  # others gave theirs back meanwhile
        (Held(None, 900), Held(350, 1200), 350),  # the first model: this process was not listed yet
        (Held(None, 900), Held(None, 1300), 400),  # its number is another one out there
        (Held(None, 900), Held(None, 800), 0),
    ],
)
def test_what_a_load_took_is_this_process_part_where_that_is_told(before: Held, after: Held, bytes_taken: int) -> None:
    assert taken(before, after) == bytes_taken


def test_a_model_on_a_gpu_counts_what_it_takes_there_and_one_on_the_cpu_what_it_takes_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where there is no GPU the CPU stands in; the amounts are made up.
    amounts = iter((Held(40 * MIB, 90 * MIB), Held(740 * MIB, 990 * MIB)))

    class Made:
        def held(self) -> Held:
            return next(amounts)

    monkeypatch.setattr(sessions, "GpuMemory", Made)
    path = write_model(tmp_path, linear())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    on_gpu = Sessions(Runtime(provider="cuda", cpu_fallback=True))
    missing = "CUDAExecutionProvider" not in ort.get_available_providers()
    with pytest.warns(UserWarning, match="CUDAExecutionProvider") if missing else nullcontext():
        assert on_gpu.load("v", path, digest, (), (), 1).memory_bytes == 700 * MIB
    here = Sessions(Runtime())
    assert path.stat().st_size <= here.load("v", path, digest, (), (), 1).memory_bytes < 700 * MIB
