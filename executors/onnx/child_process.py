"""Starting, watching and stopping a child process with connections to it.

Rules. The child inherits one end of each socket pair and nothing else. Nothing here blocks the event loop for
longer than starting a process takes. Stopping is bounded: the connections are ended, and a child that stays is killed.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping

from sluicegate.executors.linux_processes import is_stopped, processor_s

_POLL = 0.005
"""Seconds between looks at a process that is expected to end."""


class ChildProcess:
    """One ``python -m MODULE FD... PARENT_PID``. ``sockets``: our ends, which the caller owns and closes."""

    def __init__(self, module: str, connections: int, environment: Mapping[str, str]) -> None:
        pairs = [socket.socketpair() for _ in range(connections)]
        self.sockets = [ours for ours, _ in pairs]
        numbers = [theirs.fileno() for _, theirs in pairs]
        try:
            # -P: what lies in the working folder must not shadow a module, as it does not for our own command.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *map(str, numbers), str(os.getpid())],
                pass_fds=numbers,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **environment},
            )
        except BaseException:
            for ours in self.sockets:
                ours.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def ended(self, within: float) -> bool:
        """Whether the process has ended, waiting up to ``within`` seconds for it. Reaps it."""
        end = time.monotonic() + within
        while self._process.poll() is None:
            if time.monotonic() >= end:
                return False
            await asyncio.sleep(_POLL)
        return True

    async def stop(self, grace: float) -> None:
        """Wait ``grace`` seconds for it to leave by itself, then kill and reap it."""
        if not await self.ended(grace):
            self.kill()
            await self.ended(5.0)

    def stopped(self) -> bool:
        """Whether somebody has stopped it."""
        return is_stopped(self.pid)

    def processor_s(self) -> float:
        """Seconds that its first thread has had the processor."""
        return processor_s(self.pid)

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it: no model does that to itself."""
        return self._process.poll() == -signal.SIGKILL

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        if self._process.poll() is None:
            self._process.kill()

    def how_it_ended(self) -> str:
        """In words."""
        code = self._process.poll()
        if code is None:
            return "is still running"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"
