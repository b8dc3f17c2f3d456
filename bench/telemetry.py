"""What counting costs: all counts of one query alone, then the memory pipeline with meters, with meters that count
nothing, and with traces, in turns.

Run it alone: `python bench/telemetry.py [--rounds 3] [--seconds 4] [--qps 1000]`; writes reports/bench/telemetry.json.
The generator's own cost is measured once and taken off, as in bench/pipeline.py.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typing_extensions import override

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import pipeline
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.stages.telemetry import metrics, telemetry

COUNTING = ("add", "set", "observe", "ended")


@contextmanager
def silent() -> Iterator[None]:
    """Meters count nothing."""
    kept = {name: getattr(metrics.Meters, name) for name in COUNTING}
    for name in COUNTING:
        setattr(metrics.Meters, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(metrics.Meters, name, method)


@contextmanager
def traced() -> Iterator[None]:
    """Every query is sampled; spans go nowhere."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    from sluicegate.stages.telemetry.tracing import tracing_with

    class Nowhere(SpanExporter):
        @override
        def export(self, spans: Any) -> SpanExportResult:
            del spans
            return SpanExportResult.SUCCESS

    tracing = tracing_with(Nowhere(), sample=1.0, service="bench")
    made = telemetry.Telemetry.__init__

    def sampled(self: telemetry.Telemetry, **given: Any) -> None:
        made(self, **{**given, "tracing": tracing})

    telemetry.Telemetry.__init__ = sampled  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        telemetry.Telemetry.__init__ = made  # type: ignore[method-assign]
        tracing.close()


@contextmanager
def counted() -> Iterator[None]:
    """As it is."""
    yield


def counts_alone(queries: int = 100_000) -> float:
    """CPU seconds a query of all that is counted for one that is answered alone in its batch; the best of five."""
    meters = metrics.Meters()
    outcome = Outcome(
        query_id="q", app="bench", kind=OutcomeKind.ANSWERED, arrival=10.0, deadline=11.0, at=10.004, variant="flat",
        device="d0", accuracy=0.9, queue_s=0.001,
    )  # fmt: skip
    best = float("inf")
    for _ in range(5):
        started = time.process_time()
        for _ in range(queries):
            meters.add("sluice_demand_rows", "bench", by=1)
            meters.add("sluice_queries_admitted", "bench")
            meters.add("sluice_device_busy_seconds", "d0", "whole", by=0.001)
            meters.observe("sluice_batch_rows", 1, "d0", "flat")
            meters.observe("sluice_batch_seconds", 0.001, "d0", "flat")
            meters.ended("worker d0", outcome)
        best = min(best, (time.process_time() - started) / queries)
    return best


async def main(rounds: int, seconds: float, qps: float) -> dict[str, Any]:
    """CPU a query of each way, the median of its rounds, and what it is to counting nothing."""
    ways = {"nothing counted": silent, "counted": counted, "counted and traced": traced}
    found: dict[str, list[float]] = {name: [] for name in ways}
    alone = 1e6 * counts_alone()
    print(f"all counts of a query, alone: {alone:.2f} us", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        await pipeline.measure_generator("memory://", seconds, qps, "aiokafka")
        load = pipeline.Load(seconds=seconds, qps=qps)
        for _ in range(rounds):
            for name, way in ways.items():
                with way():
                    row = await pipeline.measure(name, "memory://", Path(folder), load)
                found[name].append(row["cpu_us"])
                print(f"{name:20} {row['cpu_us']:6.0f} us, lost {row['lost']}", flush=True)
    least = {name: min(values) for name, values in found.items()}
    middle = {name: statistics.median(values) for name, values in found.items()}
    base = middle["nothing counted"]
    return {
        "rounds": found,
        "counts_alone_us": alone,
        "counts_alone_ratio": alone / base,
        "least_us": least,
        "median_us": middle,
        "ratio_of_medians": {name: value / base for name, value in middle.items()},
        "ratio_of_least": {name: value / least["nothing counted"] for name, value in least.items()},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--qps", type=float, default=1000.0)
    given = parser.parse_args()
    result = asyncio.run(main(given.rounds, given.seconds, given.qps))
    print(json.dumps({name: result[name] for name in result if name != "rounds"}, indent=1))
    target = Path("reports/bench/telemetry.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=2))
