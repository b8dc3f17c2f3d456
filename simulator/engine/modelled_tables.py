"""Selection tables in a run: making them, as long as the scenario says, and the topic that they are on.

Rules. A table takes ``make_s`` to be made, a library as much for each of its tables. What is published reaches planners
and devices after one hop of control; the topic is compacted, and who starts reads what is on it first.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from sluicegate.domain.table import SelectionTable
from sluicegate.planner.control.events import TableRead
from sluicegate.planner.policy_tables.keys import TableName
from sluicegate.planner.policy_tables.table_requests import LibraryRules
from sluicegate.planner.policy_tables.table_schedule import Made, Make, make_tables
from sluicegate.policies.serving.device_events import TableCame


@dataclass(frozen=True, slots=True, kw_only=True)
class TableModel:
    """How tables are made. ``make_s``: seconds each takes, or as long as it took (then equal seeds may differ)."""

    make_s: float | Literal["measured"] = 0.0
    library: LibraryRules = field(default_factory=LibraryRules)


class TablesTopic:
    """What stands on the topic. ``timer``: wall seconds, to measure the making."""

    def __init__(self, model: TableModel, timer: Callable[[], float]) -> None:
        self._model = model
        self._timer = timer
        self._standing: dict[TableName, SelectionTable] = {}

    @property
    def standing(self) -> list[TableRead]:
        """By name."""
        return [TableRead(name, table) for name, table in sorted(self._standing.items(), key=lambda item: item[0])]

    def made(self, make: Make) -> tuple[Made, float]:
        """The answer, and the seconds after which it is there."""
        started = self._timer()
        tables = make_tables(make, self._model.library)
        took = self._timer() - started
        make_s = self._model.make_s
        return Made(make, tables), took if make_s == "measured" else make_s * max(1, len(tables))

    def put(self, read: TableRead) -> TableCame:
        """A table, or a tombstone, is on the topic: as devices read it."""
        if read.table is None:
            self._standing.pop(read.name, None)
        else:
            self._standing[read.name] = read.table
        shelf = read.name.shelf
        return TableCame(shelf.app, shelf.worker_class, shelf.slo, read.name.qps, read.table)
