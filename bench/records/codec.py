"""Microseconds of CPU that a query costs in the codec, hop by hop: JSON beside raw tensors, and the memory log.

``python bench/records/codec.py [--elements 784] [--json]``. One process, best of five rounds.
"""

import argparse
import asyncio
import json
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from sluicegate.domain.models.app import App
from sluicegate.domain.models.tensor import Tensor, TensorSpec
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.plan import Epoch
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import Record, TopicPartition, TopicSpec
from sluicegate.streams.records import codec

NOW = 1_800_000_000.0
ROUNDS = 5


def cpu_us(step: Callable[[], Any], count: int = 2000) -> float:
    """CPU microseconds of one ``step``, best of the rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(count):
            step()
        best = min(best, (time.process_time() - began) / count)
    return round(1e6 * best, 2)


def record_of(message: codec.Message) -> Record:
    """The message as it is read."""
    return Record("t", 0, 7, message.key, message.value, message.headers, NOW)


def measure_codec(elements: int) -> dict[str, float]:
    """Each encoder and decoder, for one row of ``elements`` FP32 values and ten scores out."""
    app = App(name="digits", slo=0.2, inputs=(TensorSpec("image", "FP32", (elements,)),))
    chance = np.random.default_rng(1)
    image = (Tensor("image", "FP32", (1, elements), chance.random(elements, np.float32).tobytes()),)
    scores = (Tensor("scores", "FP32", (1, 10), chance.random(10, np.float32).tobytes()),)
    outcome = Outcome(
        query_id="a" * 32, app="digits", kind=OutcomeKind.ANSWERED, arrival=NOW, deadline=NOW + 0.2, at=NOW + 0.1,
        variant="conv32", accuracy=0.963, device="cpu0", slice="whole", epoch=(1, 2), policy="deadline", batch_size=8,
    )  # fmt: skip
    found: dict[str, float] = {}
    for name, binary in (("JSON", False), ("raw", True)):

        def encode(binary: bool = binary) -> codec.Message:
            parameters = {"latency_ms": 200}
            return codec.encode_query("a" * 32, image, app="digits", now=NOW, parameters=parameters, binary=binary)

        record = record_of(encode())
        found[f"encode_query, {name}"] = cpu_us(encode)
        found[f"decode_query, {name}"] = cpu_us(partial(codec.decode_query, record, app, codec.DEFAULT_LIMITS, NOW))
    query = codec.decode_query(record, app, codec.DEFAULT_LIMITS, NOW)
    admitted = record_of(codec.encode_admitted(query))
    work = record_of(codec.encode_work(query, epoch=Epoch(1, 2), slice="whole"))
    result = record_of(codec.encode_outcome(outcome, scores))
    steps: dict[str, Callable[[], Any]] = {
        "encode_admitted": lambda: codec.encode_admitted(query),
        "decode_admitted": lambda: codec.decode_admitted(admitted),
        "encode_work": lambda: codec.encode_work(query, epoch=Epoch(1, 2), slice="whole"),
        "decode_work": lambda: codec.decode_work(work),
        "encode_outcome": lambda: codec.encode_outcome(outcome, scores),
        "decode_outcome": lambda: codec.decode_outcome(result),
    }
    return found | {name: cpu_us(step) for name, step in steps.items()}


async def measure_log(count: int = 20_000) -> dict[str, float]:
    """One record through the memory log: a send, and a read in batches."""
    broker = MemoryBroker()
    await broker.admin().create_topics([TopicSpec(name="t")])
    producer = broker.producer()
    await producer.start()
    consumer = broker.consumer(partitions=[TopicPartition("t", 0)])
    await consumer.start()
    headers = tuple((f"header-{i}", b"x" * 20) for i in range(6))
    began = time.process_time()
    for _ in range(count):
        await producer.send("t", b"x" * 3136, key=b"a" * 32, headers=headers)
    sent = time.process_time()
    left = count
    while left:
        left -= len(await consumer.get_many(wait=1.0))
    read = time.process_time()
    await broker.close()
    return {
        "memory send": round(1e6 * (sent - began) / count, 2),
        "memory get_many, a record": round(1e6 * (read - sent) / count, 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=784, help="FP32 values of the input")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args()
    found = measure_codec(chosen.elements) | asyncio.run(measure_log())
    machine = (
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    if chosen.json:
        print(json.dumps({"machine": machine, "elements": chosen.elements, "cpu_us": found}, indent=2))
        return
    print(f"{machine}; one row of {chosen.elements} FP32; CPU microseconds")
    for name, value in found.items():
        print(f"  {name:28}{value:9.2f}")


if __name__ == "__main__":
    main()
