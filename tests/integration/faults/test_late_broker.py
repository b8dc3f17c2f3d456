"""Stages that are started before their broker: they wait, say so, and serve once it is there; told to end, they end."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.sluice.settings.settings import Settings
from sluicegate.streams import connect
from sluicegate.streams.local_kafka.broker import LocalBroker
from sluicegate.streams.topics import Topics
from sluicegate_client import Client
from tests.harness import PATIENCE_S, PIXELS, free_port, settings_for, toy_catalogue

STAGES = (["planner"], ["admission"], ["router", "--app", "toy"], ["worker", "--device", "d0"])


@asynccontextmanager
async def up(settings: Settings, folder: Path, *stages: list[str]) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """A process for each of ``stages``; what they say goes to ``<folder>/<role>.log``."""
    save_catalogue(folder / "catalogue", toy_catalogue(slo=1.0), {})
    file = folder / "settings.yaml"
    written = settings.model_copy(update={"catalogue": folder / "catalogue"})
    file.write_text(json.dumps(written.model_dump(mode="json", exclude={"http"})))
    started = []
    for stage in stages:
        with (folder / f"{stage[0]}.log").open("wb") as log:
            command = (sys.executable, "-m", "sluicegate.sluice.main", "up", *stage, "--settings", str(file))
            started.append(await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log))
    try:
        yield started
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def waits(log: Path, times: int) -> None:
    """Until it has said often enough that it tries again."""
    async with asyncio.timeout(PATIENCE_S):
        while (await asyncio.to_thread(log.read_text)).count("trying again in") < times:
            await asyncio.sleep(0.1)


async def test_one_that_waits_for_its_broker_ends_at_once_when_told(tmp_path: Path) -> None:
    settings = settings_for(f"kafka://127.0.0.1:{free_port()}", tmp_path)
    async with up(settings, tmp_path, ["planner"]) as (planner,):
        await waits(tmp_path / "planner.log", 2)
        assert planner.returncode is None
        planner.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            assert await planner.wait() == 0
    said = (tmp_path / "planner.log").read_text()
    assert "no Kafka broker answers at 127.0.0.1" in said and "Traceback" not in said


@pytest.mark.kafka
@pytest.mark.thorough
async def test_stages_started_before_the_broker_serve_once_it_is_there(
    kafka_url: str, tmp_path: Path, sluice_home: Path
) -> None:
    del kafka_url  # skipped where that cannot be had
    port = free_port()
    server = LocalBroker(tmp_path / "broker", home=sluice_home)
    settings = settings_for(f"kafka://127.0.0.1:{port}", tmp_path, devices=1)
    async with up(settings, tmp_path, *STAGES) as processes:
        for stage in STAGES:
            await waits(tmp_path / f"{stage[0]}.log", 1)
        try:
            await asyncio.to_thread(server.start, port=port, within=120.0)
            await answered(settings)
            assert [p.returncode for p in processes] == [None] * len(STAGES)
            for process in processes:
                process.terminate()
            async with asyncio.timeout(PATIENCE_S):
                assert [await p.wait() for p in processes] == [0] * len(STAGES)
        finally:
            await asyncio.to_thread(server.stop)


async def answered(settings: Settings) -> None:
    """Until a query is answered on time."""
    broker = connect(settings.broker)
    async with asyncio.timeout(PATIENCE_S):
        while Topics(settings.prefix).results("toy") not in await broker.admin().topics():
            await asyncio.sleep(0.2)
        await broker.close()
        async with Client(settings.broker, prefix=settings.prefix) as client:
            image = {"image": np.zeros((1, PIXELS), np.float32)}
            while not (await client.infer("toy", image, latency_ms=5000)).outcome.on_time:
                await asyncio.sleep(0.2)
