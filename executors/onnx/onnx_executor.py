"""Runs ONNX models in one child process: a device's or slice's executor.

Rules. The parent never runs a model and never waits for one other than asynchronously. Batches are stacked by handing
the kernel the queries' own buffers. A child that died, or was killed because a batch outlasted its time or because
somebody had stopped it, fails that batch with ExecutionError(fatal), ``blameless`` where what ran had no part in it;
``start`` then makes a new one, and the caller loads again what it needs. Who ``watch``es is told at once when a child
ends that was not asked to, whether it ran something or not.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path

from sluicegate.domain.errors import ConfigurationError, ExecutionError, LoadError
from sluicegate.domain.executor import Executed, Loaded
from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import BYTES, Tensor, TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.executors.linux_processes import GLANCES, hangs_after
from sluicegate.executors.onnx.channel import Channel, ChannelClosedError, Reply
from sluicegate.executors.onnx.child_process import ChildProcess
from sluicegate.executors.onnx.framing import Buffer, Described, FrameError, Header, check_elements, unpack_tensors
from sluicegate.executors.onnx.runtime_options import Runtime

_LOOKS = 0.3
"""Seconds between looks at a child that does nothing: stopped at two of them, it is ended."""
_COPYING = 1.0
"""Seconds that copying the child and ending the copy may take, beyond what runs in it."""
_HELD_UP = 0.25
"""Seconds by which a timer may be late before the machine, and not the model, is taken to be slow."""


class OnnxExecutor:
    """Runs ONNX models in a child process. ``folders``: where models lie, by their digests: the first that has one.
    ``apps``: by name; it may grow.

    ``run_timeout`` and ``load_timeout`` (where no limit is given), ``start_timeout``, ``close_timeout``: seconds.
    """

    def __init__(
        self,
        folders: Path | Sequence[Path],
        apps: Mapping[str, App],
        runtime: Runtime | None = None,
        *,
        run_timeout: float = 60.0,
        load_timeout: float = 120.0,
        start_timeout: float = 60.0,
        close_timeout: float = 2.0,
    ) -> None:
        self._folders = (folders,) if isinstance(folders, Path) else tuple(folders)
        self._apps = apps
        self._runtime = runtime or Runtime()
        self._run_timeout = run_timeout
        self._load_timeout = load_timeout
        self._start_timeout = start_timeout
        self._close_timeout = close_timeout
        self._starting = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._child: ChildProcess | None = None
        self._runs: Channel | None = None
        self._loads: Channel | None = None
        self._inputs: dict[str, tuple[TensorSpec, ...]] = {}
        self._on_end: Callable[[], None] = lambda: None
        self._looking: asyncio.Task[None] | None = None
        self._was_stopped = False
        self._serving = False
        self._one_thread = self._runtime.provider == "cpu" and self._runtime.threads == 1

    def watch(self, on_end: Callable[[], None]) -> None:
        """Be told of a child that ends unasked."""
        self._on_end = on_end

    @property
    def pid(self) -> int | None:
        """Process id of the child, None while there is none."""
        return self._child.pid if self._child and self._runs and self._runs.open else None

    async def start(self) -> None:
        """Start the child unless it runs. Raises ConfigurationError if it cannot work here."""
        async with self._starting:
            if self._runs is not None and self._runs.open:
                return
            await self._stop()
            self._was_stopped = False
            self._child = ChildProcess("sluicegate.executors.onnx.child", 2, self._runtime.environment())
            self._runs = Channel(self._child.sockets[0], self._ended)
            self._loads = Channel(self._child.sockets[1])
            try:
                await self._ask(
                    self._runs, {"op": "hello", "runtime": self._runtime.document()}, (), self._start_timeout
                )
            except (ExecutionError, LoadError) as error:
                await self._stop()
                raise ConfigurationError(f"the executor's process does not start: {error}") from error
            self._serving = True
            self._looking = asyncio.create_task(self._look(self._child))

    async def _look(self, child: ChildProcess) -> None:
        """End ``child`` once it was stopped, at work or idle: it would answer nobody, and say nothing of it."""
        before = False
        while self._child is child:
            await asyncio.sleep(_LOOKS)
            stopped = child.stopped()
            if stopped and before:
                self._was_stopped = True
                child.kill()
                return
            before = stopped

    async def load(self, variant: Variant, *, max_batch: int, within: float | None = None) -> Loaded:
        """Load and warm in the child, beside the batches that run. Raises LoadError with one line."""
        if not variant.model or not variant.digest:
            raise LoadError(f"{variant.name} is a profile without a model; emulate it, or register its model")
        if max_batch < 1:
            raise LoadError(f"{variant.name}: a largest batch of {max_batch}; at least 1")
        app = self._apps.get(variant.app)
        header: Header = {
            "op": "load",
            "variant": variant.name,
            "path": str(self._path(variant)),
            "digest": variant.digest,
            "inputs": [[s.name, s.datatype, s.row_shape, s.varying] for s in app.inputs] if app else [],
            "outputs": [s.name for s in app.outputs] if app else [],
            "max_batch": max_batch,
        }
        limit = self._load_timeout if within is None else within
        try:
            answer = (await self._ask(self._loads, header, (), limit)).header
        except ExecutionError as error:
            raise LoadError(f"{variant.name}: {error}") from error
        specs = tuple(TensorSpec(name, kind, tuple(shape), varying) for name, kind, shape, varying in answer["inputs"])
        self._inputs[variant.name] = specs
        return Loaded(variant.name, answer["load_s"], answer["memory_bytes"])

    def _path(self, variant: Variant) -> Path:
        found = (folder / variant.model for folder in self._folders)
        try:
            return next((path for path in found if path.exists()), self._folders[0] / variant.model).resolve()
        except OSError as error:
            raise LoadError(f"{variant.name}: {variant.model} cannot be looked for: {error.strerror}") from error

    async def unload(self, variant: str) -> None:
        """Forget it; unknown names and a child that is gone are ignored."""
        if self._inputs.pop(variant, None) is not None:
            with contextlib.suppress(ExecutionError):
                await self._ask(self._loads, {"op": "unload", "variant": variant}, (), self._run_timeout)

    async def run(
        self,
        variant: str,
        inputs: Sequence[Sequence[Tensor]],
        rows: int,
        *,
        within: float | None = None,
        apart: bool = False,
    ) -> Executed:
        """Run one batch in the child, or in a copy of it. Raises ExecutionError; ``fatal`` when the child is gone."""
        specs = self._inputs.get(variant)
        if specs is None:
            if self._runs is None or not self._runs.open:
                told = f"the executor's process {self._ending()}; start it again"
                raise ExecutionError(told, fatal=True, blameless=True)  # it had not come to the process
            raise ExecutionError(f"{variant} is not loaded")
        described, buffers = stack(variant, specs, inputs, rows)
        header: Header = {"op": "run", "variant": variant, "rows": rows, "tensors": described}
        limit = self._run_timeout if within is None else within
        if apart:
            header["apart"] = limit
            limit += _COPYING
        async with self._turn:
            reply = await self._ask(self._runs, header, buffers, limit, hangs_after(limit))
        try:
            outputs = unpack_tensors(reply.header["tensors"], reply.body)
        except FrameError as error:
            raise ExecutionError(f"{variant}: {error}") from error
        return Executed(outputs, reply.header["wall_s"], reply.header["cpu_s"])

    async def close(self) -> None:
        """Stop the child: it may finish what it runs within ``close_timeout``, then it is killed."""
        async with self._starting:
            await self._stop()

    async def _ask(
        self,
        channel: Channel | None,
        header: Header,
        buffers: Sequence[Buffer],
        timeout: float,  # noqa: ASYNC109 - what it does when time is up is more than to give up
        busy: float = inf,
    ) -> Reply:
        """One request, which hangs after so many seconds, or after as many of the processor's as ``busy`` says. Raises
        LoadError for a refused load, else ExecutionError."""
        child = self._child
        if channel is None or child is None:
            raise ExecutionError("the executor is not started", fatal=True)
        try:
            spent = child.processor_s if busy < timeout and self._one_thread else None
            reply = await _within(timeout, channel.request(header, buffers), busy, spent)
        except TimeoutError as error:
            # The model may never return, and a thread cannot be stopped from outside: the process can.
            child.kill()
            told = f"{header['op']} took more than {error}"
            self._end(f"killed: {told}")
            await child.ended(1.0)
            raise ExecutionError(f"{header.get('variant', 'start')}: {told}", fatal=True) from None
        except ChannelClosedError as error:
            self._end(str(error))
            await child.ended(0.5)
            told = "stood still and was ended" if self._was_stopped else f"{child.how_it_ended()} ({error})"
            raise ExecutionError(f"the executor's process {told}", fatal=True, blameless=child.killed) from error
        except FrameError as error:
            raise ExecutionError(str(error)) from error
        if not reply.header.get("ok"):
            if reply.header.get("apart"):
                raise ExecutionError(str(reply.header["error"]), apart=True, blameless=reply.header["blameless"])
            kind = LoadError if header["op"] == "load" else ExecutionError
            raise kind(str(reply.header.get("error", "no reason given")))
        return reply

    def _ending(self) -> str:
        return self._child.how_it_ended() if self._child else "is not started"

    def _end(self, why: str) -> None:
        for channel in (self._loads, self._runs):
            if channel is not None:
                channel.close(why)

    def _ended(self) -> None:
        """The connection to the child is gone, asked for or not."""
        self._inputs.clear()
        if self._serving:
            self._serving = False
            self._on_end()

    async def _stop(self) -> None:
        self._serving = False
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
            self._looking = None
        child, self._child = self._child, None
        if child is not None and self._runs is not None:
            self._runs.finish()
            await child.stop(self._close_timeout if self._runs.open else 0.0)
        self._end("the executor was closed")
        self._runs = self._loads = None


async def _within(
    seconds: float, reply: "asyncio.Future[Reply]", busy: float, spent: Callable[[], float] | None
) -> Reply:
    """``reply``, or TimeoutError once it took ``seconds``. An answer that lies there when time is up counts.

    Where this process itself was held up (suspended, starved), the child had no time either: it gets the same again.
    ``spent``: of the processor's seconds, all in all; what takes more than ``busy`` of them takes too long, too.
    """
    loop = reply.get_loop()
    due = loop.time() + seconds
    timer: asyncio.TimerHandle

    def overdue(*, again: bool) -> None:
        nonlocal timer
        if again:
            timer = loop.call_later(seconds, lambda: overdue(again=False))
        elif not reply.done():
            reply.set_exception(TimeoutError(f"{seconds:.3g} s"))

    def glance(spent: Callable[[], float], before: float | None = None) -> None:
        nonlocal timer
        has = spent()
        if before is not None and has - before > busy and not reply.done():
            reply.set_exception(TimeoutError(f"{busy:.3g} s of the processor"))
        elif loop.time() + GLANCES >= due:
            timer = at_last()
        else:
            timer = loop.call_later(GLANCES, glance, spent, has if before is None else before)

    def at_last() -> asyncio.TimerHandle:
        return loop.call_at(due, lambda: overdue(again=loop.time() - due > _HELD_UP))

    # Not looked at where it ends at once, as nearly all do.
    timer = at_last() if spent is None else loop.call_later(GLANCES, glance, spent)
    try:
        return await reply
    finally:
        timer.cancel()


def stack(
    variant: str, specs: Sequence[TensorSpec], inputs: Sequence[Sequence[Tensor]], rows: int
) -> tuple[list[Described], list[Buffer]]:
    """Describe the batch's tensors and list their buffers, query after query: joined, they are the stacked batch.

    Rows of an input that varies in length are filled up with zeros to the longest of the batch. Raises ExecutionError
    unless each query has every input in the declared type and row shape, ``rows`` in all.
    """
    described: list[Described] = []
    buffers: list[Buffer] = []
    found = [[_find(variant, spec, tensors) for tensors in inputs] for spec in specs]
    varying = (given for spec, given in zip(specs, found, strict=True) if spec.varying)
    longest = max((tensor.shape[1] for given in varying for tensor in given), default=0)
    for spec, given in zip(specs, found, strict=True):
        total, size = 0, 0
        for tensor in given:
            total += tensor.shape[0]
            if spec.varying and tensor.shape[1] < longest:
                buffers += filled_up(tensor, longest)
            else:
                buffers.append(tensor.data)
                size += len(tensor.data)
        if total != rows:
            raise ExecutionError(f"{variant}: input {spec.name} holds {total} rows, {rows} were announced")
        row_shape = (longest, *spec.row_shape[1:]) if spec.varying else spec.row_shape
        named = (spec.name, spec.datatype, (rows, *row_shape))
        described.append((*named, size) if spec.datatype == BYTES else named)
    return described, buffers


def filled_up(tensor: Tensor, longest: int) -> list[Buffer]:
    """Its rows with zeros behind each, up to a length of ``longest``."""
    data = memoryview(tensor.data)
    row = len(data) // tensor.shape[0]
    zeros = bytes(row // tensor.shape[1] * (longest - tensor.shape[1]))
    return [part for at in range(0, len(data), row) for part in (data[at : at + row], zeros)]


def _find(variant: str, spec: TensorSpec, tensors: Sequence[Tensor]) -> Tensor:
    for tensor in tensors:
        if tensor.name == spec.name:
            break
    else:
        raise ExecutionError(f"{variant}: a query has no input {spec.name}")
    whole = tensor.shape[1:] == spec.row_shape and tensor.shape
    if tensor.datatype != spec.datatype or not (whole or _is_shorter(spec, tensor.shape)):
        got = f"{tensor.datatype}{list(tensor.shape)}"
        raise ExecutionError(f"{variant}: input {spec.name} is {got}, not {spec.datatype}[n, *{list(spec.row_shape)}]")
    if spec.datatype == BYTES:
        try:
            check_elements(spec.name, tensor.shape, tensor.data)
        except FrameError as error:
            raise ExecutionError(f"{variant}: input {error}") from error
        return tensor
    size = tensor.data.nbytes if isinstance(tensor.data, memoryview) else len(tensor.data)
    row_bytes = spec.row_bytes
    if spec.varying:
        row_bytes = row_bytes // spec.row_shape[0] * tensor.shape[1]
    if size != tensor.shape[0] * row_bytes:
        raise ExecutionError(f"{variant}: input {spec.name} has {size} bytes for {tensor.shape[0]} rows")
    return tensor


def _is_shorter(spec: TensorSpec, shape: tuple[int, ...]) -> bool:
    """Whether it is of another length than the longest, as rows of this input may be."""
    return (
        spec.varying
        and len(shape) == 1 + len(spec.row_shape)
        and shape[0] >= 1
        and 1 <= shape[1] < spec.row_shape[0]
        and shape[2:] == spec.row_shape[1:]
    )
