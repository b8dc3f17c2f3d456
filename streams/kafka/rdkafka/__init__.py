"""Apache Kafka, on librdkafka (the package ``confluent-kafka``)."""
