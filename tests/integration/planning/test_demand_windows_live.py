"""Demand counted by windows on Faust, on Apache Kafka: exact over a restart and two workers; plans rest on it."""

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiokafka.codec
import pytest

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import DemandCounted
from sluicegate.sluice.audit.result_log import read_results
from sluicegate.sluice.settings.settings import PlannerSettings
from sluicegate.stages.planner.faust_demand import DemandStage
from sluicegate.stages.planner.stage import PlannerStage
from sluicegate.stages.runtime.system_clock import SystemClock
from sluicegate.streams import connect
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka import fetched_batches
from sluicegate.streams.kafka.broker import KafkaBroker
from sluicegate.streams.ports import Broker, BrokerError, TopicPartition
from sluicegate.streams.records import control
from sluicegate.streams.records.demand_windows import decode_windows
from sluicegate.streams.topics import Topics
from tests.contract.damaged import write_batch
from tests.harness import PATIENCE_S, ROLES, free_port, running, settings_for

pytest.importorskip("faust", reason="faust-streaming is not installed: pip install 'sluicegate[faust]'")

from faust.types import TP

from sluicegate.streams.faust import demand_app as faust_app
from sluicegate.streams.faust.demand_app import demand_app

pytestmark = pytest.mark.kafka


async def rows_by_app(broker: Broker, topics: Topics) -> dict[str, int]:
    """Rows in all half seconds that were ever published, by their newest totals."""
    halves: dict[tuple[str, float], int] = {}
    partitions = [TopicPartition(topics.demand_windows, 0)]
    async for record in read_results(broker, partitions, follow=False):
        if record.value is not None:
            windows = decode_windows(record.value)
            for half in windows.halves:
                halves[windows.app, half.start] = half.rows
    totals: dict[str, int] = {}
    for (app, _), rows in halves.items():
        totals[app] = totals.get(app, 0) + rows
    return totals


async def published(broker: Broker, topics: Topics, sent: dict[str, int]) -> None:
    """Wait until just what was sent is published."""
    found: dict[str, int] = {}
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        found = await rows_by_app(broker, topics)
        if found == sent:
            return
        await asyncio.sleep(0.5)
    assert found == sent


def counting(broker: Broker, topics: Topics, port: int) -> DemandStage:
    servers = broker.url.removeprefix("kafka://")
    return DemandStage(
        broker=broker, servers=servers, kafka=KafkaSettings(), topics=topics, clock=SystemClock(), port=port
    )


@asynccontextmanager
async def counting_meanwhile(broker: Broker, topics: Topics, port: int) -> AsyncIterator[None]:
    stage = counting(broker, topics, port)
    stop = asyncio.Event()
    running_stage = asyncio.create_task(stage.run(stop))
    try:
        yield
    finally:
        stop.set()
        await running_stage


async def test_a_restart_in_mid_window_loses_and_doubles_no_count(kafka_url: str, tmp_path: Path) -> None:
    broker = connect(kafka_url)
    topics = Topics(settings_for(kafka_url, tmp_path).prefix)
    await broker.admin().create_topics(topics.specs(["a", "b"], ["d0"]))
    clock, sent = SystemClock(), {"a": 0, "b": 0}
    async with AsyncExitStack() as leaving:
        leaving.push_async_callback(broker.close)
        producer = broker.producer()
        await producer.start()
        leaving.push_async_callback(producer.stop)
        for round_ in range(2):  # the stage is ended in between, while counts go on
            async with counting_meanwhile(broker, topics, free_port()):
                for number in range(12):
                    for app in sent:
                        counted = DemandCounted(app, 3 + number, 0.5)
                        value = control.encode_demand(counted, source="test", at=clock.wall())
                        await (await producer.send(topics.demand, value, key=app.encode()))
                        sent[app] += counted.count
                    await asyncio.sleep(0.3)
                if round_ == 1:
                    await published(broker, topics, sent)
        assert await rows_by_app(broker, topics) == sent


@asynccontextmanager
async def an_app(
    broker: Broker, topics: Topics, port: int, folder: Path
) -> AsyncIterator[tuple[Any, asyncio.Task[None]]]:
    """Faust that counts, and the watch beside it."""
    app, watch = await demand_app(
        broker,
        broker.url.removeprefix("kafka://"),
        KafkaSettings(),
        topics,
        partitions=1,
        port=port,
        folder=folder,
        views={},
    )
    watching = asyncio.create_task(watch())
    try:
        await app.start()
        yield app, watching
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await app.stop()


async def counts(broker: Broker, topics: Topics, rows: Iterable[int]) -> None:
    producer = broker.producer()
    await producer.start()
    for count in rows:
        value = control.encode_demand(DemandCounted("a", count, 0.5), source="test", at=SystemClock().wall())
        await (await producer.send(topics.demand, value, key=b"a"))
    await producer.stop()


async def test_a_taken_port_is_told_with_its_setting(kafka_url: str, tmp_path: Path) -> None:
    topics = Topics(settings_for(kafka_url, tmp_path).prefix)
    async with AsyncExitStack() as leaving:
        broker = connect(kafka_url)
        leaving.push_async_callback(broker.close)
        await broker.admin().create_topics(topics.specs(["a"], ["d0"]))
        taken = leaving.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{port}: .*SLUICE_FAUST__PORT"):
            await asyncio.wait_for(counting(broker, topics, port).run(asyncio.Event()), PATIENCE_S)


async def test_counts_passed_over_where_no_other_follows_are_counted(kafka_url: str, tmp_path: Path) -> None:
    broker = connect(kafka_url)
    topics = Topics(settings_for(kafka_url, tmp_path).prefix)
    await broker.admin().create_topics(topics.specs(["a"], ["d0"]))
    partition = TP(topics.demand, 0)
    async with an_app(broker, topics, free_port(), tmp_path) as (app, _):
        await counts(broker, topics, [1, 2, 3])
        await published(broker, topics, {"a": 6})
        app.consumer.pause_partitions([partition])
        await counts(broker, topics, [4, 5, 6])
        await app.consumer.seek_wait({partition: 6})
        app.consumer.resume_partitions([partition])
        await published(broker, topics, {"a": 21})
    await broker.close()


async def test_a_count_that_cannot_be_written_yet_waits(kafka_url: str, tmp_path: Path) -> None:
    """Faust may have asked for its topics before Kafka knew the changelog."""
    broker = connect(kafka_url)
    topics = Topics(settings_for(kafka_url, tmp_path).prefix)
    await broker.admin().create_topics(topics.specs(["a"], ["d0"]))
    changelog = f"{topics.demand_group}-windows-changelog"
    assert changelog not in await broker.admin().topics()
    async with an_app(broker, topics, free_port(), tmp_path) as (app, _):
        assert await broker.admin().partitions([changelog]) == {changelog: 1}
        known, asked = app.consumer.topic_partitions, []

        def late(topic: str) -> int | None:
            asked.append(topic)
            found: int | None = known(topic)
            return 0 if topic == changelog and asked.count(changelog) < 3 else found

        app.consumer.topic_partitions = late
        await counts(broker, topics, [5, 2])
        await published(broker, topics, {"a": 7})
        assert asked.count(changelog) == 3
    await broker.close()


async def test_a_worker_that_stands_still_while_counts_wait_fails(
    kafka_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = connect(kafka_url)
    topics = Topics(settings_for(kafka_url, tmp_path).prefix)
    await broker.admin().create_topics(topics.specs(["a"], ["d0"]))
    async with an_app(broker, topics, free_port(), tmp_path) as (app, watching):
        await counts(broker, topics, [1])
        await published(broker, topics, {"a": 1})
        monkeypatch.setattr(faust_app, "STALE", 6.0)
        app.consumer.pause_partitions([TP(topics.demand, 0)])
        await counts(broker, topics, [2])
        with pytest.raises(BrokerError, match="nothing was counted for 6 s although counts wait"):
            await asyncio.wait_for(asyncio.shield(watching), 30.0)
    await broker.close()


async def test_a_planner_estimates_the_demand_that_windows_tell(kafka_url: str, tmp_path: Path) -> None:
    planner = PlannerSettings(demand="faust", period_s=2.0)
    settings = settings_for(kafka_url, tmp_path, planner=planner, faust={"port": free_port()})
    async with running(settings, connect(kafka_url), roles=(*ROLES, "demand")) as run:
        await run.planned()
        stage = next(s for s in run.stages if isinstance(s, PlannerStage))
        async with asyncio.timeout(PATIENCE_S):  # a group, its tables and their recovery come first
            while stage.core.controller.estimates(SystemClock().monotonic())["toy"].qps <= 5.0:
                for _ in range(40):
                    await run.ask(parameters={})
                    await asyncio.sleep(0.025)
        report = await run.settled()
        assert report.balanced, report


async def test_two_workers_share_the_partitions(kafka_url: str, tmp_path: Path) -> None:
    settings = settings_for(kafka_url, tmp_path, planner=PlannerSettings(demand_partitions=2))
    broker = connect(kafka_url)
    topics = Topics(settings.prefix)
    specs = topics.specs(["a", "b", "c", "d"], ["d0"], demand_partitions=2)
    await broker.admin().create_topics(specs)
    producer = broker.producer()
    await producer.start()
    code = (
        "import asyncio,sys; from sluicegate.stages.planner.faust_demand import DemandStage;"
        "from sluicegate.stages.runtime.system_clock import SystemClock;"
        "from sluicegate.streams import connect; from sluicegate.streams.broker_settings import KafkaSettings;"
        "from sluicegate.streams.topics import Topics;"
        "b=connect(sys.argv[1]);"
        "s=DemandStage(broker=b,servers=b.url.removeprefix('kafka://'),kafka=KafkaSettings(),topics=Topics(sys.argv[2]),"
        "clock=SystemClock(),port=int(sys.argv[3]));asyncio.run(s.run(asyncio.Event()))"
    )
    log = (tmp_path / "workers.log").open("wb")
    workers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, kafka_url, settings.prefix, str(free_port()), stdout=log, stderr=log
        )
        for _ in range(2)
    ]
    clock, sent = SystemClock(), dict.fromkeys("abcd", 0)
    try:
        for number in range(20):
            for app in sent:
                value = control.encode_demand(DemandCounted(app, 1 + number, 0.5), source="test", at=clock.wall())
                await (await producer.send(topics.demand, value, key=app.encode()))
                sent[app] += 1 + number
            await asyncio.sleep(0.4)
        await published(broker, topics, sent)
    finally:
        for worker in workers:
            worker.kill()
            await worker.wait()
        log.close()
        await producer.stop()
        await broker.close()


async def test_counting_goes_on_behind_a_batch_that_cannot_be_read(
    kafka_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = fetched_batches._unpacking
    monkeypatch.setattr(aiokafka.codec, "has_zstd", lambda: not getattr(reading, "ours", False))
    broker = connect(kafka_url)
    assert isinstance(broker, KafkaBroker)
    topics = Topics(settings_for(kafka_url, tmp_path).prefix)
    await broker.admin().create_topics(topics.specs(["a"], ["d0"]))
    told: list[tuple[str, int]] = []
    broker.on_unreadable = lambda record: told.append((record.topic, record.offset))
    async with an_app(broker, topics, free_port(), tmp_path):
        await counts(broker, topics, [1, 2])
        await published(broker, topics, {"a": 3})
        await write_batch(kafka_url.removeprefix("kafka://"), topics.demand, [b"x", b"y"], compression="zstd")
        await counts(broker, topics, [4])
        await published(broker, topics, {"a": 7})
    assert set(told) == {(topics.demand, 2), (topics.demand, 3)}
    await broker.close()
