"""What the planner's core hears and what it decides, beside the nouns of plans, leases and tables.

``now`` is this process's monotonic clock in all of it; what deadlines are compared with is told by ``ClockRead``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sluicegate.domain.actions import Announce, Publish, Reclaim, WakeAt
from sluicegate.domain.events import (
    DemandCounted,
    DeviceSeen,
    EndsCounted,
    LatencyMeasured,
    PlanAcknowledged,
    Registered,
)
from sluicegate.domain.outcome import Outcome
from sluicegate.domain.plan import Plan
from sluicegate.domain.query import Query
from sluicegate.domain.table import SelectionTable, TableObserved
from sluicegate.planner.control.leader_lease import Lead, LeaseRead, StepDown, Write
from sluicegate.planner.control.replan_trigger import Solve, Solved
from sluicegate.planner.policy_tables.keys import TableName
from sluicegate.planner.policy_tables.table_schedule import LoadMissing, Made, Make, PutTable, WithdrawTable
from sluicegate.planner.problems.problem import Problem


@dataclass(frozen=True, slots=True)
class ClockRead:
    """Time went on, as WakeAt asked. ``wall``: seconds since the epoch by this machine's clock."""

    wall: float


@dataclass(frozen=True, slots=True)
class LogReached:
    """Everything that stood on the plan and status topics at the start has been told."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Something was read of the status topic that concerns nobody here: the log is there."""


@dataclass(frozen=True, slots=True)
class PlanRead:
    """A plan on its topic, in order; one's own come back so as well."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class PlanHidden:
    """A record on the plan topic counts for nothing, and may be all that is left there once that is compacted."""


@dataclass(frozen=True, slots=True)
class SafeModeRead:
    """What a planner, this one too, said on the status topic of the promise of ``app`` for the sake of ``device``."""

    app: str
    device: str
    on: bool


@dataclass(frozen=True, slots=True)
class PlansRead:
    """The answer to CatchUp: every plan published before it has been told; ``ok``: else they cannot be read now.

    ``devices``: those that have a work topic, where something may lie that nobody reads. ``committed``: up to where
    what lies there is done, of those that the newest plan has a fence for.
    """

    term: int
    ok: bool = True
    devices: tuple[str, ...] = ()
    committed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceHeard:
    """A heartbeat. ``measured``, ``observed``: batches timed, and what came of queries under tables, since the last.

    ``overdue``: seconds by which what runs should have ended, on the slice where that is least; 0: somewhere it
    advances. ``late``: by which the worker's event loop woke late; ``ended``: what became of its queries.
    """

    seen: DeviceSeen
    measured: tuple[LatencyMeasured, ...] = ()
    observed: tuple[TableObserved, ...] = ()
    overdue: float = 0.0
    late: float = 0.0
    ended: tuple[EndsCounted, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceNoted:
    """What the stage ``by`` has to say of a device from now on; with neither of the two, nothing any more.

    ``withdrawn``: plans leave it out, though its worker lives. ``price``: money an hour (None: as its heartbeats say).
    """

    device: str
    by: str
    withdrawn: bool = False
    price: float | None = None


@dataclass(frozen=True, slots=True)
class TableRead:
    """A table on its topic, in order; None: withdrawn."""

    name: TableName
    table: SelectionTable | None


@dataclass(frozen=True, slots=True)
class TablesReached:
    """Every table that stood on the topic at the start has been told."""


@dataclass(frozen=True, slots=True)
class SweepBegan:
    """The answer to Sweep: ``device`` has committed up to ``start``; its work topic ends at ``end``, the fence."""

    device: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Left:
    """A record that a dead device left. ``query``: None where it cannot be read. ``answered``: by the dead worker."""

    offset: int
    query: Query | None
    answered: bool = False


@dataclass(frozen=True, slots=True)
class WorkLeft:
    """The next records below the fence, in order: all of them are told, in any number of events."""

    device: str
    records: tuple[Left, ...]


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A query that was to go back is too large for its topic."""

    device: str
    query: Query
    problem: str


@dataclass(frozen=True, slots=True)
class Swept:
    """What Move said of every record below the fence is written, and committed for the dead worker."""

    device: str


@dataclass(frozen=True, slots=True)
class SweepFailed:
    """It was cut short, anywhere. ``gone``: the device has no work topic, so that nothing is left there."""

    device: str
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Stopping:
    """This planner ends in good order: it acts no more, and says Parted once all it said is written."""


@dataclass(frozen=True, slots=True)
class Parted:
    """The last that was said is written: another may lead."""


PlannerEvent = (
    ClockRead
    | LogReached
    | Heard
    | LeaseRead
    | PlanRead
    | PlanHidden
    | SafeModeRead
    | PlansRead
    | DemandCounted
    | DeviceHeard
    | DeviceNoted
    | PlanAcknowledged
    | Solved
    | TableRead
    | TablesReached
    | LoadMissing
    | Made
    | Registered
    | SweepBegan
    | WorkLeft
    | TooLarge
    | Swept
    | SweepFailed
    | Stopping
    | Parted
)


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Read every plan that is on the topic now, telling each; then tell PlansRead."""

    term: int


@dataclass(frozen=True, slots=True)
class StandIn:
    """The answer to Solve ``number`` is late: give ``problem`` to the heuristic, send a provisional Solved."""

    problem: Problem
    reason: str
    number: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """Move what a dead device left on its work topic: answer with SweepBegan, WorkLeft until the fence, then Swept."""

    device: str


@dataclass(frozen=True, slots=True)
class Readmit:
    """The query goes back to those that route it; TooLarge where that cannot be."""


@dataclass(frozen=True, slots=True)
class End:
    """The query ends so."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Bury:
    """A dead letter: the record cannot be read."""


@dataclass(frozen=True, slots=True)
class Leave:
    """It was answered: nothing is written of it."""


Verdict = Readmit | End | Bury | Leave


@dataclass(frozen=True, slots=True)
class Move:
    """What becomes of the records of a WorkLeft, in their order."""

    device: str
    verdicts: Sequence[Verdict]


@dataclass(frozen=True, slots=True)
class LetIn:
    """The sweep is over: whoever was fenced for it may write again."""

    device: str


@dataclass(frozen=True, slots=True)
class SafeMode:
    """The promise of ``app`` is broken for the sake of ``device``, or (``on`` False) it is kept again."""

    app: str
    device: str
    on: bool
    detail: str

    @property
    def said(self) -> Announce:
        """As it stands on the status topic."""
        return Announce(f"app:{self.app}", "safe_mode" if self.on else "promise_kept", self.detail)


PlannerAction = (
    Write
    | Lead
    | StepDown
    | CatchUp
    | Solve
    | StandIn
    | Publish
    | Reclaim
    | Sweep
    | Move
    | End
    | LetIn
    | SafeMode
    | Announce
    | Make
    | PutTable
    | WithdrawTable
    | WakeAt
)
