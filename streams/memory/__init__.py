"""The embedded broker: one process, the semantics of the log."""
