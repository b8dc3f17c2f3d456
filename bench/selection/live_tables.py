"""Selection tables in a running system: what they promise beside what came of it, at several constant loads.

One process holds broker and stages; devices are emulated by the profile, or run the demo's ONNX models, one core each.
Loads are shares of what the workers answer with the best batch of any variant. Queries are Poisson; a load is settled
for two seconds before anything is counted. Tables are those that the system publishes by itself; queries that none
covers (a load above what tables can promise) are served without a promise, and are not compared.

    python bench/selection/live_tables.py                              # emulated devices
    python bench/selection/live_tables.py --executor onnx --app text   # builds and profiles the demo's models once

Exits with 1 where a promise is not held: accuracy by more than 3 standard errors, violations beyond bound and hops.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sluicegate.domain.models.tensor import Tensor
from sluicegate.planner.mdp.mdp_model import SelectionModel, candidates, pareto_front
from sluicegate.planner.policy_tables.promise_monitor import held
from sluicegate.planner.policy_tables.table_library import peak_rate
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.audit.result_log import read_results
from sluicegate.sluice.catalogue.open_catalogue import open_catalogue
from sluicegate.sluice.offline.table_check import counted, published
from sluicegate.sluice.settings.settings import load
from sluicegate.sluice.system.process_stages import stages_of
from sluicegate.sluice.system.system import System
from sluicegate.stages.runtime.supervisor import run_stages
from sluicegate.streams import connect
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.records import codec, control

ROLES = ("admission", "router", "worker", "planner", "sink")
SETTLE = 2.0
ADAPT = 10.0
"""Seconds at the first load, before anything is counted: models may turn out slower than profiled."""


async def offer(system: System, app: str, qps: float, seconds: float, rng: random.Random) -> int:
    """Send Poisson arrivals of zeros; returns how many."""
    tensors = tuple(
        Tensor(s.name, s.datatype, (1, *s.row_shape), bytes(s.row_bytes)) for s in system.catalogue.apps[app].inputs
    )
    loop = asyncio.get_running_loop()
    at, end, sent = loop.time(), loop.time() + seconds, 0
    while at < end:
        await asyncio.sleep(max(0.0, at - loop.time()))
        message = codec.encode_query(uuid.uuid4().hex, tensors, app=app, now=system.clock.wall())
        await system.producer.send(system.topics.queries(app), message.value, key=message.key, headers=message.headers)
        sent += 1
        at += rng.expovariate(qps)
    return sent


async def library_there(system: System) -> str:
    """Wait until the library is published; what was said of it."""
    status = TopicPartition(system.topics.status, 0)
    async for record in read_results(system.broker, [status], follow=True):
        said = control.decode_announce(record.value) if record.value else None
        if said is not None and said.state in {"ready", "none"}:
            return said.detail
    raise AssertionError("a topic that is followed does not end")


async def measure(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """A row a load."""
    settings = load(
        apps=(arguments.app,),
        devices=tuple({"name": f"cpu{i}", "type": "cpu"} for i in range(arguments.workers)),
        worker={"batching": "table", "executor": arguments.executor, "guard_s": arguments.guard_ms / 1e3},
        planner={"name": "allocation"},
        tables={"margin": arguments.margin, "hop_s": arguments.hop_ms / 1e3, "phases": arguments.phases},
        slo_s={arguments.app: arguments.slo_ms / 1e3} if arguments.slo_ms else None,
        runs=folder,
    )
    catalogue, models = open_catalogue(settings)
    broker = connect("memory://")
    producer = broker.producer()
    await producer.start()
    system = System(settings, catalogue, models, broker, producer, folder)
    await system.create_topics()
    stop = asyncio.Event()
    serving = asyncio.create_task(run_stages(stages_of(system, ROLES), stop))
    try:
        print(await library_there(system), file=sys.stderr)
        first = arguments.loads[0] * peak(catalogue, arguments.app, arguments.workers)
        await offer(system, arguments.app, first, ADAPT, random.Random(0))
        return [await at_load(system, arguments, share) for share in arguments.loads]
    finally:
        stop.set()
        await serving
        system.close()
        await producer.stop()
        await broker.close()


async def at_load(system: System, arguments: argparse.Namespace, share: float) -> dict[str, Any]:
    """Offer one load, and compare."""
    qps = share * peak(system.catalogue, arguments.app, arguments.workers)
    rng = random.Random(int(1e6 * share))
    await offer(system, arguments.app, qps, SETTLE, rng)
    began = system.clock.wall()
    sent = await offer(system, arguments.app, qps, arguments.seconds, rng)
    until = system.clock.wall()
    await asyncio.sleep(1.0 + system.catalogue.apps[arguments.app].slo)
    tables = await published(system.broker, system.topics)
    found = held(await counted(system.broker, system.topics, after=began, until=until + 0.6), tables)
    if found is None:
        sys.exit(f"nothing was answered in time under a table at {qps:.4g} queries/s; look at the workers' log")
    covered = min(1.0, found.queries / sent)
    return {"qps": qps, "covered": covered, **asdict(found), "held": found.accuracy_held and found.violation_held}


def peak(catalogue: Catalogue, app: str, workers: int) -> float:
    """Queries/s that the workers answer with the best batch of any variant."""
    front = pareto_front(candidates(catalogue, app, "cpu"))
    return peak_rate(SelectionModel(variants=front, slo=catalogue.apps[app].slo, workers=workers, qps=0.0))


def table(rows: list[dict[str, Any]]) -> str:
    """For people: promised beside observed; ``by hops``: share of queries that came later than tables assume."""
    header = ("queries/s", "queries", "by a table", "accuracy", "observed", "violation", "by hops", "observed", "held")
    lines = [header] + [
        (
            f"{r['qps']:.1f}",
            f"{r['queries']}",
            f"{r['covered']:.1%}",
            f"{r['expected_accuracy']:.4f}",
            f"{r['observed_accuracy']:.4f} +-{r['standard_error']:.4f}",
            f"{r['expected_violation']:.2g}",
            f"{r['delayed']:.4f}",
            f"{r['observed_violation']:.4f}",
            "yes" if r["held"] else "NO",
        )
        for r in rows
    ]
    return "\n".join("".join(cell.rjust(18 if i == 4 else 11) for i, cell in enumerate(line)) for line in lines)


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executor", choices=["emulated", "onnx"], default="emulated")
    parser.add_argument("--app", default="text")
    parser.add_argument("--workers", type=int, default=max(1, len(os.sched_getaffinity(0))))
    parser.add_argument("--loads", type=lambda text: [float(x) for x in text.split(",")], default=[0.2, 0.4, 0.6])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--slo-ms", type=float)
    parser.add_argument("--margin", type=float, default=1.1, help="factor on profiled p95, for executions that vary")
    parser.add_argument("--guard-ms", type=float, default=5.0)
    parser.add_argument("--hop-ms", type=float, default=5.0)
    parser.add_argument("--phases", type=int, default=1, help="groups of turns told apart, told by the router")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measure(arguments, Path(folder)))
    print(json.dumps(rows, indent=1) if arguments.json else table(rows))
    sys.exit(0 if all(r["held"] for r in rows) else 1)


if __name__ == "__main__":
    main()
