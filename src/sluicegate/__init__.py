"""Sluicegate: inference on Kafka topics that scales accuracy. Its packages are links to the folders at the top."""
