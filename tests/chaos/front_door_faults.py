"""Faults that come in by the front door, and deaths that make no noise.

Inputs that end executors, connections that say nothing, records of strangers, a client who asks for all there is; a
reader or a solver that stands still. Who is innocent and asks at a front is counted as sent: an answer that does not
come within ``_SERVED`` seconds is a query lost.
"""

import asyncio
import os
import random
import signal
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.plan import NO_EPOCH, Plan
from sluicegate.sluice.audit.result_log import read_results
from sluicegate.streams.ports import TopicPartition
from sluicegate.streams.records import codec, control
from tests.chaos.faulty import CRASHES, HANGS
from tests.chaos.stack import DEVICES, PIXELS, Stack
from tests.harness import free_port
from tests.integration.hostile.test_hostile_control import hostile
from tests.integration.hostile.test_strangers import forged
from tests.outside.fronts import BODY, INFER

GREEDY = "greedy"
"""Who asks for all there is."""
_SERVED = 5.0
_GRPC = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HALVES = (b"", INFER, INFER + b"Content-Length: 500\r\n\r\n{", INFER + b"Transfer-Encoding: chunked\r\n\r\n5\r\n12")
"""What connections say before they say no more."""


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


async def half_open(stack: Stack, rng: random.Random) -> str:
    """A thousand connections to the fronts that stay half open, for seconds."""
    await _besieged(stack, rng.uniform(2.0, 4.0))
    return "front"


async def open_front(stack: Stack, point: str) -> None:
    """Fronts in a process of their own, which serves."""
    stack.front = http, grpc = free_port(), free_port()
    told = {"SLUICE_HTTP__PORT": str(http), "SLUICE_GRPC__PORT": str(grpc)}
    await stack.start("front", ["http", "grpc"], point, **told)
    end = time.monotonic() + 300.0
    while not await asyncio.to_thread(_ask, http):
        assert time.monotonic() < end, "the front serves nobody"
        await asyncio.sleep(0.2)
    stack.sent["toy"] = stack.sent.get("toy", 0) + 1


def _ask(port: int) -> bool:
    url = f"http://127.0.0.1:{port}/v2/models/toy/infer"
    honest = urllib.request.Request(url, BODY, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(honest, timeout=10.0) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False


async def _besieged(stack: Stack, seconds: float) -> None:
    ports, stop = stack.front, threading.Event()
    besieging = asyncio.create_task(asyncio.to_thread(_hold_open, ports, stop))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        since = time.monotonic()
        while not (served := await asyncio.to_thread(_ask, ports[0])) and time.monotonic() < since + _SERVED:
            await asyncio.sleep(0.1)
        stack.sent["toy"] += 1
        if not served:
            break
    stop.set()
    await besieging


def _hold_open(ports: tuple[int, int], stop: threading.Event) -> None:
    with ExitStack() as held:
        for number in range(1000):
            if stop.is_set():
                break
            sock = held.enter_context(socket.socket())
            sock.settimeout(1.0)
            with suppress(OSError):
                sock.connect(("127.0.0.1", ports[number % 5 == 4]))
                sock.sendall(_GRPC if number % 5 == 4 else _HALVES[number % len(_HALVES)])
        stop.wait()


async def strangers(stack: Stack, rng: random.Random) -> str:
    """Records on control and metrics topics that no stage wrote: what cannot be, and what a stage might have said."""
    plan = await _newest(stack)
    now = time.time()
    wave = [(kind, key, value) for _, kind, key, value in hostile(plan, now) if kind != "results"]
    wave += [one for _ in range(10) for one in forged(plan, now, rng, DEVICES)]
    rng.shuffle(wave)
    producer = stack.broker.producer()
    await producer.start()
    for kind, key, value in wave:
        await producer.send(getattr(stack.topics, kind), value, key=key)
        await asyncio.sleep(0.01)
    await producer.flush()
    await producer.stop()
    stack.kills += len(DEVICES)  # where no key is set, a plan that is made up may have workers join anew
    return f"{len(wave)} records"


async def _newest(stack: Stack) -> Plan:
    partition = TopicPartition(stack.topics.plan, 0)
    records = [r async for r in read_results(stack.broker, [partition], follow=False)]
    found = Plan(epoch=NO_EPOCH, created=0.0)
    for record in records:
        with suppress(InvalidInputError):
            plan = control.decode_plan(record.value or b"")
            found = plan if plan.placements and len(plan.incarnations) == len(DEVICES) else found
    return found


async def greedy(stack: Stack, rng: random.Random) -> str:
    """A client that asks for far more than its share, for seconds."""
    producer = stack.broker.producer()
    await producer.start()
    tensor = Tensor("image", "FP32", (1, PIXELS), bytes(4 * PIXELS))
    name, sent, end = f"greedy-{rng.random()}", 0, time.monotonic() + rng.uniform(2.0, 4.0)
    while time.monotonic() < end:
        for _ in range(40):
            made = codec.encode_query(
                f"{name}-{sent}",
                (tensor,),
                app="toy",
                now=time.time(),
                source=GREEDY,
                parameters={"latency_ms": 5000},
            )
            await producer.send(stack.topics.queries("toy"), made.value, key=made.key, headers=made.headers)
            sent += 1
        await asyncio.sleep(0.02)
    await producer.flush()
    await producer.stop()
    stack.sent["toy"] = stack.sent.get("toy", 0) + sent
    return f"{sent} queries"


async def silent_death(stack: Stack, rng: random.Random) -> str:
    """The planner's solver, or one of its readers, stands still; a worker that dies then is missed all the same."""
    planner, worker = stack.children["planner"], rng.choice(DEVICES)
    struck = rng.choice(("solver", "reader"))
    assert planner.process is not None
    if struck == "reader":
        planner.send(signal.SIGUSR1)
    for pid in _solvers(planner.process.pid) if struck == "solver" else ():
        os.kill(pid, rng.choice((signal.SIGSTOP, signal.SIGKILL)))
    stack.children[worker].send(signal.SIGKILL)
    await stack.ended(worker)
    stack.kills += 1
    await asyncio.sleep(3.5)
    planner.send(signal.SIGUSR2)
    await stack.start_again(worker)
    return f"{struck}, {worker}"


def _solvers(pid: int) -> Iterator[int]:
    for told in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, told.read_text().split()):
            with suppress(OSError):
                if b"sluicegate.stages.planner" in Path(f"/proc/{child}/cmdline").read_bytes():
                    yield child
