"""ONNX Runtime sessions of one process: load and warm, run, forget. Blocking; a child process or a benchmark drives it.

Rules. A variant replaces what had its name only once it is loaded and has run. A session whose first provider is not
the one asked for is refused. What ONNX Runtime raises becomes one line.
"""

import hashlib
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort

from sluicegate.domain.errors import ExecutionError, LoadError
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.executors.devices.cuda import load_packaged_libraries, refuse_fallback, warm_sizes
from sluicegate.executors.devices.gpu_memory import GpuMemory, Held, taken
from sluicegate.executors.dtypes import Array, zeros
from sluicegate.executors.onnx.runtime_options import PROVIDERS, Runtime

_ONNX_TYPES: Mapping[str, str] = {
    "tensor(bool)": "BOOL", "tensor(uint8)": "UINT8", "tensor(int8)": "INT8", "tensor(uint16)": "UINT16",
    "tensor(int16)": "INT16", "tensor(float16)": "FP16", "tensor(uint32)": "UINT32", "tensor(int32)": "INT32",
    "tensor(float)": "FP32", "tensor(uint64)": "UINT64", "tensor(int64)": "INT64", "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}  # fmt: skip
WARM_SECONDS = 1.0
"""Warming goes on to larger batches only while it has taken less than this."""
_WARM_EVERY_SECONDS = 10.0
"""Of every size: where that is not enough, models run for longer than what is searched for."""


@dataclass(frozen=True, slots=True)
class Session:
    """A loaded variant: the inputs it takes, the outputs asked of it, and what loading took. ``memory_bytes``: of the
    GPU where it runs there, else of this process."""

    inference: ort.InferenceSession
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    digest: str
    warmed: int
    load_s: float
    memory_bytes: int

    @property
    def batch_bytes(self) -> int:
        """Of the largest batch that it is loaded for; of texts the least that it has."""
        return self.warmed * sum(spec.row_bytes for spec in self.inputs)


class Sessions:
    """Sessions by variant."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._sessions: dict[str, Session] = {}
        self._gpu = GpuMemory() if runtime.provider == "cuda" else None
        missing = PROVIDERS[runtime.provider] not in ort.get_available_providers()
        if missing and not runtime.cpu_fallback:
            raise LoadError(
                f"ONNX Runtime here has no {PROVIDERS[runtime.provider]}; install onnxruntime-gpu, or allow the CPU"
            )
        if runtime.provider == "cuda":
            ort.set_default_logger_severity(3)  # it warns at each session of plugins that nobody asked for
            load_packaged_libraries(ort)

    def load(
        self, variant: str, path: Path, digest: str, outputs: Sequence[str], specs: Sequence[TensorSpec], max_batch: int
    ) -> Session:
        """Load the model at ``path``, check it against ``specs``, warm it. Raises LoadError; the old one stays.

        ``outputs``: names to compute, all when empty. ``specs``: what its inputs must be; when empty, what it says.
        """
        old = self._sessions.get(variant)
        if old is not None and old.digest == digest and old.warmed >= max_batch:
            return old
        begun, before, on_gpu = time.perf_counter(), resident_bytes(), self._held()
        try:
            inference = self._create(path, digest)
            inputs = _check_inputs(inference, specs)
            names = _check_outputs(inference, outputs)
            if self._runtime.warm_every_size:
                _warm(inference, inputs, names, warm_sizes(max_batch), within=_WARM_EVERY_SECONDS)
            else:
                _warm(inference, inputs, names, _doubling(max_batch), within=WARM_SECONDS)
        except LoadError:
            raise
        except Exception as error:  # ONNX Runtime raises its own classes, OSError, ValueError, ...
            raise LoadError(f"{variant}: {one_line(error)}") from error
        now = self._held()
        took = taken(on_gpu, now) if on_gpu is not None and now is not None else resident_bytes() - before
        took = max(took, path.stat().st_size)
        session = Session(inference, inputs, names, digest, max_batch, time.perf_counter() - begun, took)
        self._sessions[variant] = session
        return session

    def _held(self) -> Held | None:
        """Of the GPU's memory, where models are there and that can be asked."""
        return self._gpu.held() if self._gpu is not None else None

    @property
    def largest_bytes(self) -> int:
        """What the largest of them took, with the rows of a batch that it is loaded for."""
        return max((session.memory_bytes + session.batch_bytes for session in self._sessions.values()), default=0)

    def unload(self, variant: str) -> None:
        """Forget it; unknown names are ignored. The allocator keeps most of its memory: restart to give it back."""
        self._sessions.pop(variant, None)

    def run(self, variant: str, inputs: Mapping[str, Array], rows: int) -> tuple[dict[str, Array], float, float]:
        """Outputs by name, wall seconds and CPU seconds. Raises ExecutionError if the model does, or loses rows;
        MemoryError."""
        session = self._sessions.get(variant)
        if session is None:
            raise ExecutionError(f"{variant} is not loaded")
        cpu, wall = time.process_time(), time.perf_counter()
        try:
            found = session.inference.run(session.outputs, inputs)
        except MemoryError:
            raise
        except Exception as error:  # whatever a model's operators raise is the model's error, not ours
            raise ExecutionError(f"{variant}: {one_line(error)}") from error
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        outputs = dict(zip(session.outputs, found, strict=True))
        for name, array in outputs.items():
            if not isinstance(array, np.ndarray) or array.shape[:1] != (rows,):
                shape = getattr(array, "shape", type(array).__name__)
                raise ExecutionError(f"{variant}: output {name} has shape {shape} for {rows} rows")
        return outputs, wall, cpu

    def _create(self, path: Path, digest: str) -> ort.InferenceSession:
        model = path.read_bytes()
        if hashlib.sha256(model).hexdigest() != digest:
            raise LoadError(f"{path.name}: its content does not have the recorded SHA-256; register the model again")
        # From bytes, so that what was hashed is what runs, and a graph cannot name other files beside it.
        inference = ort.InferenceSession(model, _options(self._runtime), providers=self._runtime.providers())
        if self._runtime.provider == "cuda":
            refuse_fallback(inference.get_providers(), fallback=self._runtime.cpu_fallback)
        return inference


def _options(runtime: Runtime) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = runtime.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    return options


def _check_inputs(inference: ort.InferenceSession, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The model's inputs; they must be what the app declares, with a free batch axis."""
    found: list[TensorSpec] = []
    declared = {s.name: s for s in specs}
    for argument in inference.get_inputs():
        datatype = _ONNX_TYPES.get(argument.type)
        spec = declared.pop(argument.name, None) if specs else None
        if datatype is None or (specs and (spec is None or spec.datatype != datatype)):
            wanted = f"{spec.datatype}" if spec else "nothing of that name"
            raise LoadError(f"input {argument.name} is {argument.type}, the app declares {wanted}")
        if not argument.shape or isinstance(argument.shape[0], int):
            raise LoadError(
                f"input {argument.name} has shape {argument.shape}: its first axis is not a free batch axis"
            )
        row = tuple(argument.shape[1:])
        if spec is not None and not _fits(row, spec.row_shape):
            raise LoadError(f"input {argument.name} takes rows of {list(row)}, the app declares {list(spec.row_shape)}")
        if spec is not None and spec.varying and isinstance(row[0], int):
            raise LoadError(f"input {argument.name} takes rows of length {row[0]} only, the app's vary in length")
        if spec is None and not all(isinstance(e, int) for e in row):
            raise LoadError(f"input {argument.name} has free axes {list(row)}; declare its shape in the app")
        found.append(spec or TensorSpec(argument.name, datatype, row))
    if declared:
        raise LoadError(f"the model has no input {next(iter(declared))!r}, which the app declares")
    return tuple(found)


def _fits(row: tuple[object, ...], declared: tuple[int, ...]) -> bool:
    """Free axes of the model take any extent."""
    return len(row) == len(declared) and all(
        not isinstance(a, int) or a == b for a, b in zip(row, declared, strict=True)
    )


def _check_outputs(inference: ort.InferenceSession, outputs: Sequence[str]) -> tuple[str, ...]:
    available = {o.name: o.type for o in inference.get_outputs()}
    for name in outputs or available:
        if name not in available:
            raise LoadError(f"the model has no output {name!r}; it has {', '.join(available)}")
        if available[name] not in _ONNX_TYPES:
            raise LoadError(f"output {name} is {available[name]}, which cannot be sent; use numbers, booleans or texts")
    return tuple(outputs or available)


def _doubling(max_batch: int) -> list[int]:
    """1, 2, 4, ... and ``max_batch``: memory is then in place."""
    return [*(1 << i for i in range(max_batch.bit_length()) if 1 << i < max_batch), max_batch]


def _warm(
    inference: ort.InferenceSession,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[str],
    sizes: Sequence[int],
    *,
    within: float,
) -> None:
    """Run zeros (and empty texts) at each of ``sizes``, in order, as far as ``within`` seconds go."""
    begun = time.perf_counter()
    for batch in sizes:
        inference.run(outputs, {s.name: zeros(s.datatype, (batch, *s.row_shape)) for s in inputs})
        if time.perf_counter() - begun > within:
            return


def one_line(error: BaseException) -> str:
    """What went wrong, on one line of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def resident_bytes() -> int:
    """Resident memory of this process, 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * resource.getpagesize()
