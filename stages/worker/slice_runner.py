"""One slice at work: its executors, and the tasks that run batches and load variants there as the core says."""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Protocol, assert_never

from sluicegate.domain.clock import Clock
from sluicegate.domain.errors import ExecutionError, LoadError
from sluicegate.domain.executor import Executor
from sluicegate.domain.models.tensor import Tensor, split_rows
from sluicegate.domain.query import Query, QueryKey
from sluicegate.policies.serving.device_actions import (
    Executing,
    LoadVariant,
    ReloadVariant,
    RestartExecutor,
    RunBatch,
    UnloadVariant,
)
from sluicegate.policies.serving.device_events import (
    BatchEnded,
    BatchFailed,
    ContentsTold,
    DeviceEvent,
    ExecutorEnded,
    ExecutorStarted,
    Failure,
    Loaded,
    Reloaded,
)
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.stages.runtime.background_tasks import BackgroundTasks
from sluicegate.stages.telemetry.telemetry import Telemetry

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

    def contents(self) -> tuple[tuple[QueryKey, str], ...]:
        """Digests of what all queries hold that are here."""
        ...

    def ran(self, query: Query, outputs: Outputs) -> None:
        """Its outputs."""
        ...

    def failed(self, error: BaseException) -> None:
        """What should never be raised was: the slice may stand still from now on."""
        ...


class SliceRunner:
    """Slice ``part`` of ``device``. ``executors``: each runs one batch at a time. ``catalogue``: everything that is
    known."""

    def __init__(
        self,
        device: str,
        part: str,
        *,
        executors: Sequence[Executor],
        owner: SlicesOwner,
        catalogue: Catalogue,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self.executors = tuple(executors)
        self._device = device
        self._part = part
        self._owner = owner
        self._catalogue = catalogue
        self._clock = clock
        self._meters, self._tracing = telemetry.meters, telemetry.tracing
        self._tasks = BackgroundTasks(f"{device}/{part}", owner.failed)
        self._loads = [asyncio.Lock() for _ in executors]
        self._closing = False

    async def start(self) -> None:
        """Start the executors."""
        for seat, executor in enumerate(self.executors):
            executor.watch(partial(self._ended, seat))
            await executor.start()

    def run(self, batch: RunBatch) -> None:
        """Begin to run it."""
        self._tasks.begin(self._run(batch))

    def do(self, asked: Executing) -> None:
        """Begin it; loads, and what makes room for them, one after the other."""
        match asked:
            case LoadVariant():
                self._tasks.begin(self._load(asked, Loaded))
            case ReloadVariant():
                self._tasks.begin(self._load(asked, Reloaded))
            case UnloadVariant():
                self._tasks.begin(self._unload(asked))
            case RestartExecutor():
                self._tasks.begin(self._restart(asked))
            case _:
                assert_never(asked)

    async def close(self) -> None:
        """Stop tasks and the executors."""
        self._closing = True
        self._tasks.cancel()
        await self._tasks.over()
        await asyncio.gather(*(executor.close() for executor in self.executors))

    async def _run(self, batch: RunBatch) -> None:
        run = batch.run
        inputs = [(query, tensors) for query in run.queries if (tensors := self._owner.inputs(query)) is not None]
        if not inputs:
            self._owner.tell(BatchEnded(self._part, 0.0, 0.0, batch.seat))
            return
        rows = sum(query.rows for query, _ in inputs)
        started, began = self._clock.wall(), self._clock.monotonic()  # the wall clock may be set while it runs
        try:
            given = [tensors for _, tensors in inputs]
            executor = self.executors[batch.seat]
            ran = await executor.run(run.variant, given, rows, within=batch.within, apart=batch.again)
        except ExecutionError as error:
            self._failed(batch, error)
            return
        except Exception as error:  # of an executor's own making: it costs the batch, not all that this process does
            log.exception("%s on %s raised what it should not", run.variant, self._device)
            self._failed(batch, ExecutionError(f"{type(error).__name__}: {error}"))
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
        self._owner.tell(BatchEnded(self._part, ran.execution_s, seconds, batch.seat))

    def _failed(self, batch: RunBatch, error: ExecutionError) -> None:
        run = batch.run
        if not batch.again:
            told = (run.variant, run.rows, self._device, error)
            ids = [query.id for query in run.queries]
            log.warning("%s failed a batch of %d on %s: %s", *told, extra={"query_ids": ids})
            self._meters.add("sluice_batch_failures", self._device, run.variant)
        elif (error.fatal or error.apart) and not error.blameless:
            log.warning("query %s ends executors: %s on %s (%s)", run.queries[0].id, run.variant, self._device, error)
        if error.fatal:
            self._owner.tell(ContentsTold(self._owner.contents()))
        by_itself = Failure.KILLED if error.fatal else Failure.APART if error.apart else Failure.RAISED
        why = Failure.BLAMELESS if error.blameless else by_itself
        self._owner.tell(BatchFailed(self._part, str(error), why, batch.seat))

    async def _load(self, asked: LoadVariant | ReloadVariant, told: type[Loaded] | type[Reloaded]) -> None:
        variant, seat = self._catalogue.variants[asked.variant], asked.seat
        try:
            async with self._loads[seat]:
                loaded = await self.executors[seat].load(variant, max_batch=asked.max_batch, within=asked.within)
        except (LoadError, ExecutionError) as error:
            log.error("%s cannot be loaded on %s: %s", variant.name, self._device, error)
            self._meters.add("sluice_variant_loads", self._device, variant.name, "no")
            self._owner.tell(told(self._part, variant.name, ok=False, seat=seat))
        else:
            self._meters.add("sluice_variant_loads", self._device, variant.name, "yes")
            self._owner.tell(told(self._part, variant.name, ok=True, seconds=loaded.load_s, seat=seat))

    async def _unload(self, asked: UnloadVariant) -> None:
        async with self._loads[asked.seat]:
            await self.executors[asked.seat].unload(asked.variant)

    def _ended(self, seat: int) -> None:
        if not self._closing:
            self._owner.tell(ExecutorEnded(self._part, seat))

    async def _restart(self, asked: RestartExecutor) -> None:
        log.warning("%s/%s: the executor's process is gone; starting it again", self._device, self._part)
        self._meters.add("sluice_executor_restarts", self._device)
        await asyncio.sleep(asked.after)
        await self.executors[asked.seat].start()
        self._owner.tell(ExecutorStarted(self._part, asked.seat))
