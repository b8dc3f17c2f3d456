"""What happens to policies and planner: small dataclasses that ``handle(event, now)`` takes.

Treat all as frozen. Those of each query or batch are not declared so: that makes them three times as dear to create.
"""

from dataclasses import dataclass, field, replace

from sluicegate.domain.fleet.device import Slice
from sluicegate.domain.fleet.instance import Instance
from sluicegate.domain.models.app import NO_PROMISE, App, Promise
from sluicegate.domain.models.profile import LatencyCurve, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import NO_EPOCH, Epoch, Plan
from sluicegate.domain.query import Query
from sluicegate.domain.table import TablesChanged


@dataclass(frozen=True, slots=True)
class Hosted:
    """A variant ready on a slice: its latency curve there (already limited to the largest batch allowed).

    ``sure``: seconds by rows that hardly any batch exceeds, what promises rest on; (): the curve's. ``least``: times
    these, once its batches have shown that they take no longer; ``pace``: times these, one after the other until then.
    ``executors``: batches that the slice runs at a time, beside which ``curve`` counts it; ``fbr``: part of the slice's
    bandwidth that one takes.
    """

    variant: str
    accuracy: float
    curve: LatencyCurve
    sure: tuple[float, ...] = ()
    least: float = 1.0
    pace: float = 1.0
    executors: int = 1
    fbr: float = 1.0

    @property
    def longest(self) -> tuple[float, ...]:
        """Seconds by rows that hardly any batch exceeds."""
        return self.sure or self.curve.seconds

    def within(self, rows: int) -> "Hosted":
        """The same for batches of at most ``rows`` rows, at least 1."""
        if rows >= self.curve.max_batch:
            return self
        return replace(self, curve=self.curve.within(rows), sure=self.sure[:rows])

    def times(self, margin: float) -> "Hosted":
        """The same where hardly any batch exceeds ``margin`` times as much."""
        if margin == 1.0:
            return self
        sure = tuple([margin * seconds for seconds in self.longest])
        return replace(self, sure=sure)

    def shown(self, margin: float) -> "Hosted":
        """The same where its batches have shown that hardly any exceeds ``margin`` times as much."""
        return replace(self.times(margin), pace=1.0)


@dataclass(frozen=True, slots=True)
class Registered:
    """What is served from now on, and no other app: the parts of a catalogue."""

    apps: tuple[App, ...]
    variants: tuple[Variant, ...]
    profiles: tuple[Profile, ...]


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The record of ``query`` is larger than the topic takes that it was sent to."""

    query: Query
    problem: str


@dataclass(frozen=True, slots=True)
class WorkTopicGone:
    """The topic does not exist that the record of ``query`` was sent to."""

    query: Query
    problem: str


@dataclass(slots=True)
class Arrived:
    """A query came to the queue (or to the router). ``turn``: the router's count of turns then, -1 where not told.

    ``content``: digest of its tensors, told only where it is asked for. ``flaw``: why it cannot be run, where whoever
    read it knows. Treat as frozen: it is not declared so because creation is on the hot path.
    """

    query: Query
    turn: int = -1
    content: str = field(default="", kw_only=True)
    flaw: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class TurnsTold:
    """The router of ``app`` has given ``count`` turns to the workers of an SLO class by ``at`` (wall clock).

    ``slo``: of the class, seconds; 0 where the app has no classes.
    """

    app: str
    slo: float
    count: int
    at: float


@dataclass(frozen=True, slots=True)
class Offered:
    """An executor is free: run a batch now, or say when to be woken. Sent only while one is free."""


@dataclass(slots=True)
class Finished:
    """The batch that ran has ended after ``execution_s`` seconds; ``failed`` when the model raised."""

    app: str
    variant: str
    rows: int
    execution_s: float
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Woke:
    """A time asked for by WakeAt has come (or an earlier one)."""


@dataclass(frozen=True, slots=True)
class Overlapped:
    """What is passed on here now, or was last, another member of the group may pass on as well."""


@dataclass(frozen=True, slots=True)
class HostingChanged:
    """From now on these variants are ready for ``app`` on this slice, most accurate first; () is none.

    ``slo``: the app's, seconds. ``promise``: what each of its streams was promised. ``peers``: (device, slice) of all
    that serve the app by the same plan: its own stream (queries without a key) goes to them in turns, and this slice
    keeps ``own`` of it. ``shares``: of a promised app, what each place serves of it by the newest plan, (device, slice,
    share), by which every other stream has its place. ``loose``: the app asks for best effort, and was promised
    nothing. ``aside``: it gives way to what was promised here, since it leaves, or comes while something does that was
    promised.
    """

    app: str
    hosted: tuple[Hosted, ...]
    slo: float
    promise: Promise = NO_PROMISE
    peers: tuple[tuple[str, str], ...] = ()
    part: Promise | None = None
    loose: bool = False
    aside: bool = False
    shares: tuple[tuple[str, str, float], ...] = ()

    @property
    def turns(self) -> int:
        """Slices that the app's own stream goes to in turn."""
        return max(1, len(self.peers))

    @property
    def own(self) -> Promise:
        """What this slice keeps of the app's own stream: ``part``; where that is not told, an equal one."""
        return self.promise.over(self.turns) if self.part is None else self.part


@dataclass(frozen=True, slots=True)
class StreamResumed:
    """A stream whose past is known goes on here, after a restart. Sent before its first query.

    ``recent``: its last outcomes, oldest first, True for a miss.
    """

    app: str
    stream: str
    recent: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """A query that is not run, whatever is decided here: a miss. Sent before that is told."""

    query: Query


BatchingEvent = Arrived | Offered | Finished | Woke | HostingChanged | StreamResumed | Refused
StationEvent = BatchingEvent | TablesChanged | TurnsTold


@dataclass(frozen=True, slots=True)
class HostedOn:
    """What a slice hosts for the app that is routed."""

    device: str
    slice: str
    hosted: tuple[Hosted, ...]


@dataclass(frozen=True, slots=True)
class PlanActivated:
    """Route by this plan from now on. ``curves``: what is hosted where, for rules that look ahead."""

    plan: Plan
    curves: tuple[HostedOn, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceReported:
    """A heartbeat of one slice: rows that wait for a batch, and seconds until the one that runs ends.

    ``overdue``: seconds by which that should have ended; 0: it need not yet.
    """

    device: str
    slice: str
    queued: int
    busy_for: float
    overdue: float = 0.0


@dataclass(frozen=True, slots=True)
class PoisonTold:
    """A device's word on what ends executors: the contents of queries, (app, digest) each."""

    contents: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class InstanceRead:
    """A record of an instance; None ends the one of ``key``."""

    key: str
    instance: Instance | None


@dataclass(frozen=True, slots=True)
class PartRead:
    """A router reads this part of its app's queries, above 0 and at most 1; other routers read the rest."""

    part: float


RoutingEvent = Arrived | PlanActivated | DeviceReported | PartRead


@dataclass(frozen=True, slots=True)
class PlanPublished:
    """A plan is on the control topic."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class PlanAcknowledged:
    """A device's word on a plan. ``device`` has staged ``variants`` for ``epoch`` (loaded and warm), or failed to stage
    ``failed``."""

    device: str
    epoch: Epoch
    variants: tuple[str, ...]
    failed: tuple[str, ...] = ()


ActivationEvent = PlanPublished | PlanAcknowledged | Woke


@dataclass(frozen=True, slots=True)
class LoadEnded:
    """The executor has loaded and warmed ``variant``, or could not."""

    variant: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Retired:
    """No query of ``app`` waits or runs on the slice any more, after Retire was asked for."""

    app: str


@dataclass(frozen=True, slots=True)
class LoadLost:
    """What was loaded is gone with its executor's process, and could not be loaded again."""

    variant: str


StagingEvent = PlanPublished | LoadEnded | LoadLost | Retired | Woke


@dataclass(frozen=True, slots=True)
class DemandCounted:
    """A count of arrivals. ``count`` rows of ``app`` arrived (a query of r rows is r) in the ``window`` seconds that
    ended ``age`` ago.

    ``classes``: the same by SLO class (seconds), where the app has classes. ``age``: seconds before ``now``, below zero
    while the window is still being counted.
    """

    app: str
    count: int
    window: float
    classes: tuple[tuple[float, int], ...] = ()
    age: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceSeen:
    """Heartbeat of a device. ``incarnation`` changes when its worker restarts, or joins again: it then follows the one
    ``after`` which it was another ("": none).

    ``slices``: those that it has, stated only by a worker that can cut its device otherwise; (): as configured.
    ``fault``: why it could not be cut as the plan of ``fault_epoch`` asked, so that the slices it had stand; "" from
    when another cut begins.
    """

    device: str
    type: str
    incarnation: str
    memory_bytes: int = 0
    price: float = 0.0
    spot: bool = False
    leaving: bool = False
    slices: tuple[Slice, ...] = ()
    fault: str = ""
    fault_epoch: Epoch = NO_EPOCH
    after: str = ""


@dataclass(frozen=True, slots=True)
class LatencyMeasured:
    """A batch of ``rows`` took ``execution_s`` on a device of ``device_type`` (mean over ``batches`` batches)."""

    variant: str
    device_type: str
    rows: int
    execution_s: float
    batches: int = 1


@dataclass(frozen=True, slots=True)
class EndsCounted:
    """Of ``app`` so many queries were answered on time, and so many late, expired or dropped."""

    app: str
    on_time: int
    missed: int


@dataclass(frozen=True, slots=True)
class HostHeard:
    """The event loop of the worker of ``device`` woke ``late`` seconds late; ``ended``: what became of its queries."""

    device: str
    late: float
    ended: tuple[EndsCounted, ...] = ()


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time went on. Sent a few times a second."""


@dataclass(frozen=True, slots=True)
class MarginsTold:
    """How long batches of a slice take at most, as shown by those that ran: (variant, factor on what its profile says
    hardly any exceeds)."""

    device: str
    slice: str
    margins: tuple[tuple[str, float], ...]


ControllerEvent = DemandCounted | DeviceSeen | HostHeard | PlanAcknowledged | LatencyMeasured | Ticked
