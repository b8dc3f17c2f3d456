"""Batches that wait before a GPU's slices: the contract of every way to order and place them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sluicegate.policies.placement.slice_choice import SliceLoad
from sluicegate.profiles.catalogue.slowdown import SlowdownTable


@dataclass(frozen=True, slots=True)
class Waiting:
    """A batch that waits for a slice. ``key``: the caller's name for it."""

    key: int
    variant: str
    strict: bool


@dataclass(frozen=True, slots=True)
class Assigned:
    """A slice for an item of the queue. ``item`` goes to the slice at ``slice``, where it runs as on ``profile``."""

    item: Waiting
    slice: int
    profile: str


class SlicePlacement(Protocol):
    """One GPU's queue. ``slices`` is ascending in memory and stays the same list between changes of geometry."""

    name: str

    def arrived(self, item: Waiting, slices: Sequence[SliceLoad]) -> None:
        """A batch came."""
        ...

    def next(self, slices: Sequence[SliceLoad]) -> Assigned | None:
        """Take out a batch that can start now."""
        ...

    def drain(self) -> list[Waiting]:
        """Take everything out, in the order of arrival within a class."""
        ...

    @property
    def queued(self) -> int:
        """Batches waiting."""
        ...


def holds(table: SlowdownTable, variant: str, part: SliceLoad) -> bool:
    """Whether an empty slice could take a batch."""
    mine = table.known(variant, part.profile)
    return mine is not None and mine.memory_bytes <= part.memory_bytes


def has_room(table: SlowdownTable, variant: str, part: SliceLoad, shared: bool) -> bool:
    """Whether a batch can start on a slice now; a slice that is not ``shared`` takes one at a time."""
    if part.residents and not shared:
        return False
    mine = table.known(variant, part.profile)
    return mine is not None and mine.memory_bytes <= part.free_bytes
