"""What a device's worker is told, beside ``PlanPublished``, ``Registered`` and ``TurnsTold`` of
``sluicegate.domain.events``. What happens to a batch or load names its slice, and by ``seat`` which of its executors.

Queries are named by themselves only when they come; what happens to a batch names its slice. Those that come for each
query or batch are not declared frozen, because creation is on the hot path: treat them as frozen.
"""

from dataclasses import dataclass
from enum import StrEnum

from sluicegate.domain.events import Arrived, PlanPublished, Registered, TurnsTold
from sluicegate.domain.fleet.device import Slice
from sluicegate.domain.fleet.instance import Instance
from sluicegate.domain.query import QueryKey
from sluicegate.domain.table import SelectionTable
from sluicegate.policies.placement.repartition import CutEnded
from sluicegate.policies.promises.stream_book import PastStream


@dataclass(slots=True)
class QueryCame(Arrived):
    """A query, read from the work topic at ``offset``, sent to ``slice`` as number ``turn`` (-1: not counted)."""

    slice: str = ""
    offset: int = -1


@dataclass(slots=True)
class BatchEnded:
    """What ran on ``part`` has ended after ``seconds``, ``execution_s`` of them in the model."""

    part: str
    execution_s: float
    seconds: float
    seat: int = 0


class Failure(StrEnum):
    """Why a batch failed: the model raised; the executor's process ended under it, perhaps because it took too long,
    or a process did that was made for this run alone; that ended for a cause of its own."""

    RAISED = "raised"
    KILLED = "killed"
    APART = "apart"
    BLAMELESS = "blameless"


@dataclass(frozen=True, slots=True)
class ContentsTold:
    """An executor's process ended: digests of what the queries hold that are here. Told before BatchFailed."""

    contents: tuple[tuple[QueryKey, str], ...]


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """What ran on ``part`` failed."""

    part: str
    detail: str
    failure: Failure = Failure.RAISED
    seat: int = 0


@dataclass(frozen=True, slots=True)
class Loaded:
    """The end of a load of ``variant`` on ``part``, after ``seconds``, or that it failed."""

    part: str
    variant: str
    ok: bool
    seconds: float = 0.0
    seat: int = 0


@dataclass(frozen=True, slots=True)
class ExecutorEnded:
    """The process behind the executor of ``part`` has ended unasked: nothing is loaded there. Told before what failed
    with it."""

    part: str
    seat: int = 0


@dataclass(frozen=True, slots=True)
class ExecutorStarted:
    """The answer to RestartExecutor: it runs again, and holds nothing."""

    part: str
    seat: int = 0


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The answer to ReloadVariant, after ``seconds``, or that it cannot be loaded."""

    part: str
    variant: str
    ok: bool
    seconds: float = 0.0
    seat: int = 0


@dataclass(slots=True)
class Woken:
    """A time asked for by ``WakeMe`` with this key has come."""

    key: str


@dataclass(frozen=True, slots=True)
class Opened:
    """The device has ``slices``, and an executor on each: it can serve."""

    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Joined:
    """The worker has started (again), as ``incarnation``."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class ReadingBegins:
    """The work topic ends at ``end``; without a word it is read from ``position`` on. Below ``swept`` planners have
    moved everything to others."""

    position: int
    end: int
    swept: int


@dataclass(frozen=True, slots=True)
class Recalled:
    """How streams that were promised something went on until now, by the results topics."""

    streams: tuple[PastStream, ...]


@dataclass(frozen=True, slots=True)
class TableCame:
    """The selection table of ``app`` on slices of ``kind``, for an SLO class and ``qps``; None: it is withdrawn."""

    app: str
    kind: str
    slo: float
    qps: float
    table: SelectionTable | None


@dataclass(frozen=True, slots=True)
class InstancesFound:
    """The records of this worker's instances from before its start: those that it does not hold are to be ended."""

    instances: tuple[Instance, ...]


@dataclass(frozen=True, slots=True)
class Suspended:
    """The process stood still, or something in it did, for ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The newest plan was read, after ``CatchUp``."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """The planner took the worker's transactions, or one was open for too long."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The worker ends in good order; what is not answered is for others."""


@dataclass(frozen=True, slots=True)
class BeatDue:
    """Time for a heartbeat. ``late``: seconds by which the worker's event loop woke late for it."""

    late: float = 0.0


ExecutorEvent = ExecutorEnded | ExecutorStarted | Reloaded
DeviceEvent = (
    QueryCame
    | BatchEnded
    | BatchFailed
    | ContentsTold
    | Loaded
    | ExecutorEvent
    | Woken
    | PlanPublished
    | Registered
    | TurnsTold
    | TableCame
    | Recalled
    | InstancesFound
    | Opened
    | CutEnded
    | Joined
    | ReadingBegins
    | Suspended
    | CaughtUp
    | Fenced
    | Leaving
    | BeatDue
)
