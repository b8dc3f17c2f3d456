"""What a worker serves with: executors on the slices of its device, and the GPU behind them if there is one.

Rules.
- A GPU in MIG mode without any instance is cut before anything else.
- Each slice is opened (its MPS daemon, if any) before its executor starts, and closed after that has ended.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.executors.devices.gpu import Gpu
from sluicegate.policies.placement.repartition import CutEnded
from sluicegate.stages.telemetry.metrics import Meters
from sluicegate.stages.worker.slice_runner import SliceRunner

log = logging.getLogger(__name__)

_READINGS = 5.0
"""Seconds between looks at what a GPU measures."""


class Holding:
    """The slices of a device and what runs them.

    ``make_runner``: of a slice of the device, as it is cut then. ``first``: what an uncut GPU is cut into.
    """

    def __init__(
        self,
        device: Device,
        make_runner: Callable[[Device, Slice], SliceRunner],
        *,
        meters: Meters,
        gpu: Gpu | None = None,
        first: tuple[str, ...] = (),
    ) -> None:
        self._device = device
        self._make_runner = make_runner
        self._meters = meters
        self._gpu = gpu
        self._first = first
        self._watching: asyncio.Task[None] | None = None
        self.runners: dict[str, SliceRunner] = {}

    async def begin(self) -> Sequence[Slice]:
        """Be ready to serve, with these slices. Raises ConfigurationError."""
        if self._gpu is not None:
            if self._gpu.uncut:
                await self._gpu.cut(self._first)
            self._device = self._gpu.device
            self._watching = asyncio.create_task(self._watch(self._gpu))
        await self._open()
        return self._device.slices

    async def cut(self, profiles: tuple[str, ...]) -> CutEnded:
        """Cut it so; be ready to serve with what there is then. Raises ConfigurationError where that cannot be."""
        gpu, name = self._gpu, self._device.name
        assert gpu is not None
        await self._close()
        fault = ""
        try:
            await gpu.cut(profiles)
        except ConfigurationError as error:
            fault = str(error)
            log.error("%s keeps its slices: %s", name, fault)
        self._meters.add("sluice_gpu_cuts", name, "no" if fault else "yes")
        self._device = gpu.device
        await self._open()
        return CutEnded(self._device.slices, fault)

    async def end(self) -> None:
        """Stop."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._close()

    async def _open(self) -> None:
        for part in self._device.slices:
            if self._gpu is not None:
                await self._gpu.open(part.name)
            runner = self.runners[part.name] = self._make_runner(self._device, part)
            await runner.start()

    async def _close(self) -> None:
        runners, self.runners = self.runners, {}
        for name, runner in runners.items():
            await runner.close()
            if self._gpu is not None:
                await self._gpu.close(name)

    async def _watch(self, gpu: Gpu) -> None:
        """What it measures, as gauges."""
        name = self._device.name
        while True:
            try:
                now = await gpu.readings()
            except ConfigurationError as error:
                log.warning("%s: %s", name, error)
            else:
                self._meters.set("sluice_gpu_memory_bytes", now.memory_used_bytes, name)
                told = {
                    "sluice_gpu_utilisation": now.utilisation,
                    "sluice_gpu_temperature_celsius": now.temperature_c,
                    "sluice_gpu_ecc_errors": now.ecc_errors,
                }
                for metric, value in told.items():
                    if value is not None:
                        self._meters.set(metric, value, name)
            await asyncio.sleep(_READINGS)
