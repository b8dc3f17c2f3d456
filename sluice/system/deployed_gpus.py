"""GPUs of a deployment: which there are, how they are reached, what is profiled on them, what runs on their slices.

Fake ones (``fake_gpu: a100x8``) take the place of the settings' devices: an NVML in memory that enforces the placement
rules, executors that take as long as the profiles of their slices say. Where nothing is profiled on their type, the
whole GPU is as fast as one CPU core.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.executor import Executor
from sluicegate.domain.fleet.device import Device, Slice, executors_of
from sluicegate.planner.geometry.first_cut import first_cut, profiled
from sluicegate.planner.geometry.mig_tables import TABLES, Geometry
from sluicegate.policies.batching.registry import takes
from sluicegate.policies.placement.slice_queue import SliceSharing
from sluicegate.policies.placement.strategies import sharing
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.slice_profiles import shared
from sluicegate.sluice.settings.settings import Settings

if TYPE_CHECKING:
    from sluicegate.executors.devices.gpu import Gpu
    from sluicegate.executors.devices.gpu_library import DeviceLibrary
    from sluicegate.executors.onnx.runtime_options import Runtime

_LIKE = "cpu"
"""What fake GPUs of a type without profiles are as fast as."""


class Gpus:
    """Of one process. GPUs are looked at when a worker asks for its own, not before.

    ``library``: what they are reached by, in place of this machine's.
    """

    def __init__(self, settings: Settings, library: "DeviceLibrary | None" = None) -> None:
        self._settings = settings
        self._given = library
        self._slices = settings.worker.slices
        devices = settings.all_devices()
        if settings.fake_gpu is not None:
            self._index = {device.name: i for i, device in enumerate(devices)}
        else:
            self._index = {d.name: d.gpu for d in settings.devices if d.gpu is not None}
        self._types = sorted({d.type for d in devices if d.name in self._index} & set(TABLES))

    @property
    def emulated(self) -> bool:
        """Whether executors only take their time."""
        return self._settings.fake_gpu is not None or self._settings.worker.executor == "emulated"

    def profiled(self, catalogue: Catalogue) -> Catalogue:
        """``catalogue`` with profiles on all slices that the GPUs can have, and as their executors share them."""
        like = _LIKE if self._settings.fake_gpu is not None else None
        return shared(profiled(catalogue, self._types, rdf=self._slices.rdf, like=like), self._slices.executors)

    def gpu(self, device: Device) -> "Gpu | None":
        """What ``device`` is on this machine; None for one that is no GPU. Raises ConfigurationError."""
        index = self._index.get(device.name)
        if index is None:
            return None
        from sluicegate.executors.devices.gpu import Gpu, MpsOptions

        cuda = self._settings.worker.cuda
        several = sorted(k for k, n in self._slices.executors.items() if n > 1 and k.partition(":")[0] == device.type)
        if several and not cuda.mps and not self.emulated:
            raise ConfigurationError(
                f"worker.slices.executors: several on {', '.join(several)} run one after the other without MPS; set "
                "worker.cuda.mps, or leave them out"
            )
        mps = MpsOptions(folder=cuda.mps_folder, threads=cuda.mps_threads) if cuda.mps and not self.emulated else None
        return Gpu(self._library, index, name=device.name, kind=device.type, mps=mps)

    @cached_property
    def _library(self) -> "DeviceLibrary":
        from sluicegate.executors.devices.fake_gpus import fake_library
        from sluicegate.executors.devices.gpu_library import DeviceError
        from sluicegate.executors.devices.mig_manager import explained
        from sluicegate.executors.devices.nvml import PynvmlLibrary

        if self._given is not None:
            return self._given
        if self._settings.fake_gpu is not None:
            return fake_library(self._settings.fake_gpu, step_s=self._slices.fake_step_s)
        try:
            return PynvmlLibrary()
        except DeviceError as error:
            raise explained(error) from error

    def first_cut(self, device: Device) -> Geometry:
        """What ``device`` is cut into where it has no instance. Raises ConfigurationError."""
        return first_cut(device.type, self._slices.geometry) if device.type in TABLES else ()

    def executor(self, gpu: "Gpu", part: Slice, catalogue: Catalogue, folders: Sequence[Path]) -> Executor:
        """What runs variants on a slice, in a process of its own that sees nothing else."""
        from sluicegate.executors.onnx.onnx_executor import OnnxExecutor

        return OnnxExecutor(folders, catalogue.apps, self.runtime(gpu, part))

    def runtime(self, gpu: "Gpu", part: Slice) -> "Runtime":
        """ONNX Runtime on CUDA, as the settings say, for one slice."""
        each = executors_of(self._slices.executors, gpu.device.type, part.profile)
        return self._settings.worker.cuda.runtime(gpu.visible(part.name), part.memory_bytes // each)

    def sharing(self, device: Device) -> SliceSharing | None:
        """The queue before the slices of ``device``; None where queries keep the slice that the plan gave them."""
        tables = takes(self._settings.worker.batching, "tables")  # which count on strict turns
        return None if tables else sharing(self._slices.choice, device)
