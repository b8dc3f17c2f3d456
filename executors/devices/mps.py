"""One MPS daemon for each slice, with directories of its own, and the environment of processes that use it.

Rules:
- A daemon serves the one MIG device that CUDA_VISIBLE_DEVICES names at its start. Pipe and log directories are its
  own, or daemons of several slices would meet in one.
- The active thread percentage of the daemon caps its clients; a client's own can only be lower.
- A daemon is told to quit before its slice is destroyed; one that does not answer is reported, not killed.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluicegate.domain.errors import ConfigurationError, InvalidInputError

CONTROL = "nvidia-cuda-mps-control"
_UUID = re.compile(r"^(GPU|MIG)-[A-Za-z0-9/-]{1,120}$")
Runner = Callable[[Sequence[str], Mapping[str, str], str], None]
"""Runs a command with an environment and standard input; raises OSError or CalledProcessError."""


def check_uuid(uuid: str) -> None:
    """Raises InvalidInputError for what names no GPU or MIG device."""
    if _UUID.match(uuid) is None:
        raise InvalidInputError("uuid", f"{uuid[:40]!r} is not the UUID of a GPU or MIG device")


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """The daemon of the slice ``uuid``; its directories lie under ``folder``. ``threads``: percentage, None for all."""

    uuid: str
    folder: Path
    threads: int | None = None

    def __post_init__(self) -> None:
        check_uuid(self.uuid)
        if self.threads is not None and not 1 <= self.threads <= 100:
            raise InvalidInputError("threads", f"{self.threads} is not a percentage of 1..100")

    @property
    def pipes(self) -> Path:
        """Pipe directory."""
        return self.folder / self.uuid.replace("/", "_") / "pipe"

    @property
    def logs(self) -> Path:
        """Log directory."""
        return self.folder / self.uuid.replace("/", "_") / "log"

    def environment(self) -> dict[str, str]:
        """Of the daemon and of its clients."""
        found = {
            "CUDA_VISIBLE_DEVICES": self.uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
        }
        if self.threads is not None:
            found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(self.threads)
        return found

    def start(self, run: Runner | None = None) -> None:
        """Start it. Raises ConfigurationError with a remedy."""
        for folder in (self.pipes, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        self._control(run or run_command, (CONTROL, "-d"), "")

    def stop(self, run: Runner | None = None) -> None:
        """Tell it to quit. Raises ConfigurationError where it does not answer."""
        self._control(run or run_command, (CONTROL,), "quit\n")

    def _control(self, run: Runner, command: Sequence[str], said: str) -> None:
        try:
            run(command, self.environment(), said)
        except FileNotFoundError as error:
            raise ConfigurationError(f"{CONTROL} is missing; install the NVIDIA driver's MPS") from error
        except (OSError, subprocess.SubprocessError) as error:
            raise ConfigurationError(f"MPS daemon of {self.uuid}: {error}; look at {self.logs}") from error


def run_command(command: Sequence[str], environment: Mapping[str, str], said: str) -> None:
    """Run ``command``, found by our PATH, with nothing but ``environment`` and a plain PATH of its own."""
    path = "/usr/local/bin:/usr/bin:/bin"
    program = shutil.which(command[0])
    if program is not None:  # what it starts lies beside it
        path = f"{path}:{Path(program).parent}"
    given = {"PATH": path, **environment}
    subprocess.run([program or command[0], *command[1:]], env=given, input=said.encode(), check=True, timeout=20.0)
