"""Apache Kafka, ``kafka://host:port[,host:port]``, on aiokafka or librdkafka. Ports: ``sluicegate.streams.ports``.

Topics are looked after by aiokafka's admin client either way, which is not on the path of a query.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sluicegate.domain.errors import ConfigurationError
from sluicegate.streams.broker_settings import KafkaSettings
from sluicegate.streams.kafka.admin import KafkaAdmin
from sluicegate.streams.kafka.connection import overhear
from sluicegate.streams.kafka.consumer import Counts, KafkaConsumer
from sluicegate.streams.kafka.fetched_batches import check_codec
from sluicegate.streams.kafka.producer import KafkaProducer
from sluicegate.streams.kafka.topic_limits import Limits
from sluicegate.streams.kafka.transactions import KafkaTransactions
from sluicegate.streams.ports import Consumer, Producer, RebalanceListener, TopicPartition, Transactions, Unreadable
from sluicegate.streams.subscription import Subscription
from sluicegate_client.errors import ClientError
from sluicegate_client.security import check_servers


class MakesConsumers(Protocol):
    """Makes a consumer of ``reads``."""

    def __call__(
        self,
        servers: str,
        settings: KafkaSettings,
        counts: Counts,
        reads: Subscription,
        /,
        *,
        on_stop: Callable[[Consumer], None],
        on_unreadable: Callable[[Unreadable], None],
    ) -> Consumer:
        """A new one."""
        ...


@dataclass(frozen=True, slots=True)
class Library:
    """What reads and writes records: how its clients are made."""

    producer: Callable[[str, KafkaSettings, Limits, Counts], Producer]
    consumer: MakesConsumers
    transactions: Callable[[str, KafkaSettings, Limits, Counts, str], Transactions]


AIOKAFKA = Library(
    lambda servers, settings, limits, _counts: KafkaProducer(servers, settings, limits),
    KafkaConsumer,
    KafkaTransactions,
)


class KafkaBroker:
    """Implements ``sluicegate.streams.ports.Broker``. ``servers``: host:port, more of them after commas.

    ``on_unreadable``: told of each record that a consumer without a group passed over because it cannot be read.
    Raises ConfigurationError for addresses that cannot be.
    """

    def __init__(self, servers: str, settings: KafkaSettings, library: Library = AIOKAFKA) -> None:
        overhear()
        try:
            check_servers(servers)
        except ClientError as error:
            raise ConfigurationError(f"broker: {error}") from error
        check_codec(settings.compression)
        self._servers = servers
        self._settings = settings
        self._library = library
        self._limits = Limits(settings)
        self._admin = KafkaAdmin(servers, settings, self._limits)
        self._producers: list[Producer] = []
        self._consumers: set[Consumer] = set()
        self.on_unreadable: Callable[[Unreadable], None] = _nobody_told

    @property
    def url(self) -> str:
        """``kafka://`` and the servers."""
        return f"kafka://{self._servers}"

    def producer(self) -> Producer:
        """A new producer."""
        producer = self._library.producer(self._servers, self._settings, self._limits, self._admin)
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
    ) -> Consumer:
        """A new consumer; see ``sluicegate.streams.ports.Broker.consumer``."""
        consumer = self._library.consumer(
            self._servers,
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

    def transactions(self, transactional_id: str) -> Transactions:
        """A new writer of transactions."""
        return self._library.transactions(self._servers, self._settings, self._limits, self._admin, transactional_id)

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
