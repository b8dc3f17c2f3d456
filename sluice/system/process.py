"""Running a process of the system: connect, create topics, run stages until told to stop, keep what must be kept.

Stages wait for a broker that does not answer yet, however long, and tell of it; a command that somebody waits for ends.
"""

import asyncio
import errno
import logging
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sluicegate.domain.errors import ConfigurationError
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.registered_apps import Registered
from sluicegate.profiles.demo.build_models import FAMILIES, HEAVY
from sluicegate.sluice.catalogue.run_folders import connected
from sluicegate.sluice.registration.registry_topic import publish_catalogue
from sluicegate.sluice.settings.settings import Settings
from sluicegate.sluice.system.system import System
from sluicegate.stages.runtime.frozen_heap import frozen_heap
from sluicegate.stages.runtime.supervisor import Stage, run_stages
from sluicegate.stages.telemetry.telemetry import Telemetry
from sluicegate.stages.telemetry.tracing import Tracing
from sluicegate.streams.kafka.broker import KafkaBroker
from sluicegate.streams.memory.broker import MemoryBroker
from sluicegate.streams.ports import BrokerError, UnreachableError
from sluicegate.streams.signing import unsigned

log = logging.getLogger(__name__)

_DESCRIPTORS = 16384
_OWN = 22
"""Files that every process needs, eight of them for an executor that is started again and for clients."""
_READERS = {"admission": 4, "router": 6, "worker": 4, "planner": 7, "web": 6}
"""Connections to Kafka that a stage needs; 2 where nothing else is said."""
_PARTING = 2.0
"""Seconds that a broker has to take its leave of us."""
_FIRST_PAUSE = 0.5
_LAST_PAUSE = 5.0
_PATIENCE = 8.0
_RETRY = 1.0
"""Seconds for which, and after which, topics are dumped again to a disk that is full."""


@asynccontextmanager
async def system(
    settings: Settings,
    catalogue: Catalogue,
    models: Path,
    run_folder: Path,
    *,
    traced: Tracing | None = None,
    connect: bool = True,
) -> AsyncIterator[System]:
    """A system, connected, its topics created, unless that is left to ``serve`` (``connect``).

    An embedded log that was asked anything is kept in ``run_folder`` at the end; one that was not (the start failed, or
    nobody came) would only hide the run before it. What this process writes meanwhile nobody else may read.
    """
    umask = os.umask(0o077)
    broker = connected(settings)
    producer = broker.producer()
    built = System(settings, catalogue, models, broker, producer, run_folder, Telemetry(tracing=traced))
    built.solves_apart = True
    inner = unsigned(broker)
    if isinstance(inner, KafkaBroker):
        inner.on_unreadable = built.notices.unreadable
    try:
        if connect:
            await _connect(built)
        yield built
    finally:
        built.close()
        await built.notices.stop()
        await _within(_PARTING, producer.stop())
        if isinstance(inner, MemoryBroker) and any(map(built.topics.is_queries, inner.written())):
            await _keep(inner, run_folder)
        await _within(_PARTING, broker.close())
        os.umask(umask)
        if traced is not None:
            traced.close()  # which stands still for ten seconds where nobody collects spans, and all else with it


async def _connect(built: System) -> None:
    await built.create_topics()
    await built.producer.start()  # after it is known how large records may be
    await built.notices.start()


async def _keep(broker: MemoryBroker, run_folder: Path) -> None:
    """Dump its topics; where the disk is full, there is time to make room, until which they are in memory alone."""
    patient_until = asyncio.get_running_loop().time() + _PATIENCE
    while True:
        try:
            broker.dump(run_folder)
            return
        except ConfigurationError as error:
            cause = error.__cause__
            full = isinstance(cause, OSError) and cause.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
            if not full or asyncio.get_running_loop().time() >= patient_until:
                raise
            log.error("%s; trying again for %.0f s: make room", error, _PATIENCE)
        await asyncio.sleep(_RETRY)


async def serve(
    built: System,
    stages: Sequence[Stage],
    started: Callable[[], None] | None = None,
    told: Callable[[], None] = lambda: None,
) -> None:
    """Connect, waiting for the broker, and run ``stages`` until SIGINT or SIGTERM.

    The planner's process also puts the catalogue on the registry topic.
    ``told`` is called at once when the signal comes, even while the event loop stands still.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
        # The loop hears of it by its wake-up descriptor, which stays; this runs between any two lines of Python.
        signal.signal(number, lambda *_: told())
    try:
        if await _ended(_prepared(built, plans=any(stage.name == "planner" for stage in stages)), stop):
            if started is not None:
                started()
            with frozen_heap():
                await run_stages(stages, stop)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    log.info("stopped %s", built.settings.prefix)


async def _prepared(built: System, *, plans: bool) -> None:
    """Connect, create topics, publish the catalogue where it ``plans``: again and again while the broker is away."""
    pause = _FIRST_PAUSE
    while True:
        try:
            await _connect(built)
            if plans:
                await _publish(built)
        except (UnreachableError, BrokerError) as error:
            log.warning("%s; trying again in %.1f s", error, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)
        else:
            return


async def _publish(built: System) -> None:
    """Say what is served until that is what is registered: whoever registers finds nobody to tell before."""
    said = None
    while said != (served := _by_now(built)):
        if said is not None or served != built.catalogue:
            await built.create_topics(served.apps)
        await publish_catalogue(built.broker, built.producer, built.topics, served)
        said = served


def _by_now(built: System) -> Catalogue:
    """What was to be served when this process began, with apps that are registered as they are by now."""
    settings, served = built.settings, built.catalogue
    if settings.catalogue is not None:
        return served
    now = Registered(settings.home).catalogue(verify=False) or Catalogue.of((), (), ())
    mine = {app for app in (*served.apps, *now.apps) if app not in FAMILIES and app not in HEAVY}
    for app in sorted(mine & set(settings.apps) if settings.apps else mine):
        part = now.only({app}) if app in now.apps else None
        if part is not None:
            part = built.gpus.profiled(replace(part, apps={app: settings.as_set(part.apps[app])}))
        served = served.replacing(app, part)
    return served


async def _ended(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Whether ``work`` came to its end before ``stop``; else it is given up."""
    tasks = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            await tasks[0]
            return True
        return False
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def use_descriptors() -> None:
    """Let this process open as many files as it may: connections of clients must not take those of the broker."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def check_descriptors(stages: Sequence[Stage], *, kafka: bool) -> None:
    """Raise ConfigurationError where ``stages`` have too few to begin with, instead of standing still by and by."""
    kinds = [stage.name.partition(" ")[0] for stage in stages]
    needed = _OWN + 2 * kinds.count("worker") + (sum(_READERS.get(kind, 2) for kind in kinds) if kafka else 0)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise ConfigurationError(
            f"this process may open {soft} files and needs {needed} for {len(stages)} stages; "
            "raise `ulimit -n`, or run stages in processes of their own"
        )


async def _within(seconds: float, parting: Coroutine[Any, Any, None]) -> None:
    """What is to be said to a broker at the end: it may be away, or not listen."""
    try:
        async with asyncio.timeout(seconds):
            await parting
    except TimeoutError:
        log.warning("the broker does not answer; it was left without a word")
    except Exception as error:  # whatever else a client raises, nobody can mend it now
        log.info("the broker was left without a word (%s)", error)
