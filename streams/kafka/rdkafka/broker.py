"""Apache Kafka, ``kafka://host:port[,host:port]``, on librdkafka. Ports and rules: ``sluicegate.streams.ports``.

Records are read and written by librdkafka. Topics are looked after by aiokafka's admin client, which is not on the path
of a query: both libraries make, limit and compare them alike.
"""

from collections.abc import Sequence

from typing_extensions import override

from sluicegate.streams.kafka.broker import KafkaBroker
from sluicegate.streams.kafka.rdkafka.consumer import RdkafkaConsumer
from sluicegate.streams.kafka.rdkafka.producer import RdkafkaProducer
from sluicegate.streams.kafka.rdkafka.transactions import RdkafkaTransactions
from sluicegate.streams.ports import RebalanceListener, TopicPartition
from sluicegate.streams.subscription import Subscription


class RdkafkaBroker(KafkaBroker):
    """Implements ``sluicegate.streams.ports.Broker``."""

    @override
    def producer(self) -> RdkafkaProducer:
        """A new producer."""
        producer = RdkafkaProducer(self._servers, self._settings, self._limits, self._admin)
        self._producers.append(producer)
        return producer

    @override
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
    ) -> RdkafkaConsumer:
        """A new consumer; see ``sluicegate.streams.ports.Broker.consumer``."""
        consumer = RdkafkaConsumer(
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

    @override
    def transactions(self, transactional_id: str) -> RdkafkaTransactions:
        """A new writer of transactions."""
        return RdkafkaTransactions(self._servers, self._settings, self._limits, transactional_id)
