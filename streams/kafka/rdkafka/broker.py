"""The clients of librdkafka, for ``sluicegate.streams.kafka.broker``."""

from sluicegate.streams.kafka.broker import Library
from sluicegate.streams.kafka.rdkafka.consumer import RdkafkaConsumer
from sluicegate.streams.kafka.rdkafka.producer import RdkafkaProducer
from sluicegate.streams.kafka.rdkafka.transactions import RdkafkaTransactions

RDKAFKA = Library(RdkafkaProducer, RdkafkaConsumer, RdkafkaTransactions)
