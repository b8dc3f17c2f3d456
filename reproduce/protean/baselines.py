"""Ways to order a GPU's queue and to choose slices that PROTEAN is compared with, and all of them by name.

As their papers and PROTEAN (Middleware 2024, section 5) describe them:
- fifo-time-shared (Molecule): first come, first served, one batch at a time on a slice.
- fifo-shared (INFless, Llama): first come, first served, together on a slice while memory lasts.
- round-robin (MIG only; MPS + MIG): equal turns, each slice with a queue of its own, time-shared or shared.
- weighted-round-robin (naive slicing): turns in proportion to memory, the same for strict and best effort, shared.
- class-slices (Smart): strict on the largest slice, best effort on the next, shared.
- capped-shared (GPUlet): strict capped at a part of the compute, best effort at the rest, bandwidth shared by all.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from sluicegate.domain.errors import ConfigurationError
from sluicegate.policies.placement import strategies
from sluicegate.policies.placement.slice_choice import SliceLoad
from sluicegate.policies.placement.slice_queue_port import Assigned, SlicePlacement, Waiting, has_room, holds
from sluicegate.profiles.catalogue.slowdown import SlowdownTable


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
            if has_room(self._table, self._queue[0].variant, part, self._shared):
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

    Slices that cannot hold a batch at all are passed over. Strict batches and best-effort ones have turns of their own,
    so that no slice gets one class alone because the two come by turns.
    """

    def __init__(
        self, table: SlowdownTable, *, name: str, shared: bool, weight: Callable[[SliceLoad], float] | None = None
    ) -> None:
        self.name = name
        self._table = table
        self._shared = shared
        self._weight = weight
        self._queues: list[deque[Waiting]] = []
        self._credit: dict[bool, list[float]] = {}

    def arrived(self, item: Waiting, slices: Sequence[SliceLoad]) -> None:
        """Deal it to the slice whose turn it is (smooth weighted round robin: the most credit, which it then pays)."""
        if len(self._queues) != len(slices):
            self._queues = [deque() for _ in slices]
            self._credit = {strict: [0.0] * len(slices) for strict in (True, False)}
        credit = self._credit[item.strict]
        weights = [1.0 if self._weight is None else self._weight(s) for s in slices]
        fitting = [i for i, s in enumerate(slices) if holds(self._table, item.variant, s)]
        if not fitting:
            raise ConfigurationError(f"no slice can hold {item.variant}: choose a geometry with larger ones")
        for i in fitting:
            credit[i] += weights[i]
        at = max(fitting, key=lambda i: (credit[i], i))
        credit[at] -= sum(weights[i] for i in fitting)
        self._queues[at].append(item)

    def next(self, slices: Sequence[SliceLoad]) -> Assigned | None:
        """The head of the first queue whose slice has room."""
        for i, queue in enumerate(self._queues):
            if queue and has_room(self._table, queue[0].variant, slices[i], self._shared):
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
            if queue and has_room(self._table, queue[0].variant, slices[at], shared=True):
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
            if queue and has_room(self._table, queue[0].variant, slices[-1], shared=True):
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
    **strategies.STRATEGIES,
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


def _compute(profile: str) -> int:
    digits = profile.rstrip("g")
    return int(digits) if digits.isdigit() else 0
