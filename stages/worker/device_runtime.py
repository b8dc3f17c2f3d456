"""What a worker serves with: the slices of its device as it is cut just now, and the GPU behind them if there is one.

Rules.
- A GPU in MIG mode without any instance is cut before anything else.
- Each slice is opened (its MPS daemon, if any) before its executor starts, and closed after that has ended.
- While the device is cut there are no slices; heartbeats go on and state those that there were.
- A device whose new slices cannot serve is broken: the worker ends with the error.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from sluicegate.domain.clock import Clock
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import DeviceSeen
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.plan import Plan
from sluicegate.executors.devices.gpu import Gpu
from sluicegate.policies.placement.slice_queue import SliceSharing
from sluicegate.stages.telemetry.metrics import Meters
from sluicegate.stages.worker.gpu_repartition import Recutter
from sluicegate.stages.worker.slice_runner import SliceRunner
from sluicegate.stages.worker.slice_set import Owner, Parts

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingOptions:
    """Seconds. ``patience``: how long queries may wait on a GPU that is to be cut before they go to others.

    ``first``: what a GPU without instances is cut into. ``readings``: between looks at what a GPU measures. ``bound``:
    apps whose queries keep the slice of the plan; it may change. ``make_sharing``: the queue before the slices, for all
    others; None where there is none.
    """

    patience: float = 5.0
    first: tuple[str, ...] = ()
    readings: float = 5.0
    bound: Collection[str] = ()
    make_sharing: Callable[[Device], SliceSharing | None] = lambda _device: None


class Holding:
    """``opened`` is told of slices that are ready, ``say`` (state, detail) for the status topic."""

    def __init__(
        self,
        device: Device,
        *,
        owner: Owner,
        clock: Clock,
        meters: Meters,
        make_slices: Callable[[Device], Sequence[SliceRunner]],
        opened: Callable[[Parts], Awaitable[None]],
        say: Callable[[str, str], None],
        gpu: Gpu | None = None,
        options: HoldingOptions | None = None,
    ) -> None:
        self._owner = owner
        self._clock = clock
        self._meters = meters
        self._make_slices = make_slices
        self._opened = opened
        self._say = say
        self._gpu = gpu
        self._options = options or HoldingOptions()
        self._recutter: Recutter | None = None
        self._watching: asyncio.Task[None] | None = None
        self._device = device
        self.parts = self._none()

    async def begin(self, on_broken: Callable[[], None]) -> None:
        """Serve. Raises ConfigurationError. ``on_broken`` is called when ``end`` would raise."""
        if self._gpu is not None:
            self._recutter = Recutter(
                self._gpu,
                first=self._options.first,
                parts=lambda: self.parts,
                close=self._close,
                open=self._open,
                say=self._say,
                meters=self._meters,
                patience=self._options.patience,
            )
            self._recutter.broken.add_done_callback(lambda _: on_broken())
            self._device = await self._recutter.start()
            self._watching = asyncio.create_task(self._watch(self._gpu))
        await self._open(self._device)

    @property
    def broken(self) -> bool:
        """Whether it can serve no more."""
        return self._recutter is not None and self._recutter.broken.done()

    async def end(self) -> None:
        """Stop, once a cut that is under way has ended. Raises what broke it."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._recutter is not None:
            await self._recutter.stop()
        await self._close()
        if self._recutter is not None and self.broken:
            self._recutter.broken.result()

    def plan(self, plan: Plan) -> None:
        """A plan counts on this device."""
        for runner in self.parts:
            runner.plan(plan)
        if self._recutter is not None:
            self._recutter.plan(plan)

    def seen(self, beat: DeviceSeen) -> DeviceSeen:
        """A heartbeat with what is to be said of slices."""
        return beat if self._recutter is None else self._recutter.seen(beat)

    async def _open(self, device: Device) -> None:
        self._device = device
        if self._gpu is not None:
            for part in device.slices:
                await self._gpu.open(part.name)
        parts = Parts(
            [part.name for part in device.slices],
            self._make_slices(device),
            clock=self._clock,
            owner=self._owner,
            sharing=self._options.make_sharing(device),
            bound=self._options.bound,
        )
        for runner in parts:
            await runner.start()
        self.parts = parts
        await self._opened(parts)

    async def _close(self) -> None:
        closed, self.parts = self.parts, self._none()
        await closed.close()
        if self._gpu is not None:
            for part in self._device.slices:
                await self._gpu.close(part.name)

    def _none(self) -> Parts:
        return Parts((), (), clock=self._clock, owner=self._owner)

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
            await asyncio.sleep(self._options.readings)
