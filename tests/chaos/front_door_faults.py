"""Faults that come in by the front door: inputs that end executors."""

import asyncio
import random
import struct
import time

from sluicegate.domain.models.tensor import Tensor
from sluicegate.streams.records import codec
from tests.chaos.faulty import CRASHES, HANGS
from tests.chaos.stack import PIXELS, Stack


async def poison_executors(stack: Stack, rng: random.Random) -> str:
    """Queries that end or hold the executor which runs them, no two alike, and one of them again."""
    producer = stack.broker.producer()
    await producer.start()
    first = [rng.choice((CRASHES, HANGS)) + rng.randrange(1, 1000) for _ in range(3)]
    for number, value in enumerate((*first, first[0])):
        tensor = Tensor("image", "FP32", (1, PIXELS), struct.pack(f"<{PIXELS}f", value, *(0.0,) * (PIXELS - 1)))
        told = {"latency_ms": 5000}
        name = f"poison-{rng.random()}-{number}"
        made = codec.encode_query(name, (tensor,), app="toy", now=time.time(), parameters=told)
        await (await producer.send(stack.topics.queries("toy"), made.value, key=made.key, headers=made.headers))
        stack.sent["toy"] = stack.sent.get("toy", 0) + 1
        await asyncio.sleep(rng.uniform(0.0, 1.0))
    await producer.stop()
    return "toy"
