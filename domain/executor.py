"""The protocol of everything that runs variants."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.models.variant import Variant


@dataclass(frozen=True, slots=True)
class Loaded:
    """A variant is loaded and warm. Seconds and bytes it took."""

    variant: str
    load_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Executed:
    """Outputs of a batch, all rows stacked, and the wall seconds that the model ran.

    ``cpu_s``: CPU seconds it took meanwhile in the process that ran it; 0 where nobody counted.
    """

    outputs: tuple[Tensor, ...]
    execution_s: float
    cpu_s: float = 0.0


class Executor(Protocol):
    """Runs variants on one device or slice, one batch at a time.

    ``load`` raises LoadError and leaves what was loaded as it was. ``run`` raises ExecutionError; with
    ``fatal`` the executor must be started again before its next use.
    """

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call ``on_end`` whenever the process behind it ends unasked, also while idle: nothing is loaded then."""
        ...

    async def start(self) -> None:
        """Start the process behind it, if any. Idempotent."""
        ...

    async def load(self, variant: Variant, *, max_batch: int, within: float | None = None) -> Loaded:
        """Load and warm ``variant`` for batches up to ``max_batch`` rows. Idempotent.

        What takes more than ``within`` seconds (None: the executor's own limit) is ended, and the process with it.
        """
        ...

    async def unload(self, variant: str) -> None:
        """Forget ``variant``; unknown names are ignored."""
        ...

    async def run(
        self,
        variant: str,
        inputs: Sequence[Sequence[Tensor]],
        rows: int,
        *,
        within: float | None = None,
        apart: bool = False,
    ) -> Executed:
        """Run one batch: ``inputs`` holds each query's tensors, ``rows`` their total rows.

        What takes more than ``within`` seconds (None: the executor's own limit) is ended, and the process with it.
        ``apart``: it may end its process, and is to run in one of its own where that can be (ExecutionError, apart).
        """
        ...

    async def close(self) -> None:
        """Stop, within a bounded time."""
        ...
