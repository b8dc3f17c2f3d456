"""What the core of elastic capacity hears and says, whatever its policy. ``now``: the wall clock, as of
notices and instances; by the load alone, that of a clock that never goes back."""

from collections.abc import Mapping
from dataclasses import dataclass

from sluicegate.domain.actions import Announce
from sluicegate.domain.events import DemandCounted, InstanceRead, Registered, Ticked
from sluicegate.planner.capacity.procurement import AskSpot, InstanceUp, Kind, Noticed, OrderOnDemand, SpotAnswered


@dataclass(frozen=True, slots=True)
class WorkerReported:
    """A heartbeat. ``utilisation``: busy share since the last, 0..1; ``queued``: queries there; ``leaving``: it ends;
    ``rows``: that wait for a batch."""

    device: str
    hardware: str
    utilisation: float
    queued: int
    variants: tuple[str, ...] = ()
    leaving: bool = False
    rows: int = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is hosted and nothing waits there."""
        return not self.variants and not self.queued


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """The answer to Start; ``ok``: else it could not be done."""

    device: str
    ok: bool = True


@dataclass(frozen=True, slots=True)
class WorkerStopped:
    """The answer to Stop, however that went."""

    device: str


@dataclass(frozen=True, slots=True)
class Leading:
    """Whether the planner beside this leads from now on."""

    on: bool


@dataclass(frozen=True, slots=True)
class VariantWanted:
    """A query that only this variant can answer found nothing that runs it."""

    variant: str


@dataclass(frozen=True, slots=True)
class Ordered:
    """An on-demand instance was ordered for the node."""

    node: str


@dataclass(frozen=True, slots=True)
class Released:
    """The node's instance of ``kind`` was given back."""

    node: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class CallFailed:
    """The provider could not be reached: what it was asked is asked again."""

    call: "AskSpot | OrderOnDemand | Release"


MarketEvent = Noticed | SpotAnswered | InstanceUp | Ordered | Released | CallFailed
CapacityEvent = (
    Ticked
    | DemandCounted
    | Registered
    | WorkerReported
    | WorkerStarted
    | WorkerStopped
    | Leading
    | InstanceRead
    | VariantWanted
    | MarketEvent
)


@dataclass(frozen=True, slots=True)
class Start:
    """Have a worker of ``device``; answer with WorkerStarted."""

    device: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the worker of ``device``; answer with WorkerStopped."""

    device: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Plans leave ``device`` out from now on."""

    device: str


@dataclass(frozen=True, slots=True)
class Restore:
    """Plans may use ``device`` again. ``price``: money an hour that it costs now, where that is known."""

    device: str
    price: float | None = None


@dataclass(frozen=True, slots=True)
class LookUp:
    """Where the node's instance of ``kind`` is up, answer with InstanceUp."""

    node: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Release:
    """Give the node's instance of ``kind`` back; answer with Released."""

    node: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Bill:
    """What everything has cost so far, by kind of instance."""

    paid: Mapping[Kind, float]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the scaling planner is to know from now on: devices, variants, and what the dead held, by replacement."""

    avoided: tuple[str, ...]
    wanted: tuple[str, ...]
    restored: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class EndInstance:
    """The record of an instance whose worker died ends."""

    key: str


@dataclass(frozen=True, slots=True)
class Wants:
    """So many workers would do for ``app``."""

    app: str
    workers: int


@dataclass(frozen=True, slots=True)
class Serving:
    """So many devices serve or are about to."""

    devices: int


@dataclass(frozen=True, slots=True)
class Told:
    """What an operator should read in the log."""

    text: str


CapacityAction = (
    Start
    | Stop
    | Withdraw
    | Restore
    | AskSpot
    | OrderOnDemand
    | LookUp
    | Release
    | Bill
    | Wishes
    | EndInstance
    | Wants
    | Serving
    | Told
    | Announce
)
