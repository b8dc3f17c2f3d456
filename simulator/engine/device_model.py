"""One device under the virtual clock: its slices, its worker's incarnation, its death and return.

Rules, those of the live worker.
- Each start has an incarnation. Only while the newest plan names it (or names none at all) does it serve.
- What reaches a dead device, or waited or ran on it, is stranded: it lies in the work topic until the planner reclaims
  the device; then it goes back to the routers.
- A query of an app that is not served here (any more) goes back to its router.
- A returning worker holds nothing, and reads the newest plan first.
"""

from collections.abc import Callable, Mapping, Sequence

from sluicegate.domain.events import DeviceSeen, TurnsTold
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.plan import Plan
from sluicegate.domain.query import Query
from sluicegate.simulator.engine.processor_sharing import SharedProcessor
from sluicegate.simulator.engine.slice_model import SimulatedSlice
from sluicegate.simulator.engine.timeline import Timeline

SEND_BACK_S = 0.005
"""Seconds until a query that a device does not serve is with its router again."""

MakeSlices = Callable[["SimulatedDevice"], Mapping[str, SimulatedSlice]]
SendBack = Callable[[Query, float], None]


class SimulatedDevice:
    """``make_slices`` starts its worker afresh; ``send_back`` gives a query to its router."""

    def __init__(
        self,
        device: Device,
        timeline: Timeline,
        make_slices: MakeSlices,
        send_back: SendBack,
        processor: SharedProcessor | None = None,
    ) -> None:
        self.device = device
        self.alive = True
        self.processor = processor
        self._timeline = timeline
        self._make_slices = make_slices
        self._send_back = send_back
        self._starts = 1
        self._named = False
        self._plan: Plan | None = None
        self._waiting: list[tuple[Query, str, int]] = []  # came while not named
        self._stranded: list[Query] = []
        self._taken = 0
        self.slices = dict(make_slices(self))

    @property
    def incarnation(self) -> str:
        """Of the present start."""
        return f"{self.device.name}.{self._starts}"

    def seen(self) -> DeviceSeen:
        """Its heartbeat."""
        d = self.device
        return DeviceSeen(d.name, d.type, self.incarnation, d.memory_bytes, d.price, d.spot)

    def deliver(self, query: Query, part: str, now: float, turn: int = -1) -> None:
        """A query came by the work topic, as number ``turn`` of those that its router sent (-1: not counted)."""
        if self._named:
            runner = self.slices[part]
            if runner.staging.wants(query.app) or query.deadline <= now:
                runner.arrived(query, now, turn)
            else:
                self._timeline.at(now + SEND_BACK_S, self._back, query)
        elif self.alive:
            self._waiting.append((query, part, turn))
        else:
            self._stranded.append(query)

    def turned(self, told: TurnsTold, now: float) -> None:
        """A router has given so many turns."""
        if self._named:
            for runner in self.slices.values():
                if runner.staging.wants(told.app):
                    runner.turned(told, now)

    def publish(self, plan: Plan, now: float) -> None:
        """A plan was published."""
        if self._plan is not None and plan.epoch <= self._plan.epoch:
            return
        self._plan = plan
        if self.alive:
            self._follow(plan, now)

    def fail(self, now: float) -> None:
        """The device dies, at once and without a word."""
        if not self.alive:
            return
        self.alive = self._named = False
        if self.processor is not None:
            self.processor.clear(now)
        for runner in self.slices.values():
            for query in runner.die():
                self._stranded.append(query)
        for query, *_ in self._waiting:
            self._stranded.append(query)
        self._waiting.clear()

    def recover(self, now: float) -> None:
        """Its worker starts again."""
        if self.alive:
            return
        self.alive = True
        self._starts += 1
        self.slices = dict(self._make_slices(self))
        if self._plan is not None:
            self._follow(self._plan, now)

    def left(self) -> tuple[int, Sequence[Query]]:
        """What is stranded is taken from it; how much was before, too."""
        stranded, self._stranded = self._stranded, []
        before = self._taken
        self._taken += len(stranded)
        return before, stranded

    def _follow(self, plan: Plan, now: float) -> None:
        named = plan.incarnations.get(self.device.name)
        if named != self.incarnation and plan.incarnations:
            return
        self._named = True
        for runner in self.slices.values():
            runner.plan(plan, now)
        waiting, self._waiting = self._waiting, []
        for query, part, turn in waiting:
            self.deliver(query, part, now, turn)
        _, stranded = self.left()
        for query in stranded:
            self._send_back(query, now)

    def _back(self, query: Query, now: float) -> None:
        self._send_back(query, now)
