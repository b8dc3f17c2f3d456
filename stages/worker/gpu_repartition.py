"""Cutting a worker's GPU as plans ask: drain, close, cut, open, say so.

A shell around ``sluicegate.policies.placement.repartition``. Draining ends by itself: apps that leave are retired once
their queues are empty, and what waits after ``patience`` seconds goes back to the routers. The cut runs in a thread;
heartbeats, reading and sending back go on meanwhile.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import assert_never

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import DeviceSeen, PlanPublished
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.plan import Plan
from sluicegate.executors.devices.gpu import Gpu
from sluicegate.policies.placement.repartition import (
    Cut,
    CutEnded,
    CutState,
    Drain,
    Drained,
    Recutting,
    RecuttingAction,
    Serve,
    Stay,
)
from sluicegate.stages.telemetry.metrics import Meters
from sluicegate.stages.worker.slice_set import Parts

log = logging.getLogger(__name__)

_LOOK = 0.02
"""Seconds between looks at a device that drains."""
_ENDING = 30.0
"""Seconds that a cut under way may take when the worker is stopped."""


class Recutter:
    """``parts``: the slices there are just now; ``close`` ends them, ``open`` begins with those of a device.

    ``first``: what a GPU without any instance is cut into at the start. ``say``: tells (state, detail).
    """

    def __init__(
        self,
        gpu: Gpu,
        *,
        first: tuple[str, ...],
        parts: Callable[[], Parts],
        close: Callable[[], Awaitable[None]],
        open: Callable[[Device], Awaitable[None]],  # noqa: A002
        say: Callable[[str, str], None],
        meters: Meters,
        patience: float,
    ) -> None:
        self._gpu = gpu
        self._first = first
        self._parts = parts
        self._close = close
        self._open = open
        self._say = say
        self._meters = meters
        self._patience = patience
        self._name = gpu.device.name
        self.decisions = Recutting(self._name, gpu.device.slices)
        self._task: asyncio.Task[None] | None = None
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails when the device can serve no more."""

    async def start(self) -> Device:
        """The device to begin with; a GPU that has no instance yet is cut first. Raises ConfigurationError."""
        if self._gpu.uncut:
            await self._gpu.cut(self._first)
            self.decisions = Recutting(self._name, self._gpu.device.slices)
        return self._gpu.device

    def plan(self, plan: Plan) -> None:
        """A plan counts on this worker."""
        self._do(self.decisions.handle(PlanPublished(plan)))

    def seen(self, beat: DeviceSeen) -> DeviceSeen:
        """A heartbeat that states the slices, where it can have others, and why a cut failed."""
        if not self._gpu.cuttable:
            return beat
        now = self.decisions
        return replace(beat, slices=now.slices, fault=now.fault, fault_epoch=now.fault_epoch)

    async def stop(self) -> None:
        """Call a drain off; wait for a cut that has begun."""
        task = self._task
        if task is not None and not task.done():
            if self.decisions.state is not CutState.CUTTING:
                task.cancel()
            await asyncio.wait([task], timeout=_ENDING)
        if self.broken.done():
            self.broken.exception()  # whoever stopped the worker has seen it, or never will

    def _do(self, actions: list[RecuttingAction]) -> None:
        for action in actions:
            match action:
                case Drain():
                    self._say("draining", "a plan cuts it otherwise")
                    self._task = asyncio.create_task(self._drain())
                    self._task.add_done_callback(self._reap)
                case Stay():
                    self._say("serving", "the cut was called off")
                    if self._task is not None:
                        self._task.cancel()
                case Cut() | Serve():  # carried out by the task that drained
                    continue
                case _ as unreachable:
                    assert_never(unreachable)

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._patience
        while not (parts := self._parts()).idle:
            if loop.time() >= end:
                parts.hand_back()
            await asyncio.sleep(_LOOK)
        for action in self.decisions.handle(Drained()):
            if isinstance(action, Cut):
                await self._cut(action.profiles)

    async def _cut(self, profiles: tuple[str, ...]) -> None:
        self._say("cutting", " + ".join(profiles))
        await self._close()
        fault = ""
        try:
            await self._gpu.cut(profiles)
        except ConfigurationError as error:
            fault = str(error)
            log.error("%s keeps its slices: %s", self._name, fault)
        self._meters.add("sluice_gpu_cuts", self._name, "no" if fault else "yes")
        actions = self.decisions.handle(CutEnded(self._gpu.device.slices, fault))
        await self._open(self._gpu.device)
        shown = ", ".join(part.name for part in self.decisions.slices)
        self._say("cut_failed" if fault else "serving", fault or shown)
        self._do(actions)

    def _reap(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("%s: %s", self._name, error, exc_info=error)
            if not self.broken.done():
                self.broken.set_exception(error)
