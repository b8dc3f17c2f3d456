"""One GPU under the virtual clock: slices that share their bandwidth among the batches on them.

Rules:
- A batch on a slice goes on at rate 1 / (seconds alone * max(sum of FBR, 1)): processor sharing by bandwidth. All
  batches of a slice are slowed by the same factor, so that each slice has a virtual clock, which runs slower the more
  bandwidth is asked for, and a batch ends when it has advanced by the batch's seconds alone.
- Memory is taken when a batch is placed and given back when it ends. A slice never holds more than it has.
- A batch without a warm container first waits for one to start (its memory is taken, it uses no bandwidth meanwhile).
"""

from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from sluicegate.planner.geometry.mig_tables import Geometry, PlacementTable
from sluicegate.policies.placement.slice_choice import SliceLoad
from sluicegate.profiles.catalogue.slowdown import Footprint

_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Running:
    """A batch on a slice. ``placed``: when it was put there, ``started``: when it began to run."""

    key: int
    footprint: Footprint
    seconds: float
    placed: float
    started: float
    strict: bool


@dataclass(slots=True, kw_only=True)
class SimSlice(SliceLoad):
    """A slice's load and its virtual clock."""

    virtual: float = 0.0
    since: float = 0.0
    version: int = 0
    number: int = 0
    jobs: list[tuple[float, int, Running]] = field(default_factory=list)

    def __deepcopy__(self, memo: dict[int, object]) -> "SimSlice":
        return replace(self, jobs=self.jobs.copy())

    def begin(self, running: Running, now: float) -> None:
        """``running`` begins to run (its memory was taken by ``reserve``)."""
        self._advance(now)
        self.fbr += running.footprint.fbr
        heappush(self.jobs, (self.virtual + running.seconds, running.key, running))
        self.version += 1

    def reserve(self, memory_bytes: int, *, strict: bool) -> None:
        """A batch was placed here."""
        assert memory_bytes <= self.free_bytes, "a slice was given more than it has memory for"
        self.free_bytes -= memory_bytes
        self.strict_bytes += memory_bytes if strict else 0
        self.residents += 1

    @property
    def next_end(self) -> float:
        """When the first batch ends if nothing changes; infinite when none runs."""
        if not self.jobs:
            return float("inf")
        left = max(0.0, self.jobs[0][0] - self.virtual)
        return self.since + left * (self.fbr if self.fbr > 1.0 else 1.0)

    def end(self, now: float) -> list[Running]:
        """Batches that end at ``now``; their memory is free again."""
        self._advance(now)
        ended: list[Running] = []
        while self.jobs and self.jobs[0][0] <= self.virtual + _TOLERANCE:
            running = heappop(self.jobs)[2]
            self.fbr -= running.footprint.fbr
            self.free_bytes += running.footprint.memory_bytes
            self.strict_bytes -= running.footprint.memory_bytes if running.strict else 0
            self.residents -= 1
            ended.append(running)
        if not self.jobs:
            self.fbr = 0.0
        self.version += 1
        return ended

    def clear(self) -> list[int]:
        """The GPU is gone: keys of the batches that ran."""
        keys = [key for _, key, _ in self.jobs]
        self.jobs.clear()
        self.fbr, self.residents, self.strict_bytes, self.free_bytes = 0.0, 0, 0, self.memory_bytes
        self.version += 1
        return keys

    def _advance(self, now: float) -> None:
        self.virtual += (now - self.since) / (self.fbr if self.fbr > 1.0 else 1.0)
        self.since = now


def cut(table: PlacementTable, geometry: Geometry, now: float) -> list[SimSlice]:
    """Empty slices of ``geometry``, ascending in memory, then compute."""
    parts = []
    for i, name in enumerate(sorted(geometry, key=lambda p: (table.profile(p).memory_bytes, table.profile(p).compute))):
        memory = table.profile(name).memory_bytes
        parts.append(SimSlice(name=f"{i}-{name}", profile=name, memory_bytes=memory, free_bytes=memory, since=now))
    return parts
