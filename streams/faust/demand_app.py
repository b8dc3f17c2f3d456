"""The Faust app that counts demand by windows: reads counts, keeps a windowed table, publishes each app's last seconds.

Rules.
- Partitions of the demand topic are shared among all workers of the group; the table of each follows its partitions
  through the changelog, so that a worker that starts or takes over goes on in mid-window.
- Faust can pass records over while it recovers (its open issue 596). So each partition's offsets are watched, from the
  group's committed one when the partition was assigned on: what was passed over is read apart and counted first.
  What it passed over at the end of a partition, where no later record shows it, it is sent back to.
- Signed counts count once, wherever on the topic they are written once more.
- A worker that stands still although counts wait, as in a recovery that never ends, fails rather than be silent.
- The changelog has as many partitions as the demand topic. It is created before Faust starts: Faust asks Kafka for its
  topics once, and takes one that came later for one without partitions, to which nothing can be written. A count that
  cannot be written waits; it is not skipped.
- Web views listen on loopback only.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import faust
import orjson
from aiokafka.errors import IllegalStateError
from faust.exceptions import PartitionsMismatch
from faust.types import TP

from sluicegate.domain.errors import InvalidInputError
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.faust.offset_gaps import Gaps
from sluicegate.streams.kafka.broker import KafkaBroker
from sluicegate.streams.kafka.connection import connection
from sluicegate.streams.kafka.fetched_batches import UnreadableRecord, read_past_faults
from sluicegate.streams.ports import Broker, BrokerError, Consumer, Record, TopicPartition, TopicSpec, Unreadable
from sluicegate.streams.records import control
from sluicegate.streams.records.demand_windows import HALF, KEPT, STALE, encode_windows, folded, half_of
from sluicegate.streams.signing import HEADER, Signatures, SignedBroker, Signing, unsigned
from sluicegate.streams.topics import Topics

log = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"
_TABLE = "windows"
_SEGMENT_S = 60.0
_LOOK_EVERY = 1.0
_BACK_AFTER = 3.0
_AGAIN_AFTER = 0.5


async def demand_app(
    broker: Broker,
    servers: str,
    kafka: KafkaSettings,
    topics: Topics,
    *,
    partitions: int,
    port: int,
    folder: Path,
    views: Mapping[str, Callable[[], Any]],
) -> tuple[faust.App, Callable[[], Coroutine[Any, Any, None]]]:
    """An app to be started in a running loop, and what is to run beside it, from before it starts.

    ``servers``: host:port, by commas; ``partitions``: of the demand topic. ``broker``: the same Kafka, for what Faust
    passes over.

    ``views``: what each web view shows, as JSON, by its path (``/demand``). ``folder``: Faust's own, for nothing kept.
    """
    app = faust.App(
        topics.demand_group,
        broker=[f"kafka://{server}" for server in servers.split(",")],
        broker_credentials=_credentials(servers, kafka),
        broker_session_timeout=kafka.session_timeout,
        broker_heartbeat_interval=kafka.heartbeat_interval,
        broker_commit_interval=1.0,
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=kafka.fetch_bytes,
        producer_linger=kafka.linger,
        topic_allow_declare=True,
        topic_disable_leader=True,
        topic_partitions=partitions,
        topic_replication_factor=kafka.replication or 1,
        datadir=str(folder),
        store="memory://",
        stream_wait_empty=False,
        web_enabled=True,
        web_bind=_LOOPBACK,
        web_host=_LOOPBACK,
        web_port=port,
    )
    counted = app.topic(topics.demand, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")
    changelog = TopicSpec(
        name=f"{topics.demand_group}-{_TABLE}-changelog",
        partitions=partitions,
        retention_s=STALE,
        segment_s=_SEGMENT_S,
    )
    await broker.admin().create_topics([changelog])
    windows = app.Table(_TABLE, default=dict, partitions=partitions).tumbling(1.0, expires=STALE)
    published = app.topic(
        topics.demand_windows, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"
    )
    signing = broker.signing if isinstance(broker, SignedBroker) else None
    counting = _Counting(windows, published, Gaps(broker, topics.demand, topics.demand_group), signing)

    async def assigned(sender: Any, assigned: Any, **more: Any) -> None:
        _go_on_behind_faults(app, broker)
        await counting.assigned(sender, assigned, **more)

    app.agent(counted, name="demand")(counting.run)
    app.on_partitions_assigned.connect(assigned, weak=False)
    for path, view in views.items():
        _add_view(app, path, view)

    async def watch() -> None:
        reader = broker.consumer(partitions=[TopicPartition(topics.demand, i) for i in range(partitions)])
        await counting.watch(app, reader)

    return app, watch


class _Counting:
    """One agent's work. ``newest``: of each app the newest second, from which the record's seconds go back."""

    def __init__(self, windows: Any, published: Any, gaps: Gaps, signing: Signing | None) -> None:
        self._windows = windows
        self._published = published
        self._gaps = gaps
        self._signing = signing
        self._signatures = None if signing is None else Signatures(signing)
        self._newest: dict[str, int] = {}

    async def assigned(self, sender: Any, assigned: Any, **more: Any) -> None:
        """Faust's signal: before tables recover and records are read."""
        del sender, more
        await self._gaps.assigned([tp.partition for tp in assigned if tp.topic == self._gaps.topic])

    async def watch(self, app: Any, reader: Consumer) -> None:
        """Send Faust back to counts that it does not use. Raises BrokerError where that does not help."""
        await reader.start()
        try:
            reader.pause(reader.assignment())  # it tells where partitions end, no more
            while True:
                await asyncio.sleep(_LOOK_EVERY)
                try:
                    kept = await self._kept(reader)
                except BrokerError as error:
                    log.warning("%s: %s; looking again", self._gaps.topic, error)
                    kept = {}
                await self._back(app, self._gaps.unused(kept, time.monotonic()))
        finally:
            await reader.stop()

    async def _kept(self, reader: Consumer) -> dict[int, range]:
        first = await reader.beginning_offsets(reader.assignment())
        ends = await reader.end_offsets(reader.assignment())
        return {p.partition: range(first[p], end) for p, end in ends.items()}

    async def _back(self, app: Any, unused: Mapping[int, tuple[int, float]]) -> None:
        if any(seconds >= STALE for _, seconds in unused.values()):
            raise BrokerError(f"{self._gaps.topic}: nothing was counted for {STALE:g} s although counts wait")
        behind = {TP(self._gaps.topic, p): offset for p, (offset, seconds) in unused.items() if seconds >= _BACK_AFTER}
        if not behind or app.rebalancing or app.in_recovery:
            return
        log.info("back to what was passed over: %s", behind)
        try:
            async with asyncio.timeout(STALE):
                await app.consumer.seek_wait(behind)
        except IllegalStateError:  # they went to another worker meanwhile
            log.info("no longer ours: %s", list(behind))
        except TimeoutError:
            raise BrokerError(f"{self._gaps.topic}: Faust's consumer does not answer") from None

    async def run(self, stream: Any) -> None:
        async for event in stream.events():
            message = event.message
            for record in await self._gaps.before(message.partition, message.offset):
                await self._use(record)
            await self._use(_record(message, event.value))

    async def _use(self, record: Record) -> None:
        if flaw := "" if self._signatures is None else self._signatures.flaw(record, time.time()):
            log.info("%s offset %d %s: it is passed over", self._gaps.topic, record.offset, flaw)
        else:
            await self._count(record.value, record.offset, record.timestamp)

    async def _count(self, value: bytes | None, offset: int, timestamp: float) -> None:
        try:
            app, at, seconds = await self._folded(value or b"{}", offset, timestamp)
        except InvalidInputError as error:
            log.warning("%s offset %d skipped: %s", self._gaps.topic, offset, error)
            return
        except Exception:  # one record must not end the counting of all
            log.exception("%s offset %d skipped", self._gaps.topic, offset)
            return
        if seconds:
            await self._publish(app.encode(), encode_windows(app, seconds, at))

    async def _publish(self, key: bytes, value: bytes) -> None:
        topic = self._published.get_topic_name()
        signed = None if self._signing is None else {HEADER: self._signing.signature(topic, key, value, time.time())}
        await self._published.send(key=key, value=value, headers=signed)

    async def _folded(
        self, value: bytes, offset: int, timestamp: float
    ) -> tuple[str, float, dict[int, dict[str, Any]]]:
        while True:
            try:
                return self._fold(value, offset, timestamp)
            except PartitionsMismatch as error:
                log.warning("%s offset %d waits: %s", self._gaps.topic, offset, error)
            await asyncio.sleep(_AGAIN_AFTER)

    def _fold(self, value: bytes, offset: int, timestamp: float) -> tuple[str, float, dict[int, dict[str, Any]]]:
        counted = control.decode_demand(value)
        at = _end_of(value, timestamp)
        if at < time.time() - STALE:
            return counted.app, at, {}
        half = half_of(at, counted.window)
        second = half // round(1 / HALF)
        held = self._windows[counted.app][self._range(second)]
        window = folded(held, offset, half, counted)
        if window is None:
            return counted.app, at, {}
        self._windows[counted.app][self._range(second)] = window
        newest = self._newest[counted.app] = max(second, self._newest.get(counted.app, second))
        asked = {second, *range(newest - KEPT + 1, newest + 1)}
        return counted.app, at, {s: w for s in asked if (w := self._windows[counted.app][self._range(s)])}

    def _range(self, second: int) -> tuple[float, float]:
        found: tuple[float, float] = self._windows.table.window.current(second + HALF)
        return found


def _record(message: Any, value: bytes | None) -> Record:
    """What Faust read."""
    headers = message.headers or ()
    held = tuple(headers.items() if isinstance(headers, Mapping) else headers)
    return Record(message.topic, message.partition, message.offset, message.key, value, held, message.timestamp)


def _go_on_behind_faults(app: Any, broker: Broker) -> None:
    """Have Faust's own client pass over batches that cannot be read, as all of ours do, and tell of them."""
    loop, inner = asyncio.get_running_loop(), unsigned(broker)

    def tell(r: UnreadableRecord) -> None:  # in the thread of Faust's consumer
        found = Unreadable.at(r.topic, r.partition, r.offset, r.timestamp / 1e3, r.why)
        if isinstance(inner, KafkaBroker):
            loop.call_soon_threadsafe(inner.on_unreadable, found)

    read_past_faults(app.consumer._thread._ensure_consumer(), tell)


def _end_of(value: bytes, otherwise: float) -> float:
    """When the count ended: ``at`` of the record, the record's own time where it says nothing sound."""
    at = orjson.loads(value).get("at")
    sound = isinstance(at, int | float) and math.isfinite(at) and abs(at - otherwise) < STALE
    return float(at) if sound else otherwise


def _credentials(servers: str, kafka: KafkaSettings) -> Any:
    options = connection(servers, kafka)
    context = options.get("ssl_context")
    if "sasl_oauth_token_provider" in options:
        return faust.OAuthCredentials(oauth_cb=options["sasl_oauth_token_provider"], ssl_context=context)
    if "sasl_mechanism" in options:
        return faust.SASLCredentials(
            username=options["sasl_plain_username"],
            password=options["sasl_plain_password"],
            mechanism=options["sasl_mechanism"],
            ssl_context=context,
        )
    return faust.SSLCredentials(context) if context is not None else None


def _add_view(app: Any, path: str, view: Callable[[], Any]) -> None:
    async def show(web: Any, request: Any) -> Any:
        del request
        return web.json(view())

    app.page(path, name=path.strip("/"))(show)
