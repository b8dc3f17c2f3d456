"""Named ways to order a GPU's queue and to choose slices: ours, PROTEAN's, and those it is compared with.

Contract. ``arrived`` only enqueues. ``next`` takes one waiting batch out and says where it goes, given the loads as
they are now; the caller applies that and asks again until None. Nothing that waits is lost: ``drain`` gives all of it
back. Memory is never exceeded: a batch goes to a slice only where its memory is free.

Baselines, as their papers and PROTEAN (Middleware 2024, section 5) describe them:
- fifo-time-shared (Molecule): first come, first served, one batch at a time on a slice.
- fifo-shared (INFless, Llama): first come, first served, together on a slice while memory lasts.
- round-robin (MIG only; MPS + MIG): equal turns, each slice with a queue of its own, time-shared or shared.
- weighted-round-robin (naive slicing): turns in proportion to memory, blind to strictness, shared.
- class-slices (Smart): strict on the largest slice, best effort on the next, shared.
- capped-shared (GPUlet): strict capped at a part of the compute, best effort at the rest, bandwidth shared by all.
- strict-first (PROTEAN): strict first in the queue, least eta with tags; best effort first fit.
- strict-room (ours): the same for strict; best effort where it is slowed least, but not in the room of strict ones that
  wait.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from domain.errors import ConfigurationError
from policies.placement.choice import SliceLoad, choose_best_effort, choose_strict
from profiles.slowdown import SlowdownTable, eta


@dataclass(frozen=True, slots=True)
class Waiting:
    """A batch that waits for a slice. ``key``: the caller's name for it."""

    key: int
    variant: str
    strict: bool


@dataclass(frozen=True, slots=True)
class Assigned:
    """``item`` goes to the slice at ``slice``, where it runs as on ``profile``."""

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
    slices that slow a strict batch more than this are not kept for it.
    """

    name = "strict-room"

    def __init__(self, table: SlowdownTable, *, reserve: int = 0, usable: float = 2.5) -> None:
        super().__init__(table)
        self._reserve = reserve
        self._usable = usable
        self._strict_variant: str | None = None

    def arrived(self, item: Waiting, slices: Sequence[SliceLoad]) -> None:
        """Enqueue; remember what strict batches look like."""
        super().arrived(item, slices)
        if item.strict:
            self._strict_variant = item.variant

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
            if not _room(self._table, variant, part, shared=True):
                continue
            mine = self._table.of(variant, part.profile)
            if self._takes_room(part, room[i], total, mine.memory_bytes):
                continue
            key = (eta(mine.rdf, mine.fbr, part.fbr), i)
            if best is None or key < best:
                best = key
        return None if best is None else best[1]

    def _room(self, slices: Sequence[SliceLoad]) -> list[int]:
        """Strict batches that have room now, by slice."""
        strict = self._strict_variant
        if strict is None:
            return [0] * len(slices)
        size = max(1, self._table.demands[strict].memory_bytes)
        return [s.free_bytes // size if self._kept(strict, s) else 0 for s in slices]

    def _kept(self, strict: str, part: SliceLoad) -> bool:
        return self._table.runs(strict, part.profile) and self._table.of(strict, part.profile).rdf <= self._usable

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


class Fifo:
    """First come, first served on the first slice with room; the head stops those behind it.

    ``shared``: several batches at a time on a slice while memory lasts, else one.
    """

    def __init__(self, table: SlowdownTable, *, shared: bool) -> None:
        self.name = "fifo-shared" if shared else "fifo-time-shared"
        self._table = table
        self._shared = shared
        self._queue: deque[Waiting] = deque()

    def arrived(self, item: Waiting, slices: Sequence[SliceLoad]) -> None:  # noqa: ARG002
        """Enqueue."""
        self._queue.append(item)

    def next(self, slices: Sequence[SliceLoad]) -> Assigned | None:
        """The head, if a slice has room for it."""
        if not self._queue:
            return None
        for i, part in enumerate(slices):
            if _room(self._table, self._queue[0].variant, part, self._shared):
                return Assigned(self._queue.popleft(), i, part.profile)
        return None

    def drain(self) -> list[Waiting]:
        """In the order of arrival."""
        found = list(self._queue)
        self._queue.clear()
        return found

    @property
    def queued(self) -> int:
        """Batches waiting."""
        return len(self._queue)


class Turns:
    """Each slice has a queue of its own; batches are dealt to them in turns of ``weight``, by slice.

    Slices that cannot hold a batch at all are passed over.
    """

    def __init__(
        self, table: SlowdownTable, *, name: str, shared: bool, weight: Callable[[SliceLoad], float] | None = None
    ) -> None:
        self.name = name
        self._table = table
        self._shared = shared
        self._weight = weight
        self._queues: list[deque[Waiting]] = []
        self._credit: list[float] = []

    def arrived(self, item: Waiting, slices: Sequence[SliceLoad]) -> None:
        """Deal it to the slice whose turn it is (smooth weighted round robin: the most credit, which it then pays)."""
        if len(self._queues) != len(slices):
            self._queues = [deque() for _ in slices]
            self._credit = [0.0] * len(slices)
        weights = [1.0 if self._weight is None else self._weight(s) for s in slices]
        fitting = [i for i, s in enumerate(slices) if _holds(self._table, item.variant, s)]
        if not fitting:
            raise ConfigurationError(f"no slice can hold {item.variant}: choose a geometry with larger ones")
        for i in fitting:
            self._credit[i] += weights[i]
        at = max(fitting, key=lambda i: (self._credit[i], i))
        self._credit[at] -= sum(weights[i] for i in fitting)
        self._queues[at].append(item)

    def next(self, slices: Sequence[SliceLoad]) -> Assigned | None:
        """The head of the first queue whose slice has room."""
        for i, queue in enumerate(self._queues):
            if queue and _room(self._table, queue[0].variant, slices[i], self._shared):
                return Assigned(queue.popleft(), i, slices[i].profile)
        return None

    def drain(self) -> list[Waiting]:
        """In the order of arrival."""
        found = sorted((w for q in self._queues for w in q), key=lambda w: w.key)
        self._queues = []
        return found

    @property
    def queued(self) -> int:
        """Batches waiting."""
        return sum(map(len, self._queues))


class ClassSlices:
    """Strict batches on the largest slice, best-effort ones on the next, each first come, first served, shared."""

    name = "class-slices"

    def __init__(self, table: SlowdownTable) -> None:
        self._table = table
        self._queues: tuple[deque[Waiting], deque[Waiting]] = (deque(), deque())

    def arrived(self, item: Waiting, slices: Sequence[SliceLoad]) -> None:  # noqa: ARG002
        """Enqueue by class."""
        self._queues[0 if item.strict else 1].append(item)

    def next(self, slices: Sequence[SliceLoad]) -> Assigned | None:
        """Strict before best effort."""
        by_size = sorted(range(len(slices)), key=lambda i: (-_compute(slices[i].profile), i))
        for queue, at in zip(self._queues, (by_size[0], by_size[min(1, len(by_size) - 1)]), strict=True):
            if queue and _room(self._table, queue[0].variant, slices[at], shared=True):
                return Assigned(queue.popleft(), at, slices[at].profile)
        return None

    def drain(self) -> list[Waiting]:
        """Strict ones first."""
        found = [w for q in self._queues for w in q]
        for queue in self._queues:
            queue.clear()
        return found

    @property
    def queued(self) -> int:
        """Batches waiting."""
        return sum(map(len, self._queues))


class CappedShared:
    """One slice shared by all; a class runs as on the profile that its cap of the compute is closest to.

    Bandwidth is not partitioned: all residents count (GPUlet, with 60-65 % of the compute for strict batches).
    """

    name = "capped-shared"

    def __init__(self, table: SlowdownTable, *, strict_as: str = "4g", others_as: str = "3g") -> None:
        self._table = table
        self._as = {True: strict_as, False: others_as}
        self._queues: dict[bool, deque[Waiting]] = {True: deque(), False: deque()}

    def arrived(self, item: Waiting, slices: Sequence[SliceLoad]) -> None:  # noqa: ARG002
        """Enqueue by class."""
        self._queues[item.strict].append(item)

    def next(self, slices: Sequence[SliceLoad]) -> Assigned | None:
        """Either class while memory lasts, strict before best effort."""
        for strict, queue in self._queues.items():
            if queue and _room(self._table, queue[0].variant, slices[-1], shared=True):
                return Assigned(queue.popleft(), len(slices) - 1, self._as[strict])
        return None

    def drain(self) -> list[Waiting]:
        """Strict ones first."""
        found = [*self._queues[True], *self._queues[False]]
        for queue in self._queues.values():
            queue.clear()
        return found

    @property
    def queued(self) -> int:
        """Batches waiting."""
        return sum(map(len, self._queues.values()))


STRATEGIES: Mapping[str, Callable[[SlowdownTable], SlicePlacement]] = {
    "strict-first": StrictFirst,
    "strict-room": StrictRoom,
    "fifo-time-shared": lambda table: Fifo(table, shared=False),
    "fifo-shared": lambda table: Fifo(table, shared=True),
    "round-robin-time-shared": lambda table: Turns(table, name="round-robin-time-shared", shared=False),
    "round-robin-shared": lambda table: Turns(table, name="round-robin-shared", shared=True),
    "weighted-round-robin": lambda table: Turns(
        table, name="weighted-round-robin", shared=True, weight=lambda s: float(s.memory_bytes)
    ),
    "class-slices": ClassSlices,
    "capped-shared": CappedShared,
}
"""By name."""


def strategy(name: str, table: SlowdownTable) -> SlicePlacement:
    """Raises ConfigurationError for an unknown name."""
    found = STRATEGIES.get(name)
    if found is None:
        raise ConfigurationError(f"placement {name!r} is not one of {', '.join(STRATEGIES)}")
    return found(table)


def _head(queue: deque[Waiting]) -> int:
    return queue[0].key


def _emptied(queues: dict[str, deque[Waiting]]) -> Iterable[Waiting]:
    found = sorted((w for q in queues.values() for w in q), key=lambda w: w.key)
    queues.clear()
    return found


def _compute(profile: str) -> int:
    digits = profile.rstrip("g")
    return int(digits) if digits.isdigit() else 0


def _holds(table: SlowdownTable, variant: str, part: SliceLoad) -> bool:
    return table.runs(variant, part.profile) and table.of(variant, part.profile).memory_bytes <= part.memory_bytes


def _room(table: SlowdownTable, variant: str, part: SliceLoad, shared: bool) -> bool:
    if part.residents and not shared:
        return False
    return table.runs(variant, part.profile) and table.of(variant, part.profile).memory_bytes <= part.free_bytes
