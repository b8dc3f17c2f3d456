"""The process that runs models: ``python -m sluicegate.executors.onnx.child RUN_FD LOAD_FD PARENT_PID``, never started
by hand.

Rules. Frames come in over two sockets and are answered on the same by number. Batches run in the main thread, in order,
from the first; a second thread loads and forgets models from the other, so that a device goes on serving while the
next variant warms. A run that may end the process is made in a copy of it, where no load is under way and one thread
serves (``sluicegate.executors.onnx.apart``). The end of the first connection ends the process, and so does the parent's
death, even in the middle of a model that hangs. Terminal signals are the parent's business: it drains, then closes the
connection.
"""

import signal

if __name__ == "__main__":  # who only imports this goes on hearing signals, and so does whatever it starts
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

import os
import resource
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sluicegate.domain.errors import ExecutionError, SluiceError
from sluicegate.domain.models.tensor import BYTES, Tensor, TensorSpec
from sluicegate.executors.dtypes import DATATYPES, NUMPY_TYPES, array_of, data_of
from sluicegate.executors.linux_processes import die_with_parent, pin
from sluicegate.executors.onnx.apart import run_apart
from sluicegate.executors.onnx.framing import (
    PREFIX,
    Buffer,
    FrameError,
    Header,
    describe,
    layout,
    lengths,
    pack,
    parse_header,
    receive_blocking,
    send_blocking,
)
from sluicegate.executors.onnx.runtime_options import Runtime

_TIMES = 4
_AT_ONCE = 1 << 16


class Child:
    """What both connections share: the sessions, there from the first request (hello) on."""

    def __init__(self) -> None:
        self._sessions: Any = None
        self._margin_bytes = 0
        self._copies = False  # whether a copy of this process can run models
        self._loading = threading.Lock()

    def serve(self, sock: socket.socket) -> None:
        """Answer on one connection until it ends."""
        prefix = memoryview(bytearray(PREFIX.size))
        while receive_blocking(sock, prefix):
            head_bytes, body_bytes = lengths(prefix)
            head = memoryview(bytearray(head_bytes))
            receive_blocking(sock, head)
            header = parse_header(head)
            try:
                inputs = _receive_tensors(sock, header, body_bytes)
            except MemoryError:  # before any of it was received
                _pass_over(sock, body_bytes)
                send_blocking(sock, _too_much(header))
                continue
            apart = self._copies and "apart" in header
            send_blocking(sock, self._apart(header, inputs) if apart else self._answer(header, inputs))

    def _apart(self, header: Header, inputs: Mapping[str, Any]) -> list[memoryview]:
        """In a copy of this process; the other thread must hold nothing then that a model may need."""
        if not self._loading.acquire(blocking=False):
            return self._answer(header, inputs)
        parent = os.getpid()
        try:
            ran = run_apart(
                lambda: self._answer(header, inputs), lambda: die_with_parent(parent), float(header["apart"])
            )
        finally:
            self._loading.release()
        if ran.answer is not None:
            return [memoryview(ran.answer)]
        told = f"{header['variant']}: {ran.why}"
        return pack({"id": header["id"], "ok": False, "error": told, "apart": True, "blameless": ran.blameless})

    def _answer(self, header: Header, inputs: Mapping[str, Any]) -> list[memoryview]:
        try:
            answer, buffers = self._handle(header, inputs)
            return pack({"id": header["id"], "ok": True, **answer}, buffers)
        except (SluiceError, FrameError) as error:
            return pack({"id": header["id"], "ok": False, "error": str(error)})
        except MemoryError:
            return _too_much(header)
        except Exception as error:
            # The parent must get an answer to every request; it sees the class, which tells a defect from a refusal.
            return pack({"id": header["id"], "ok": False, "error": f"{type(error).__name__}: {error}"[:500]})

    def _handle(self, header: Header, inputs: Mapping[str, Any]) -> tuple[Header, list[Buffer]]:
        match header.get("op"):
            case "run":
                return self._run(header, inputs)
            case "load":
                with self._loading:
                    return self._load(header), []
            case "unload":
                with self._loading:
                    self._sessions.unload(header["variant"])
                return {}, []
            case "hello":
                return self._hello(Runtime(**header["runtime"])), []
            case other:
                raise FrameError(f"unknown operation {other!r}")

    def _hello(self, runtime: Runtime) -> Header:
        # Only here, so that a missing onnxruntime is an answer and not a traceback.
        from sluicegate.executors.onnx.sessions import Sessions

        if runtime.cores:
            pin(runtime.cores)
        if runtime.address_space_bytes:
            limit_memory(runtime.address_space_bytes)
        if runtime.provider == "cpu" and not runtime.address_space_bytes:
            self._margin_bytes = runtime.memory_margin_bytes
        self._sessions = Sessions(runtime)
        self._copies = runtime.provider == "cpu" and runtime.threads == 1 and sys.platform == "linux"
        return {"pid": os.getpid()}

    def _load(self, header: Header) -> Header:
        if self._margin_bytes:
            limit_memory(resource.RLIM_INFINITY)  # what loading takes is measured, not guessed
        try:
            session = self._loaded(header)
        finally:
            if self._margin_bytes:
                # Batches that were not warmed take more than those that were: a few times what the largest model does,
                # and its rows, which hold nothing between two batches.
                limit_memory(mapped_bytes() + self._margin_bytes + _TIMES * self._sessions.largest_bytes)
        specs = [[s.name, s.datatype, s.row_shape, s.varying] for s in session.inputs]
        return {"load_s": session.load_s, "memory_bytes": session.memory_bytes, "inputs": specs}

    def _loaded(self, header: Header) -> Any:
        return self._sessions.load(
            header["variant"],
            Path(header["path"]),
            header["digest"],
            header["outputs"],
            [TensorSpec(name, kind, tuple(shape), varying) for name, kind, shape, varying in header["inputs"]],
            header["max_batch"],
        )

    def _run(self, header: Header, inputs: Mapping[str, Any]) -> tuple[Header, list[Buffer]]:
        given = {name: _texts(one) if isinstance(one, Tensor) else one for name, one in inputs.items()}
        outputs, wall, cpu = self._sessions.run(header["variant"], given, header["rows"])
        tensors: list[Tensor] = []
        for name, array in outputs.items():
            kind = DATATYPES[array.dtype.name]
            data = data_of(array) if kind == BYTES else np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            tensors.append(Tensor(name, kind, array.shape, data))
        buffers: list[Buffer] = [tensor.data for tensor in tensors if len(tensor.data)]
        return {"tensors": [describe(tensor) for tensor in tensors], "wall_s": wall, "cpu_s": cpu}, buffers


def _texts(tensor: Tensor) -> Any:
    try:
        return array_of(tensor)
    except ValueError as error:
        raise ExecutionError(f"input {tensor.name} is no text in UTF-8 ({error!s:.100})") from error


def _receive_tensors(sock: socket.socket, header: Header, body_bytes: int) -> dict[str, Any]:
    """Straight from the socket into arrays: a batch is not copied again, but for BYTES, which stay a Tensor here.
    Raises MemoryError where there is no room for all, having received none."""
    described = layout(header.get("tensors", []))
    if sum(size for *_, size in described) != body_bytes:
        raise FrameError("the described tensors do not fill the body")
    arrays: dict[str, Any] = {}
    places: list[memoryview] = []
    for name, datatype, shape, size in described:
        if datatype == BYTES:
            places.append(memoryview(bytearray(size)))
            arrays[name] = Tensor(name, datatype, shape, places[-1])
            continue
        array = arrays[name] = np.empty(shape, NUMPY_TYPES[datatype])
        if size:
            places.append(array.reshape(-1).view(np.uint8).data)
    for place in places:
        receive_blocking(sock, place)
    return arrays


def _pass_over(sock: socket.socket, count: int) -> None:
    some = memoryview(bytearray(_AT_ONCE))
    while count:
        receive_blocking(sock, some[:count])
        count -= min(count, _AT_ONCE)


def _too_much(header: Header) -> list[memoryview]:
    told = f"{header.get('variant')}: needs more memory than its process may take; send less at once"
    return pack({"id": header["id"], "ok": False, "error": told})


def mapped_bytes() -> int:
    """Address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def limit_memory(limit_bytes: int) -> None:
    """Let allocations beyond ``limit_bytes`` of address space fail, and leave no core files."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    bounded = most != resource.RLIM_INFINITY and (limit_bytes == resource.RLIM_INFINITY or limit_bytes > most)
    wanted = most if bounded else limit_bytes
    resource.setrlimit(resource.RLIMIT_AS, (wanted, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve_or_exit(child: Child, sock: socket.socket) -> None:
    """Serve one connection; one that breaks the format ends the process, for nothing on it can be trusted."""
    try:
        child.serve(sock)
    except (OSError, FrameError) as error:
        sys.stderr.write(f"executor process: {error}\n")
        os._exit(1)


def main() -> None:
    """Serve the sockets given by number, then leave without the slow destructors."""
    runs, loads, parent = map(int, sys.argv[1:])
    die_with_parent(parent)
    child = Child()
    threading.Thread(target=serve_or_exit, args=(child, socket.socket(fileno=loads)), daemon=True).start()
    serve_or_exit(child, socket.socket(fileno=runs))
    os._exit(0)


if __name__ == "__main__":
    main()
