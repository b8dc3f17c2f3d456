"""Who makes plans in a run: what a control plane is."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from sluicegate.domain.actions import Announce
from sluicegate.domain.events import DemandCounted, InstanceRead, PlanAcknowledged, Registered
from sluicegate.domain.fleet.instance import Instance
from sluicegate.domain.outcome import Outcome
from sluicegate.domain.plan import Plan
from sluicegate.domain.query import Query
from sluicegate.planner.capacity.events import VariantWanted
from sluicegate.planner.capacity.procurement import Kind
from sluicegate.planner.control.events import DeviceNoted
from sluicegate.planner.policy_tables.table_schedule import LoadMissing
from sluicegate.policies.serving.device_actions import Beat
from sluicegate.policies.serving.device_events import TableCame
from sluicegate.simulator.engine.timeline import Timeline

ControlEvent = (
    Beat | DemandCounted | DeviceNoted | InstanceRead | LoadMissing | PlanAcknowledged | Registered | VariantWanted
)


class Plant(Protocol):
    """What a control plane acts on."""

    @property
    def timeline(self) -> Timeline:
        """The virtual clock."""
        ...

    @property
    def work_topics(self) -> Sequence[str]:
        """Devices that have one."""
        ...

    def publish(self, plan: Plan, now: float) -> None:
        """Put ``plan`` on the control topic."""
        ...

    def table(self, came: TableCame, now: float) -> None:
        """Have devices read a selection table, or that it is withdrawn."""
        ...

    def left(self, device: str) -> tuple[int, Sequence[Query]]:
        """Take what a dead device has left on its work topic; the offset of the first of it, too."""
        ...

    def announced(self, announcer: str, said: Announce, now: float) -> None:
        """A word on the status topic."""
        ...

    def readmit(self, query: Query, now: float) -> None:
        """Give a query to its router again."""
        ...

    def begin_worker(self, device: str, now: float) -> None:
        """The worker of ``device`` starts."""
        ...

    def stop_worker(self, device: str, now: float) -> None:
        """It ends in good order, and says so."""
        ...

    def end_worker(self, device: str, now: float) -> None:
        """It ends without a word, whatever it holds."""
        ...

    @property
    def instances(self) -> Mapping[str, Instance]:
        """What stands on the topic of instances, by key."""
        ...

    def record(self, key: str, instance: Instance | None, now: float) -> None:
        """Put a record there; None: it ends."""
        ...

    def ended(self, query: Query, outcome: Outcome) -> None:
        """A query ends without having been answered."""
        ...


class ControlPlane(Protocol):
    """Makes plans. ``solve_s``: wall seconds of each solve so far; ``epochs``: plans published.

    ``nondeterministic``: solves that a limit in seconds cut off, so that equal seeds may give different runs. ``cost``:
    money so far, by kind of instance, where instances are bought.
    """

    @property
    def solve_s(self) -> Sequence[float]: ...

    @property
    def epochs(self) -> int: ...

    @property
    def nondeterministic(self) -> int: ...

    @property
    def cost(self) -> Mapping[Kind, float]: ...

    def start(self, plant: Plant, now: float) -> None:
        """The run begins."""
        ...

    def heard(self, event: ControlEvent, now: float) -> None:
        """Demand, a heartbeat, an acknowledgement."""
        ...
