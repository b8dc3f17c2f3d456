"""A promise on a running system, at 80 % of the bound that is announced, beside best effort at capacity.

    python -m tests.integration.planning.promises_live                     # ten minutes, embedded broker, emulated
    python -m tests.integration.planning.promises_live --broker kafka      # an Apache Kafka of its own
    python -m tests.integration.planning.promises_live --executor onnx     # models of the demo
    python -m tests.integration.planning.promises_live --rows 4 --slo-ms 600 --hop-ms 300  # of each strict query

One process holds broker (but for Kafka), stages and load. Prints, and adds to reports/promises/live.json: what the
audit counted from the topics, how long the event loop stood still, and the machine's load before and after. Exits with
1 where a window broke.
"""

import argparse
import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sluicegate.domain.models.app import App, QueryClass
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.tensor import Tensor, TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.policies.admission.sustainable import SustainableAdmission
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import digest_of, load_catalogue, save_catalogue
from sluicegate.profiles.demo.build_models import build
from sluicegate.stages.admission import AdmissionStage
from sluicegate.streams import connect
from sluicegate.streams.local_kafka.broker import LocalBroker
from sluicegate.streams.records import codec
from tests.harness import Running, running, settings_for

TARGET = Path("reports/promises/live.json")
STRICT, LOOSE = "signals", "digits"
LOOSE_SLO = 0.6
ROWS, MOST_ROWS = 8, 32
"""Of a query of best effort, for each of a strict one, and at most."""
WARM = {"memory": 5.0, "kafka": 60.0}
"""Seconds of best effort alone: a broker that has just begun compiles its own code for most of a minute."""
SHARE = 0.8
HOPS = {"memory": 20.0, "kafka": 80.0}
"""Milliseconds from arrival to the slice, where nothing else is asked for: three topics on Apache Kafka."""


def real(folder: Path, slo: float) -> Catalogue:
    """Models of the demo, the costliest for best effort; latencies as they are at most on a machine that does more."""
    chosen = {"wave8": (0.008, 0.072), "conv512": (0.002, 0.04)}
    built = [b for b in build((STRICT, LOOSE)) if b.variant.name in chosen]
    profiles = [
        Profile(
            variant=b.variant.name,
            device_type="cpu",
            points=tuple(
                BatchLatency(rows, s, 1.3 * s) for rows, s in zip((1, 64), chosen[b.variant.name], strict=True)
            ),
            load=0.5,
        )
        for b in built
    ]
    apps = [replace(b.app, slo=slo) for b in built if b.app.name == STRICT]
    apps += [replace(b.app, slo=LOOSE_SLO, query_class=QueryClass.BEST_EFFORT) for b in built if b.app.name == LOOSE]
    catalogue = Catalogue.of(apps, [b.variant for b in built], profiles)
    save_catalogue(folder, catalogue, {digest_of(b.model): b.model for b in built})
    return load_catalogue(folder)


def emulated(strict_slo: float) -> Catalogue:
    """8 + b ms and 10 + b ms, a tenth more at the 95th percentile."""
    apps = [
        App(name=name, slo=slo, query_class=kind, inputs=(TensorSpec("x", "FP32", (4,)),), max_rows=MOST_ROWS,
            outputs=(TensorSpec("scores", "FP32", (2,)), TensorSpec("label", "INT64", ())))
        for name, slo, kind in ((STRICT, strict_slo, QueryClass.STRICT), (LOOSE, LOOSE_SLO, QueryClass.BEST_EFFORT))
    ]  # fmt: skip
    variants = [Variant(name=f"{app.name}-v", app=app.name, accuracy=0.9) for app in apps]
    profiles = [
        Profile(
            variant=variant.name,
            device_type="cpu",
            points=tuple(BatchLatency(b, setup + 0.001 * b, 1.1 * (setup + 0.001 * b)) for b in (1, 32)),
            load=0.05,
        )
        for variant, setup in zip(variants, (0.008, 0.010), strict=True)
    ]
    return Catalogue.of(apps, variants, profiles)


async def stood(longest: list[float], stop: asyncio.Event) -> None:
    """Notes by how much each tick of 5 ms came too late.

    All records are kept here until they are counted, where a running system lets go of them: a collector that visits
    them again and again stands still for a third of a second after some minutes.
    """
    loop = asyncio.get_running_loop()
    while not stop.is_set():
        if len(longest) % 400 == 0:
            gc.freeze()
        before = loop.time()
        await asyncio.sleep(0.005)
        longest.append(loop.time() - before - 0.005)


def bound_of(run: Running, rows: int) -> tuple[int, float]:
    """Queries of ``rows`` rows that are let in, in so many seconds."""
    door = next(stage for stage in run.stages if isinstance(stage, AdmissionStage))
    policy = door.core.policy
    assert isinstance(policy, SustainableAdmission)
    found = policy.bound_of(STRICT, rows)
    assert found is not None and found[0]
    return found


async def ask(run: Running, app: str, rows: int, number: int) -> None:
    spec = run.system.apps[app].inputs[0]
    tensor = Tensor(spec.name, spec.datatype, (rows, *spec.row_shape), bytes(rows * spec.row_bytes))
    message = codec.encode_query(
        f"{app}-{number}", (tensor,), app=app, now=run.system.clock.wall(), source="live", parameters={}
    )
    await run.producer.send(run.topics.queries(app), message.value, key=message.key, headers=message.headers)
    run.sent += 1


async def loose(run: Running, rows: int, rate: float, stop: asyncio.Event) -> None:
    """Best effort, in tens: ``rate`` rows a second."""
    number = 0
    while not stop.is_set():
        for _ in range(10):
            number += 1
            await ask(run, LOOSE, rows, number)
        await asyncio.sleep(10 * rows / rate)


async def strict(run: Running, rows: int, seconds: float) -> None:
    """At ``SHARE`` of the bound that is announced at the time, never more of it in any window."""
    loop, number = asyncio.get_running_loop(), 0
    due = loop.time()
    until = due + seconds
    while due < until:
        most, window_s = bound_of(run, rows)
        due = max(due + window_s / (SHARE * most), loop.time() - 0.01)
        if due > loop.time():
            await asyncio.sleep(due - loop.time())
        number += 1
        await ask(run, STRICT, rows, number)


@asynccontextmanager
async def kafka(folder: Path) -> AsyncIterator[str]:
    """Its address, while it runs."""
    broker = LocalBroker(folder, home=Path(os.environ.get("SLUICE_HOME", ".sluice")), heap_mb=256)
    url = (await asyncio.to_thread(broker.start, within=120.0)).url
    assert url is not None
    try:
        yield url
    finally:
        await asyncio.to_thread(broker.stop, within=5.0)


async def tried(url: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One run."""
    broker, rows, slo = options.broker, options.rows, options.slo_ms / 1e3
    hop_ms = HOPS[broker] if options.hop_ms is None else options.hop_ms
    settings = settings_for(
        url,
        folder,
        devices=1,
        promises={STRICT: {"weakly_hard": [[2, 10]]}},
        worker={"executor": options.executor, "batching": "adaptive"},
        admission={"policy": "sustainable", "mode": "enforce", "hop_ms": hop_ms},
        planner={"variants_per_device": 2},
    )
    late: list[float] = []
    stop = asyncio.Event()
    models = folder / "models"
    catalogue = emulated(slo) if options.executor == "emulated" else real(models, slo)
    async with running(settings, connect(url), catalogue=catalogue, models=models) as run:
        await run.planned()
        tasks = [
            asyncio.create_task(stood(late, stop)),
            asyncio.create_task(loose(run, min(ROWS * rows, MOST_ROWS), options.loose, stop)),
        ]
        await asyncio.sleep(WARM[broker])
        first, began = bound_of(run, rows), run.system.clock.wall()
        await strict(run, rows, options.seconds)
        last = bound_of(run, rows)
        stop.set()
        await asyncio.gather(*tasks)
        await asyncio.sleep(2 * LOOSE_SLO)  # counting holds up the loop: all have ended before
        report = await run.settled(within=60.0)
        loose_ends = [one for one in (await run.outcomes()).values() if one.app == LOOSE]
    late.sort()
    (stream,) = report.promises
    return {
        "queries": stream.queries,
        "rejected": stream.rejected,
        "misses": stream.misses,
        "broken_windows": stream.broken,
        "unannounced": stream.unannounced,
        "broken_by_minute": dict(sorted(Counter(int(at - began) // 60 for at in stream.broken_at).items())),
        "first_broken_s": round(min(stream.broken_at) - began, 1) if stream.broken_at else None,
        "best_effort": dict(Counter(str(one.reason or one.kind) for one in loose_ends)),
        "balanced": report.balanced,
        "bound_qps": [round(most / window_s) for most, window_s in (first, last)],
        "loop_late_ms": {q: round(1e3 * late[min(len(late) - 1, int(p * len(late)))], 1)
                         for q, p in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("most", 1.0))},
    }  # fmt: skip


async def _main(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.broker == "memory":
            return await tried("memory://", folder, options)
        async with kafka(folder / "kafka") as url:
            return await tried(url, folder, options)


def main(argv: Sequence[str] | None = None) -> int:
    """One run, told and kept."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--broker", choices=("memory", "kafka"), default="memory")
    parser.add_argument("--executor", choices=("emulated", "onnx"), default="emulated")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--slo-ms", type=float, default=200.0)
    parser.add_argument("--hop-ms", type=float)
    parser.add_argument("--loose", type=float, default=720.0)
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args(argv)
    load = os.getloadavg()[0]
    found = asyncio.run(_main(options))
    found = {
        "broker": options.broker,
        "executor": options.executor,
        "rows": options.rows,
        "slo_ms": options.slo_ms,
        "loose_rows_qps": options.loose,
        "seconds": options.seconds,
        **found,
        "machine_load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(TARGET.read_text()) if TARGET.exists() else []
    TARGET.write_text(json.dumps([*known, found], indent=1) + "\n")
    sys.stdout.write(json.dumps(found) + "\n")
    return int(found["broken_windows"] > 0)


if __name__ == "__main__":
    sys.exit(main())
