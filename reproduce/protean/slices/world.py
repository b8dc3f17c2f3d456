"""A cluster of sliced GPUs: batches come, are sent to a GPU, placed on a slice, run, end; GPUs are drained and cut
anew.

Rules:
- Everything is data in one heap ordered by time and by the order of asking, and decisions are made by the pure
  policies: a copy of a world goes on exactly as the original would.
- A GPU that drains takes no new batch; what waits there is sent elsewhere, what runs there ends. Once nothing runs it
  is cut, which takes ``reshape_s``, and takes batches again.
- A GPU that is lost (spot capacity) gives what ran there back to the queue. Batches that no GPU can take wait.
- Every batch ends exactly once.
"""

from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from heapq import heappop, heappush
from typing import Any, Protocol

from reproduce.protean.gpu_choice import Dispatch
from reproduce.protean.slices.cluster import Ended, Rules, SimGpu
from reproduce.protean.slices.containers import Containers
from reproduce.protean.slices.shared_gpu import Running, SimSlice
from reproduce.protean.slices.workload import Workload
from sluicegate.planner.geometry.mig_tables import Geometry, PlacementTable
from sluicegate.planner.geometry.reconfigurator import (
    Desired,
    Drain,
    GeometryChanged,
    GpuState,
    ReconfigurationAction,
    Reconfigurator,
    Reshape,
    Resume,
    SlicesIdle,
)
from sluicegate.policies.placement.slice_queue_port import SlicePlacement, Waiting
from sluicegate.profiles.catalogue.slowdown import Footprint, SlowdownTable

_ARRIVE, _END, _BEGIN, _TICK, _RESHAPED, _NODE = range(6)


class Control(Protocol):
    """Says, period by period, how GPUs should be cut; ``first``: when it is asked for the first time."""

    period: float
    first: float

    def tick(self, world: "World", now: float) -> list[Desired]:
        """Wishes for this period; one that stands above the rules may act on the world itself."""
        ...


class Nodes(Protocol):
    """What becomes of bought GPUs: called at the times it asks for; it uses ``lose``, ``regain`` and ``close``."""

    def start(self, world: "World") -> None:
        """At time 0."""
        ...

    def handle(self, world: "World", what: Any, now: float) -> None:
        """Something that it asked for with ``World.at``."""
        ...


class World:
    """One run of one system. ``run`` it to the end, or ``run_until``."""

    def __init__(
        self,
        workload: Workload,
        table: SlowdownTable,
        placements: PlacementTable,
        gpus: int,
        rules: Rules,
        *,
        dispatch: Dispatch,
        control: Control | None = None,
        nodes: Nodes | None = None,
    ) -> None:
        self.workload = workload
        self.table = table
        self.placements = placements
        self.rules = rules
        self.now = 0.0
        self.dispatch = dispatch
        self.control = control
        self.nodes = nodes
        self.ended: list[Ended] = []
        self.reconfigurations = 0
        self.recut: list[tuple[float, str, Geometry]] = []
        self.containers = Containers(rules.keep_alive_s)
        geometry = placements.ordered(list(rules.geometry))
        self.gpus = [SimGpu(f"gpu{i}", geometry, [], rules.make_queue()) for i in range(gpus)]
        for gpu in self.gpus:
            gpu.cut(placements, geometry, 0.0)
        self.reconfigurator = Reconfigurator(
            {g.name: g.geometry for g in self.gpus},
            patience=rules.patience,
            fraction=rules.fraction,
            published=rules.published,
        )
        self._index = {g.name: i for i, g in enumerate(self.gpus)}
        self._heap: list[tuple[float, int, int, Any]] = []
        self._asked = 0
        self._next = 0
        self._homeless: list[Waiting] = []
        self._open: set[int] = set()
        self._arm_arrival()
        if control is not None:
            self._at(control.first, _TICK, None)
        if nodes is not None:
            nodes.start(self)

    @property
    def arrived(self) -> int:
        """Batches that have come so far."""
        return self._next

    def run(self) -> None:
        """To the end of the last batch."""
        while self._heap and len(self.ended) < len(self.workload.batches):
            self._step()

    def run_until(self, limit: float) -> None:
        """Everything that is due by ``limit``."""
        while self._heap and self._heap[0][0] <= limit:
            self._step()
        self.now = max(self.now, limit)

    def unfinished(self) -> list[int]:
        """Keys of the batches that have come and not ended."""
        return sorted(self._open)

    def fork(self) -> "World":
        """A copy that goes on by itself, with no record of what ended before."""
        shared = (self.workload, self.table, self.placements, self.rules, self.control)
        memo: dict[int, Any] = {id(x): x for x in shared}
        memo[id(self.ended)] = []
        jobs = (part.jobs for gpu in self.gpus for part in gpu.parts.values())
        # What these hold never changes, so that the copies may hold the same.
        for held in (self._heap, self._homeless, self.recut, self._open, *jobs):
            memo[id(held)] = copy(held)
        return deepcopy(self, memo)

    def at(self, when: float, what: Any) -> None:
        """Have the nodes told of ``what`` at ``when``."""
        self._at(when, _NODE, what)

    def _at(self, when: float, kind: int, what: Any) -> None:
        self._asked += 1
        heappush(self._heap, (max(when, self.now), self._asked, kind, what))

    def _step(self) -> None:
        self.now, _, kind, what = heappop(self._heap)
        now = self.now
        if kind == _END:
            self._slice_ends(what, now)
        elif kind == _ARRIVE:
            batch = self.workload.batches[self._next]
            self._next += 1
            self._arm_arrival()
            self._open.add(batch.key)
            self.send(Waiting(batch.key, batch.variant, batch.strict), now)
        elif kind == _BEGIN:
            self._begin(what, now)
        elif kind == _TICK:
            self._tick(now)
        elif kind == _RESHAPED:
            gpu, epoch = what
            if self.gpus[gpu].epoch == epoch:
                self._do(self.reconfigurator.handle(GeometryChanged(self.gpus[gpu].name), now), now)
        elif self.nodes is not None:
            self.nodes.handle(self, what, now)

    def _arm_arrival(self) -> None:
        if self._next < len(self.workload.batches):
            self._at(self.workload.batches[self._next].formed, _ARRIVE, None)

    def send(self, item: Waiting, now: float) -> None:
        """Send a batch to a GPU, or keep it until one takes batches."""
        at = self.dispatch.choose(item, self.gpus)
        if at is None:
            self._homeless.append(item)
            return
        gpu = self.gpus[at]
        gpu.received[item.variant] = gpu.received.get(item.variant, 0) + self.workload.batches[item.key].rows
        gpu.queue.arrived(item, gpu.slices)
        self._pump(at, now)

    def _pump(self, at: int, now: float) -> None:
        gpu = self.gpus[at]
        if not gpu.takes or gpu.coming is not None:
            return
        while (assigned := gpu.queue.next(gpu.slices)) is not None:
            batch = self.workload.batches[assigned.item.key]
            footprint = self.table.of(batch.variant, assigned.profile)
            part = gpu.slices[assigned.slice]
            part.reserve(footprint.memory_bytes, strict=batch.strict)
            gpu.running += 1
            warm = self.containers.take(gpu.name, batch.variant, now)
            begins = now if warm else now + self.rules.cold_start_s
            what = (at, gpu.epoch, part.number, batch.key, footprint, now)
            if begins > now:
                self._at(begins, _BEGIN, what)
            else:
                self._begin(what, now)

    def _begin(self, what: tuple[int, int, int, int, Footprint, float], now: float) -> None:
        at, epoch, slot, key, footprint, placed = what
        if self.gpus[at].epoch != epoch:
            return  # the GPU was lost while its container started; the batch went back to the queue then
        part = self.gpus[at].parts[slot]
        batch = self.workload.batches[key]
        part.begin(Running(key, footprint, footprint.seconds * batch.work, placed, now, batch.strict), now)
        self._arm_end(at, slot, part)

    def _arm_end(self, at: int, slot: int, part: SimSlice) -> None:
        if part.jobs:
            self._at(part.next_end, _END, (at, self.gpus[at].epoch, slot, part.version))

    def _slice_ends(self, what: tuple[int, int, int, int], now: float) -> None:
        at, epoch, slot, version = what
        gpu = self.gpus[at]
        part = gpu.parts.get(slot)
        if part is None or gpu.epoch != epoch or part.version != version:
            return
        for running in part.end(now):
            batch = self.workload.batches[running.key]
            gpu.running -= 1
            self._open.remove(batch.key)
            self.containers.give(gpu.name, batch.variant, now)
            self.ended.append(Ended(batch, now, running.placed, running.started, running.seconds, at))
        self._arm_end(at, slot, part)
        if gpu.running == 0 and self.reconfigurator.state(gpu.name) is GpuState.DRAINING:
            self._do(self.reconfigurator.handle(SlicesIdle(gpu.name), now), now)
        if gpu.running == 0 and gpu.coming is not None:
            self._cut_for_nothing(gpu, gpu.coming, now)
        self._pump(at, now)

    def _tick(self, now: float) -> None:
        if self.control is None:
            return  # a copy that goes on as it is
        if now < self.workload.duration:
            self._at(now + self.control.period, _TICK, None)
        for desired in self.control.tick(self, now):
            self.ask(desired, now)

    def ask(self, desired: Desired, now: float) -> None:
        """One wish for a geometry; GPUs that are gone or closed by their node have none."""
        if self.gpus[self._index[desired.gpu]].here:
            self._do(self.reconfigurator.handle(desired, now), now)

    def set_geometry(self, at: int, geometry: Geometry, now: float) -> None:
        """Cut a GPU as soon as nothing runs there, which takes no time: for rules under which changes are free."""
        gpu = self.gpus[at]
        gpu.coming = None
        if sorted(geometry) != sorted(gpu.geometry):
            if gpu.running:
                gpu.coming = geometry
            else:
                self._cut_for_nothing(gpu, geometry, now)
        self._pump(at, now)

    def _cut_for_nothing(self, gpu: SimGpu, geometry: Geometry, now: float) -> None:
        gpu.coming = None
        waiting = gpu.queue.drain()
        gpu.cut(self.placements, self.placements.ordered(list(geometry)), now)
        for item in waiting:
            gpu.queue.arrived(item, gpu.slices)

    def set_rules(self, make_queue: Callable[[], SlicePlacement], dispatch: Dispatch) -> None:
        """From now on another way to queue and to dispatch; what waits is kept."""
        self.dispatch = dispatch
        for gpu in self.gpus:
            waiting = gpu.queue.drain()
            gpu.queue = make_queue()
            for item in waiting:
                gpu.queue.arrived(item, gpu.slices)

    def _do(self, actions: Sequence[ReconfigurationAction], now: float) -> None:
        for action in actions:
            at = self._index[action.gpu]
            gpu = self.gpus[at]
            match action:
                case Drain():
                    gpu.open = False
                    self._elsewhere(gpu, now)
                    if gpu.running == 0 and self.reconfigurator.state(gpu.name) is GpuState.DRAINING:
                        self._do(self.reconfigurator.handle(SlicesIdle(gpu.name), now), now)
                case Reshape():
                    self.reconfigurations += 1
                    self._at(now + self.rules.reshape_s, _RESHAPED, (at, gpu.epoch))
                case Resume(_, geometry):
                    self.recut.append((now, gpu.name, geometry))
                    gpu.cut(self.placements, geometry, now)
                    gpu.epoch += 1
                    gpu.open = True
                    self.containers.forget(gpu.name)
                    self._house(now)

    def index(self, name: str) -> int:
        """Of a GPU by name."""
        return self._index[name]

    def close(self, at: int, now: float) -> None:
        """A notice came: no new batches; what waits there is sent elsewhere, what runs may end."""
        gpu = self.gpus[at]
        gpu.here = False
        self._elsewhere(gpu, now)

    def _elsewhere(self, gpu: SimGpu, now: float) -> None:
        """Send what waits at a GPU that takes no batches."""
        for item in gpu.queue.drain():
            self.send(item, now)

    def lose(self, at: int, now: float) -> None:
        """The GPU is gone: what ran there goes back to the queue, oldest first."""
        gpu = self.gpus[at]
        self.close(at, now)
        lost = sorted(key for part in gpu.parts.values() for key in part.clear())
        lost += [w[3] for w in self._starting(at, gpu.epoch)]
        gpu.running = 0
        gpu.epoch += 1
        for key in sorted(lost):
            batch = self.workload.batches[key]
            self.send(Waiting(key, batch.variant, batch.strict), now)

    def regain(self, at: int, now: float) -> None:
        """A fresh GPU stands in: empty slices, the geometry of the old one. What the old one still runs ends there."""
        gpu = self.gpus[at]
        gpu.cut(self.placements, gpu.geometry, now)
        gpu.here = True
        self.containers.forget(gpu.name)
        if gpu.running == 0 and self.reconfigurator.state(gpu.name) is GpuState.DRAINING:
            self._do(self.reconfigurator.handle(SlicesIdle(gpu.name), now), now)
        if self.reconfigurator.state(gpu.name) is GpuState.CHANGING:
            self._do(self.reconfigurator.handle(GeometryChanged(gpu.name, ok=False), now), now)
        self._house(now)

    def _starting(self, at: int, epoch: int) -> list[tuple[int, int, int, int, Footprint, float]]:
        return [what for _, _, kind, what in self._heap if kind == _BEGIN and what[0] == at and what[1] == epoch]

    def _house(self, now: float) -> None:
        """Re-dispatches batches that no GPU could take."""
        waiting, self._homeless = self._homeless, []
        for item in waiting:
            self.send(item, now)
