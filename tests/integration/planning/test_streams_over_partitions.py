"""Streams of an app with a promise over several partitions: each is a key, and keeps its order and its promise."""

import asyncio
import struct
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.outcome import Outcome
from sluicegate.streams import connect
from sluicegate.streams.ports import Letter
from sluicegate.streams.records import codec
from tests.harness import PIXELS, Running, running, settings_for
from tests.integration.planning.test_promises import slow_catalogue

pytestmark = pytest.mark.virtual
PARTITIONS = 3
STREAMS = ("ann", "bob", "cyd", "dan", "eve", "fay")


async def ask(run: Running, number: int, stream: str | None) -> str:
    name = f"q{number}"
    tensor = Tensor("image", "FP32", (1, PIXELS), struct.pack(f"<{PIXELS}f", *(0.0,) * PIXELS))
    message = codec.encode_query(
        name, (tensor,), app="toy", now=run.system.clock.wall(), source="client", parameters={}, stream=stream
    )
    run.sent += 1
    run.ids.append(name)
    letter = Letter(run.topics.queries("toy"), message.value, message.key, message.headers)
    await run.producer.send(letter.topic, letter.value, key=letter.key, headers=letter.headers)
    return name


async def load(run: Running, first: int, count: int, rate: float) -> None:
    for number in range(first, first + count):
        await ask(run, number, STREAMS[number % len(STREAMS)] if number % 4 else None)
        await asyncio.sleep(1.0 / rate)


def by_stream(outcomes: dict[str, Outcome]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes.values():
        found[outcome.stream].append(outcome)
    return {stream: sorted(mine, key=lambda o: o.sequence) for stream, mine in found.items()}


async def test_streams_keep_their_order_and_promise_while_their_partitions_move(tmp_path: Path) -> None:
    settings = settings_for(
        "memory://",
        tmp_path,
        devices=2,
        promises={"toy": {"weakly_hard": [[2, 10]], "partitions": PARTITIONS}},
        worker={"executor": "emulated", "batching": "adaptive"},
        admission={"policy": "sustainable", "mode": "enforce"},
    )
    broker = connect("memory://")
    async with running(settings, broker, catalogue=slow_catalogue()) as run:
        await run.planned()
        assert set((await broker.admin().partitions([run.topics.queries("toy")])).values()) == {PARTITIONS}
        await load(run, 0, 120, 40.0)
        async with running(settings, broker, catalogue=slow_catalogue(), roles=("admission",), close=False):
            await load(run, 120, 160, 40.0)  # the second door takes some of the partitions
        await load(run, 280, 120, 40.0)  # and gives them back
        report = await run.settled()
        outcomes = by_stream(await run.outcomes())
    assert report.balanced
    assert report.promises_broken == 0
    assert all(stream.agrees for stream in report.promises)
    assert set(STREAMS) < set(outcomes)
    own = set(outcomes) - set(STREAMS)
    assert own == {f"toy#{number}" for number in range(PARTITIONS)}  # without a key: by partition
    for stream, mine in outcomes.items():
        answered = [o for o in mine if o.device is not None]
        moves = sum(before.device != after.device for before, after in pairwise(answered))
        assert moves <= 2, stream  # with a plan, not with each query
        for device in ("d0", "d1"):
            ended = [o.at for o in answered if o.device == device]
            assert ended == sorted(ended), stream
        assert sum(o.on_time for o in mine) > 0.8 * len(mine)
    assert {o.device for mine in outcomes.values() for o in mine if o.device} == {"d0", "d1"}
