"""Proof that a query is of the source that it names: a signature by a key which that source alone shares with us.

A broker does not tell who wrote a record, so that a ``ce_source`` is what its writer says. A header proves it: the time
of writing (milliseconds, 8 bytes) and the HMAC-SHA256, by the source's key, over it, topic, source, id and value.

Rules.
- A source that has a key must prove itself; the key of ``/a`` is also that of ``/a/b`` where that has none of its own.
  The others need no proof, unless all are to be ``required`` to.
- A proof counts for its record alone: it is of the time of that record, by clocks that may differ by ``skew`` seconds,
  and a query that comes twice within the window of ids is let in once.
- Queries of who proves nothing are nobody's: they get a dead letter, and no outcome in another's name.
"""

import hmac
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from sluicegate.domain.query import for_source
from sluicegate.streams.ports import Headers, Record

PROOF = "sluice-source-proof"
_TIME = struct.Struct(">q")
_LENGTHS = struct.Struct(">iiii")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKeys:
    """The keys of sources. ``keys``: source -> its key. ``skew``: seconds."""

    keys: Mapping[str, bytes] = field(repr=False)
    required: bool = False
    skew: float = 5.0

    def proof(self, topic: str, source: str, query_id: str, value: bytes, at: float) -> Headers:
        """The header of a query that is written ``at``; none where its source has no key."""
        key = self._key(source)
        return () if key is None else ((PROOF, _proof(key, topic, source, query_id, value, round(at * 1e3))),)

    def flaw(self, record: Record, source: str, query_id: str) -> str:
        """Why ``record`` is not of ``source``; "" where it is."""
        key = self._key(source)
        if key is None:
            return "has no key here, and all must have one" if self.required else ""
        held = [value for name, value in record.headers if name == PROOF]
        if not held:
            return f"must prove itself; sign with its key (header {PROOF})"
        if len(held) > 1 or len(held[0]) != _TIME.size + 32:
            return "has a proof that is none"
        (at,) = _TIME.unpack_from(held[0])
        if not hmac.compare_digest(held[0], _proof(key, record.topic, source, query_id, record.value or b"", at)):
            return "proves itself with another key, or for another query"
        return "" if abs(record.timestamp - at / 1e3) <= self.skew else "proves itself for another time"

    def _key(self, source: str) -> bytes | None:
        return for_source(source, self.keys, None)


def _proof(key: bytes, topic: str, source: str, query_id: str, value: bytes, at: int) -> bytes:
    told = _TIME.pack(at)
    parts = (topic.encode(), source.encode(), query_id.encode(), value)
    return told + hmac.digest(key, b"".join((told, _LENGTHS.pack(*map(len, parts)), *parts)), "sha256")
