"""What the child process costs: one batch run in this process, and the same batch through the ONNX executor.

Both start from the queries' own buffers, as they come from the log: in this process they are joined, viewed as an array
and run; through the executor they cross a socket pair, and the outputs come back. The two are interleaved. Latency is
wall time around it, in microseconds; CPU is that of this process alone, which is what a busy pipeline has to pay.

    python bench/executor_roundtrip.py                 about ten seconds
    python bench/executor_roundtrip.py --repeats 50    a quick look
"""

import argparse
import asyncio
import itertools
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import Tensor, split_rows
from sluicegate.executors.demo_catalogue import machine
from sluicegate.executors.dtypes import NUMPY_TYPES
from sluicegate.executors.onnx.onnx_executor import OnnxExecutor
from sluicegate.executors.onnx.runtime_options import Runtime
from sluicegate.executors.onnx.sessions import Sessions
from sluicegate.executors.profile_runner import random_rows
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.profiles.demo import digits
from sluicegate.profiles.demo.build_models import BuiltModel, build

BATCHES = (1, 2, 4, 8, 16, 32, 64)
MODELS = ("lin49", "conv64")


def in_process(sessions: Sessions, app: App, name: str, queries: list[tuple[Tensor, ...]]) -> None:
    """What a worker without a child would do with a batch."""
    inputs = {}
    for i, spec in enumerate(app.inputs):
        joined = b"".join(query[i].data for query in queries)
        inputs[spec.name] = np.frombuffer(joined, NUMPY_TYPES[spec.datatype]).reshape(len(queries), *spec.row_shape)
    outputs, _, _ = sessions.run(name, inputs, len(queries))
    tensors = [Tensor(n, "", a.shape, a.data) for n, a in outputs.items()]
    split_rows(tensors, [1] * len(queries))


async def through_child(executor: OnnxExecutor, name: str, queries: list[tuple[Tensor, ...]]) -> None:
    """What a worker does."""
    done = await executor.run(name, queries, len(queries))
    split_rows(done.outputs, [1] * len(queries))


async def measure(folder: Path, built: list[BuiltModel], repeats: int) -> list[dict[str, Any]]:
    """One row a model and batch size."""
    catalogue = Catalogue.of([digits.APP], [b.variant for b in built], [])
    save_catalogue(folder, catalogue, {b.variant.digest: b.model for b in built})
    sessions = Sessions(Runtime())
    executor = OnnxExecutor(folder, catalogue.apps)
    await executor.start()
    app = digits.APP
    for b in built:
        path = folder / b.variant.model
        sessions.load(b.variant.name, path, b.variant.digest, [s.name for s in app.outputs], app.inputs, max(BATCHES))
        await executor.load(b.variant, max_batch=max(BATCHES))
    rows = random_rows(app, max(BATCHES), 0)
    found = []
    for name, batch in itertools.product([b.variant.name for b in built], BATCHES):
        wall: dict[str, list[float]] = {"here": [], "child": []}
        cpu: dict[str, list[float]] = {"here": [], "child": []}
        for _ in range(repeats):
            for kind in wall:
                begun, used = time.perf_counter(), time.process_time()
                if kind == "here":
                    in_process(sessions, app, name, rows[:batch])
                else:
                    await through_child(executor, name, rows[:batch])
                wall[kind].append(time.perf_counter() - begun)
                cpu[kind].append(time.process_time() - used)
        found.append({"model": name, "batch": batch, **_summary(wall, cpu)})
    await executor.close()
    return found


def _summary(wall: dict[str, list[float]], cpu: dict[str, list[float]]) -> dict[str, float]:
    """Microseconds."""
    row = {}
    for kind, times in wall.items():
        row[f"{kind}_p50"] = 1e6 * float(np.median(times))
        row[f"{kind}_p95"] = 1e6 * float(np.quantile(times, 0.95))
        row[f"{kind}_cpu"] = 1e6 * float(np.mean(cpu[kind]))
    row["added_p50"] = row["child_p50"] - row["here_p50"]
    return row


def main() -> int:
    """Measure, print, keep under --out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("reports/bench"))
    asked = parser.parse_args()
    built = [b for b in itertools.islice(build(["digits"]), 5) if b.variant.name in MODELS]
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measure(Path(folder), built, asked.repeats))
    lines = [f"{machine()}, load {os.getloadavg()[0]:.1f}, {asked.repeats} batches of each, microseconds"]
    columns = ("here p50", "p95", "cpu", "child p50", "p95", "cpu", "added", "a query")
    lines.append(f"{'model':8} {'batch':>5}" + "".join(f"{name:>10}" for name in columns))
    for r in rows:
        cells = [r[f"{kind}_{what}"] for kind in ("here", "child") for what in ("p50", "p95", "cpu")]
        cells += [r["added_p50"], r["added_p50"] / r["batch"]]
        lines.append(f"{r['model']:8} {r['batch']:5d}" + "".join(f"{cell:10.1f}" for cell in cells))
    print("\n".join(lines))
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "executor_roundtrip.txt").write_text("\n".join(lines) + "\n")
    (asked.out / "executor_roundtrip.json").write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
