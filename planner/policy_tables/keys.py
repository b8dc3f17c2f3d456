"""Names of published tables: the key of a record says whose table it is and for which load."""

import math
from dataclasses import dataclass

import orjson

from sluicegate.domain.errors import InvalidInputError


@dataclass(frozen=True, slots=True, order=True)
class Shelf:
    """Whose tables: an app's, on a kind of worker, for an SLO class in seconds."""

    app: str
    worker_class: str
    slo: float


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """Of one published table, for ``qps`` queries a second."""

    shelf: Shelf
    qps: float


def encode_name(name: TableName) -> bytes:
    """As the key of a record."""
    return orjson.dumps([name.shelf.app, name.shelf.worker_class, name.shelf.slo, name.qps])


def decode_name(key: bytes | None) -> TableName:
    """Raises InvalidInputError."""
    try:
        app, worker_class, slo, qps = orjson.loads(key or b"")
        name = TableName(Shelf(str(app), str(worker_class), float(slo)), float(qps))
    except (TypeError, ValueError) as error:
        raise InvalidInputError("table.key", f"{key!r:.100} is not [app, kind, SLO, load]") from error
    if not (0.0 < name.shelf.slo < math.inf and 0.0 <= name.qps < math.inf):
        raise InvalidInputError("table.key", f"{key!r:.100} has no SLO above 0 and load of at least 0")
    return name
