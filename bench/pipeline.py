"""What the pipeline costs: sustained rate, added latency and CPU a query through all four hops.

Systems measured in one run: the embedded broker in one process (``memory``); as the floor, a bare forwarder of the same
four hops and message sizes (``forwarder`` by aiokafka, ``rdkafka-forwarder`` by librdkafka, a thread a hop); Apache
Kafka with all stages in one process (``kafka-process``, ``rdkafka-process``) and with a process a stage
(``kafka-processes``, ``rdkafka-processes``). Devices are emulated with a flat latency of 1 ms, so that no model
runs. Added latency is result time - arrival - execution. CPU is that of our Python processes, the load generator's own
cost measured apart and taken off: of a forwarder that of its own loop, which sends prepared bytes by the bare client.

`python bench/pipeline.py [--kafka kafka://host:port] [--seconds 8] [--qps 1000] [--delivery exactly_once] [--systems
kafka-process] [--json]`; writes reports/bench/pipeline.json, which `--json` prints: `{"rows": [{"system", "p50_ms",
"p99_ms", "cpu_us", …}]}`. Exactly once, the embedded broker is left out, and the latency is that of whoever reads the
results, which are there once their transaction has ended; its CPU is counted too, but not with a process
a stage.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import platform
import resource
import struct
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.tensor import Tensor, TensorSpec
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.profiles.catalogue.catalogue_folder import save_catalogue
from sluicegate.sluice.audit.result_log import read_results, result_topics
from sluicegate.sluice.audit.topic_audit import read_topics
from sluicegate.sluice.settings.kafka_section import KafkaSection
from sluicegate.sluice.settings.settings import DeviceSettings, Settings, WorkerSettings, load
from sluicegate.sluice.system.process_stages import stages_of
from sluicegate.sluice.system.system import System
from sluicegate.stages.runtime.supervisor import run_stages
from sluicegate.streams import connect
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.local_kafka.broker import LocalBroker
from sluicegate.streams.ports import Broker, Producer, TopicPartition, TopicSpec
from sluicegate.streams.records import codec
from sluicegate.streams.topics import Topics

ROLES = ("admission", "router", "worker", "planner")
SYSTEMS = (
    "memory", "forwarder", "rdkafka-forwarder", "kafka-process", "rdkafka-process", "kafka-processes",
    "rdkafka-processes",
)  # fmt: skip
Delivery = Literal["at_least_once", "exactly_once"]
Library = Literal["aiokafka", "rdkafka"]
PIXELS = 784
EXECUTION = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked of each system, and how it is to deliver."""

    seconds: float
    qps: float
    delivery: Delivery = "at_least_once"

    @property
    def count(self) -> int:
        """Queries."""
        return int(self.seconds * self.qps)


def catalogue() -> Catalogue:
    """One app, one variant, 1 ms whatever the batch."""
    app = App(
        name="bench",
        slo=2.0,
        inputs=(TensorSpec("image", "FP32", (PIXELS,)),),
        outputs=(TensorSpec("scores", "FP32", (10,)), TensorSpec("label", "INT64", ())),
    )
    points = tuple(BatchLatency(b, EXECUTION, EXECUTION) for b in (1, 64))
    return Catalogue.of(
        [app],
        [Variant(name="flat", app="bench", accuracy=0.9)],
        [Profile(variant="flat", device_type="cpu", points=points, load=0.01)],
    )


def settings(url: str, folder: Path, delivery: Delivery, library: Library) -> Settings:
    """A system of two emulated devices."""
    return Settings(
        broker=url,
        kafka=KafkaSection(library=library),
        delivery=delivery,
        prefix=f"bench{uuid.uuid4().hex[:8]}",
        home=folder,
        runs=folder / "runs",
        devices=(DeviceSettings(name="d0"), DeviceSettings(name="d1")),
        worker=WorkerSettings(executor="emulated", batching="eager"),
        catalogue=folder / "catalogue",
    )


def cpu_of(pids: list[int]) -> float:
    """CPU seconds of these processes so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def own_cpu() -> float:
    """CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def due(number: int, qps: float, started: float) -> None:
    """Wait until query ``number`` is to be sent: one by one at low rates, five at a time at high ones."""
    if number % max(1, min(5, int(qps / 200))) == 0:
        wait = number / qps - (time.monotonic() - started)
        if wait > 0:
            await asyncio.sleep(wait)


async def produce(producer: Producer, topics: Topics, count: int, qps: float) -> None:
    """``count`` queries at ``qps``."""
    tensor = (Tensor("image", "FP32", (1, PIXELS), struct.pack(f"<{PIXELS}f", *([0.5] * PIXELS))),)
    started = time.monotonic()
    last = None
    for i in range(count):
        await due(i, qps, started)
        now = time.time()
        message = codec.encode_query(f"q{i}", tensor, app="bench", now=now)
        last = await producer.send(
            topics.queries("bench"), message.value, key=message.key, headers=message.headers, timestamp=now
        )
    if last is not None:
        await last


@asynccontextmanager
async def system(url: str, folder: Path, delivery: Delivery, library: Library, apart: bool) -> Any:
    """(broker, producer, topics, pids of the stages' processes; none: in this process)."""
    chosen = settings(url, folder, delivery, library)
    if not (folder / "catalogue").exists():
        save_catalogue(folder / "catalogue", catalogue(), {})
    broker = connect(url, kafka=chosen.kafka.settings())
    producer = broker.producer()
    await producer.start()
    built = System(chosen, catalogue(), folder, broker, producer, folder)
    await built.create_topics()
    stop = asyncio.Event()
    if apart:
        file = folder / f"{chosen.prefix}.yaml"
        file.write_text(json.dumps(chosen.model_dump(mode="json", exclude={"http"})))
        processes = [
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "sluicegate.sluice.main",
                "up",
                *arguments,
                "--settings",
                str(file),
                cwd=folder,
                stderr=asyncio.subprocess.DEVNULL,
            )
            for arguments in (
                ["admission"],
                ["router"],
                ["worker", "--device", "d0"],
                ["worker", "--device", "d1"],
                ["planner"],
            )
        ]
        await settled(broker, built.topics)
        yield broker, producer, built.topics, [p.pid for p in processes]
        for process in processes:
            process.terminate()
        await asyncio.gather(*(p.wait() for p in processes))
    else:
        task = asyncio.create_task(run_stages(stages_of(built, ROLES), stop))
        await settled(broker, built.topics)
        yield broker, producer, built.topics, []
        stop.set()
        await task
    await producer.stop()
    await broker.close()


async def settled(broker: Broker, topics: Topics) -> None:
    """Both devices have loaded what the plan wants."""
    async with asyncio.timeout(60.0):
        while len({r.key async for r in read_results(broker, [TopicPartition(topics.acks, 0)], follow=False)}) < 2:
            await asyncio.sleep(0.2)
    await asyncio.sleep(1.5)


async def finished(broker: Broker, topics: Topics, count: int) -> float:
    """Wall time at which ``count`` results are there."""
    partitions = await result_topics(broker, topics)
    consumer = broker.consumer(partitions=partitions, start_at="end")
    await consumer.start()
    try:
        while sum((await consumer.end_offsets(partitions)).values()) < count:
            await asyncio.sleep(0.02)
        return time.time()
    finally:
        await consumer.stop()


async def read_as_they_come(broker: Broker, topics: Topics, seen: list[float]) -> None:
    """What a reader of the results waits for each of them, beyond its execution."""
    async for record in read_results(broker, await result_topics(broker, topics), follow=True):
        outcome = codec.decode_outcome(record).outcome
        seen.append(time.time() - outcome.arrival - outcome.execution_s)


async def counted(seen: list[float], count: int, reading: "asyncio.Task[None]") -> float:
    """Wall time at which ``count`` results were read."""
    while len(seen) < count:
        if reading.done():
            reading.result()
        await asyncio.sleep(0.02)
    return time.time()


async def measure(
    name: str, url: str, folder: Path, load: Load, *, apart: bool = False, library: Library = "aiokafka"
) -> dict[str, Any]:
    """Latency and CPU at its rate, then the rate at which a burst is worked off."""
    count = load.count
    async with system(url, folder, load.delivery, library, apart) as (broker, producer, topics, pids):
        once = load.delivery == "exactly_once"
        seen: list[float] = []
        reading = [asyncio.create_task(read_as_they_come(broker, topics, seen))] if once else []

        async def all_there(asked: int) -> float:
            return await counted(seen, asked, reading[0]) if once else await finished(broker, topics, asked)

        before, mine = cpu_of(pids), own_cpu()
        await produce(producer, topics, count, load.qps)
        await all_there(count)
        used, mine = cpu_of(pids) - before, own_cpu() - mine
        added = seen[:count]
        if not once:
            async for record in read_results(broker, await result_topics(broker, topics), follow=False):
                outcome = codec.decode_outcome(record).outcome
                added.append(outcome.at - outcome.arrival - outcome.execution_s)
        report = (await read_topics(broker, topics)).report()
        burst = 10_000
        started = time.time()
        await produce_more(producer, topics, count, burst)
        ended = await all_there(count + burst)
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    own = used if apart else mine - generator_cpu(count)
    return {
        "system": name,
        "queries": count,
        "lost": report.lost,
        "p50_ms": 1e3 * float(np.percentile(added, 50)),
        "p99_ms": 1e3 * float(np.percentile(added, 99)),
        "cpu_us": 1e6 * own / count,
        "sustained_qps": burst / (ended - started),
    }


async def produce_more(producer: Producer, topics: Topics, first: int, count: int) -> None:
    """A burst with ids of its own."""
    tensor = (Tensor("image", "FP32", (1, PIXELS), bytes(4 * PIXELS)),)
    for i in range(first, first + count):
        message = codec.encode_query(f"q{i}", tensor, app="bench", now=time.time(), parameters={"latency_ms": 60000})
        await producer.send(topics.queries("bench"), message.value, key=message.key, headers=message.headers)
        if i % 50 == 0:
            await asyncio.sleep(0)
    await producer.flush()


_GENERATOR: dict[str, float] = {}


def generator_cpu(count: int) -> float:
    """CPU seconds that making and producing ``count`` queries costs on the same kind of broker, measured once."""
    return _GENERATOR["per_query"] * count


async def measure_generator(url: str, seconds: float, qps: float, library: Library) -> None:
    """The load generator alone: topics, no stages."""
    broker = connect(url, kafka=KafkaSettings(library=library))
    producer = broker.producer()
    await producer.start()
    topics = Topics(f"alone{uuid.uuid4().hex[:8]}")
    await broker.admin().create_topics(topics.specs(["bench"], []))
    before = own_cpu()
    count = int(seconds * qps)
    await produce(producer, topics, count, qps)
    _GENERATOR["per_query"] = (own_cpu() - before) / count
    await producer.stop()
    await broker.close()


async def forwarder(url: str, load: Load) -> dict[str, Any]:
    """The floor: a bare aiokafka process that forwards three times what is produced, bodies untouched."""
    import aiokafka

    server = url.removeprefix("kafka://")
    prefix = f"fwd{uuid.uuid4().hex[:8]}"
    names, unread = [f"{prefix}.{i}" for i in range(4)], f"{prefix}.unread"
    broker = connect(url)
    await broker.admin().create_topics([TopicSpec(name=n) for n in [*names, unread]])
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=server, linger_ms=1, acks="all", enable_idempotence=True)
    await producer.start()
    stop = asyncio.Event()
    done: list[float] = []
    count = load.count

    async def hop(source: str, target: str | None) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=server, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await consumer.start()
        consumer.assign([aiokafka.TopicPartition(source, 0)])
        try:
            while not stop.is_set():
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    for record in records:
                        if target is None:
                            done.append(time.time() - record.timestamp / 1e3)
                        else:
                            await producer.send(
                                target,
                                record.value,
                                key=record.key,
                                headers=record.headers,
                                timestamp_ms=record.timestamp,
                            )
        finally:
            await consumer.stop()

    body = bytes(4 * PIXELS + 100)

    async def offer(topic: str, queries: int) -> None:
        started = time.monotonic()
        for i in range(queries):
            await due(i, load.qps, started)
            await producer.send(topic, body, key=b"k", timestamp_ms=int(time.time() * 1e3))
        await producer.flush()

    before = own_cpu()
    await offer(unread, count)
    alone = own_cpu() - before
    hops = [asyncio.create_task(hop(a, b)) for a, b in zip(names, [*names[1:], None], strict=True)]
    await asyncio.sleep(1.0)
    before = own_cpu()
    await offer(names[0], count)
    while len(done) < count:
        await asyncio.sleep(0.02)
    used = own_cpu() - before - alone
    stop.set()
    await asyncio.gather(*hops)
    await producer.stop()
    await broker.close()
    return {
        "system": "forwarder",
        "queries": count,
        "p50_ms": 1e3 * float(np.percentile(done, 50)),
        "p99_ms": 1e3 * float(np.percentile(done, 99)),
        "cpu_us": 1e6 * used / count,
    }


async def rdkafka_forwarder(url: str, load: Load) -> dict[str, Any]:
    """The same floor by confluent-kafka, a thread a hop, as its own examples do."""
    import confluent_kafka

    server = url.removeprefix("kafka://")
    prefix = f"fwd{uuid.uuid4().hex[:8]}"
    names, unread = [f"{prefix}.{i}" for i in range(4)], f"{prefix}.unread"
    broker = connect(url)
    await broker.admin().create_topics([TopicSpec(name=n) for n in [*names, unread]])
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": server, "linger.ms": 1, "acks": "all", "enable.idempotence": True}
    )
    stop = threading.Event()
    done: list[float] = []
    count = load.count

    def hop(source: str, target: str | None) -> None:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": server, "group.id": prefix, "enable.auto.commit": False}
        )
        consumer.assign([confluent_kafka.TopicPartition(source, 0, 0)])
        while not stop.is_set():
            first = consumer.poll(0.2)
            for record in [] if first is None else [first, *consumer.consume(500, 0)]:
                stamp = record.timestamp()[1]
                if target is None:
                    done.append(time.time() - stamp / 1e3)
                else:
                    producer.produce(target, record.value(), record.key(), headers=record.headers(), timestamp=stamp)
            producer.poll(0)
        consumer.close()

    body = bytes(4 * PIXELS + 100)

    async def offer(topic: str, queries: int) -> None:
        started = time.monotonic()
        for i in range(queries):
            await due(i, load.qps, started)
            producer.produce(topic, body, b"k", timestamp=int(time.time() * 1e3))
        await asyncio.to_thread(producer.flush)

    before = own_cpu()
    await offer(unread, count)
    alone = own_cpu() - before
    hops = [threading.Thread(target=hop, args=ends) for ends in zip(names, [*names[1:], None], strict=True)]
    for thread in hops:
        thread.start()
    await asyncio.sleep(1.0)
    before = own_cpu()
    await offer(names[0], count)
    while len(done) < count:
        await asyncio.sleep(0.02)
    used = own_cpu() - before - alone
    stop.set()
    for thread in hops:
        await asyncio.to_thread(thread.join)
    producer.flush()
    await broker.close()
    return {
        "system": "rdkafka-forwarder",
        "queries": count,
        "p50_ms": 1e3 * float(np.percentile(done, 50)),
        "p99_ms": 1e3 * float(np.percentile(done, 99)),
        "cpu_us": 1e6 * used / count,
    }


async def main(arguments: argparse.Namespace, kafka: str | None) -> list[dict[str, Any]]:
    """All systems, in turn."""
    load = Load(seconds=arguments.seconds, qps=arguments.qps, delivery=arguments.delivery)
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        steps: dict[str, tuple[str, Callable[[], Awaitable[Any]]]] = {}
        if load.delivery == "at_least_once":
            steps["memory"] = ("memory://", lambda: measure("memory", "memory://", folder, load))
        if kafka is not None:
            steps["forwarder"] = (kafka, lambda: forwarder(kafka, load))
            steps["kafka-process"] = (kafka, lambda: measure("kafka-process", kafka, folder, load))
            steps["kafka-processes"] = (kafka, lambda: measure("kafka-processes", kafka, folder, load, apart=True))
        if kafka is not None and importlib.util.find_spec("confluent_kafka") is not None:
            rd: dict[str, Any] = {"library": "rdkafka"}
            steps["rdkafka-forwarder"] = (kafka, lambda: rdkafka_forwarder(kafka, load))
            steps["rdkafka-process"] = (kafka, lambda: measure("rdkafka-process", kafka, folder, load, **rd))
            steps["rdkafka-processes"] = (
                kafka,
                lambda: measure("rdkafka-processes", kafka, folder, load, apart=True, **rd),
            )
        for name in arguments.systems.split(","):
            if name in steps:
                url, step = steps[name]
                if not name.endswith("forwarder"):
                    await measure_generator(url, 3.0, arguments.qps, "rdkafka" if name.startswith("rd") else "aiokafka")
                rows.append(await step())
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


@contextmanager
def kafka_at(arguments: argparse.Namespace) -> Iterator[str | None]:
    """The broker that was named, one of our own where it can be had, or None."""
    if arguments.no_kafka or arguments.kafka is not None:
        yield None if arguments.no_kafka else arguments.kafka
        return
    with tempfile.TemporaryDirectory() as place:
        broker = LocalBroker(Path(place) / "kafka", home=load().home)
        try:
            url = broker.start(within=120.0).url
        except ConfigurationError as error:
            print(f"without Kafka: {error}", file=sys.stderr)
            url = None
        try:
            yield url
        finally:
            broker.stop(within=1.0)


def show(rows: list[dict[str, Any]]) -> None:
    """The table."""
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}"
    )
    print(f"{'system':28} {'p50 ms':>8} {'p99 ms':>8} {'CPU us/q':>9} {'burst q/s':>10} {'lost':>5}")
    for row in rows:
        print(
            f"{row['system']:28} {row['p50_ms']:8.2f} {row['p99_ms']:8.2f} {row['cpu_us']:9.0f} "
            f"{row.get('sustained_qps', float('nan')):10.0f} {row.get('lost', 0):5d}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", help="kafka://host:port (default: start one, if Java and the jars can be had)")
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--qps", type=float, default=1000.0)
    parser.add_argument("--delivery", choices=("at_least_once", "exactly_once"), default="at_least_once")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="which, joined by commas")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output, nothing else")
    given = parser.parse_args()
    with kafka_at(given) as where:
        results = asyncio.run(main(given, where))
    target = Path("reports/bench/pipeline.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"rows": results}, indent=2))
    if given.json:
        print(json.dumps({"rows": results}))
    else:
        show(results)
