"""The kinds of fault. Each is done at its moment, mended again, and says what it hit."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from sluicegate.domain.models.app import Promise, WeaklyHard
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.sluice.registration.registry_topic import app_record
from sluicegate.streams.ports import Letter
from tests.explore.loop import BASE
from tests.explore.shape import APPS, GREEDY, POISON, SLO, catalogue
from tests.explore.shells import Process
from tests.explore.world import Fault, World
from tests.integration.hostile.test_hostile_control import hostile


def _name(world: World, rng: Random, *of: str) -> str:
    """One of the processes, or of those whose names begin so; workers, which hold most of what can be lost, twice as
    often. One that is gone is nobody."""
    names = [n for n in (*world.shape.processes, *world.shape.workers) if n not in world.gone]
    return rng.choice([n for n in names if n.startswith(of)] if of else names)


def _absence(rng: Random) -> float:
    """Seconds that something is not heard of: half the time about as long as it takes to be declared dead."""
    return rng.uniform(0.9, 1.8) if rng.random() < 0.5 else rng.uniform(0.3, 5.0)


async def _rest(rng: Random, least: float, most: float) -> float:
    seconds = rng.uniform(least, most)
    await asyncio.sleep(seconds)
    return seconds


async def crash(world: World, rng: Random) -> str:
    """A process is killed between two of its callbacks, and started again after a while; now and then it is killed once
    more as it starts. A device may stay away until the end, where two are left, one for each app."""
    name = _name(world, rng)
    for_good = rng.random() < 0.35 and name in world.shape.workers and len(world.gone) + 2 < len(world.shape.workers)
    if for_good:
        world.gone.add(name)
    process = await _killed(world, rng, name)
    if for_good:
        return f"crash {name} for good"
    await _rest(rng, 0.2, 3.0)
    world.restart(process)
    if rng.random() < 0.3:
        await _rest(rng, 0.0, 0.6)
        process = await _killed(world, rng, name)
        await _rest(rng, 0.0, 1.0)
        world.restart(process)
    return f"crash {name}"


async def _killed(world: World, rng: Random, name: str) -> Process:
    process = world.processes[name]

    def kill() -> None:
        world.note(f"kill {name}")
        process.kill()

    process.after_steps(rng.randrange(200), kill)
    await asyncio.sleep(0.2)
    if not process.dead:
        kill()
    return process


async def stop(world: World, rng: Random) -> str:
    """A process is told to end, and started again."""
    name = _name(world, rng)
    process = world.processes[name]
    world.note(f"stop {name}")
    process.stop.set()
    await asyncio.wait([process.task], timeout=20.0)
    if not process.task.done():
        if not process.dead:  # another fault may have killed it
            world.wrong.append(f"{name}: did not end when it was told to")
        process.kill()
    await _rest(rng, 0.0, 1.5)
    world.restart(process)
    return f"stop {name}"


async def pause(world: World, rng: Random) -> str:
    """A process stands still, then goes on as if nothing had been; now and then before its network is back."""
    name = _name(world, rng)
    process = world.processes[name]

    def still() -> None:
        world.note(f"pause {name}")
        process.paused = True

    process.after_steps(rng.randrange(100), still)
    await asyncio.sleep(_absence(rng))
    process.doom = None
    if process.paused:
        world.note(f"resume {name}")
        if rng.random() < 0.4:
            world.cluster.cut([process.link], rng.uniform(0.1, 1.5))
        world.loop.resume(process)
    return f"pause {name}"


async def partition(world: World, rng: Random) -> str:
    """A process and the broker do not reach one another for a while."""
    name = _name(world, rng)
    seconds = _absence(rng)
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
    """Groups agree anew, several times, now and then while fetches and commits are long under way."""
    names = [name for name in sorted(world.cluster.groups) if "worker" not in name]
    slow = [p.link for p in world.processes.values() if p.name not in world.shape.workers and rng.random() < 0.3]
    for link in slow:
        link.delay *= rng.uniform(5.0, 40.0)
    for _ in range(rng.randrange(1, 5)):
        name = rng.choice(names)
        world.note(f"rebalance {name}")
        world.cluster.group(name).unsettle()
        await _rest(rng, 0.01, 0.8)
    for link in slow:
        link.delay = link.usual
    return "rebalance"


async def delay(world: World, rng: Random) -> str:
    """The way between a process and the broker becomes long."""
    name = _name(world, rng)
    link = world.processes[name].link
    link.delay = rng.uniform(0.02, 0.15)
    world.note(f"delay {name} {link.delay:.3f}")
    await _rest(rng, 0.5, 3.0)
    link.delay = link.usual
    return f"delay {name}"


async def lost_acknowledgements(world: World, rng: Random) -> str:
    """What a process writes is written, or not, and it is told that nobody knows."""
    name = _name(world, rng)
    link = world.processes[name].link
    link.lossy = rng.uniform(0.01, 0.3)
    world.note(f"lossy {name} {link.lossy:.2f}")
    await _rest(rng, 0.3, 3.0)
    link.lossy = 0.0
    return f"lost acknowledgements {name}"


async def slow_disk(world: World, rng: Random) -> str:
    """What a process does in threads takes long: writing outcomes, solving. Or the broker's disk is slow to keep what
    was written."""
    if rng.random() < 0.5:
        world.cluster.disk = rng.uniform(0.05, 0.6)
        world.note(f"slow disk of the broker {world.cluster.disk:.2f}")
        await _rest(rng, 0.3, 2.0)
        world.cluster.disk = 0.0
        return "slow disk broker"
    name = _name(world, rng, "sink", "planner")
    process = world.processes[name]
    process.slow_disk = rng.uniform(0.5, 3.0)
    world.note(f"slow disk {name} {process.slow_disk:.2f}")
    await _rest(rng, 0.5, 3.0)
    process.slow_disk = 0.0
    return f"slow disk {name}"


async def clock_step(world: World, rng: Random) -> str:
    """A process's wall clock is set, by less than the skew that admission tolerates, and set right again."""
    name = _name(world, rng)
    clock = world.processes[name].clock
    clock.skew = rng.choice((-1, 1)) * rng.uniform(0.05, 2.0)
    world.note(f"clock {name} {clock.skew:+.2f}")
    await _rest(rng, 0.5, 3.0)
    world.processes[name].clock.skew = 0.0
    return f"clock step {name}"


async def executor(world: World, rng: Random) -> str:
    """What runs the variants of a device dies, hangs for a while or until it is restarted, or cannot load."""
    name = _name(world, rng, "d")
    trouble = rng.choice(("dies", "hangs", "hangs", "refuses"))
    world.note(f"executor {name} {trouble}")
    struck = list(world.processes[name].executors)
    for one in struck:
        if trouble == "dies":
            one.die()
        else:
            one.trouble = trouble
    await _rest(rng, 0.3, 3.0)
    if trouble == "refuses" or rng.random() < 0.5:
        for one in struck:
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
        await asyncio.wait([process.task], timeout=20.0)
    del world.processes[name]
    return f"storm {role}"


async def poison(world: World, rng: Random) -> str:
    """Inputs that end the process which runs them, some of them the same."""
    app, sent = rng.choice(tuple(APPS)), rng.randrange(1, 5)
    world.note(f"{sent} poisonous queries of {app}")
    for number in range(sent):
        world.traffic.ask(app, first=POISON * (1 + number // 2))
        await _rest(rng, 0.0, 0.2)
    return f"poison {app}"


async def greedy(world: World, rng: Random) -> str:
    """A client asks for far more than there is."""
    sent = rng.randrange(100, 400)
    world.note(f"{sent} queries of {GREEDY}")
    for _ in range(sent):
        world.traffic.ask("toy", source=GREEDY)
        await asyncio.sleep(rng.expovariate(300.0))
    return "greedy client"


async def forged(world: World, rng: Random) -> str:
    """A stranger writes to control and metrics topics: what cannot be, and what a planner might have written."""
    plan = world.witness.plan
    if plan is None or not plan.placements:
        return "forged nothing"
    records = list(hostile(plan, BASE + world.loop.time()))
    sent = rng.sample([one for one in records if one[1] != "results"], 30)
    world.note(f"{len(sent)} forged records")
    for _, kind, key, value in sent:
        topic = getattr(world.topics, kind)
        world.cluster.append(Letter(topic, value, key, timestamp=BASE + world.loop.time()), None)
        await _rest(rng, 0.0, 0.1)
    return "forged records"


async def silent_client(world: World, rng: Random) -> str:
    """One that a process reads by gives no answer any more."""
    name = _name(world, rng)
    readers = world.processes[name].link.readers
    readers[:] = [one for one in readers if one.running]
    if not readers:
        return "nobody silent"
    silent = rng.choice(readers)
    world.note(f"silent client {readers.index(silent)} of {name}")
    silent.stands = True
    await _rest(rng, 1.0, 3.0)
    return f"silent client {name}"


async def full_disk(world: World, rng: Random) -> str:
    """A sink's disk is full for a while. Where there is no sink, one comes."""
    names = [name for name in world.processes if name.startswith("sink")]
    if not names:
        names = [f"sink-extra{world.number()}"]
        world.add(names[0], ("sink",))
    name = rng.choice(names)
    struck = world.processes[name]
    struck.full_disk = True
    world.note(f"full disk {name}")
    await _rest(rng, 0.5, 5.0)
    struck.full_disk = False
    return f"full disk {name}"


async def coordinator_away(world: World, rng: Random) -> str:
    """Who keeps the transactions gives no answer, while all else of the broker does: what is open lasts too long."""
    seconds = rng.uniform(1.0, 3.5)
    world.note(f"coordinator away for {seconds:.2f}")
    world.cluster.coordinator_back = world.loop.time() + seconds
    await asyncio.sleep(seconds)
    return "coordinator away"


async def registry(world: World, rng: Random) -> str:
    """An app is registered otherwise for a while: with another SLO or promise, with other variants, or not at all."""
    app, what = rng.choice(tuple(APPS)), rng.choice(("slo", "promise", "variants", "retired"))
    changes = {
        "slo": lambda: _changed(app, slo=rng.uniform(0.7, 2.0) * SLO),
        "promise": lambda: _changed("vow", promise=Promise(weakly_hard=(WeaklyHard(rng.choice((2, 4)), 12),))),
        "variants": lambda: _renamed(app),
        "retired": lambda: None,
    }
    app = "vow" if what == "promise" else app
    world.note(f"registry: {what} {app}")
    _register(world, app, changes[what]())
    await _rest(rng, 0.1, 3.0)
    _register(world, app, catalogue())
    return f"registry {what} {app}"


async def surge(world: World, rng: Random) -> str:
    """An app is asked for about what its devices can do, or for more: what may be missed of it, is."""
    app, rate, seconds = rng.choice(("vow", "vow", "vow", "toy")), rng.uniform(60.0, 200.0), rng.uniform(0.4, 2.0)
    world.note(f"surge of {app} {rate:.0f}/s for {seconds:.2f}")
    await world.traffic.steady(app, rate, seconds)
    return f"surge {app}"


def _register(world: World, app: str, known: Catalogue | None) -> None:
    value = app_record(known, app) if known is not None else None
    letter = Letter(world.topics.registry, value, app.encode(), timestamp=BASE + world.loop.time())
    world.cluster.append(letter, None)


def _changed(app: str, **terms: Any) -> Catalogue:
    known = catalogue()
    return replace(known, apps={**known.apps, app: replace(known.apps[app], **terms)})


def _renamed(app: str) -> Catalogue:
    known = catalogue().only({app})
    return Catalogue.of(
        known.apps.values(),
        [replace(v, name=f"{v.name}-again", accuracy=v.accuracy - 0.03) for v in known.variants.values()],
        [replace(p, variant=f"{p.variant}-again") for p in known.profiles.values()],
    )


HOSTILE: Mapping[str, Fault] = {
    "poison": poison,
    "greedy": greedy,
    "forged": forged,
    "full-disk": full_disk,
    "silent-client": silent_client,
    "coordinator-away": coordinator_away,
    "registry": registry,
}
"""What comes in through the front door, what that may fill, what only a part of a client or broker meets, and what an
operator does: in one world of four, beside its faults."""
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
EVERY: Mapping[str, Fault] = {**KINDS, **HOSTILE, "surge": surge}
"""All, with what comes in one world of five besides."""


def drawn(rng: Random, kinds: Sequence[str] = tuple(KINDS)) -> list[Fault]:
    """One to four faults, of which some fall together."""
    # Without a draw: no world changes for those that have one of these.
    hostile, busy = Random(rng.getstate()[1][0]), Random(rng.getstate()[1][2])
    struck = [EVERY[rng.choice(kinds)] for _ in range(rng.choice((1, 2, 2, 3, 3, 4)))]
    if hostile.random() < 0.25:
        struck.append(HOSTILE[hostile.choice(tuple(HOSTILE))])
    if busy.random() < 0.2:
        struck.append(surge)
    return struck
