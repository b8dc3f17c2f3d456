"""The faults: each a coroutine that breaks something at a moment drawn from the seed, and mends it again."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import cluster_faults, front_door_faults
from tests.chaos.stack import DEVICES, Stack

Inject = Callable[[Stack, random.Random], Awaitable[str]]
"""Does the fault and mends it. Returns what was hit."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of fault. ``point``: where workers (or the planner) break. ``routers``: processes of each app's router.

    ``resumes``: whose time limit service waits for, as ``run.RESUMES`` has them, or "" where that is not judged.
    ``steps``: the fault goes on for a while, and service may be away again and again: each time counts by itself.
    ``front``: as what point a process with doors runs beside the stages, "" for none.
    ``nodes``: of the broker; ``linked``: what its nodes say to each other can be held back.
    ``window``: seconds a seed takes. ``load``: share of the run's rate, so that every cell sees a hundred thousand
    queries in its windows, and the machine no more than it must. ``copies``: whether this fault may leave a query with
    two answers where delivery is at least once; only then is there anything to prove of exactly-once delivery.
    """

    name: str
    inject: Inject
    point: str = "none"
    planner_point: str = "none"
    routers: int = 1
    resumes: str = ""
    window: float = 11.0
    load: float = 1.0
    record: bool = False
    copies: bool = True
    steps: bool = False
    nodes: int = 1
    linked: bool = False
    front: str = ""


async def _armed_kill(stack: Stack, name: str) -> None:
    """Arm the point of ``name``, wait for it to die of it, and start it again a while after."""
    stack.children[name].send(signal.SIGUSR1)
    if not await stack.ended(name, within=5.0):  # it never came there (no work for it): killed where it stands
        stack.children[name].send(signal.SIGKILL)
        await stack.ended(name)
    stack.kills += 1


async def kill_worker(stack: Stack, rng: random.Random) -> str:
    """A worker dies at the cell's point; it is back once it was declared dead."""
    name = rng.choice(DEVICES)
    await _armed_kill(stack, name)
    await asyncio.sleep(2.5)
    await stack.start_again(name)
    return name


async def stop_worker(stack: Stack, rng: random.Random) -> str:
    """A worker stands still for longer than the device timeout, then goes on as if nothing had been."""
    name = rng.choice(DEVICES)
    stack.children[name].send(signal.SIGSTOP)
    stack.kills += 1
    await asyncio.sleep(rng.uniform(2.5, 5.0))
    stack.children[name].send(signal.SIGCONT)
    return name


async def kill_planner(stack: Stack, rng: random.Random) -> str:
    """The planner dies while it solves."""
    del rng
    await _armed_kill(stack, "planner")
    await asyncio.sleep(1.0)
    await stack.start_again("planner")
    return "planner"


async def kill_router(stack: Stack, rng: random.Random) -> str:
    """One of two routers dies: the other takes its partitions once the session has timed out."""
    name = rng.choice(("router0", "router1"))
    stack.children[name].send(signal.SIGKILL)
    await stack.ended(name)
    stack.kills += 1
    await asyncio.sleep(8.5)  # longer than the others may take: it is to be no help to them
    await stack.start_again(name)
    return name


async def kill_admission(stack: Stack, rng: random.Random) -> str:
    """The only admission dies and is started at once, under its name in the group."""
    del rng
    stack.children["admission"].send(signal.SIGKILL)
    await stack.ended("admission")
    stack.kills += 1
    await stack.start_again("admission")
    return "admission"


async def stop_router(stack: Stack, rng: random.Random) -> str:
    """One of two routers stands still for longer than its session, and comes back as a zombie."""
    name = rng.choice(("router0", "router1"))
    stack.children[name].send(signal.SIGSTOP)
    stack.kills += 1
    await asyncio.sleep(8.0)
    stack.children[name].send(signal.SIGCONT)
    return name


async def storm(stack: Stack, rng: random.Random) -> str:
    """A second router joins and leaves every two to five seconds."""
    for _ in range(2):
        await stack.start("router1", ["router"])
        await asyncio.sleep(rng.uniform(2.0, 5.0))
        stack.children["router1"].send(signal.SIGTERM)
        await stack.ended("router1")
    return "router1"


async def restart_broker(stack: Stack, rng: random.Random) -> str:
    """The broker stops in good order and starts again on its data."""
    del rng
    port = stack.local.status().port
    stack.kills += 1  # whatever was in flight anywhere may be sent twice
    await asyncio.to_thread(stack.local.stop)
    await asyncio.to_thread(stack.local.start, port=port or 0, within=300.0)
    stack.mended = time.time()
    return "broker"


async def crash_broker(stack: Stack, rng: random.Random) -> str:
    """The broker is killed and starts again on what it had written."""
    del rng
    status = stack.local.status()
    assert status.pid is not None
    stack.kills += 1
    os.kill(status.pid, signal.SIGKILL)
    await asyncio.sleep(0.5)
    await asyncio.to_thread(stack.local.start, port=status.port or 0, within=300.0)
    stack.mended = time.time()
    return "broker"


async def armed_for_a_while(stack: Stack, rng: random.Random) -> str:
    """A worker's point is armed for a few seconds."""
    name = rng.choice(DEVICES)
    await _listens(stack, name)
    stack.children[name].send(signal.SIGUSR1)
    await asyncio.sleep(rng.uniform(2.0, 4.0))
    stack.children[name].send(signal.SIGUSR2)
    return name


async def load_failure(stack: Stack, rng: random.Random) -> str:
    """A worker comes back unable to load anything for a few seconds."""
    name = rng.choice(DEVICES)
    stack.children[name].send(signal.SIGTERM)
    await stack.ended(name)
    await stack.start_again(name)
    await _listens(stack, name)
    stack.children[name].send(signal.SIGUSR1)
    await asyncio.sleep(3.0)
    stack.children[name].send(signal.SIGUSR2)
    return name


async def _listens(stack: Stack, name: str) -> None:
    """Until a process that was started handles our signals: it would die of them."""
    loop = asyncio.get_running_loop()
    patience = loop.time() + 300.0
    while loop.time() < patience and not _handles(stack, name):
        await asyncio.sleep(0.05)


def _handles(stack: Stack, name: str) -> bool:
    process = stack.children[name].process
    if process is None or process.returncode is not None:
        return False
    with Path(f"/proc/{process.pid}/status").open(encoding="ascii") as lines:
        caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return all(caught >> (number - 1) & 1 for number in (signal.SIGUSR1, signal.SIGUSR2))


async def poison(stack: Stack, rng: random.Random) -> str:
    """What no stage can use, among the queries: empty, noise, broken JSON, wrong shapes, oversize, copies."""
    producer = stack.broker.producer()
    await producer.start()
    topic = stack.topics.queries("toy")
    good = b'{"inputs":[{"name":"image","shape":[1,4],"datatype":"FP32","data":[0,0,0,0]}]}'
    copy = f"copy-{rng.random()}".encode()
    try:
        for number in range(60):
            named = (("ce_id", f"poison-{rng.random()}".encode()),)
            value, headers = rng.choice(
                (
                    (b"", named),
                    (rng.randbytes(200), named),
                    (rng.randbytes(50), ()),
                    (good[: rng.randrange(len(good))], named),
                    (good.replace(b"[1,4]", b"[9,9]"), named),
                    (good.replace(b"0,0,0,0", b"1e999,NaN,0,0"), named),
                    (b"{" * 20_000, named),
                    (b" " * 1_200_000, named),
                    (good, (("ce_id", copy),)),
                )
            )
            await (await producer.send(topic, value, headers=headers))
            stack.sent["toy"] = stack.sent.get("toy", 0) + 1
            if number % 20 == 0:
                await asyncio.sleep(0.5)
    finally:
        await producer.stop()
    return "toy"


CELLS = {
    cell.name: cell
    for cell in (
        Cell(
            "worker-kill-before-produce", kill_worker, "kill-before-produce", resumes="device", window=10.0, load=0.74
        ),
        Cell("worker-kill-before-commit", kill_worker, "kill-before-commit", resumes="device", window=10.0, load=0.74),
        Cell("worker-kill-mid-batch", kill_worker, "kill-mid-batch", resumes="device", window=10.0, load=0.74),
        Cell("worker-stop", stop_worker, resumes="device", window=8.0, load=0.92),
        Cell("planner-kill-mid-plan", kill_planner, planner_point="kill-mid-plan", window=8.0, load=0.92),
        Cell("admission-kill", kill_admission, resumes="group", window=9.0, load=0.82),
        Cell("router-kill", kill_router, routers=2, resumes="group", window=12.5, load=0.6),
        Cell("router-stop", stop_router, routers=2, resumes="group", window=12.5, load=0.6),
        Cell("rebalance-storm", storm, window=10.0, load=0.74),
        Cell("broker-restart", restart_broker, resumes="broker", window=12.0, load=0.6),
        Cell("broker-crash", crash_broker, resumes="broker", window=13.5, load=0.56),
        Cell("load-failure", load_failure, "load-failure", window=9.0, load=0.76, copies=False),
        Cell("poison", poison, window=7.0, load=0.93, copies=False),
        Cell("executor-poison", front_door_faults.poison_executors, "poisonable", window=9.0, load=0.6, copies=False),
        Cell("half-open", front_door_faults.half_open, front="none", resumes="door", load=0.6, copies=False),
        Cell(
            "few-descriptors",
            front_door_faults.half_open,
            front="few-descriptors",
            resumes="door",
            load=0.6,
            copies=False,
        ),
        Cell("forged-records", front_door_faults.strangers, resumes="door", window=10.0, load=0.74),
        Cell("greedy-client", front_door_faults.greedy, resumes="door", window=9.0, load=0.5, copies=False),
        Cell(
            "silent-death", front_door_faults.silent_death, planner_point="reader-stands", resumes="device", load=0.74
        ),
        Cell("clock-skew", armed_for_a_while, "clock-skew", window=7.0, load=0.93, copies=False),
        Cell("full-disk", armed_for_a_while, "full-disk", window=7.0, load=0.93, record=True, copies=False),
        Cell("slow-consumer", armed_for_a_while, "slow-consumer", window=7.0, load=0.93, copies=False),
        Cell(
            "cluster-rolling-restart", cluster_faults.roll, resumes="roll", window=30.0, load=0.3, nodes=3, steps=True
        ),
        Cell("cluster-leader-kill", cluster_faults.kill_leader, resumes="node", window=18.0, load=0.4, nodes=3),
        Cell("cluster-controller-kill", cluster_faults.kill_controller, resumes="lead", window=18.0, load=0.4, nodes=3),
        Cell("cluster-min-isr", cluster_faults.shrink_to_minimum, window=18.0, load=0.4, nodes=3),
        Cell("cluster-partition", cluster_faults.part, window=18.0, load=0.4, nodes=3, linked=True),
        Cell("cluster-disk-full", cluster_faults.fill_disk, resumes="node", window=18.0, load=0.4, nodes=3),
    )
}
