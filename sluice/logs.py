"""Logging of the command line: warnings in the terminal's colours, without what a client says while topics are made."""

import logging

from rich.logging import RichHandler

from sluice.console import err

_PASSING = ("GroupCoordinatorNotAvailable", "NotLeaderForPartition", "Marking the coordinator dead", "Heartbeat failed")


class _Passing(logging.Filter):
    """Hides what the Kafka client retries by itself, and mends, while a group or topic is new."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to show it."""
        return not any(word in record.getMessage() for word in _PASSING)


def show_logs(*, verbose: bool = False) -> None:
    """Log to standard error from warnings on, or everything worth knowing."""
    handler = RichHandler(console=err, show_path=False)
    if not verbose:
        handler.addFilter(_Passing())
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(message)s", handlers=[handler])
