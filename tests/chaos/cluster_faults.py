"""What breaks in a broker of three nodes: each a coroutine that hits one of them, and mends it again."""

import asyncio
import json
import os
import random
import resource
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from tests.chaos.stack import Stack

_PATIENCE = 300.0
_AWAY_S = 7.0
"""Longer than the session of a node: it is away while others have its part."""
_PARTED_S = 9.0
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition, as the cluster tells."""

    topic: str
    number: int
    leader: int
    replicas: frozenset[int]
    in_sync: frozenset[int]


async def roll(stack: Stack, rng: random.Random) -> str:
    """Each node is stopped in good order and started again, the next one once every copy is in sync."""
    numbers = list(stack.local.nodes)
    rng.shuffle(numbers)
    for number in numbers:
        await _until(stack, _all_in_sync)
        await asyncio.to_thread(stack.local.nodes[number].end, within=60.0)
        await asyncio.to_thread(stack.local.start_node, number, within=_PATIENCE)
    await _until(stack, _all_in_sync)
    return "nodes " + ", ".join(map(str, numbers))


async def kill_leader(stack: Stack, rng: random.Random) -> str:
    """A node that leads partitions of an app is killed; the controller lives."""
    leaders = await _leaders(stack) - {active_controller(stack)}
    return await _kill(stack, rng.choice(sorted(leaders)))


async def kill_controller(stack: Stack, rng: random.Random) -> str:
    """The node whose controller is in charge is killed, and with it whatever it leads."""
    del rng
    return await _kill(stack, active_controller(stack))


async def shrink_to_minimum(stack: Stack, rng: random.Random) -> str:
    """A node stands still until no partition counts on it: two copies are left, and no fewer may be."""
    number = rng.choice(sorted(stack.local.nodes))
    pid = _pid(stack, number)
    os.kill(pid, signal.SIGSTOP)
    stack.kills += 1
    try:
        await _until(stack, lambda found: all(len(p.in_sync) == 2 for p in found))
        await asyncio.sleep(_AWAY_S)
    finally:
        os.kill(pid, signal.SIGCONT)
    await _until(stack, _all_in_sync)
    return f"node {number}"


async def part(stack: Stack, rng: random.Random) -> str:
    """A node that leads partitions of an app hears nothing of the others, nor they of it; clients reach all of them."""
    assert stack.links is not None
    number = rng.choice(sorted(await _leaders(stack)))
    named = f"node {number}" + (", in charge" if number == active_controller(stack) else "")
    stack.links.part(number)
    stack.kills += 1
    try:
        await asyncio.sleep(_PARTED_S)
    finally:
        stack.links.join()
    await _until(stack, _all_in_sync)
    return named


async def fill_disk(stack: Stack, rng: random.Random) -> str:
    """Files of a node that leads partitions of an app can no longer grow, which it ends of; later there is room."""
    number = rng.choice(sorted(await _leaders(stack)))
    pid = _pid(stack, number)
    stack.kills += 1
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]))
    async with asyncio.timeout(_PATIENCE):
        while stack.local.nodes[number].pid is not None:
            await asyncio.sleep(_POLL_S)
    await _start_later(stack, number)
    return f"node {number}"


def active_controller(stack: Stack) -> int:
    """The node whose controller is in charge, as the nodes last heard."""
    told: list[tuple[int, int]] = []
    for node in stack.local.nodes.values():
        held = json.loads((node.data / "__cluster_metadata-0" / "quorum-state").read_text())
        told.append((int(held["leaderEpoch"]), int(held["leaderId"])))
    leader = max(told)[1]
    assert leader > 0, f"no controller is in charge: {told}"
    return leader


async def partitions(stack: Stack) -> list[Partition]:
    """All partitions, the broker's own included; none where nobody answers just now."""
    admin = AIOKafkaAdminClient(bootstrap_servers=stack.local.status().url.removeprefix("kafka://"))  # type: ignore[union-attr]
    try:
        await admin.start()
        topics = await admin.describe_topics()
    except KafkaError:
        return []
    finally:
        await admin.close()
    return [
        Partition(t["topic"], p["partition"], p["leader"], frozenset(p["replicas"]), frozenset(p["isr"]))
        for t in topics
        for p in t["partitions"]
    ]


async def _kill(stack: Stack, number: int) -> str:
    os.kill(_pid(stack, number), signal.SIGKILL)
    stack.kills += 1
    await _start_later(stack, number)
    return f"node {number}"


async def _start_later(stack: Stack, number: int) -> None:
    await asyncio.sleep(_AWAY_S)
    await asyncio.to_thread(stack.local.start_node, number, within=_PATIENCE)
    await _until(stack, _all_in_sync)


async def _leaders(stack: Stack) -> set[int]:
    """Of the partitions that queries come on."""
    asked = {stack.topics.queries(app) for app in ("toy", "vow")}
    found: set[int] = set()
    async with asyncio.timeout(_PATIENCE):
        while not found:
            found = {p.leader for p in await partitions(stack) if p.topic in asked and p.leader > 0}
            await asyncio.sleep(_POLL_S)
    return found


def _all_in_sync(found: Iterable[Partition]) -> bool:
    return all(p.in_sync == p.replicas and p.leader > 0 for p in found)


async def _until(stack: Stack, holds: Callable[[list[Partition]], bool]) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not ((found := await partitions(stack)) and holds(found)):
            await asyncio.sleep(_POLL_S)


def _pid(stack: Stack, number: int) -> int:
    pid = stack.local.nodes[number].pid
    assert pid is not None, f"node {number} does not run"
    return pid
