"""Apache Kafka, on aiokafka."""
