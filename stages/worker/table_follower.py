"""Following selection tables: what the control topic holds is handed to the slices that they are for.

Of a shelf (app, kind of worker, SLO class) the tables of the newest fingerprint count, so that one record more swaps
what is in force as a whole. A record that cannot be read is logged and skipped; what was in force stays.
"""

from collections.abc import Callable

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.table import SelectionTable, TablesChanged
from sluicegate.planner.policy_tables.keys import Shelf, TableName, decode_name
from sluicegate.planner.policy_tables.table_codec import decode
from sluicegate.streams.ports import Record

Swap = Callable[[TablesChanged], None]


class TableLibrary:
    """The tables of one worker. ``follow`` registers a slice of ``kind``; ``handle`` takes the topic's records."""

    def __init__(self) -> None:
        self._tables: dict[TableName, SelectionTable] = {}
        self._newest: dict[Shelf, str] = {}
        self._slices: list[tuple[str, Swap]] = []

    def follow(self, kind: str, swap: Swap) -> None:
        """Call ``swap`` with what is in force for ``kind``, and whenever the tables of an app change."""
        self._slices.append((kind, swap))
        for app in sorted({name.shelf.app for name in self._tables if name.shelf.worker_class == kind}):
            swap(TablesChanged(app, self._in_force(app, kind)))

    def leave(self) -> None:
        """The slices are gone: nobody is told any more."""
        self._slices.clear()

    def handle(self, record: Record) -> None:
        """Take a table or a tombstone. Raises InvalidInputError, nothing changed."""
        name = decode_name(record.key)
        shelf = name.shelf
        if record.value is None:
            if self._tables.pop(name, None) is None:
                return
        else:
            table = decode(record.value)
            if (table.app, table.worker_class, table.qps) != (shelf.app, shelf.worker_class, name.qps):
                raise InvalidInputError("table", f"is of {table.app}, {table.worker_class}; its key says {name}")
            self._tables[name] = table
            self._newest[shelf] = table.fingerprint
        change = TablesChanged(shelf.app, self._in_force(shelf.app, shelf.worker_class))
        for kind, swap in self._slices:
            if kind == shelf.worker_class:
                swap(change)

    def _in_force(self, app: str, kind: str) -> tuple[SelectionTable, ...]:
        return tuple(
            t
            for name, t in sorted(self._tables.items())
            if (name.shelf.app, name.shelf.worker_class) == (app, kind) and t.fingerprint == self._newest[name.shelf]
        )
