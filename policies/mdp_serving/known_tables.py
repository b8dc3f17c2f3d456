"""The selection tables that a worker knows.

Of a shelf (app, kind of slice, SLO class) the tables of the newest fingerprint count, so that one more swaps what is in
force as a whole.
"""

from sluicegate.domain.table import SelectionTable, TablesChanged
from sluicegate.policies.serving.device_events import TableCame


class KnownTables:
    """By (app, kind, SLO class, queries/s)."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str, float, float], SelectionTable] = {}
        self._newest: dict[tuple[str, str, float], str] = {}

    def came(self, event: TableCame) -> TablesChanged | None:
        """What is in force for its app and kind from now on; None where nothing has changed."""
        name = (event.app, event.kind, event.slo, event.qps)
        if event.table is None:
            if self._tables.pop(name, None) is None:
                return None
        else:
            self._tables[name] = event.table
            self._newest[name[:3]] = event.table.fingerprint
        return self._in_force(event.app, event.kind)

    def of(self, kind: str) -> list[TablesChanged]:
        """What is in force for slices of ``kind``."""
        return [self._in_force(app, kind) for app in sorted({name[0] for name in self._tables if name[1] == kind})]

    def _in_force(self, app: str, kind: str) -> TablesChanged:
        found = [
            table
            for name, table in sorted(self._tables.items(), key=lambda item: item[0])
            if name[:2] == (app, kind) and table.fingerprint == self._newest[name[:3]]
        ]
        return TablesChanged(app, tuple(found))
