"""The kinds of fault. Each is done at its moment, mended again, and says what it hit."""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random

from tests.explore.world import DEVICES, Fault, World

_ALL = ("admission0", "admission1", "router0", "router1", "planner0", "planner1", *DEVICES, "sink")


def _name(rng: Random, names: Sequence[str] = _ALL) -> str:
    # Workers hold most of what can be lost.
    return rng.choice(names)


async def _rest(rng: Random, least: float, most: float) -> float:
    seconds = rng.uniform(least, most)
    await asyncio.sleep(seconds)
    return seconds


async def crash(world: World, rng: Random) -> str:
    """A process is killed between two of its callbacks, and started again after a while."""
    name = _name(rng)
    process = world.processes[name]

    def kill() -> None:
        world.note(f"kill {name}")
        process.kill()

    process.after_steps(rng.randrange(200), kill)
    await _rest(rng, 0.2, 3.5)
    if not process.dead:
        kill()
    if world.processes[name] is process:
        world.restart(name)
    return f"crash {name}"


async def stop(world: World, rng: Random) -> str:
    """A process is told to end, and started again."""
    name = _name(rng)
    process = world.processes[name]
    world.note(f"stop {name}")
    process.stop.set()
    assert process.task is not None
    await asyncio.wait([process.task], timeout=20.0)
    if not process.task.done():
        if not process.dead:  # another fault may have killed it
            world.exits.append(f"{name}: did not end when it was told to")
        process.kill()
    await _rest(rng, 0.0, 1.5)
    world.restart(name)
    return f"stop {name}"


async def pause(world: World, rng: Random) -> str:
    """A process stands still, then goes on as if nothing had been."""
    name = _name(rng)
    process = world.processes[name]

    def still() -> None:
        world.note(f"pause {name}")
        process.paused = True

    process.after_steps(rng.randrange(100), still)
    await _rest(rng, 0.3, 5.0)
    process.doom = None
    if process.paused:
        world.note(f"resume {name}")
        world.loop.resume(process)
    return f"pause {name}"


async def partition(world: World, rng: Random) -> str:
    """A process and the broker do not reach one another for a while."""
    name = _name(rng)
    seconds = rng.uniform(0.3, 5.0)
    world.note(f"cut {name} for {seconds:.2f}")
    world.cluster.cut([world.processes[name].link], seconds)
    await asyncio.sleep(seconds)
    return f"partition {name}"


async def broker_away(world: World, rng: Random) -> str:
    """Nobody reaches the broker for a while."""
    seconds = rng.uniform(0.3, 4.0)
    world.note(f"broker away for {seconds:.2f}")
    world.cluster.cut([p.link for p in world.processes.values()], seconds)
    await asyncio.sleep(seconds)
    return "broker away"


async def rebalance(world: World, rng: Random) -> str:
    """Groups agree anew, several times."""
    names = [name for name in sorted(world.cluster.groups) if "worker" not in name]
    for _ in range(rng.randrange(1, 5)):
        name = rng.choice(names)
        world.note(f"rebalance {name}")
        world.cluster.group(name).unsettle()
        await _rest(rng, 0.01, 0.8)
    return "rebalance"


async def delay(world: World, rng: Random) -> str:
    """The way between a process and the broker becomes long."""
    name = _name(rng)
    link = world.processes[name].link
    usual, link.delay = link.delay, rng.uniform(0.02, 0.15)
    world.note(f"delay {name} {link.delay:.3f}")
    await _rest(rng, 0.5, 3.0)
    link.delay = usual
    return f"delay {name}"


async def lost_acknowledgements(world: World, rng: Random) -> str:
    """What a process writes is written, or not, and it is told that nobody knows."""
    name = _name(rng)
    link = world.processes[name].link
    link.lossy = rng.uniform(0.01, 0.3)
    world.note(f"lossy {name} {link.lossy:.2f}")
    await _rest(rng, 0.3, 3.0)
    link.lossy = 0.0
    return f"lost acknowledgements {name}"


async def slow_disk(world: World, rng: Random) -> str:
    """What a process does in threads takes long: writing outcomes, solving."""
    name = _name(rng, ("sink", "planner0", "planner1"))
    process = world.processes[name]
    process.slow_disk = rng.uniform(0.5, 3.0)
    world.note(f"slow disk {name} {process.slow_disk:.2f}")
    await _rest(rng, 0.5, 3.0)
    process.slow_disk = 0.0
    return f"slow disk {name}"


async def clock_step(world: World, rng: Random) -> str:
    """A process's wall clock is set, by less than the skew that admission tolerates, and set right again."""
    name = _name(rng)
    clock = world.processes[name].clock
    clock.skew = rng.choice((-1, 1)) * rng.uniform(0.05, 2.0)
    world.note(f"clock {name} {clock.skew:+.2f}")
    await _rest(rng, 0.5, 3.0)
    world.processes[name].clock.skew = 0.0
    return f"clock step {name}"


async def executor(world: World, rng: Random) -> str:
    """What runs the variants of a device dies, hangs for a while, or cannot load."""
    name = _name(rng, DEVICES)
    trouble = rng.choice(("dies", "hangs", "refuses"))
    world.note(f"executor {name} {trouble}")
    for one in world.processes[name].executors:
        if trouble == "dies":
            one.die()
        else:
            one.trouble = trouble
    await _rest(rng, 0.3, 3.0)
    for one in world.processes[name].executors:
        one.trouble = ""
    return f"executor {trouble} {name}"


async def storm(world: World, rng: Random) -> str:
    """Another router, or admission, joins and leaves."""
    role = rng.choice(("router", "admission"))
    name = f"{role}-extra{world.number()}"
    world.add(name, (role,))
    world.note(f"join {name}")
    await _rest(rng, 0.2, 2.5)
    process = world.processes[name]
    if rng.random() < 0.5:
        process.kill()
    else:
        process.stop.set()
        assert process.task is not None
        await asyncio.wait([process.task], timeout=20.0)
    del world.processes[name]
    world.graves.append(process)
    return f"storm {role}"


KINDS: Mapping[str, Fault] = {
    "crash": crash,
    "stop": stop,
    "pause": pause,
    "partition": partition,
    "broker-away": broker_away,
    "rebalance": rebalance,
    "delay": delay,
    "lost-acknowledgements": lost_acknowledgements,
    "slow-disk": slow_disk,
    "clock-step": clock_step,
    "executor": executor,
    "storm": storm,
}


def drawn(rng: Random, kinds: Sequence[str] = tuple(KINDS)) -> list[Fault]:
    """One to three faults, of which some fall together."""
    return [KINDS[rng.choice(kinds)] for _ in range(rng.choice((1, 1, 2, 2, 3)))]
