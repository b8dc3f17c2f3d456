"""What a device's worker is to do. ``Acknowledge`` and ``Announce`` are those of ``sluicegate.domain.actions``;
``InterferenceChanged`` is for those who watch it.

Those of each query or batch are not declared frozen, because creation is on the hot path: treat them as frozen.
"""

from dataclasses import dataclass

from sluicegate.domain.actions import Acknowledge, Announce, Run
from sluicegate.domain.events import DeviceSeen, EndsCounted, LatencyMeasured
from sluicegate.domain.outcome import OutcomeKind, PromiseState, Reason
from sluicegate.domain.plan import Epoch
from sluicegate.domain.query import Query
from sluicegate.domain.table import TableObserved
from sluicegate.policies.model_less.instance_states import Recorded
from sluicegate.policies.placement.interference import InterferenceChanged
from sluicegate.policies.placement.repartition import Cut


@dataclass(slots=True)
class RunBatch:
    """Run it on ``part``, in its executor number ``seat``, now; answer with BatchEnded or BatchFailed. It hangs after
    ``within`` seconds.

    ``again``: one query of a batch that failed, alone.
    """

    part: str
    run: Run
    within: float
    again: bool = False
    seat: int = 0


@dataclass(slots=True)
class Answer:
    """The answers to ``queries``.

    Made by ``run`` on ``part`` from ``started`` to ``at``, ``execution_s`` of them in the model. ``promises``: how
    streams stand, () where none of the queries is of a stream with one.
    """

    part: str
    run: Run
    queries: tuple[Query, ...]
    started: float
    at: float
    execution_s: float
    promises: tuple[PromiseState | None, ...]


@dataclass(slots=True)
class End:
    """The end of ``query`` at ``at``, without an answer. ``run``, begun at ``started``: of the batch that failed."""

    part: str
    query: Query
    kind: OutcomeKind
    at: float
    reason: Reason | None
    detail: str | None
    promise: PromiseState | None
    run: Run | None = None
    started: float | None = None


@dataclass(slots=True)
class SendBack:
    """A query for another device: give it to its router."""

    query: Query


@dataclass(slots=True)
class Repeated:
    """A query that has come before, in a record written twice: the first is answered, this leads to nothing."""

    query: Query


@dataclass(frozen=True, slots=True)
class LoadVariant:
    """Load and warm ``variant`` on ``part``; answer with Loaded. One after the other, in the order of asking.

    It hangs after ``within`` seconds; None: nobody knows how long it takes, and the executor has a limit of its own.
    """

    part: str
    variant: str
    max_batch: int
    within: float | None
    seat: int = 0


@dataclass(frozen=True, slots=True)
class UnloadVariant:
    """Forget ``variant`` on ``part``, which no batch runs with; in one order with loads."""

    part: str
    variant: str
    seat: int = 0


@dataclass(frozen=True, slots=True)
class RestartExecutor:
    """Start the process behind the executor of ``part`` again, ``after`` seconds; answer with ExecutorStarted."""

    part: str
    after: float
    seat: int = 0


@dataclass(frozen=True, slots=True)
class ReloadVariant:
    """Load and warm ``variant`` once more on the executor of ``part``; answer with Reloaded. ``within``: as before."""

    part: str
    variant: str
    max_batch: int
    within: float | None
    seat: int = 0


@dataclass(slots=True)
class WakeMe:
    """Send Woken(``key``) at ``at``; the earliest time asked for a key is enough."""

    at: float
    key: str


@dataclass(frozen=True, slots=True)
class Read:
    """Plans count on this worker: tell Recalled if anything is promised, then ReadingBegins, then read."""


@dataclass(frozen=True, slots=True)
class Seek:
    """Read from ``offset`` on."""

    offset: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """Others answer ``queries``, all that was read: stop reading, commit and answer nothing of it; then tell Joined."""

    why: str
    queries: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Read the newest plan; then tell CaughtUp."""


@dataclass(frozen=True, slots=True)
class Say:
    """An announcement of the device's ``state``, and why, for the status topic."""

    state: str
    detail: str


@dataclass(frozen=True, slots=True)
class SliceReport:
    """One slice in a heartbeat. ``rows``: that wait for a batch; ``busy_for``: seconds until the one that runs ends.

    ``age``: seconds since that began; ``overdue``: by which it should have ended, or the executor is not whole.
    ``margins``: see ``StationPolicy``.
    """

    slice: str
    kind: str
    rows: int
    busy_for: float
    loaded: tuple[str, ...]
    measured: tuple[LatencyMeasured, ...]
    observed: tuple[TableObserved, ...]
    age: float = 0.0
    overdue: float = 0.0
    margins: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat. ``queued``: queries here; ``busy_s``: of all executors since the last; ``poison``: (app, digest) of
    what ends executors.

    ``late``: seconds by which the event loop woke late; ``ended``: what became of queries here since the last;
    ``stands_by``: plans count on another worker of the device, and what it has is for that one to say.
    """

    seen: DeviceSeen
    epoch: Epoch
    queued: int
    busy_s: float
    slices: tuple[SliceReport, ...]
    poison: tuple[tuple[str, str], ...]
    late: float
    ended: tuple[EndsCounted, ...]
    stands_by: bool = False


Executing = LoadVariant | ReloadVariant | RestartExecutor | UnloadVariant
"""What is to be done with the executor of a slice, beside batches."""
DeviceAction = (
    RunBatch
    | Answer
    | End
    | SendBack
    | Repeated
    | Executing
    | WakeMe
    | Acknowledge
    | Announce
    | Read
    | Seek
    | Abandon
    | CatchUp
    | Cut
    | Say
    | Beat
    | Recorded
    | InterferenceChanged
)
