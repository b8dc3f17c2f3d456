"""Client of another process's memory log, ``memory+http://127.0.0.1:port``: the same ports, explicit partitions only.

Rules. Sends are queued and written in batches by one task, in order; a queue that is full makes ``send`` wait. What
could not be delivered fails with DeliveryError. Groups belong to the process that has the log.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from math import nan

import orjson

from sluicegate.domain.errors import ConfigurationError, InvalidInputError
from sluicegate.streams.broker_settings import RemoteSettings
from sluicegate.streams.ports import (
    DeliveryError,
    Headers,
    LostPartitionError,
    RebalanceListener,
    Record,
    TopicPartition,
    TopicSpec,
    TopicState,
    Transactions,
    Written,
)
from sluicegate.streams.remote.connection import Connection, error_of
from sluicegate.streams.remote.frames import MAX_WAIT, decode_frame, encode_frame
from sluicegate.streams.subscription import Subscription

_BATCH_RECORDS = 500
_BATCH_BYTES = 4 << 20
_QUEUED = 5000


class RemoteProducer:
    """Implements ``sluicegate.streams.ports.Producer``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queue: asyncio.Queue[tuple[Record, asyncio.Future[Written]]] = asyncio.Queue(_QUEUED)
        self._pump: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Make sure that someone answers."""
        if self._pump is None:
            await self._connection.ask("topics")
            self._pump = asyncio.create_task(self._run())

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> asyncio.Future[Written]:
        """Queue a record. What the log refuses is told by the future."""
        if self._pump is None:
            raise ConfigurationError("this producer is not started (or stopped): await start() before send()")
        if value is None and key is None:
            raise InvalidInputError("record", "has neither key nor value; give one of them")
        most = self._connection.settings.max_message_bytes
        if len(value or b"") > most:
            raise InvalidInputError("record", f"{len(value or b'')} bytes; at most {most} are sent; send less at once")
        record = Record(
            topic,
            -1 if partition is None else partition,
            0,
            key,
            value,
            headers,
            nan if timestamp is None else timestamp,
        )
        written: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        await self._queue.put((record, written))
        return written

    def try_send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: float | None = None,
    ) -> asyncio.Future[Written] | None:
        """Never: a send may wait for metadata or room."""
        del topic, value, key, headers, partition, timestamp
        return None

    async def flush(self) -> None:
        """Wait until all is written or refused."""
        await self._queue.join()

    async def stop(self) -> None:
        """Flush, then stop."""
        if self._pump is not None:
            await self.flush()
            pump, self._pump = self._pump, None
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            batch = [await self._queue.get()]
            size = len(batch[0][0].value or b"")
            while len(batch) < _BATCH_RECORDS and size < _BATCH_BYTES and not self._queue.empty():
                batch.append(self._queue.get_nowait())
                size += len(batch[-1][0].value or b"")
            try:
                await self._deliver(batch)
            except Exception as error:  # whatever it was, who waits must be told and the next batch tried
                for record, written in batch:
                    if not written.done():
                        written.set_exception(DeliveryError(f"{record.topic}: not written ({error})"))
            finally:
                for _ in batch:
                    self._queue.task_done()

    async def _deliver(self, batch: Sequence[tuple[Record, asyncio.Future[Written]]]) -> None:
        frame = encode_frame({}, [(record.topic, record.partition, (record,)) for record, _ in batch])
        answer = orjson.loads(await self._connection.call("produce", frame))
        for (record, written), fate in zip(batch, answer["written"], strict=True):
            if written.done():
                continue
            if isinstance(fate, list):
                written.set_result(Written(record.topic, fate[0], fate[1]))
            else:
                written.set_exception(error_of(fate))


class RemoteConsumer:
    """Implements ``sluicegate.streams.ports.Consumer`` for explicit partitions."""

    def __init__(self, connection: Connection, reads: Subscription) -> None:
        self._connection = connection
        self._reads = reads
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._running = False

    async def start(self) -> None:
        """Settle the positions."""
        if self._running:
            return
        wanted = list(self._reads.partitions)
        if self._reads.topics:
            counts = (await self._connection.ask("topics"))["topics"]
            wanted += self._reads.explicit(counts)
        first = self.end_offsets(wanted) if self._reads.start_at == "end" else self.beginning_offsets(wanted)
        self._positions = dict(await first)
        self._running = True

    async def get_many(self, *, wait: float, max_records: int = 500) -> Sequence[Record]:
        """Records in offset order within each partition."""
        if not self._running:
            raise ConfigurationError("this consumer is not started (or stopped): await start() before reading")
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        while True:
            open_ = [(*tp, at) for tp, at in self._positions.items() if tp not in self._paused]
            left = until - loop.time()
            if not open_:
                await asyncio.sleep(max(0.0, left))
                return []
            asked = {"positions": open_, "wait": max(0.0, min(left, MAX_WAIT)), "max_records": max_records}
            head, blocks = decode_frame(await self._connection.call("fetch", orjson.dumps(asked)))
            for topic, partition, at in head["positions"]:
                self._positions[TopicPartition(topic, partition)] = at
            records = [record for _, _, held in blocks for record in held]
            if records or loop.time() >= until:
                return records

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Not from here."""
        del topics
        raise ConfigurationError("a memory log has groups only within its own process; name partitions instead")

    def assignment(self) -> frozenset[TopicPartition]:
        """Partitions read at present."""
        return frozenset(self._positions)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these."""
        self._paused.update(self._ours(tp) for tp in partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these again."""
        self._paused.difference_update(self._ours(tp) for tp in partitions)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from ``offset``."""
        if offset < 0:
            raise ConfigurationError(f"cannot seek {partition} to {offset}: offsets start at 0")
        self._positions[self._ours(partition)] = offset

    async def position(self, partition: TopicPartition) -> int:
        """Offset of the next record to be read."""
        return self._positions[self._ours(partition)]

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Not from here."""
        del offsets
        raise ConfigurationError("only the process that has a memory log commits offsets of its groups")

    async def committed(self, partition: TopicPartition) -> int | None:
        """None: there is no group."""
        del partition
        return None

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """First offset still kept."""
        return await self._offsets("beginning", partitions)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Offset that the next record will get."""
        return await self._offsets("end", partitions)

    async def offsets_for_times(self, times: Mapping[TopicPartition, float]) -> Mapping[TopicPartition, int | None]:
        """First offset at or after each time."""
        answer = await self._connection.ask("offsets", {"partitions": [(*tp, at) for tp, at in times.items()]})
        return dict(zip(times, answer["at"], strict=True))

    async def stop(self) -> None:
        """Read no more."""
        self._running = False
        self._positions.clear()

    async def _offsets(self, which: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = [TopicPartition(*tp) for tp in partitions]
        answer = await self._connection.ask("offsets", {"partitions": wanted and [tuple(tp) for tp in wanted]})
        return dict(zip(wanted, answer[which], strict=True))

    def _ours(self, tp: TopicPartition) -> TopicPartition:
        if tp not in self._positions:
            raise LostPartitionError(f"partition {tp.partition} of {tp.topic} is not read by this consumer")
        return tp


class RemoteAdmin:
    """Implements ``sluicegate.streams.ports.Admin``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create_topics(self, topics: Iterable[TopicSpec]) -> None:
        """Create those that do not exist."""
        await self._connection.ask("topics", {"topics": [asdict(spec) for spec in topics]})

    async def partitions(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Partition count of each topic that exists."""
        counts = (await self._connection.ask("topics"))["topics"]
        return {name: counts[name] for name in topics if name in counts}

    async def states(self, topics: Iterable[str]) -> Mapping[str, TopicState]:
        """Those of ``topics`` that exist, as the process that holds the log keeps them."""
        told = await self._connection.ask("topics")
        counts, configs = told["topics"], told.get("configs", {})
        return {name: TopicState(counts[name], 1, configs.get(name, {})) for name in topics if name in counts}

    async def topics(self) -> frozenset[str]:
        """Names of all topics."""
        return frozenset((await self._connection.ask("topics"))["topics"])

    async def limits(self, topics: Iterable[str]) -> Mapping[str, int]:
        """None are told: the process that holds the log refuses what is too large."""
        del topics
        return {}

    async def committed(self, group: str, partition: TopicPartition) -> int | None:
        """Committed offset of any group."""
        answer = await self._connection.ask("committed", {"group": group, "partitions": [tuple(partition)]})
        offset: int | None = answer["offsets"][0]
        return offset


class RemoteBroker:
    """Implements ``sluicegate.streams.ports.Broker``. ``base``: http://127.0.0.1:port."""

    def __init__(self, base: str, settings: RemoteSettings) -> None:
        self._base = base
        self._connection = Connection(base, settings)
        self._producers: list[RemoteProducer] = []

    @property
    def url(self) -> str:
        """``memory+http://`` and the address."""
        return f"memory+{self._base}"

    def producer(self) -> RemoteProducer:
        """A new producer."""
        producer = RemoteProducer(self._connection)
        self._producers.append(producer)
        return producer

    def consumer(
        self,
        *,
        topics: Sequence[str] = (),
        partitions: Sequence[TopicPartition] = (),
        group: str | None = None,
        member: str | None = None,
        start_at: str = "committed",
        listener: RebalanceListener | None = None,
        exclusive: bool = False,
    ) -> RemoteConsumer:
        """A new consumer of explicit partitions, or of topics as a whole."""
        if group is not None or member is not None or listener is not None or exclusive:
            raise ConfigurationError("a memory log has groups only within its own process; name partitions instead")
        return RemoteConsumer(
            self._connection,
            Subscription(tuple(topics), tuple(TopicPartition(*tp) for tp in partitions), start_at=start_at),
        )

    def transactions(self, transactional_id: str) -> Transactions:
        """There are none here."""
        del transactional_id
        raise ConfigurationError(f"{self.url} has no transactions: exactly-once delivery needs kafka://")

    def admin(self) -> RemoteAdmin:
        """Topic administration."""
        return RemoteAdmin(self._connection)

    async def close(self) -> None:
        """Stop the producers and disconnect."""
        for producer in self._producers:
            await producer.stop()
        await self._connection.close()
