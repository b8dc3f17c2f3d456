"""One GPU of this machine, as its worker holds it: its slices, what cuts it, what its processes see, what it measures.

Rules:
- A slice is named by its profile and first memory slot ("4g.0"): names outlive the UUIDs, which change at every cut.
- NVML is asked in threads: creating an instance takes a good part of a second, and queries go on meanwhile.
- A cut that fails is undone as far as that goes; what is there afterwards is read from the device, never assumed.
- Between ``open`` and ``close`` of a slice a process may run there. With MPS a daemon of its own stands before it.
"""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from sluicegate.domain.errors import ConfigurationError, SluiceError
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.executors.devices.fake_gpus import FakeLibrary
from sluicegate.executors.devices.gpu_library import DeviceError, DeviceLibrary, GpuReadings
from sluicegate.executors.devices.mig_manager import FoundGpu, apply, explained, look, slice_name
from sluicegate.executors.devices.mps import MpsDaemon, Runner, run_command

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsOptions:
    """Daemons' directories lie under ``folder``; ``threads``: percentage of a slice's compute, None for all."""

    folder: Path
    threads: int | None = None
    run: Runner = run_command


class Gpu:
    """GPU ``index`` of ``library``, called ``name`` in the system, of type ``kind``."""

    def __init__(
        self, library: DeviceLibrary, index: int, *, name: str, kind: str, mps: MpsOptions | None = None
    ) -> None:
        self._library = library
        self._index = index
        self._name = name
        self._kind = kind
        self._mps = mps
        self._daemons: dict[str, MpsDaemon] = {}
        self._found = self._look()

    @property
    def device(self) -> Device:
        """As it was last seen: a slice an instance, or whole."""
        return self._found.device(self._name, self._kind)

    @property
    def cuttable(self) -> bool:
        """Whether it is in MIG mode."""
        return bool(self._found.info.mig)

    @property
    def uncut(self) -> bool:
        """Whether it is in MIG mode and has no usable instances: nothing can run there."""
        return bool(self._found.info.mig) and not self._found.usable

    async def cut(self, profiles: tuple[str, ...]) -> tuple[Slice, ...]:
        """Cut it so; the new slices. Raises ConfigurationError; ``device`` then says what is there."""
        before = self._found.geometry
        try:
            await asyncio.to_thread(apply, self._library, self._index, profiles)
        except SluiceError as error:
            if before:
                await self._restore(before)
            raise ConfigurationError(f"{self._name}: {error}") from error
        finally:
            self._found = await asyncio.to_thread(self._look)
        return self.device.slices

    async def open(self, part: str) -> None:
        """A process is about to run on slice ``part``. Raises ConfigurationError."""
        if self._mps is not None:
            daemon = MpsDaemon(self._uuid(part), self._mps.folder, self._mps.threads)
            await asyncio.to_thread(daemon.start, self._mps.run)
            self._daemons[part] = daemon
        if isinstance(self._library, FakeLibrary):
            self._library.busy |= {(self._index, i.id) for i in self._found.instances if slice_name(i) == part}

    async def close(self, part: str) -> None:
        """No process runs on slice ``part`` any more."""
        daemon = self._daemons.pop(part, None)
        if daemon is not None and self._mps is not None:
            try:
                await asyncio.to_thread(daemon.stop, self._mps.run)
            except ConfigurationError as error:  # the cut says "in use" if it still runs
                log.warning("%s: %s", self._name, error)
        if isinstance(self._library, FakeLibrary):
            self._library.busy -= {(self._index, i.id) for i in self._found.instances if slice_name(i) == part}

    def visible(self, part: str) -> dict[str, str]:
        """Variables that show a process the slice ``part``, through its MPS daemon where there is one."""
        if self._mps is not None:
            return MpsDaemon(self._uuid(part), self._mps.folder, self._mps.threads).environment()
        return {"CUDA_VISIBLE_DEVICES": self._uuid(part)}

    async def readings(self) -> GpuReadings:
        """What it measures now. Raises ConfigurationError."""
        try:
            return await asyncio.to_thread(self._library.readings, self._index)
        except DeviceError as error:
            raise explained(error) from error

    async def _restore(self, profiles: tuple[str, ...]) -> None:
        try:
            await asyncio.to_thread(apply, self._library, self._index, profiles)
        except SluiceError as error:
            log.error("%s: the slices that it had cannot be made again: %s", self._name, error)

    def _uuid(self, part: str) -> str:
        """Of the MIG device behind slice ``part``, or of the whole GPU."""
        return next((i.uuid for i in self._found.instances if slice_name(i) == part), self._found.info.uuid)

    def _look(self) -> FoundGpu:
        try:
            return look(self._library, self._index)
        except DeviceError as error:
            raise explained(error) from error
