"""What policies and planner decide: small dataclasses that shells turn into IO.

Treat all as frozen. Those of each query or batch are not declared so: that makes them three times as dear to create.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sluicegate.domain.events import HostingChanged, TurnsTold
from sluicegate.domain.outcome import OutcomeKind, Reason
from sluicegate.domain.plan import Epoch, Plan
from sluicegate.domain.query import Query


@dataclass(slots=True)
class Run:
    """Run these queries as one batch of ``variant``, now. ``rows``: their rows in all."""

    variant: str
    queries: tuple[Query, ...]
    rows: int

    @property
    def length(self) -> int:
        """Of its longest query; 0 where one is not known, or the app's inputs do not vary in length."""
        lengths = [query.length for query in self.queries]
        return max(lengths) if min(lengths) else 0


@dataclass(frozen=True, slots=True)
class Drop:
    """Give ``query`` up."""

    query: Query
    reason: Reason


@dataclass(frozen=True, slots=True)
class Expire:
    """The deadline of ``query`` has passed while it waited."""

    query: Query


@dataclass(frozen=True, slots=True)
class End:
    """A query's end. ``query`` ends here, unanswered: say so as its outcome."""

    query: Query
    kind: OutcomeKind
    reason: Reason | None = None
    detail: str | None = None


@dataclass(slots=True)
class WakeAt:
    """Send Woke at ``at`` at the latest. A later WakeAt does not cancel an earlier one."""

    at: float


@dataclass(frozen=True, slots=True)
class Announce:
    """Say on the status topic: ``state`` of ``subject`` ("app:digits", "device:cpu0"), and why."""

    subject: str
    state: str
    detail: str
    data: Mapping[str, float | str] | None = None


StationAction = Run | Drop | Expire | WakeAt | Announce


@dataclass(slots=True)
class Send:
    """Put ``query`` on the work topic of ``device``. ``turn``: how many turns that makes, -1 where not counted.

    Treat as frozen: it is not declared so because creation is on the hot path.
    """

    query: Query
    device: str
    slice: str
    turn: int = -1


@dataclass(frozen=True, slots=True)
class TellTurns:
    """Tell all workers of the app how many turns have been given."""

    told: TurnsTold


RoutingAction = Send | Drop | TellTurns


@dataclass(frozen=True, slots=True)
class Activate:
    """Routers: switch to this plan."""

    plan: Plan


ActivationAction = Activate | WakeAt


@dataclass(frozen=True, slots=True)
class Load:
    """Load and warm ``variant`` for batches up to ``max_batch`` rows; answer with LoadEnded."""

    variant: str
    max_batch: int


@dataclass(frozen=True, slots=True)
class Unload:
    """Forget ``variant``."""

    variant: str


@dataclass(frozen=True, slots=True)
class Host:
    """Tell the station what it may run from now on."""

    change: HostingChanged


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Say on the control topic that ``epoch`` is staged here."""

    epoch: Epoch
    variants: tuple[str, ...]
    failed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Retire:
    """The order to retire an app from a slice. ``app`` leaves this slice: answer with Retired once none of its queries
    waits or runs here."""

    app: str


StagingAction = Load | Unload | Host | Acknowledge | Retire | WakeAt


@dataclass(slots=True)
class Accept:
    """The query goes on. Treat as frozen: it is not declared so because creation is on the hot path."""

    query: Query


@dataclass(frozen=True, slots=True)
class Reject:
    """The query ends here."""

    query: Query
    reason: Reason
    detail: str


AdmissionAction = Accept | Reject | Expire | Announce


@dataclass(frozen=True, slots=True)
class Publish:
    """Put this plan on the control topic."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Reclaim:
    """A device is dead: move what its worker left on the work topic to those that live, below a fence."""

    device: str
    incarnation: str


ControllerAction = Publish | Reclaim | Announce
