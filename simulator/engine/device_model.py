"""One device under the virtual clock: the core of its worker, its work topic, its executors, its death and return.

What is modelled: a worker that dies takes all it held with it; what it had read and not ended lies in the work topic
again, with what comes meanwhile, until the planner reclaims the device; then it goes back to the routers. A worker that
starts again holds nothing, has another incarnation, and reads the newest plan first.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, assert_never

from sluicegate.domain.actions import Acknowledge, Announce, Send
from sluicegate.domain.events import PlanPublished, Registered, TurnsTold
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.fleet.instance import Instance
from sluicegate.domain.plan import Plan
from sluicegate.domain.query import Query
from sluicegate.policies.model_less.instance_states import Recorded
from sluicegate.policies.placement.interference import InterferenceChanged
from sluicegate.policies.placement.repartition import Cut, CutEnded
from sluicegate.policies.serving.device_actions import (
    Abandon,
    Answer,
    Beat,
    CatchUp,
    End,
    Executing,
    LoadVariant,
    Read,
    ReloadVariant,
    Repeated,
    RestartExecutor,
    RunBatch,
    Say,
    Seek,
    SendBack,
    UnloadVariant,
    WakeMe,
)
from sluicegate.policies.serving.device_core import DeviceCore
from sluicegate.policies.serving.device_events import (
    BatchEnded,
    BeatDue,
    CaughtUp,
    DeviceEvent,
    InstancesFound,
    Joined,
    Leaving,
    Opened,
    QueryCame,
    ReadingBegins,
    TableCame,
    Woken,
)
from sluicegate.simulator.engine.ledger import Ledger
from sluicegate.simulator.engine.processor_sharing import SharedProcessor
from sluicegate.simulator.engine.slice_model import ModelledExecutor, SliceModel
from sluicegate.simulator.engine.timeline import Timeline

Letter = SendBack | Acknowledge | Announce | Say | Beat | Recorded
Rare = Letter | Repeated | Executing | Read | Seek | Abandon | CatchUp | Cut | InterferenceChanged

SEND_BACK_S = 0.005
"""Seconds until a query that a device does not serve is with its router again."""


class Network(Protocol):
    """What a worker's letters go to."""

    def readmit(self, query: Query, now: float) -> None:
        """To its router again."""
        ...

    def staged(self, device: str, epoch: Acknowledge, now: float) -> None:
        """To routers and planner: the device has staged an epoch."""
        ...

    def beats(self, device: str, now: float) -> None:
        """To routers and planner: a heartbeat out of turn."""
        ...

    def record(self, key: str, instance: Instance | None, now: float) -> None:
        """To the topic of instances; None: it ends."""
        ...

    def instances_of(self, device: str) -> tuple[Instance, ...]:
        """What stands there of a device."""
        ...

    def announced(self, device: str, said: Announce, now: float) -> None:
        """To whom it may concern: what was said of a promise or of tables."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceModel:
    """How the devices of a run are made. ``policy``: the batching rule's name.

    ``delay_of``: seconds by which a device's worker hears late at a time; None where it never does.
    ``slices_of``: what a device of a type has once it is cut into these profiles, from what it had.
    ``step_s``, ``instances``: see ``SharingModel``.
    """

    make_core: Callable[[Device], DeviceCore]
    make_slice: Callable[["SimulatedDevice", Slice], SliceModel]
    policy: str
    step_s: float
    slices_of: Callable[[str, tuple[str, ...], Sequence[Slice]], tuple[Slice, ...]]
    instances: Mapping[tuple[str, str], str]
    delay_of: Callable[[Device], Callable[[float], float] | None]


class SimulatedDevice:
    """A device's worker and its slices, simulated.

    ``device``: as it is cut.
    """

    def __init__(
        self,
        device: Device,
        model: DeviceModel,
        timeline: Timeline,
        ledger: Ledger,
        network: Network,
    ) -> None:
        self.device = device
        self._processors: dict[str, SharedProcessor] = {}
        self.alive = False
        self.model = model
        self.timeline = timeline
        self.ledger = ledger
        self.network = network
        self._starts = 0
        self._plan: Plan | None = None
        self._tables: dict[tuple[str, str, float, float], TableCame] = {}
        self._work: deque[QueryCame] = deque()  # of the work topic, what is not read
        self._end = 0
        self._worker: SimulatedWorker
        self.recover(timeline.now)

    def deliver(self, sent: Send, now: float) -> None:
        """A query came by the work topic."""
        came = QueryCame(sent.query, sent.turn, sent.slice, self._end)
        self._end += 1
        if self._worker.reads:
            self._worker.tell(came, now)
            return
        self._work.append(came)

    def turned(self, told: TurnsTold, now: float) -> None:
        """A router has given so many turns."""
        self._worker.tell(told, now)

    def publish(self, plan: Plan, now: float) -> None:
        """A plan was published."""
        self._plan = plan
        self._worker.tell(PlanPublished(plan), now)

    def table(self, came: TableCame, now: float) -> None:
        """A selection table was published, or withdrawn."""
        self._tables[came.app, came.kind, came.slo, came.qps] = came
        self._worker.tell(came, now)

    def registered(self, served: Registered, now: float) -> None:
        """The registry has changed."""
        self._worker.tell(served, now)

    def beat(self, now: float) -> Beat:
        """What its worker says of itself."""
        self._worker.tell(BeatDue(self._worker.late(now)), now)
        assert self._worker.said is not None
        return self._worker.said

    def fail(self, now: float) -> None:
        """The device dies, at once and without a word."""
        if self.alive:
            self.alive = self._worker.reads = False
            self._worker.dead = True
            for processor in self._processors.values():
                processor.clear(now)
            self.not_ended(self._worker.core.queries)

    def executor_dies(self, part: str, now: float) -> None:
        """The process behind an executor ends; "": behind all."""
        self._worker.executor_dies(part, now)

    def leave(self, now: float) -> Beat | None:
        """Its worker ends in good order; its last heartbeat, where one runs."""
        if not self.alive:
            return None
        self._worker.tell(Leaving(), now)
        self.fail(now)
        return self._worker.said

    def recover(self, now: float) -> None:
        """Its worker starts, again."""
        if not self.alive:
            self.alive = True
            self._worker = SimulatedWorker(self, now)
            for came in self._tables.values():
                self._worker.tell(came, now)
            if self._plan is not None:
                self._worker.tell(PlanPublished(self._plan), now)

    def left(self) -> tuple[int, Sequence[Query]]:
        """What nobody has read is taken from its work topic; the offset of the first of it, too."""
        work, self._work = self._work, deque()
        return self._end - len(work), [came.query for came in work]

    def processor_of(self, part: str, executors: int = 1) -> SharedProcessor | None:
        """Compute that a slice shares with others, or its executors share, if they do."""
        instance = self.model.instances.get((self.device.name, part))
        if instance is None and executors == 1:
            return None
        instance = instance or f"executors of {part}"
        return self._processors.setdefault(instance, SharedProcessor(self.timeline))

    def next_incarnation(self) -> str:
        """Of a start."""
        self._starts += 1
        return f"{self.device.name}.{self._starts}"

    def not_ended(self, queries: Iterable[Query]) -> None:
        """A worker had read these, and will not end them: they lie before what is not read."""
        self._work.extendleft(reversed([QueryCame(query) for query in queries]))

    def position(self) -> tuple[int, int]:
        """Offsets of what would be read next, and of what comes next."""
        return self._end - len(self._work), self._end

    def seek(self, offset: int) -> None:
        """What lies before ``offset`` is not read."""
        while self._work and self.position()[0] < offset:
            self._work.popleft()

    def read(self) -> QueryCame | None:
        """The next of what is not read."""
        return self._work.popleft() if self._work else None


class SimulatedWorker:
    """One start of the worker of ``owner``: tells its core what happens, and lets happen what that decides.

    ``reads``: whether it reads its work topic; ``said``: its last heartbeat.
    """

    __slots__ = ("_delay", "_executors", "_hears_at", "_owner", "_timeline", "core", "dead", "reads", "said")

    def __init__(self, owner: SimulatedDevice, now: float) -> None:
        self.core = owner.model.make_core(owner.device)
        self.dead = False
        self.reads = False
        self.said: Beat | None = None
        self._owner = owner
        self._timeline = owner.timeline
        self._executors: dict[tuple[str, int], ModelledExecutor] = {}
        self._delay = owner.model.delay_of(owner.device)
        self._hears_at = now
        self._open()
        self.tell(Opened(owner.device.slices), now)
        self.tell(Joined(owner.next_incarnation()), now)
        self.tell(InstancesFound(owner.network.instances_of(owner.device.name)), now)

    def late(self, now: float) -> float:
        """Seconds by which it hears late."""
        return 0.0 if self._delay is None else self._delay(now)

    def hear(self, event: DeviceEvent, now: float) -> None:
        """An executor has ended something; where the host is starved, it hears of that later, in order."""
        self._hears_at = max(now + self.late(now), self._hears_at)
        if self._hears_at > now:
            if isinstance(event, BatchEnded):  # its worker's clock tells how long the call took
                event = replace(event, seconds=event.seconds + self._hears_at - now)
            self._timeline.at(self._hears_at, self._heard, event)
        else:
            self.tell(event, now)

    def _heard(self, event: DeviceEvent, now: float) -> None:
        self.tell(event, now)

    def tell(self, event: DeviceEvent, now: float) -> None:
        """Something happened to it; nothing happens to one that is dead."""
        if self.dead:
            return
        for action in self.core.handle(event, now):
            if isinstance(action, RunBatch):
                self._executors[action.part, action.seat].run(action.run, now)
            elif isinstance(action, Answer):
                owner = self._owner
                by = (owner.device.name, action.part, owner.model.policy)
                owner.ledger.answered(action.run, action.queries, action.started, action.at, by)
            elif isinstance(action, WakeMe):
                self._timeline.at(action.at, self._woke, action.key)
            elif isinstance(action, End):
                self._owner.ledger.ended(action.query, action.kind, action.at, action.reason)
            else:
                self._do(action, now)

    def _do(self, action: Rare, now: float) -> None:
        owner = self._owner
        match action:
            case SendBack() | Acknowledge() | Announce() | Say() | Beat() | Recorded():
                self._write(action, now)
            case LoadVariant() | ReloadVariant():
                self._executors[action.part, action.seat].load(action, now)
            case RestartExecutor(part, after, seat):
                self._executors[part, seat].restart(after, now)
            case Read():
                self._timeline.at(now, self._read)
            case Seek(offset):
                owner.seek(offset)
            case Abandon(_, queries):
                self.reads = False
                owner.not_ended(queries)
                self.tell(Joined(owner.next_incarnation()), now)
            case CatchUp():
                self.tell(CaughtUp(), now)
            case Cut(profiles):
                there = owner.device.slices
                slices = owner.model.slices_of(owner.device.type, profiles, there)
                steps = len({*slices} ^ {*there})
                self._timeline.at(now + steps * owner.model.step_s, self._was_cut, slices)
            case UnloadVariant() | InterferenceChanged():
                pass
            case Repeated(query):
                raise AssertionError(f"query {query.id} was sent twice: nothing is lost between these")
            case _ as unreachable:
                assert_never(unreachable)

    def _write(self, letter: Letter, now: float) -> None:
        owner, network = self._owner, self._owner.network
        match letter:
            case SendBack(query):
                self._timeline.at(now + SEND_BACK_S, network.readmit, query)
            case Acknowledge():
                network.staged(owner.device.name, letter, now)
            case Announce():
                network.announced(owner.device.name, letter, now)
            case Say():
                network.beats(owner.device.name, now)
            case Beat():
                self.said = letter
            case Recorded(key, instance):
                network.record(key, instance, now)
            case _ as unreachable:
                assert_never(unreachable)

    def executor_dies(self, part: str, now: float) -> None:
        """The process behind the executor of ``part`` ends; "": of each."""
        for (name, _), executor in self._executors.items():
            if not self.dead and part in ("", name):
                executor.dies(now)

    def _open(self) -> None:
        owner = self._owner
        for executor in self._executors.values():
            executor.close()
        models = {part.name: owner.model.make_slice(owner, part) for part in owner.device.slices}
        self._executors = {
            (name, seat): ModelledExecutor(name, seat, model, owner.timeline, self.hear)
            for name, model in models.items()
            for seat in range(model.executors)
        }

    def _woke(self, key: str, now: float) -> None:
        self.tell(Woken(key), now)

    def _was_cut(self, slices: tuple[Slice, ...], now: float) -> None:
        owner = self._owner
        if not self.dead:
            owner.device = replace(owner.device, slices=slices)
            self._open()
            self.tell(CutEnded(slices), now)

    def _read(self, _: object, now: float) -> None:
        """Begin to read, where plans still count on it."""
        if self.dead or not self.core.named:
            return
        position, end = self._owner.position()
        self.tell(ReadingBegins(position, end, swept=end), now)
        self.reads = True
        while self.reads and (came := self._owner.read()) is not None:
            self.tell(came, now)
