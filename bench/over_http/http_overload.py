"""Overload over HTTP, as a client sees it: goodput at 1.5 and 3 times capacity, a burst, and what a query costs.

Imported by ``bench/overload.py --http``. One ONNX model of some five milliseconds a row, bodies of 49 KB in the
protocol's binary form, the embedded broker and every stage in one process, the executor's child on a core of its own,
the client in a process of its own. A query counts where its answer is complete within 250 ms of the moment at which it
should have been sent (Poisson arrivals, sent whatever the answers do).

- ``capacity_qps``: rows a second of the executor itself, by its profile at the batch that gives most.
- ``goodput_1_5x``, ``goodput_3x``: answered in time a second, over capacity.
- ``burst_ratio``: for a second of twice capacity within a calm load of half of it: misses over those that nobody could
  have avoided, which a queue of that capacity counts that knows all arrivals and answers the earliest deadlines first.
- ``cpu_ms_beyond_model``: CPU of the serving process (all stages and the front, not the executor) a query, at 100/s.
- ``longest_stop_ms``: how long the serving process's event loop stood still at most, in all of this.
"""

import asyncio
import gc
import json
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from typing_extensions import override

from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import Profile
from sluicegate.domain.models.tensor import TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.executors.onnx.onnx_executor import OnnxExecutor
from sluicegate.executors.onnx.runtime_options import Runtime
from sluicegate.executors.profile_runner import ProfileOptions, profile_variants
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.sluice.settings.endpoint_settings import HttpSettings
from sluicegate.sluice.settings.settings import DeviceSettings, Settings
from sluicegate.sluice.system.process_stages import stages_of
from sluicegate.sluice.system.system import System
from sluicegate.stages.runtime.frozen_heap import frozen_heap
from sluicegate.stages.runtime.supervisor import run_stages
from sluicegate.streams import connect

SLO = 0.25
SIDE, CHANNELS = 64, 3
ROW_MS = 5.0
ROLES = ("admission", "router", "worker", "planner", "http")
WARM_UP = 3.0
_TICK = 0.005


def model_bytes(depth: int, width: float = 1.0) -> bytes:
    """Convolutions over 64 x 64 x 3, ``depth`` of them of full size; ``width``: filters of each, of those it could
    have."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(1)
    nodes, weights, last, planes = [], [], "image", CHANNELS
    for number, (most, stride) in enumerate(((64, 2), *[(96, 1)] * depth, (96, 2), (128, 1), (128, 2))):
        filters = max(1, round(width * most))
        kernel = rng.normal(0, 0.1, (filters, planes, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"w{number}"))
        nodes.append(
            helper.make_node("Conv", [last, f"w{number}"], [f"c{number}"], strides=[stride, stride], pads=[1, 1, 1, 1])
        )
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{number}"]))
        last, planes = f"r{number}", filters
    nodes += [
        helper.make_node("GlobalMaxPool", [last], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("ArgMax", ["flat"], ["label"], axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "bench",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", CHANNELS, SIDE, SIDE])],
        [helper.make_tensor_value_info("label", TensorProto.INT64, ["n"])],
        weights,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(made)
    held: bytes = made.SerializeToString()
    return held


APP = App(
    name="bench",
    slo=SLO,
    inputs=(TensorSpec("image", "FP32", (CHANNELS, SIDE, SIDE)),),
    outputs=(TensorSpec("label", "INT64", ()),),
)


async def profiled(folder: Path) -> tuple[Catalogue, int]:
    """The model, as deep as makes a row take ``ROW_MS`` here, and measured in a child of its own; and its depth."""
    shallow, deep = [1e3 / capacity((await measured_at(folder, depth))[1]) for depth in (1, 5)]
    depth = max(1, round(1 + (ROW_MS - shallow) * 4 / (deep - shallow)))
    variant, profile = await measured_at(folder, depth)
    return Catalogue.of([APP], [variant], [profile]), depth


async def measured_at(
    folder: Path, depth: int, width: float = 1.0, *, name: str = "conv", accuracy: float = 0.9
) -> tuple[Variant, Profile]:
    """A variant of that size, and how long its batches take in a child of its own."""
    held = model_bytes(depth, width)
    digest = sha256(held).hexdigest()
    variant = Variant(name=name, app=APP.name, accuracy=accuracy, model=f"models/{digest}.onnx", digest=digest)
    save_catalogue(folder, Catalogue.of([APP], [variant], []), {digest: held})
    executor = OnnxExecutor(folder, {APP.name: APP}, Runtime(threads=1))
    await executor.start()
    try:
        (profile,) = await profile_variants(executor, {APP.name: APP}, [variant], ProfileOptions(device_type="cpu"))
    finally:
        await executor.close()
    return variant, profile


def capacity(profile: Profile) -> float:
    """Rows a second at the best batch."""
    return max(point.batch / point.median for point in profile.points)


def unavoidable(arrivals: Sequence[float], rate: float) -> int:
    """Misses of a server of ``rate`` that knows all arrivals: it gives up what cannot be answered, and nothing else."""
    free, missed = 0.0, 0
    for at in arrivals:
        begin = max(free, at)
        if begin + 1.0 / rate <= at + SLO:
            free = begin + 1.0 / rate
        else:
            missed += 1
    return missed


def poisson(rng: np.random.Generator, phases: Sequence[tuple[float, float]]) -> list[float]:
    """Seconds from the start at which to send: (rate, seconds) one after the other."""
    times: list[float] = []
    began = 0.0
    for rate, seconds in phases:
        count = int(rng.poisson(rate * seconds))
        times += sorted(began + rng.random(count) * seconds)
        began += seconds
    return times


def client(pipe: Connection, url: str) -> None:
    """The other process: told when to send what, it tells what came back when."""
    gc.disable()
    while (asked := pipe.recv()) is not None:
        pipe.send(asyncio.run(_ask(url, asked)))


class _Connection(asyncio.Protocol):
    """One kept connection, one request at a time: bytes made before, answers read as far as their status and end."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bool] | None = None
        self.transport: asyncio.Transport | None = None
        self._held = bytearray()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    @override
    def data_received(self, data: bytes) -> None:
        self._held += data
        end = self._held.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._held[:end]).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(self._held) >= end + 4 + length:
            self._held.clear()
            if b"\r\nconnection: close" in head and self.transport is not None:
                self.transport.close()
            self._tell(head.split(b" ", 2)[1] == b"200")

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._tell(False)

    def _tell(self, answered: bool) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(answered)


async def _ask(url: str, times: Sequence[float]) -> list[float]:
    """Seconds from due to answered, infinite where it was not answered with success."""
    parts = urlsplit(url)
    pixels = np.zeros((1, CHANNELS, SIDE, SIDE), np.float32).tobytes()
    size = {"binary_data_size": len(pixels)}
    spec = {"name": "image", "datatype": "FP32", "shape": [1, CHANNELS, SIDE, SIDE], "parameters": size}
    head = json.dumps({"inputs": [spec]}).encode()
    lines = (
        f"POST {parts.path} HTTP/1.1",
        f"Host: {parts.netloc}",
        f"Content-Length: {len(head) + len(pixels)}",
        f"Inference-Header-Content-Length: {len(head)}",
        "Content-Type: application/octet-stream",
    )
    request = "\r\n".join((*lines, "", "")).encode() + head + pixels
    host, number_of_port = parts.hostname or "127.0.0.1", parts.port or 80
    took = [float("inf")] * len(times)
    loop = asyncio.get_running_loop()
    idle: list[_Connection] = []

    async def one(number: int, due: float) -> None:
        try:
            async with asyncio.timeout(5.0):
                kept = idle.pop() if idle else None
                while kept is None or kept.transport is None or kept.transport.is_closing():
                    _, kept = await loop.create_connection(_Connection, host, number_of_port)
                kept.answer = loop.create_future()
                kept.transport.write(request)
                if await kept.answer:
                    took[number] = time.monotonic() - due
                idle.append(kept)
        except (OSError, TimeoutError):
            return

    began, under_way = time.monotonic() + 0.1, []
    for number, at in enumerate(times):
        while (wait := began + at - time.monotonic()) > 0:
            await asyncio.sleep(min(wait, _TICK))
        under_way.append(asyncio.create_task(one(number, began + at)))
    await asyncio.gather(*under_way)
    for kept in idle:
        if kept.transport is not None:
            kept.transport.close()
    return took


async def _watch(longest: list[float]) -> None:
    while True:
        before = time.monotonic()
        await asyncio.sleep(_TICK)
        longest[0] = max(longest[0], time.monotonic() - before - _TICK)


async def measure(seconds: float) -> dict[str, Any]:
    """Every figure that the module names."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        served, _ = await profiled(folder)
        async with serving(served, folder) as (base, _):
            return await _measured(base, capacity(served.profiles["conv", "cpu"]), seconds)


@asynccontextmanager
async def serving(served: Catalogue, folder: Path) -> AsyncIterator[tuple[str, System]]:
    """The live system in this process: its front's address, and itself."""
    chosen = Settings(
        broker="memory://",
        home=folder,
        runs=folder / "runs",
        devices=(DeviceSettings(name="d0"),),
        http=HttpSettings(port=(port := free_port())),
    )
    broker = connect("memory://")
    producer = broker.producer()
    await producer.start()
    system = System(chosen, served, folder, broker, producer, folder)
    await system.create_topics()
    stop = asyncio.Event()
    stages = stages_of(system, ROLES)
    with frozen_heap():
        running = asyncio.create_task(run_stages(stages, stop))
        try:
            base = f"http://127.0.0.1:{port}"
            await ready(base)
            yield base, system
        finally:
            stop.set()
            await running
            await producer.stop()
            await broker.close()


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


async def ready(base: str) -> None:
    import aiohttp

    async with asyncio.timeout(60.0), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"{base}/v2/models/bench/ready") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


async def _measured(base: str, full: float, seconds: float) -> dict[str, Any]:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    url = f"{base}/v2/models/bench/infer"
    asking = multiprocessing.get_context("spawn").Process(target=client, args=(theirs, url), daemon=True)
    asking.start()
    loop = asyncio.get_running_loop()

    async def asked(times: list[float]) -> np.ndarray[Any, Any]:
        ours.send(times)
        return np.array(await loop.run_in_executor(None, ours.recv))

    rng = np.random.default_rng(3)
    longest = [0.0]
    await asked(poisson(rng, [(0.3 * full, WARM_UP)]))
    apart(children(os.getpid()) - {asking.pid or 0}, {os.getpid(), asking.pid or 0})
    await asked(poisson(rng, [(0.5 * full, WARM_UP)]))
    watching = asyncio.create_task(_watch(longest))
    calm = poisson(rng, [(100.0, seconds)])
    before = time.process_time()
    took = await asked(calm)
    beyond = (time.process_time() - before) / len(calm)
    figures: dict[str, Any] = {"capacity_qps": round(full, 1), "on_time_at_100": round(float((took <= SLO).mean()), 4)}
    for name, factor in (("goodput_1_5x", 1.5), ("goodput_3x", 3.0)):
        times = poisson(rng, [(factor * full, seconds)])
        took = await asked(times)
        figures[name] = round(float((took <= SLO).sum()) / seconds / full, 4)
        await asyncio.sleep(1.0)
    times = poisson(rng, [(0.5 * full, 2.0), (2.0 * full, 1.0), (0.5 * full, 2.0)])
    missed = int(((await asked(times)) > SLO).sum())
    least = unavoidable(times, full)
    watching.cancel()
    ours.send(None)
    asking.join()
    return {
        **figures,
        "cpu_ms_beyond_model": round(1e3 * beyond, 3),
        "burst_missed": missed,
        "burst_unavoidable": least,
        "burst_ratio": round(missed / least, 3) if least else None,
        "longest_stop_ms": round(1e3 * longest[0], 1),
        "load_average": os.getloadavg()[0],
    }


def children(parent: int) -> set[int]:
    """Processes that ``parent`` started."""
    numbers = (int(process.name) for process in Path("/proc").iterdir() if process.name.isdigit())
    return {number for number in numbers if _parent(Path("/proc") / str(number)) == parent}


def apart(executors: Iterable[int], others: Iterable[int]) -> None:
    """Processes that run the model have the last core, those that do not all others, where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return
    for processes, mine in ((executors, {cores[-1]}), (others, set(cores[:-1]))):
        for number in processes:
            for thread in (Path("/proc") / str(number) / "task").iterdir():
                os.sched_setaffinity(int(thread.name), mine)


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0
