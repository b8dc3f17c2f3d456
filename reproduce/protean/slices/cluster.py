"""The parts of a simulated cluster: GPUs with their queues, what a system is, and who decides for it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from reproduce.protean.slices.shared_gpu import SimSlice, cut
from reproduce.protean.slices.workload import Batch
from sluicegate.planner.geometry.mig_tables import Geometry, PlacementTable
from sluicegate.policies.placement.slice_queue_port import SlicePlacement


@dataclass(frozen=True, slots=True)
class Ended:
    """A batch ended at ``at``. ``rdf``: of the slice it ran on; ``started``: when it began to run, warm."""

    batch: Batch
    at: float
    placed: float
    started: float
    alone: float
    gpu: int


@dataclass(slots=True)
class SimGpu:
    """A GPU: its slices, the queue before them, and whether it takes batches.

    ``parts``: slices by number, those that were cut away under running batches too. ``here``: bought and not lost;
    ``open``: not draining or being cut; ``coming``: how it is cut for nothing once nothing runs.
    """

    name: str
    geometry: Geometry
    slices: list[SimSlice]
    queue: SlicePlacement
    parts: dict[int, SimSlice] = field(default_factory=dict)
    here: bool = True
    open: bool = True
    running: int = 0
    coming: Geometry | None = None
    epoch: int = 0
    received: dict[str, int] = field(default_factory=dict)

    @property
    def takes(self) -> bool:
        """Whether new batches may be sent here."""
        return self.here and self.open

    @property
    def waiting(self) -> int:
        """Batches queued before its slices."""
        return self.queue.queued

    def cut(self, placements: PlacementTable, geometry: Geometry, now: float) -> None:
        """Take fresh slices. Old ones go once nothing runs on them."""
        self.geometry = geometry
        self.slices = cut(placements, geometry, now)
        kept = {number: part for number, part in self.parts.items() if part.residents}
        first = max(self.parts, default=-1) + 1
        for number, part in enumerate(self.slices, start=first):
            part.number = number
        self.parts = kept | {part.number: part for part in self.slices}


@dataclass(frozen=True, kw_only=True)
class Rules:
    """A system: how it queues and cuts, and what a change of geometry and a container's start take."""

    make_queue: Callable[[], SlicePlacement]
    geometry: Geometry
    reshape_s: float = 2.0
    fraction: float = 0.3
    patience: int = 3
    published: bool = False
    cold_start_s: float = 0.0
    keep_alive_s: float = 600.0
