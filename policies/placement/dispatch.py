"""Which GPU a batch goes to, before its worker chooses the slice.

Rules:
- round-robin: equal turns over the GPUs that take batches, whatever they hold.
- least-slowdown: the GPU with the slice where the batch will be slowed least, given what runs there and what waits
  before it. Strict batches look at every slice; best-effort ones keep off slices where a strict batch runs while
  others have room, and among equals take the slower slice: the fast ones are strict's.
"""

from collections.abc import Sequence
from typing import Protocol

from policies.placement.choice import SliceLoad
from policies.placement.slowdown import SlowdownTable
from policies.placement.strategies import Waiting


class GpuLoad(Protocol):
    """A GPU as the choice sees it."""

    @property
    def takes(self) -> bool:
        """Whether new batches may be sent there."""
        ...

    @property
    def slices(self) -> Sequence[SliceLoad]:
        """Its slices, ascending."""
        ...

    @property
    def waiting(self) -> int:
        """Batches queued before its slices."""
        ...


class RoundRobin:
    """Equal turns."""

    def __init__(self) -> None:
        self._turn = -1

    def choose(self, item: Waiting, gpus: Sequence[GpuLoad]) -> int | None:  # noqa: ARG002
        """Index of the next GPU that takes batches."""
        for step in range(1, len(gpus) + 1):
            at = (self._turn + step) % len(gpus)
            if gpus[at].takes:
                self._turn = at
                return at
        return None


class LeastSlowdown:
    """The GPU whose best slice slows the batch least; a GPU without room counts as if what waits there were on it."""

    def __init__(self, table: SlowdownTable) -> None:
        self._table = table

    def choose(self, item: Waiting, gpus: Sequence[GpuLoad]) -> int | None:
        """Index of the GPU; None where none takes batches."""
        best: tuple[float, ...] | None = None
        for at, gpu in enumerate(gpus):
            if not gpu.takes:
                continue
            for part in gpu.slices:
                key = self._cost(item, part, gpu.waiting)
                if key is not None and (best is None or (*key, at) < best):
                    best = (*key, at)
        return None if best is None else int(best[-1])

    def _cost(self, item: Waiting, part: SliceLoad, waiting: int) -> tuple[float, float] | None:
        if not self._table.runs(item.variant, part.profile):
            return None
        mine = self._table.of(item.variant, part.profile)
        if mine.memory_bytes > part.memory_bytes:
            return None
        crowd = float(waiting) if waiting or part.free_bytes < mine.memory_bytes else 0.0
        full = part.free_bytes < mine.memory_bytes
        bandwidth = mine.fbr + part.fbr
        return crowd + full, mine.rdf * bandwidth if bandwidth > 1.0 else mine.rdf
