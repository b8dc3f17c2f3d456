"""One slice at work: its executor, and the tasks that run batches and load variants there as the core says."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from sluicegate.domain.clock import Clock
from sluicegate.domain.errors import ExecutionError, LoadError
from sluicegate.domain.executor import Executor
from sluicegate.domain.models.tensor import Tensor, split_rows
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.query import Query
from sluicegate.policies.serving.device_actions import LoadVariant, RunBatch, UnloadVariant
from sluicegate.policies.serving.device_events import BatchEnded, BatchFailed, DeviceEvent, Loaded, Reloaded
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.telemetry.telemetry import Telemetry
from sluicegate.stages.worker.kept_executor import KeptExecutor

log = logging.getLogger(__name__)

Outputs = Sequence[Tensor]


class SlicesOwner(Protocol):
    """The worker that a slice is part of."""

    def tell(self, event: DeviceEvent) -> None:
        """Something happened."""
        ...

    def inputs(self, query: Query) -> Sequence[Tensor] | None:
        """A query's tensors; None for one that was abandoned meanwhile."""
        ...

    def ran(self, query: Query, outputs: Outputs) -> None:
        """Its outputs."""
        ...

    def loaded(self, part: str) -> Sequence[str]:
        """Variants that a slice should hold just now."""
        ...

    def failed(self, error: BaseException) -> None:
        """What should never be raised was: the slice may stand still from now on."""
        ...


class SliceRunner:
    """Slice ``part`` of ``device``. ``catalogue``: everything that is known."""

    def __init__(
        self,
        device: str,
        part: str,
        *,
        executor: Executor,
        owner: SlicesOwner,
        catalogue: Catalogue,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self.executor = executor
        self._device = device
        self._part = part
        self._owner = owner
        self._catalogue = catalogue
        self._clock = clock
        self._meters, self._tracing = telemetry.meters, telemetry.tracing
        self._tasks: dict[asyncio.Task[None], None] = {}  # in one order: they are cancelled in it
        self._kept = KeptExecutor(
            executor,
            f"{device}/{part}",
            clock=clock,
            held=lambda: [catalogue.variants[name] for name in owner.loaded(part)],
            spawn=self._spawn,
            restarts=lambda: self._meters.add("sluice_executor_restarts", device),
            reloaded=lambda variant, seconds: owner.tell(Reloaded(part, variant, seconds)),
        )

    async def start(self) -> None:
        """Start the executor."""
        await self._kept.start()

    def run(self, batch: RunBatch) -> None:
        """Begin to run it."""
        self._spawn(self._run(batch))

    def load(self, asked: LoadVariant) -> None:
        """Begin to load; one after the other."""
        self._spawn(self._load(self._catalogue.variants[asked.variant], asked.max_batch))

    def unload(self, asked: UnloadVariant) -> None:
        """Begin to forget it, in one order with loads."""
        self._spawn(self._kept.unload(asked.variant))

    async def close(self) -> None:
        """Stop tasks and the executor."""
        self._kept.let_go()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._kept.close()

    async def _run(self, batch: RunBatch) -> None:
        await self._kept.ready()
        run = batch.run
        inputs = [(query, tensors) for query in run.queries if (tensors := self._owner.inputs(query)) is not None]
        if not inputs:
            self._owner.tell(BatchEnded(self._part, 0.0, 0.0))
            return
        rows = sum(query.rows for query, _ in inputs)
        started, began = self._clock.wall(), self._clock.monotonic()  # the wall clock may be set while it runs
        try:
            ran = await self.executor.run(run.variant, [given for _, given in inputs], rows, within=batch.within)
        except ExecutionError as error:
            await self._failed(batch, error)
            return
        seconds = self._clock.monotonic() - began
        for (query, _), outputs in zip(inputs, split_rows(ran.outputs, [q.rows for q, _ in inputs]), strict=True):
            self._owner.ran(query, outputs)
        self._meters.add("sluice_device_busy_seconds", self._device, self._part, by=seconds)
        self._meters.observe("sluice_batch_rows", rows, self._device, run.variant)
        self._meters.observe("sluice_batch_seconds", seconds, self._device, run.variant)
        if self._tracing is not None:
            told = {"sluice.variant": run.variant, "sluice.device": self._device, "sluice.rows": run.rows}
            self._tracing.batch((query.key for query, _ in inputs), started, self._clock.wall(), told)
        self._owner.tell(BatchEnded(self._part, ran.execution_s, seconds))

    async def _failed(self, batch: RunBatch, error: ExecutionError) -> None:
        run = batch.run
        if not batch.again:
            told = (run.variant, run.rows, self._device, error)
            ids = [query.id for query in run.queries]
            log.warning("%s failed a batch of %d on %s: %s", *told, extra={"query_ids": ids})
            self._meters.add("sluice_batch_failures", self._device, run.variant)
        if error.fatal:
            await self._kept.restart()
        self._owner.tell(BatchFailed(self._part, str(error)))

    async def _load(self, variant: Variant, max_batch: int) -> None:
        try:
            seconds = await self._kept.load(variant, max_batch)
        except (LoadError, ExecutionError) as error:
            log.error("%s cannot be loaded on %s: %s", variant.name, self._device, error)
            self._meters.add("sluice_variant_loads", self._device, variant.name, "no")
            self._owner.tell(Loaded(self._part, variant.name, ok=False))
        else:
            self._meters.add("sluice_variant_loads", self._device, variant.name, "yes")
            self._owner.tell(Loaded(self._part, variant.name, ok=True, seconds=seconds))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._reap)

    def _reap(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("%s/%s: %s", self._device, self._part, error, exc_info=error)
            self._owner.failed(error)
