"""Apache Kafka, ``kafka://host:port[,host:port]``, on aiokafka. Ports and rules: ``sluicegate.streams.ports``."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    KafkaConnectionError,
    KafkaError,
    TopicAlreadyExistsError,
    for_code,
)

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.connection import connection, speak_seldom, unreachable
from sluicegate.streams.kafka.consumer import KafkaConsumer
from sluicegate.streams.kafka.fetched_batches import check_codec
from sluicegate.streams.kafka.producer import KafkaProducer
from sluicegate.streams.kafka.topic_limits import Limits, default_replication, read_limits
from sluicegate.streams.kafka.transactions import KafkaTransactions
from sluicegate.streams.ports import BrokerError, RebalanceListener, TopicPartition, TopicSpec, Unreadable
from sluicegate.streams.subscription import Subscription
from sluicegate.streams.topics import check_topic_name

_BATCH_OVERHEAD = 64 << 10
_SEGMENTS = 8
_SHORTEST_SEGMENT = 60.0


class KafkaAdmin:
    """Implements ``sluicegate.streams.ports.Admin``. Connects when first used."""

    def __init__(self, servers: str, settings: KafkaSettings, limits: Limits) -> None:
        self._servers = servers
        self._settings = settings
        self._limits = limits
        self._inner: Any = None
        self._connecting = asyncio.Lock()

    async def create_topics(self, topics: Iterable[TopicSpec]) -> None:
        """Create those that do not exist, and wait until they can be used."""
        wanted = {check_topic_name(spec.name): spec for spec in topics}
        existing = await self.topics()
        specs = [spec for name, spec in wanted.items() if name not in existing]
        if not specs:
            return
        inner = await self._client()
        replication = self._settings.replication or await default_replication(inner)
        missing = [self._new_topic(spec, replication) for spec in specs]
        try:
            response = await inner.create_topics(missing)
        except KafkaError as cause:
            raise BrokerError(f"{self._servers}: topics cannot be created ({cause})") from cause
        for name, code, *rest in response.topic_errors:
            error = for_code(code)
            if code and error is not TopicAlreadyExistsError:
                detail = rest[0] if rest and rest[0] else error.__name__
                kind = BrokerError if error.retriable else ConfigurationError
                raise kind(f"topic {name!r} cannot be created: {detail}")
        await self._until_known({new.name for new in missing})

    async def partitions(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Partition count of each topic that exists."""
        names = set(topics)
        return {t["topic"]: len(t["partitions"]) for t in await self._described() if t["topic"] in names}

    async def topics(self) -> frozenset[str]:
        """Names of all topics but the broker's own."""
        return frozenset(t["topic"] for t in await self._described() if not t["topic"].startswith("__"))

    async def limits(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Bytes that a record of each topic that exists may have, where this client may ask."""
        known = await self.topics()
        found = await read_limits(await self._client(), (name for name in topics if name in known))
        self._limits.learn(found)
        return found

    async def committed(self, group: str, partition: TopicPartition) -> int | None:
        """Committed offset of any group."""
        inner = await self._client()
        until = asyncio.get_running_loop().time() + self._settings.request_timeout
        while True:
            try:
                offsets = await inner.list_consumer_group_offsets(group, partitions=[partition])
                break
            except (GroupCoordinatorNotAvailableError, GroupLoadInProgressError) as error:
                # The topic of offsets is made when it is first asked for.
                if asyncio.get_running_loop().time() > until:
                    raise BrokerError(f"group {group}: {error}") from error
                await asyncio.sleep(0.1)
        found = next((held.offset for held in offsets.values()), -1)
        return None if found < 0 else int(found)

    async def close(self) -> None:
        """Disconnect."""
        if self._inner is not None:
            await self._inner.close()
            self._inner = None

    def _new_topic(self, spec: TopicSpec, replication: int) -> Any:
        config = {"cleanup.policy": "compact" if spec.compacted else "delete"}
        if spec.broker_time:
            config["message.timestamp.type"] = "LogAppendTime"
        if not spec.compacted:
            config["retention.ms"] = "-1" if spec.retention_s is None else str(int(1e3 * spec.retention_s))
            if spec.retention_s is not None:
                # Only whole segments are deleted, and never the newest: a week long, unless it is said.
                config["segment.ms"] = str(int(1e3 * max(_SHORTEST_SEGMENT, spec.retention_s / _SEGMENTS)))
        if self._settings.min_insync_replicas is not None:
            config["min.insync.replicas"] = str(self._settings.min_insync_replicas)
        if spec.max_message_bytes is not None:
            # The broker counts a whole batch: no batch of small records may be refused for it.
            config["max.message.bytes"] = str(max(spec.max_message_bytes, self._settings.batch_bytes + _BATCH_OVERHEAD))
        return NewTopic(spec.name, spec.partitions, replication, topic_configs=config)

    async def _until_known(self, names: set[str]) -> None:
        until = asyncio.get_running_loop().time() + self._settings.request_timeout
        while True:
            ready = {
                t["topic"]
                for t in await self._described()
                if not t["error_code"] and all(p["leader"] >= 0 for p in t["partitions"])
            }
            if names <= ready:
                return
            if asyncio.get_running_loop().time() > until:
                raise BrokerError(f"topics {', '.join(sorted(names - ready))} were created but have no leader")
            await asyncio.sleep(0.05)

    async def _described(self) -> list[dict[str, Any]]:
        inner = await self._client()
        try:
            described: list[dict[str, Any]] = await inner.describe_topics()
        except KafkaError as error:
            raise BrokerError(f"{self._servers}: topics cannot be listed ({error})") from error
        return [t for t in described if not t["error_code"]]

    async def _client(self) -> Any:
        async with self._connecting:
            if self._inner is None:
                inner = AIOKafkaAdminClient(**connection(self._servers, self._settings))
                try:
                    await inner.start()
                except KafkaConnectionError as error:
                    await inner.close()
                    raise unreachable(self._servers, error) from error
                self._inner = inner
            return self._inner


class KafkaBroker:
    """Implements ``sluicegate.streams.ports.Broker``. ``servers``: host:port, more of them after commas.

    ``on_unreadable``: told of each record that a consumer without a group passed over because it cannot be read.
    """

    def __init__(self, servers: str, settings: KafkaSettings) -> None:
        speak_seldom()
        check_codec(settings.compression)
        self._servers = servers
        self._settings = settings
        self._limits = Limits(settings)
        self._admin = KafkaAdmin(servers, settings, self._limits)
        self._producers: list[KafkaProducer] = []
        self._consumers: set[KafkaConsumer] = set()
        self.on_unreadable: Callable[[Unreadable], None] = _nobody_told

    @property
    def url(self) -> str:
        """``kafka://`` and the servers."""
        return f"kafka://{self._servers}"

    def producer(self) -> KafkaProducer:
        """A new producer."""
        producer = KafkaProducer(self._servers, self._settings, self._limits)
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
    ) -> KafkaConsumer:
        """A new consumer; see ``sluicegate.streams.ports.Broker.consumer``."""
        consumer = KafkaConsumer(
            connection(self._servers, self._settings),
            self._settings,
            self._admin,
            Subscription(
                topics=tuple(topics),
                partitions=tuple(TopicPartition(*tp) for tp in partitions),
                group=group,
                member=member,
                start_at=start_at,
                listener=listener,
                exclusive=exclusive,
            ),
            on_stop=self._consumers.discard,
            on_unreadable=lambda record: self.on_unreadable(record),
        )
        self._consumers.add(consumer)
        return consumer

    def transactions(self, transactional_id: str) -> KafkaTransactions:
        """A new writer of transactions."""
        return KafkaTransactions(self._servers, self._settings, self._limits, transactional_id)

    def admin(self) -> KafkaAdmin:
        """Topic administration, one connection for all."""
        return self._admin

    async def close(self) -> None:
        """Stop consumers, then producers, then disconnect."""
        await asyncio.gather(*(consumer.stop() for consumer in tuple(self._consumers)))
        for producer in self._producers:
            await producer.stop()
        await self._admin.close()


def _nobody_told(record: Unreadable) -> None:
    del record
