"""Running a process of the system: connect, create topics, run stages until told to stop, keep what must be kept."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from profiles.catalogue import Catalogue
from sluice.places import connected
from sluice.registry_topic import publish_catalogue
from sluice.settings import Settings
from sluice.wiring import System
from stages.run import Stage, run_stages
from stages.telemetry import Telemetry
from stages.tracing import Tracing
from streams.memory import MemoryBroker

log = logging.getLogger(__name__)


@asynccontextmanager
async def system(
    settings: Settings, catalogue: Catalogue, models: Path, run_folder: Path, *, traced: Tracing | None = None
) -> AsyncIterator[System]:
    """A system, connected, its topics created. An embedded log is kept in ``run_folder`` at the end."""
    broker = connected(settings)
    producer = broker.producer()
    built = System(settings, catalogue, models, broker, producer, run_folder, Telemetry(tracing=traced))
    try:
        await producer.start()
        await built.create_topics()
        yield built
    finally:
        built.close()
        if traced is not None:
            traced.close()
        with contextlib.suppress(Exception):
            await producer.stop()
        if isinstance(broker, MemoryBroker):
            broker.dump(run_folder)
        await broker.close()


async def serve(built: System, stages: Sequence[Stage], started: Callable[[], None] | None = None) -> None:
    """Run ``stages`` until SIGINT or SIGTERM; the planner's process also puts the catalogue on the registry topic."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        if any(stage.name == "planner" for stage in stages):
            await publish_catalogue(built.broker, built.producer, built.topics, built.catalogue)
        if started is not None:
            started()
        await run_stages(stages, stop)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    log.info("stopped %s", built.settings.prefix)
