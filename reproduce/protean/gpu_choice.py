"""Which GPU a batch goes to, before its worker chooses the slice.

Rules:
- round-robin: equal turns over the GPUs that take batches, whatever they hold; each class has turns of its own.
- one-turn: as published, one turn for both classes. Batches that come strict, best effort, strict, ... are then on
  every second GPU by class where the number of GPUs is even.
- least-slowdown: the GPU with the slice where the batch will be slowed least, given what runs there and what waits
  before it. Strict batches look at every slice; best-effort ones keep off slices where a strict batch runs while
  others have room, and among equals take the slower slice: the fast ones are strict's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sluicegate.policies.placement.slice_choice import SliceLoad
from sluicegate.policies.placement.slice_queue_port import Waiting
from sluicegate.profiles.catalogue.slowdown import Footprint, SlowdownTable, eta


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
    """Equal turns, for strict batches and for best-effort ones; ``one_turn``: for both together."""

    def __init__(self, *, one_turn: bool = False) -> None:
        self._one_turn = one_turn
        self._turns = {True: -1, False: -1}

    def choose(self, item: Waiting, gpus: Sequence[GpuLoad]) -> int | None:
        """Index of the next GPU that takes batches."""
        whose = item.strict or self._one_turn
        for step in range(1, len(gpus) + 1):
            at = (self._turns[whose] + step) % len(gpus)
            if gpus[at].takes:
                self._turns[whose] = at
                return at
        return None


class LeastSlowdown:
    """The GPU whose best slice slows the batch least; GPUs where batches wait, or that lack room, come after others."""

    def __init__(self, table: SlowdownTable) -> None:
        self._table = table

    def choose(self, item: Waiting, gpus: Sequence[GpuLoad]) -> int | None:
        """Index of the GPU; None where none takes batches. Of those with as many batches before it, by the slowdown to
        a thousandth; near equals: the GPU whose slices carry less in all."""
        best: tuple[tuple[int, float], float, int] | None = None
        known: dict[str, Footprint | None] = {}
        for at, gpu in enumerate(gpus):
            if not gpu.takes:
                continue
            waiting = gpu.waiting
            if best is not None and waiting > best[0][0]:
                continue
            least: tuple[int, float] | None = None
            for part in gpu.slices:
                if part.profile not in known:
                    known[part.profile] = self._table.known(item.variant, part.profile)
                mine = known[part.profile]
                if mine is None or mine.memory_bytes > part.memory_bytes:
                    continue
                cost = waiting + (part.free_bytes < mine.memory_bytes), round(eta(mine.rdf, mine.fbr, part.fbr), 3)
                if least is None or cost < least:
                    least = cost
            if least is not None and (best is None or least <= best[0]):
                carried = sum(part.fbr for part in gpu.slices)
                if best is None or (least, carried) < best[:2]:
                    best = least, carried, at
        return None if best is None else best[-1]


class Dispatch(Protocol):
    """Chooses the GPU of a batch."""

    def choose(self, item: Waiting, gpus: Sequence[GpuLoad]) -> int | None:
        """Index of a GPU that takes batches; None where there is none."""
        ...


DISPATCHES: Mapping[str, Callable[[SlowdownTable], Dispatch]] = {
    "round-robin": lambda _: RoundRobin(),
    "one-turn": lambda _: RoundRobin(one_turn=True),
    "least-slowdown": LeastSlowdown,
}
"""By name."""
