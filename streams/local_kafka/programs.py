"""Programs that a local broker needs, run to their end."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from sluicegate.domain.errors import ConfigurationError


def ran(
    command: Sequence[str], failing: str, *, within: float, cwd: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """What became of ``command``. Raises ConfigurationError, which begins with ``failing``, where it does not end
    ``within`` seconds; it is killed then."""
    try:
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=within, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(f"{failing} within {within:g} s; try again") from error
