"""How long a transaction takes that writes three letters and moves an offset, by each of Kafka's libraries.

One after the other: at once, and ``--pause`` milliseconds after the one before, which has ended for the broker, too. A
hop of exactly-once delivery takes as long, besides reading.

`python bench/records/transactions.py [--kafka kafka://host:port] [--count 200] [--pause 10] [--rounds 2]` starts a
broker of its own where none is named, takes the libraries in turns and writes reports/bench/transactions.json:
`{"rows": [{"library", "pause_ms", "p50_ms", "p90_ms", "p99_ms", "mean_ms"}]}`.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sluicegate.sluice.settings.settings import load
from sluicegate.streams import connect
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.local_kafka.broker import LocalBroker
from sluicegate.streams.ports import Letter, TopicPartition, TopicSpec

LIBRARIES: tuple[Literal["aiokafka", "rdkafka"], ...] = ("aiokafka", "rdkafka")
LETTERS = 3
BODY = bytes(500)


async def transactions(url: str, library: Literal["aiokafka", "rdkafka"], count: int, pause: float) -> dict[str, Any]:
    """What ``count`` of them took, ``pause`` seconds after one another."""
    broker = connect(url, kafka=KafkaSettings(library=library))
    name = f"transactions{uuid.uuid4().hex[:8]}"
    read, written = f"{name}.read", f"{name}.written"
    await broker.admin().create_topics([TopicSpec(name=read), TopicSpec(name=written, partitions=4)])
    writing = broker.transactions(f"{name}/{read}/0")
    member = broker.consumer(topics=[read], group=name)
    took: list[float] = []
    try:
        await writing.start()
        await member.start()
        for number in range(count):
            letters = [Letter(written, BODY, key=f"{number}/{i}".encode()) for i in range(LETTERS)]
            began = time.perf_counter()
            await writing.write(letters, {TopicPartition(read, 0): number}, name)
            took.append(1e3 * (time.perf_counter() - began))
            await asyncio.sleep(pause)
    finally:
        await member.stop()
        await writing.stop()
        await broker.close()
    p50, p90, p99 = np.percentile(took, (50, 90, 99))
    return {
        "library": library, "pause_ms": 1e3 * pause, "p50_ms": p50, "p90_ms": p90, "p99_ms": p99,
        "mean_ms": float(np.mean(took)),
    }  # fmt: skip


@contextmanager
def broker_at(url: str | None) -> Iterator[str]:
    """The one that is named, or one of our own."""
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory() as folder:
        broker = LocalBroker(Path(folder), home=load().home)
        try:
            yield str(broker.start(within=120.0).url)
        finally:
            broker.stop()


def main() -> None:
    """Measure, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--pause", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with broker_at(asked.kafka) as url:
        for _ in range(asked.rounds):
            for library in LIBRARIES:
                for pause in (0.0, 1e-3 * asked.pause):
                    row = asyncio.run(transactions(url, library, asked.count, pause))
                    rows.append(row)
                    print("  ".join(f"{k} {v:.1f}" if isinstance(v, float) else str(v) for k, v in row.items()))
    target = Path("reports/bench/transactions.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
