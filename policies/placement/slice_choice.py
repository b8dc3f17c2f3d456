"""Which slice a batch goes to: tags, strict by least slowdown, best effort by first fit.

Rules:
- Slices are looked at in ascending order of memory (then name): the small ones are best effort's.
- Tags say how much of each slice the best-effort memory that waits will take: 1 full, 0 none. A slice with tag 1 is
  left to best effort as long as another one fits; a strict batch that fits nowhere else still goes there, so tags never
  starve it.
- A strict batch takes the slice of least eta; among equals the one with more memory, then the first. A best-effort
  batch takes the first slice with room. What fits nowhere stays queued.
- Memory is never exceeded: a slice is a candidate only while the batch's memory is free there.

After PROTEAN (Middleware 2024), Algorithm 1, with its corrections: slices of no free memory have tag 1, the memory
that is left for the next slice is what the free one did not hold.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sluicegate.profiles.catalogue.slowdown import SlowdownTable


@dataclass(slots=True)
class SliceLoad:
    """One slice as the choice sees it. ``fbr``: sum over the batches that run there; ``residents``: how many.

    ``strict_bytes``: memory held by strict batches, which strict ones will have again.
    """

    name: str
    profile: str
    memory_bytes: int
    free_bytes: int
    fbr: float = 0.0
    residents: int = 0
    strict_bytes: int = 0


def ascending(slices: Iterable[SliceLoad]) -> list[SliceLoad]:
    """The order in which all rules look at slices."""
    return sorted(slices, key=lambda s: (s.memory_bytes, s.name))


def tags(slices: Sequence[SliceLoad], waiting_bytes: int) -> list[float]:
    """Share of each slice's free memory that ``waiting_bytes`` of best-effort batches will take, slices ascending."""
    found: list[float] = []
    for part in slices:
        free = part.free_bytes
        if waiting_bytes <= 0:
            found.append(0.0)
        elif free <= 0:
            found.append(1.0)
        else:
            found.append(1.0 if waiting_bytes >= free else waiting_bytes / free)
        waiting_bytes -= max(free, 0)
    return found


def choose_strict(
    table: SlowdownTable,
    variant: str,
    slices: Sequence[SliceLoad],
    *,
    best_effort: str | None = None,
    waiting_bytes: int = 0,
) -> int | None:
    """Index of the slice for a strict batch; None where it must wait.

    ``slices``: ascending. ``best_effort``: the variant whose batches, ``waiting_bytes`` in all, wait beside it.
    """
    marks = tags(slices, waiting_bytes) if best_effort is not None else None
    found = _least(table, variant, slices, best_effort, marks, spared=True) if marks is not None else None
    if found is None:
        found = _least(table, variant, slices, best_effort, marks, spared=False)
    return found


def _least(
    table: SlowdownTable,
    variant: str,
    slices: Sequence[SliceLoad],
    best_effort: str | None,
    marks: list[float] | None,
    *,
    spared: bool,
) -> int | None:
    """Least eta among slices with room; ``spared``: only those that best effort will not fill."""
    best: tuple[float, int, int] | None = None
    for i, part in enumerate(slices):
        mark = marks[i] if marks is not None else 0.0
        mine = table.known(variant, part.profile)
        if (spared and mark >= 1.0) or mine is None or part.free_bytes < mine.memory_bytes:
            continue
        bandwidth = mine.fbr + part.fbr
        if mark > 0.0 and best_effort is not None:
            other = table.known(best_effort, part.profile)
            if other is not None and other.memory_bytes > 0:
                bandwidth += mark * part.free_bytes / other.memory_bytes * other.fbr
        key = (mine.rdf * bandwidth if bandwidth > 1.0 else mine.rdf, -part.memory_bytes, i)
        if best is None or key < best:
            best = key
    return None if best is None else best[2]


def choose_best_effort(table: SlowdownTable, variant: str, slices: Sequence[SliceLoad]) -> int | None:
    """Index of the first slice with room for a best-effort batch, slices ascending; None where it must wait."""
    for i, part in enumerate(slices):
        mine = table.known(variant, part.profile)
        if mine is not None and part.free_bytes >= mine.memory_bytes:
            return i
    return None
