"""Spot devices come and go by notice, and what they cost is counted.

Rules.
- Notices, grants and orders: ``procurement``. A device that was noticed is withdrawn, so that plans move its work to
  others while its worker finishes what it has; its worker is ended once it holds nothing ``settle`` seconds later, at
  the latest ``GRACE`` seconds before the deadline, or after ``LONGEST`` where no deadline presses.
- Once a replacement is up and the old worker has ended, a worker is started there and the device comes back. Where the
  replacement is taken back before, the device stays away until the next one is up, and a worker on its start is ended.
- A notice for a device that is unknown, or has no spot instance now, is told and ignored.
- What is not noticed is paid as it is: spot devices from the start, all others on demand.
- Where the provider cannot be reached it is asked again at the next look, and a worker that could not be started is
  started again; what was ordered is looked up at each, for ``boot_timeout`` seconds: then it counts as refused, and is
  given back should it come up after all. What could not be given back is paid until it is, or until the
  device has another instance of its kind.
- An instance is named by device and kind: the old one is not given back where another of its kind is up or on its way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sluicegate.domain.actions import Announce
from sluicegate.domain.events import Ticked
from sluicegate.planner.capacity.events import (
    Bill,
    CallFailed,
    CapacityAction,
    CapacityEvent,
    LookUp,
    Ordered,
    Release,
    Released,
    Restore,
    Start,
    Stop,
    Told,
    Withdraw,
    WorkerReported,
    WorkerStarted,
    WorkerStopped,
)
from sluicegate.planner.capacity.procurement import (
    AskSpot,
    CostMeter,
    DeadlinePassed,
    InstanceUp,
    IntervalPassed,
    Kind,
    LetGo,
    NodeState,
    Noticed,
    OrderLapsed,
    OrderOnDemand,
    Procurement,
    ProcurementAction,
    ProcurementEvent,
    Redirect,
    Requeue,
    SpotAnswered,
    StopSending,
)

BOOT_TIMEOUT = 600.0
"""Seconds that an instance may take to be up."""
LONGEST = 60.0
GRACE = 8.0


@dataclass(slots=True)
class _Drain:
    """A device that plans leave out. ``settled``: when routers have switched; ``due``: when its worker is ended with
    whatever it holds. ``stopping``, ``ended``: its worker; ``bring``, ``release``: what follows upon that.
    """

    settled: float
    due: float
    done: bool = False
    stopping: bool = False
    ended: bool = False
    bring: Kind | None = None
    bringing: bool = False
    release: list[Kind] = field(default_factory=list)


class SpotCapacity:
    """Spot capacity as a rule of capacity. ``spot``: devices whose instances may be taken back; ``always``: the others,
    for the bill alone.

    ``meter``: the bill. ``interval``: seconds between requests for spot. ``settle``: seconds that a withdrawn device
    keeps its worker at least, for routers to switch. ``boot_timeout``: that what was ordered is waited for.
    """

    def __init__(
        self,
        procurement: Procurement,
        meter: CostMeter,
        *,
        spot: Sequence[str],
        always: Sequence[str],
        interval: float,
        settle: float,
        boot_timeout: float = BOOT_TIMEOUT,
    ) -> None:
        self._procurement = procurement
        self._meter = meter
        self._spot = tuple(spot)
        self._always = tuple(always)
        self._interval = interval
        self._settle = settle
        self._boot_timeout = boot_timeout
        self._deadlines: dict[str, float] = {}
        self._ordered: dict[str, tuple[Kind, float]] = {}  # what, and when
        self._drains: dict[str, _Drain] = {}
        self._again: list[AskSpot | OrderOnDemand | Release] = []
        self._start_again: set[str] = set()
        self._next_interval: float | None = None

    def handle(self, event: CapacityEvent, now: float) -> list[CapacityAction]:
        """Decide."""
        match event:
            case Ticked():
                return self._look(now)
            case WorkerReported() | WorkerStopped() | WorkerStarted():
                return self._of_worker(event, now)
            case Noticed():
                return self._noticed(event, now)
            case SpotAnswered(node, granted):
                if granted:
                    self._ordered[node] = Kind.SPOT, now
                return self._tell(event, now)
            case Ordered(node):
                self._ordered[node] = Kind.ON_DEMAND, now
            case InstanceUp(node, kind) if self._waits_for(node, kind):
                del self._ordered[node]
                self._meter.start(node, kind, now)
                return self._tell(event, now)
            case Released(node, kind):
                self._meter.stop(node, kind, now)
            case CallFailed(call):
                self._again.append(call)
            case _:
                pass
        return []

    def _look(self, now: float) -> list[CapacityAction]:
        actions: list[CapacityAction] = []
        if self._next_interval is None:
            self._next_interval = now + self._interval
            actions += self._begin(now)
        actions += [call for call in self._again if not (isinstance(call, Release) and self._has(call.node, call.kind))]
        self._again = []
        actions += [Start(device) for device in sorted(self._start_again)]
        self._start_again.clear()
        for node, deadline in tuple(self._deadlines.items()):
            if now >= deadline:
                del self._deadlines[node]
                actions += self._tell(DeadlinePassed(node, deadline), now)
        for node, (_, since) in tuple(self._ordered.items()):
            if now - since > self._boot_timeout:
                actions += self._lapsed(node, now)
        actions += [LookUp(node, kind) for node, (kind, _) in self._ordered.items()]
        if now >= self._next_interval:
            self._next_interval = now + self._interval
            for node in self._spot:
                actions += self._tell(IntervalPassed(node), now)
        for node in tuple(self._drains):
            actions += self._drained(node, now)
        return [*actions, Bill(self._meter.by_kind(now))]

    def _lapsed(self, node: str, now: float) -> list[CapacityAction]:
        kind, since = self._ordered.pop(node)
        told = Told(f"the {kind} instance of {node} is not up after {now - since:.0f} s and waited for no longer")
        said = [told, *self._tell(OrderLapsed(node), now)]
        going = self._procurement.state(node) is NodeState.EVICTING and kind is Kind.SPOT  # what it still has
        return said if going or self._has(node, kind) else [*said, Release(node, kind)]

    def _begin(self, now: float) -> list[CapacityAction]:
        for device in self._always:
            self._meter.start(device, Kind.ON_DEMAND, now)
        for device in self._spot:
            on_demand = self._procurement.state(device) is NodeState.ON_DEMAND
            self._meter.start(device, Kind.ON_DEMAND if on_demand else Kind.SPOT, now)
        return [action for device in self._spot for action in (Restore(device), Start(device))]

    def _of_worker(self, event: WorkerReported | WorkerStopped | WorkerStarted, now: float) -> list[CapacityAction]:
        drain = self._drains.get(event.device)
        if isinstance(event, WorkerStarted) and not event.ok:
            if event.device in self._spot and (drain is None or drain.bringing):
                self._start_again.add(event.device)
            return []
        if drain is None:
            return []
        match event:
            case WorkerReported():
                drain.done = drain.done or event.leaving or (event.idle and now >= drain.settled)
            case WorkerStopped():
                drain.ended = True
            case WorkerStarted(device) if drain.bringing and drain.bring is not None:
                del self._drains[device]
                return [Restore(device, self._meter.price(device, drain.bring))]
            case _:
                pass
        return self._drained(event.device, now)

    def _noticed(self, notice: Noticed, now: float) -> list[CapacityAction]:
        node = notice.node
        if node not in self._spot or self._procurement.state(node) is not NodeState.SPOT:
            return [Told(f"a notice for {node:.70s}, which has no spot instance, is ignored")]
        self._deadlines[node] = notice.deadline
        told = Told(f"{node} is taken back in {notice.deadline - now:.0f} s")
        return [told, *self._tell(notice, now)]

    def _tell(self, event: ProcurementEvent, now: float) -> list[CapacityAction]:
        actions: list[CapacityAction] = []
        for action in self._procurement.handle(event, now):
            actions += self._do(action, now)
        state = self._procurement.state(event.node)
        return [*actions, Announce(f"procurement:{event.node}", str(state), type(event).__name__)]

    def _do(self, action: ProcurementAction, now: float) -> list[CapacityAction]:
        node = action.node
        match action:
            case AskSpot() | OrderOnDemand():
                return [action]
            case StopSending():
                return self._drain(node, now) or self._stays_away(node)
            case Redirect(_, kind):
                self._deadlines.pop(node, None)
                withdrawn = self._drain(node, now)
                self._drains[node].bring = kind
            case LetGo(_, kind):
                # A spot instance that another replaces is taken by the provider; its cost goes on once that is up.
                if self._has(node, kind):
                    if self._waits_for(node, kind):
                        self._meter.stop(node, kind, now)
                    return []
                withdrawn = self._drain(node, now)
                self._drains[node].release.append(kind)
            case Requeue():  # it is drained since the notice, and its worker was ended before the deadline
                return []
        return [*withdrawn, *self._drained(node, now)]

    def _waits_for(self, node: str, kind: Kind) -> bool:
        return node in self._ordered and self._ordered[node][0] is kind

    def _has(self, node: str, kind: Kind) -> bool:
        """Whether it has an instance of this kind, or one is ordered."""
        return self._procurement.state(node) is NodeState(kind.value) or self._procurement.ordered(node) is kind

    def _drain(self, node: str, now: float) -> list[CapacityAction]:
        """Have plans leave it out, and its worker end once it holds nothing; what is under way goes on."""
        if node in self._drains:
            return []
        self._start_again.discard(node)
        self._drains[node] = _Drain(now + self._settle, self._deadlines.get(node, now + LONGEST) - GRACE)
        return [Withdraw(node)]

    def _stays_away(self, node: str) -> list[CapacityAction]:
        """It was to come back on an instance that is taken back as well."""
        drain = self._drains[node]
        drain.bring = None
        if not drain.bringing:
            return []
        self._start_again.discard(node)
        drain.bringing = drain.ended = False
        return [Stop(node)]

    def _drained(self, node: str, now: float) -> list[CapacityAction]:
        """What is next for a device that is drained."""
        drain = self._drains[node]
        actions: list[CapacityAction] = []
        if not drain.stopping and (drain.done or now >= drain.due):
            drain.stopping = True
            if not drain.done:
                actions.append(Told(f"{node} is ended with work in hand"))
            actions.append(Stop(node))
        if drain.ended:
            actions += [Release(node, kind) for kind in drain.release if not self._has(node, kind)]
            drain.release.clear()
            if drain.bring is not None and not drain.bringing:
                drain.bringing = True
                actions.append(Start(node))
        return actions
