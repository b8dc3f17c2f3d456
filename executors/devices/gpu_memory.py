"""GPU memory that this process holds, by NVML: of the GPU or MIG instance that CUDA shows it.

Rules:
- What is held is what NVML says of this process. Where it does not list it (its number is another one outside of its
  container) or says no amount, all that is used there counts, of which a difference is this process's as far as nobody
  else loads at the same moment.
- Where there is no NVML, nothing is said.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

_GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes. ``own``: of this process, None where that is not told; ``everyone``: all that is used there."""

    own: int | None
    everyone: int


def taken(before: Held, after: Held) -> int:
    """Bytes that this process took from ``before`` to ``after``; a process that was not listed had nothing yet."""
    more = after.everyone - before.everyone if after.own is None else after.own - (before.own or 0)
    return max(0, more)


class GpuMemory:
    """Looks at the first device that ``environment`` shows. ``module``: of NVML's functions, for tests."""

    def __init__(self, environment: Mapping[str, str] = os.environ, *, module: Any | None = None) -> None:
        self._n: Any | None = None
        self._shown = environment.get(_GPUS, "").split(",")[0].strip()
        try:
            self._n = import_module("pynvml") if module is None else module
            self._n.nvmlInit()
        except Exception:  # no module, no library or no driver: there is nothing to ask
            self._n = None

    def held(self) -> Held | None:
        """As of now; None where NVML does not tell."""
        n = self._n
        if n is None:
            return None
        try:
            handle = self._handle(n)
            own = None
            for process in n.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid == os.getpid() and process.usedGpuMemory is not None:
                    own = int(process.usedGpuMemory)
            return Held(own, int(n.nvmlDeviceGetMemoryInfo(handle).used))
        except n.NVMLError:
            return None

    def _handle(self, n: Any) -> Any:
        if not self._shown:
            return n.nvmlDeviceGetHandleByIndex(0)
        if self._shown.isdigit():
            return n.nvmlDeviceGetHandleByIndex(int(self._shown))
        return n.nvmlDeviceGetHandleByUUID(self._shown)
