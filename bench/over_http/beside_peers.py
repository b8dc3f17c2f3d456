"""Overload beside a peer: mosec with one model, ours with that model, and ours with two faster ones beside it.

    python -m venv peers && peers/bin/pip install mosec onnxruntime
    python bench/over_http/beside_peers.py --mosec peers/bin/python

What ``bench/overload.py --http`` measures with: a model of some five milliseconds a row, bodies of 49 KB, one client on
kept connections, a core for the model and the others for all else; SLO 250 ms from when a query should have been sent.
At 0.5, 1.5 and 3 times what the model can do, the same arrivals for all: ``in time``, of all asked. mosec runs with the
time limit of the SLO, and with each of several queue lengths: the best of each load stands in the table. The accuracies
of our family are nominal (0.90, 0.86, 0.80): the weights are random, what they cost is not.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from bench.over_http.http_overload import (
    SLO,
    WARM_UP,
    apart,
    capacity,
    children,
    client,
    free_port,
    measured_at,
    poisson,
    profiled,
    serving,
)
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import model_path
from sluicegate.sluice.audit.result_log import read_results, result_topics
from sluicegate.streams.records import codec

LOADS = (0.5, 1.5, 3.0)
QUEUES = (8, 32, 1024)
FAMILY = ((0.5, "half", 0.86), (0.25, "quarter", 0.80))
"""(width, name, nominal accuracy) beside the whole model's 0.90."""
_MOSEC = """
import os
import numpy as np
import onnxruntime
from mosec import Server, Worker

class Model(Worker):
    def __init__(self):
        super().__init__()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(os.environ["MODEL"], options, providers=["CPUExecutionProvider"])

    def deserialize(self, data):
        return np.frombuffer(data[-4 * 3 * 64 * 64 :], np.float32).reshape(3, 64, 64)

    def serialize(self, label):
        return str(label).encode()

    def forward(self, data):
        return self.session.run(None, {"image": np.stack(data)})[0].tolist()

if __name__ == "__main__":
    server = Server()
    server.append_worker(Model, num=1, max_batch_size=int(os.environ["BATCH"]), max_wait_time=1)
    server.run()
"""


class Asking:
    """The client, a process of its own."""

    def __init__(self, url: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=client, args=(theirs, url), daemon=True)
        self._process.start()
        self.pid = self._process.pid or 0

    async def ask(self, times: Sequence[float]) -> np.ndarray[Any, Any]:
        """Seconds until each was answered."""
        self._ours.send(times)
        return np.array(await asyncio.get_running_loop().run_in_executor(None, self._ours.recv))

    def end(self) -> None:
        """End it."""
        self._ours.send(None)
        self._process.join()


async def in_time(asking: Asking, full: float, seconds: float) -> tuple[dict[str, float], float]:
    """Answered within the SLO, of all asked, by load; and when the first load began, behind a last warm-up."""
    rng = np.random.default_rng(3)
    found = {}
    await asking.ask(poisson(rng, [(0.5 * full, WARM_UP)]))
    began = time.time()
    for load in LOADS:
        took = await asking.ask(poisson(rng, [(load * full, seconds)]))
        found[f"x{load:g}"] = round(float((took <= SLO).mean()), 4)
        await asyncio.sleep(1.0)
    return found, began


async def ours(served: Catalogue, folder: Path, full: float, seconds: float) -> dict[str, Any]:
    """Ours, and the mean accuracy of what it answered in time, over all loads."""
    async with serving(served, folder) as (base, system):
        asking = Asking(f"{base}/v2/models/bench/infer")
        await asking.ask(poisson(np.random.default_rng(1), [(0.3 * full, WARM_UP)]))
        apart(children(os.getpid()) - {asking.pid}, {os.getpid(), asking.pid})
        found, began = await in_time(asking, full, seconds)
        asking.end()
        accuracies = []
        partitions = await result_topics(system.broker, system.topics)
        async for record in read_results(system.broker, partitions, follow=False):
            outcome = codec.decode_outcome(record).outcome
            if outcome.on_time and outcome.arrival >= began:
                accuracies.append(outcome.accuracy)
    return {**found, "accuracy": round(float(np.mean(accuracies)), 4)}


async def mosec(python: Path, model: Path, full: float, seconds: float, batch: int) -> dict[str, Any]:
    """mosec at the best of the lengths of its queue, load by load."""
    best: dict[str, Any] = {}
    for queue in QUEUES:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "served.py"
            script.write_text(_MOSEC)
            port = free_port()
            command = (str(python), str(script), "--address", "127.0.0.1", "--port", str(port))
            limits = ["--timeout", str(int(1e3 * SLO)), "--capacity", str(queue), "--log-level", "error"]
            process = await asyncio.create_subprocess_exec(
                *command,
                *limits,
                env={**os.environ, "MODEL": str(model), "BATCH": str(batch)},
                stderr=subprocess.DEVNULL,
            )
            try:
                await _listens(port)
                asking = Asking(f"http://127.0.0.1:{port}/inference")
                await asking.ask(poisson(np.random.default_rng(1), [(0.3 * full, WARM_UP)]))
                workers, rest = _of_mosec(process.pid)
                apart(workers, rest | {asking.pid})
                found, _ = await in_time(asking, full, seconds)
                asking.end()
            finally:
                process.send_signal(signal.SIGINT)
                await process.wait()
        print(f"mosec, queue {queue}: {found}", file=sys.stderr)
        best = {load: max(share, best.get(load, 0.0)) for load, share in found.items()}
    return best


def _of_mosec(main: int) -> tuple[set[int], set[int]]:
    """Its processes that run the model, and the others."""
    known, newest = {main}, {main}
    while newest := {child for one in newest for child in children(one)} - known:
        known |= newest
    workers = {one for one in known if b"spawn_main" in (Path("/proc") / str(one) / "cmdline").read_bytes()}
    return workers, known - workers


async def _listens(port: int) -> None:
    async with asyncio.timeout(30.0):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.1)
                continue
            writer.close()
            await asyncio.sleep(3.0)  # its worker loads the model behind that
            return


async def measure(python: Path | None, seconds: float) -> dict[str, Any]:
    """All of them, one after the other."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        served, depth = await profiled(folder)
        profile = served.profiles["conv", "cpu"]
        full = capacity(profile)
        smaller = [await measured_at(folder, depth, w, name=name, accuracy=a) for w, name, a in FAMILY]
        family = Catalogue.of(
            served.apps.values(),
            [*served.variants.values(), *(variant for variant, _ in smaller)],
            [*served.profiles.values(), *(profile for _, profile in smaller)],
        )
        found: dict[str, Any] = {"capacity_qps": round(full, 1)}
        if python is not None:
            batch = max(profile.points, key=lambda point: point.batch / point.median).batch
            model = folder / model_path(served.variants["conv"].digest)
            found["mosec, one model"] = await mosec(python, model, full, seconds, min(16, batch))
        found["sluicegate, one model"] = await ours(served, folder, full, seconds)
        found["sluicegate, three models"] = await ours(family, folder, full, seconds)
        return {**found, "load_average": os.getloadavg()[0]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mosec", type=Path, help="Python of an environment that has mosec and onnxruntime")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load (default 10)")
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(given.mosec, given.seconds)), indent=1))
