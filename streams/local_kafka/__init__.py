"""An Apache Kafka of this machine, started from its published jars."""
