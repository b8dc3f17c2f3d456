"""Strict batches first: PROTEAN's rule, and ours that keeps room for them.

Rules:
- strict-first: strict batches take the slice of least eta (with tags), best-effort ones the first with room.
- strict-room: the same for strict; best effort where it is slowed least, but not in the room of strict ones that wait.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from typing_extensions import override

from sluicegate.policies.placement.slice_choice import SliceLoad, choose_best_effort, choose_strict
from sluicegate.policies.placement.slice_queue_port import Assigned, Waiting, has_room
from sluicegate.profiles.catalogue.slowdown import SlowdownTable, eta


class StrictFirst:
    """PROTEAN's Algorithm 1. ``blocking``: best effort starts nothing while a strict batch waits for room."""

    name = "strict-first"

    def __init__(self, table: SlowdownTable, *, blocking: bool = False) -> None:
        self._table = table
        self._blocking = blocking
        self._strict: dict[str, deque[Waiting]] = {}
        self._others: dict[str, deque[Waiting]] = {}
        self._waiting_bytes = 0

    def arrived(self, item: Waiting, slices: Sequence[SliceLoad]) -> None:  # noqa: ARG002
        """Enqueue by class and variant: the same order as a stable sort by class."""
        queues = self._strict if item.strict else self._others
        queues.setdefault(item.variant, deque()).append(item)
        if not item.strict:
            self._waiting_bytes += self._table.demands[item.variant].memory_bytes

    def next(self, slices: Sequence[SliceLoad]) -> Assigned | None:
        """Strict first; a variant that fits nowhere now keeps its place and does not stop others."""
        pressure = min(self._others.values(), key=_head)[0].variant if self._others else None
        for queue in sorted(self._strict.values(), key=_head):
            at = choose_strict(
                self._table, queue[0].variant, slices, best_effort=pressure, waiting_bytes=self._waiting_bytes
            )
            if at is not None:
                return self._take(self._strict, queue, slices, at)
        if self._blocking and self._strict:
            return None
        for queue in sorted(self._others.values(), key=_head):
            at = choose_best_effort(self._table, queue[0].variant, slices)
            if at is not None:
                self._waiting_bytes -= self._table.demands[queue[0].variant].memory_bytes
                return self._take(self._others, queue, slices, at)
        return None

    def drain(self) -> list[Waiting]:
        """Strict ones first."""
        found = [*_emptied(self._strict), *_emptied(self._others)]
        self._waiting_bytes = 0
        return found

    @property
    def queued(self) -> int:
        """Batches waiting."""
        return sum(map(len, self._strict.values())) + sum(map(len, self._others.values()))

    def _take(
        self, queues: dict[str, deque[Waiting]], queue: deque[Waiting], slices: Sequence[SliceLoad], at: int
    ) -> Assigned:
        item = queue.popleft()
        if not queue:
            del queues[item.variant]
        return Assigned(item, at, slices[at].profile)


class StrictRoom(StrictFirst):
    """Strict first by least eta; best effort by least eta too, but never in the room of strict batches that wait.

    Room is counted in whole strict batches: what a slice holds of them now, and what it would hold if all strict ones
    on it ended. A best-effort batch that makes neither count smaller is free to start. One that does must wait while a
    strict batch waits, and while it would leave fewer than ``reserve`` strict batches room on the GPU. ``usable``:
    slices that slow a strict batch more than this are not kept for it. On a GPU in one piece, where nothing keeps the
    classes apart, none starts either that would slow strict batches while others wait for them to end.
    """

    name = "strict-room"

    def __init__(self, table: SlowdownTable, *, reserve: int = 0, usable: float = 2.5) -> None:
        super().__init__(table)
        self._reserve = reserve
        self._usable = usable
        self._strict_variant: str | None = None

    @override
    def arrived(self, item: Waiting, slices: Sequence[SliceLoad]) -> None:
        """Enqueue; remember what strict batches look like."""
        super().arrived(item, slices)
        if item.strict:
            self._strict_variant = item.variant

    @override
    def next(self, slices: Sequence[SliceLoad]) -> Assigned | None:
        """Strict first; then best effort where it takes no room that is wanted."""
        for queue in sorted(self._strict.values(), key=_head):
            at = choose_strict(self._table, queue[0].variant, slices)
            if at is not None:
                return self._take(self._strict, queue, slices, at)
        for queue in sorted(self._others.values(), key=_head):
            at = self._choose_other(queue[0].variant, slices)
            if at is not None:
                self._waiting_bytes -= self._table.demands[queue[0].variant].memory_bytes
                return self._take(self._others, queue, slices, at)
        return None

    def _choose_other(self, variant: str, slices: Sequence[SliceLoad]) -> int | None:
        best: tuple[float, int] | None = None
        room = self._room(slices)
        total = sum(room)
        for i, part in enumerate(slices):
            if not has_room(self._table, variant, part, shared=True):
                continue
            mine = self._table.of(variant, part.profile)
            if self._takes_room(part, room[i], total, mine.memory_bytes) or (
                len(slices) == 1 and self._slows(part, mine.fbr)
            ):
                continue
            key = (eta(mine.rdf, mine.fbr, part.fbr), i)
            if best is None or key < best:
                best = key
        return None if best is None else best[1]

    def _slows(self, part: SliceLoad, fbr: float) -> bool:
        """Whether strict batches there would be slowed while others wait for them to end."""
        return bool(self._strict) and part.strict_bytes > 0 and part.fbr + fbr > 1.0

    def _room(self, slices: Sequence[SliceLoad]) -> list[int]:
        """Strict batches that have room now, by slice."""
        strict = self._strict_variant
        if strict is None:
            return [0] * len(slices)
        size = max(1, self._table.demands[strict].memory_bytes)
        return [s.free_bytes // size if self._kept(strict, s) else 0 for s in slices]

    def _kept(self, strict: str, part: SliceLoad) -> bool:
        mine = self._table.known(strict, part.profile)
        return mine is not None and mine.rdf <= self._usable

    def _takes_room(self, part: SliceLoad, room: int, total: int, memory_bytes: int) -> bool:
        strict = self._strict_variant
        if strict is None or not self._kept(strict, part):
            return False
        size = max(1, self._table.demands[strict].memory_bytes)
        later = part.free_bytes + part.strict_bytes
        if (later - memory_bytes) // size == later // size:
            return False
        left = (part.free_bytes - memory_bytes) // size
        return bool(self._strict) or (left < room and total - room + left < self._reserve)


def _head(queue: deque[Waiting]) -> int:
    return queue[0].key


def _emptied(queues: dict[str, deque[Waiting]]) -> Iterable[Waiting]:
    found = sorted((w for q in queues.values() for w in q), key=lambda w: w.key)
    queues.clear()
    return found
