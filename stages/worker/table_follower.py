"""Selection tables on the control topic, as events of a device's core."""

from math import isclose

from sluicegate.domain.errors import InvalidInputError
from sluicegate.planner.policy_tables.keys import decode_name
from sluicegate.planner.policy_tables.table_codec import decode
from sluicegate.policies.serving.device_events import TableCame
from sluicegate.streams.ports import Record


def table_came(record: Record) -> TableCame:
    """A table or a tombstone. Raises InvalidInputError."""
    name = decode_name(record.key)
    shelf = name.shelf
    table = None if record.value is None else decode(record.value)
    if table is not None and (table.app, table.worker_class, table.qps) != (shelf.app, shelf.worker_class, name.qps):
        raise InvalidInputError("table", f"is of {table.app}, {table.worker_class}; its key says {name}")
    if table is not None and not isclose(table.slo_class, shelf.slo):
        raise InvalidInputError("table", f"is for an SLO of {table.slo_class:g} s; its key says {name}")
    return TableCame(shelf.app, shelf.worker_class, shelf.slo, name.qps, table)
