"""Selection tables for the plans of one leader: what is asked, made, published, watched.

Rules.
- Every plan in force is turned into questions (``sluicegate.planner.policy_tables.table_requests``) once what stands on
  the topic is known; also after each answer of the planner, since latencies may be others where the plan stays, and
  when other variants are served. What is made and published of them, and when:
  ``sluicegate.planner.policy_tables.table_schedule``.
- Who stands by knows what is on the topic, and asks nothing.
- What was counted under a table is judged beyond its withdrawal; a broken promise is announced.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from sluicegate.domain.actions import Announce
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.plan import Plan
from sluicegate.domain.table import SelectionTable, TableObserved
from sluicegate.planner.control.events import TableRead, TablesReached
from sluicegate.planner.policy_tables.keys import TableName
from sluicegate.planner.policy_tables.promise_monitor import DriftWatch
from sluicegate.planner.policy_tables.table_requests import TableRules, questions
from sluicegate.planner.policy_tables.table_schedule import (
    Asked,
    LoadMissing,
    Made,
    Make,
    PublishingEvent,
    PutTable,
    TablePublishing,
    TableSeen,
    WithdrawTable,
)
from sluicegate.profiles.catalogue.catalogue import Catalogue

_REMEMBERED = 2000

TableEvent = TableRead | TablesReached | LoadMissing | Made
TableAction = Make | PutTable | WithdrawTable | Announce


class PlannedTables:
    """The selection tables of the plans in force. ``catalogue``: everything that a plan may name, retired variants
    too."""

    def __init__(self, catalogue: Catalogue, rules: TableRules) -> None:
        self._catalogue = catalogue
        self._rules = rules
        self._published: dict[TableName, str] = {}
        self._tables: dict[tuple[str, float], SelectionTable] = {}
        self._reached = False
        self._newest: tuple[Plan, Sequence[Device], Mapping[tuple[str, str], float]] | None = None
        self.begin()

    def begin(self) -> None:
        """A term begins: nothing is asked or out, nothing was counted."""
        self._publishing = TablePublishing(self._rules.library)
        for name, fingerprint in self._published.items():
            self._publishing.handle(TableSeen(name, fingerprint))
        self._watch = DriftWatch(self._tables, period=self._rules.watch_s)
        self._newest = None

    def follow(
        self, plan: Plan, devices: Sequence[Device], latency_factor: Mapping[tuple[str, str], float]
    ) -> list[TableAction]:
        """A plan is in force from now on."""
        self._newest = (plan, devices, latency_factor)
        return self.ask()

    def ask(self) -> list[TableAction]:
        """What the plan in force needs, by what is known now."""
        if self._newest is None or not self._reached:
            return []
        plan, devices, factors = self._newest
        return self._tell(Asked(questions(plan, self._catalogue, devices, factors, self._rules)))

    def counted(self, observed: Iterable[TableObserved], now: float) -> list[Announce]:
        """What a worker counted."""
        return self._watch.handle(observed, now)

    def handle(self, event: TableEvent) -> list[TableAction]:
        """Decide."""
        match event:
            case TableRead(name, table):
                return self._read(name, table)
            case TablesReached():
                self._reached = True
                return self.ask()
            case LoadMissing():
                return self._tell(event)
            case Made():
                return [*self._tell(event), *_told(event)]
            case _:
                assert_never(event)

    def _read(self, name: TableName, table: SelectionTable | None) -> list[TableAction]:
        if table is None:
            self._published.pop(name, None)
            return self._tell(TableSeen(name, None))
        self._published[name] = table.fingerprint
        self._remember(table)
        return self._tell(TableSeen(name, table.fingerprint))

    def _tell(self, event: PublishingEvent) -> list[TableAction]:
        actions = self._publishing.handle(event)
        for action in actions:
            if isinstance(action, PutTable):
                self._remember(action.table)
        return [*actions]

    def _remember(self, table: SelectionTable) -> None:
        self._tables[table.fingerprint, table.qps] = table
        while len(self._tables) > _REMEMBERED:
            del self._tables[next(iter(self._tables))]


def _told(made: Made) -> list[Announce]:
    """A library was made, or no table holds the SLO, or making it failed."""
    if made.make.loads:
        return []
    shelf, tables = made.make.question.shelf, made.tables
    slo = f"{1e3 * shelf.slo:g}ms"
    state, detail = "none", f"no table holds {1e3 * shelf.slo:g} ms here; workers fall back"
    if made.failed:
        state, detail = "failed", "they could not be made; those there are serve on"
    elif tables:
        state, detail = "ready", f"{len(tables)} tables, up to {max(t.qps for t in tables):.4g} queries/s"
    return [Announce(f"tables:{shelf.app}/{shelf.worker_class}/{slo}", state, detail)]
