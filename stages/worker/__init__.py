"""The worker of one device: its work topic, slices, executors and heartbeats."""
