"""The seam of every policy: ``handle(event, now) -> actions``. No clock, randomness or IO inside.

An illegal event raises IllegalEventError and changes nothing. Policies are deterministic: the same events at the same
times give the same actions, which is how a recorded live run is replayed and how the simulator stands for the system.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from sluicegate.domain.actions import AdmissionAction, RoutingAction, StagingAction, StationAction
from sluicegate.domain.events import (
    Arrived,
    BatchingEvent,
    RoutingEvent,
    StagingEvent,
    StationEvent,
    TurnsTold,
)
from sluicegate.domain.query import Query
from sluicegate.domain.table import SelectionTable, TableObserved


class BatchingPolicy(Protocol):
    """When to run which queries of one app as a batch on one slice, and which to give up.

    Contract. ``Arrived`` only enqueues (and may expire, drop or ask to be woken): it never runs. ``Offered`` says that
    the executor is free: at most one Run is returned, and while none is returned and queries wait, a WakeAt has been
    asked for. ``Woke`` expires what is past its deadline, whether or not the executor is free. Each query is in exactly
    one Run, Drop or Expire. A batch's rows never exceed the curve of the variant that runs it. Queries whose deadline
    passes while they wait get Expire no later than the wake at that time.
    """

    name: str

    def handle(self, event: BatchingEvent, now: float) -> list[StationAction]:
        """Decide."""
        ...

    @property
    def queued(self) -> int:
        """Queries waiting."""
        ...

    @property
    def rows(self) -> int:
        """Rows waiting."""
        ...

    @property
    def head_deadline(self) -> float:
        """Deadline of the most urgent query waiting; infinity when none."""
        ...

    def drain(self) -> tuple[Query, ...]:
        """Take everything out of the queue: these queries are the caller's again."""
        ...

    def lend(self, rows: int, end: float) -> tuple[Query, ...]:
        """Take out at most ``rows`` rows, the first due at or after ``end`` and on: the caller runs them."""
        ...


@runtime_checkable
class FollowsTables(Protocol):
    """A batching policy that goes by selection tables."""

    def use(self, tables: Sequence[SelectionTable]) -> None:
        """From the next batch on these are the tables, of any loads and SLO classes; () is none."""
        ...

    def take_observed(self, now: float) -> tuple[TableObserved, ...]:
        """What became of queries under each table since the last call."""
        ...

    def turned(self, told: TurnsTold) -> None:
        """The router has given so many turns."""
        ...


class StationPolicy(Protocol):
    """All batching of one slice: one batching policy an app, one batch at a time an executor.

    Where there is one, it runs nothing between a Run and the Finished that ends it. ``away``: executors that are being
    started again, and hold no batch; the slice says so.
    """

    away: int

    def handle(self, event: StationEvent, now: float) -> list[StationAction]:
        """Decide."""
        ...

    @property
    def busy(self) -> bool:
        """A batch is running."""
        ...

    @property
    def margins(self) -> tuple[tuple[str, float], ...]:
        """By variant, how long batches take at most, where anything was promised: a factor on what is known of them."""
        ...

    @property
    def queued(self) -> int:
        """Queries waiting, of all apps."""
        ...

    @property
    def rows(self) -> int:
        """Rows waiting, of all apps."""
        ...

    def queued_of(self, app: str) -> int:
        """Queries of ``app`` waiting."""
        ...

    def drain(self, app: str) -> tuple[Query, ...]:
        """Take out what waits for ``app``: these queries are the caller's again."""
        ...

    def take_observed(self, now: float) -> tuple[TableObserved, ...]:
        """What became of queries under selection tables since the last call."""
        ...


class RoutingPolicy(Protocol):
    """Which device answers a query. One instance a router and app."""

    name: str

    def handle(self, event: RoutingEvent, now: float) -> Sequence[RoutingAction]:
        """Decide."""
        ...


class AdmissionPolicy(Protocol):
    """Whether a query goes on."""

    name: str

    def handle(self, event: Arrived, now: float) -> Sequence[AdmissionAction]:
        """Decide."""
        ...


class StagingPolicy(Protocol):
    """What a slice loads, hosts and forgets to follow published plans."""

    def handle(self, event: StagingEvent, now: float) -> Sequence[StagingAction]:
        """Decide."""
        ...

    def wants(self, app: str) -> bool:
        """Whether queries of ``app`` can be answered here, now or once loading ends."""
        ...

    @property
    def hosted_apps(self) -> tuple[str, ...]:
        """Apps that something is hosted for."""
        ...

    @property
    def loaded(self) -> tuple[str, ...]:
        """Variants loaded, in the order of loading."""
        ...
