"""Tables as bytes: magic, SHA-256, a JSON header, and the actions, compressed.

Layout: ``SLT1``, 32 bytes SHA-256 of all that follows, 4 bytes length of the header (big-endian), the header, the zlib
stream of actions then batches. Encoding is deterministic; decoding trusts nothing.
"""

import hashlib
import math
import struct
import zlib
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import orjson

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.table import DROP, Expectations, SelectionTable, Spread

MAGIC = b"SLT1"
_SUM = 32
_HEADER_MAX = 1 << 20
_CELLS_MAX = 1 << 23
_POSITIVE = {"share", "slo_class"}
_REMEDY = "generate the table again"


def encode(table: SelectionTable) -> bytes:
    """The bytes of ``table``: a few kilobytes for 32 queries by 101 slacks."""
    header = {
        "app": table.app,
        "worker_class": table.worker_class,
        "variants": table.variants,
        "slo": table.slo,
        "qps": table.qps,
        "workers": table.workers,
        "slacks": table.slacks,
        "phases": table.phases,
        "cells": len(table.actions),
        "maximal": not table.batches,
        "expected": asdict(table.expected),
        "assumptions": dict(table.assumptions),
        "fingerprint": table.fingerprint,
    }
    head = orjson.dumps(header, option=orjson.OPT_SORT_KEYS)
    body = struct.pack(">I", len(head)) + head + zlib.compress(table.actions + table.batches, 9)
    return MAGIC + hashlib.sha256(body).digest() + body


def decode(data: bytes) -> SelectionTable:
    """The table in ``data``. Raises InvalidInputError naming what is wrong."""
    if data[:4] != MAGIC or len(data) < 4 + _SUM + 4:
        raise InvalidInputError("table", f"does not begin as a selection table; {_REMEDY}")
    body = data[4 + _SUM :]
    if hashlib.sha256(body).digest() != data[4 : 4 + _SUM]:
        raise InvalidInputError("table.checksum", f"does not match its content; {_REMEDY}")
    (length,) = struct.unpack(">I", body[:4])
    if length > _HEADER_MAX or 4 + length > len(body):
        raise InvalidInputError("table.header", f"of {length} bytes does not fit; {_REMEDY}")
    try:
        table = _table(orjson.loads(body[4 : 4 + length]), body[4 + length :])
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError, zlib.error) as error:
        raise InvalidInputError("table.header", f"is malformed ({error!r}); {_REMEDY}") from error
    _check(table)
    return table


def _table(header: dict[str, Any], packed: bytes) -> SelectionTable:
    cells = int(header["cells"])
    if not 0 < cells <= _CELLS_MAX:
        raise InvalidInputError("table.cells", f"{cells} is not in 1..{_CELLS_MAX}; {_REMEDY}")
    size = cells if header["maximal"] else 2 * cells
    unpack = zlib.decompressobj()
    flat = unpack.decompress(packed, size + 1)
    if len(flat) != size:
        raise InvalidInputError("table.actions", f"hold {len(flat)} bytes instead of {size}; {_REMEDY}")
    expected: dict[str, Any] = {
        name: Spread(**value) if name.endswith("_spread") else float(value)
        for name, value in header["expected"].items()
    }
    return SelectionTable(
        app=str(header["app"]),
        worker_class=str(header["worker_class"]),
        variants=tuple(map(str, header["variants"])),
        slo=float(header["slo"]),
        qps=float(header["qps"]),
        workers=int(header["workers"]),
        slacks=tuple(map(float, header["slacks"])),
        actions=flat[:cells],
        batches=flat[cells:],
        phases=int(header["phases"]),
        expected=Expectations(**expected),
        assumptions=dict(header["assumptions"]),
        fingerprint=str(header["fingerprint"]),
    )


def _check(table: SelectionTable) -> None:
    row = len(table.slacks) * table.phases
    if table.phases < 1 or not table.slacks or len(table.actions) % row:
        raise InvalidInputError("table.actions", f"{len(table.actions)} of them do not fill the slack grid; {_REMEDY}")
    slacks = table.slacks
    ascending = all(a < b for a, b in pairwise(slacks))
    if slacks[0] != 0.0 or not ascending or not math.isfinite(slacks[-1]):
        raise InvalidInputError("table.slacks", f"do not ascend from 0; {_REMEDY}")
    if not (0.0 < table.slo < math.inf and 0.0 <= table.qps < math.inf and table.workers > 0):
        raise InvalidInputError("table", f"slo {table.slo}, qps {table.qps}, workers {table.workers}; {_REMEDY}")
    for name, value in table.assumptions.items():
        counted = name in _POSITIVE or name.startswith("slowdown.")
        if counted and (isinstance(value, str) or not 0.0 < value < math.inf):
            raise InvalidInputError(f"table.assumptions.{name}", f"is {value!r:.60}, no number above 0; {_REMEDY}")
    if not (table.share <= 1.0 and 1.0 / table.share < math.inf):
        raise InvalidInputError("table.assumptions.share", f"is {table.share}, no part of the queries; {_REMEDY}")
    for code in set(table.actions):
        if code != DROP and code >= len(table.variants):
            raise InvalidInputError("table.actions", f"name variant {code} of {len(table.variants)}; {_REMEDY}")
    for at, batch in enumerate(table.batches):
        if not 1 <= batch <= at // row + 1:
            raise InvalidInputError("table.batches", f"take {batch} of {at // row + 1} queries; {_REMEDY}")
