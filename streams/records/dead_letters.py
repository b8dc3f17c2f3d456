"""Dead letters: records that could not be understood, as they came, with ``__dlq.errors.*`` headers that say why.

What is kept is bounded: of a value the first MiB, of headers those that fit into 64 KiB; both cuts are marked. A record
that is written again because of its dead letter says how often that was done (``sluice-replays``) and of which record
(``sluice-replay-of``).
"""

from dataclasses import dataclass

from sluicegate.domain.errors import InvalidInputError
from sluicegate.streams.ports import Headers, Record, Unreadable
from sluicegate.streams.records.codec_types import Message
from sluicegate.streams.records.queries import query_id_of

DUPLICATE_ID = "duplicate_id"
UNREADABLE = "unreadable"
PREFIX = "__dlq.errors."
REPLAYS = "sluice-replays"
REPLAY_OF = "sluice-replay-of"
_MAX_VALUE = 1 << 20
_DIGITS = 20
_LATEST = 1e12
_MAX_HEADERS = 64 << 10
_HEADER = 10
"""Bytes that a header may take beside its name and value: their lengths."""
_MAX_KEY = 1 << 10


def dead_letter(
    record: Record, error: InvalidInputError, *, stage: str, now: float, reason: str | None = None
) -> Message:
    """A record for the dead-letter topic, keyed by query id where that is readable, else by the record's own key.

    ``reason``: ``duplicate_id`` where the error says so, else ``invalid``, unless given; ``unreadable``, with what the
    broker's client said, where the record could not be read at all.
    """
    if isinstance(record, Unreadable):
        error = InvalidInputError("record", f"cannot be read: {record.why}")
    if reason is None:
        reason = letter_reason(error, record)
    value = record.value
    about: list[tuple[str, str]] = [
        ("topic", record.topic),
        ("partition", str(record.partition)),
        ("offset", str(record.offset)),
        ("reason", reason),
        ("field", error.field),
        ("message", str(error)[:500]),
        ("stage", stage),
        ("timestamp", f"{now:.6f}"),
        ("record-timestamp", f"{record.timestamp:.3f}"),
    ]
    kept, cut = _bounded(record.headers)
    if cut:
        about.append(("headers-dropped", str(cut)))
    if value is not None and len(value) > _MAX_VALUE:
        about.append(("value-bytes", str(len(value))))
        value = value[:_MAX_VALUE]
    headers = (*kept, *((PREFIX + name, text.encode(errors="replace")) for name, text in about))
    # A value cut short, or too large to have been looked into, is not parsed in search of an id.
    whole = value is record.value
    query_id = query_id_of(record if whole else record._replace(value=None))
    key = query_id.encode() if query_id is not None else record.key
    if value is None and key is None:
        value = b""  # there is no record without either
    return Message(value, None if key is None else key[:_MAX_KEY], headers)


def letter_reason(error: InvalidInputError, record: Record | None) -> str:
    """The reason that a dead letter for ``error`` of ``record`` gives."""
    if isinstance(record, Unreadable):
        return UNREADABLE
    return DUPLICATE_ID if error.problem.startswith(DUPLICATE_ID) else "invalid"


def dead_letter_origin(record: Record) -> tuple[str, int, int] | None:
    """Topic, partition and offset that a dead letter tells of, None where it does not say."""
    about = dict(record.headers)
    try:
        return (
            about[PREFIX + "topic"].decode(),
            int(about[PREFIX + "partition"]),
            int(about[PREFIX + "offset"]),
        )
    except (KeyError, ValueError):
        return None


def dead_letter_reason(record: Record) -> str:
    """``duplicate_id``, ``unreadable``, ``invalid`` or another reason; empty where it does not say."""
    return dict(record.headers).get(PREFIX + "reason", b"").decode(errors="replace")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter as it was read. ``origin``: topic, partition and offset of its record; ``kept``: that record, as
    far as it was kept; ``cut``: not all of it was. ``at``: when it was found, seconds since the epoch.
    """

    origin: tuple[str, int, int]
    reason: str
    field: str
    message: str
    stage: str
    at: float
    query_id: str | None
    kept: Record
    cut: bool


def read_dead_letter(record: Record) -> DeadLetter | None:
    """None for what does not say what it is about."""
    origin = dead_letter_origin(record)
    if origin is None:
        return None
    told = {name.removeprefix(PREFIX): held.decode(errors="replace") for name, held in record.headers}
    kept = Record(*origin, record.key, record.value, _bounded(record.headers)[0], _seconds(told, "record-timestamp"))
    cut = "headers-dropped" in told or "value-bytes" in told
    return DeadLetter(
        origin,
        told.get("reason", ""),
        told.get("field", ""),
        told.get("message", ""),
        told.get("stage", ""),
        _seconds(told, "timestamp") or record.timestamp,
        None if "value-bytes" in told else query_id_of(kept),
        kept,
        cut,
    )


def _seconds(told: dict[str, str], name: str) -> float:
    try:
        found = float(told.get(name, ""))
    except ValueError:
        return 0.0
    return found if 0.0 <= found < _LATEST else 0.0


def with_replay(headers: Headers, origin: tuple[str, int, int], count: int) -> Headers:
    """``headers`` of a record that is written again, the ``count``-th time, in the place of the one at ``origin``."""
    rest = tuple(header for header in headers if header[0] not in {REPLAYS, REPLAY_OF})
    return (*rest, (REPLAYS, b"%d" % count), (REPLAY_OF, "/".join(map(str, origin)).encode()))


def replays_of(headers: Headers) -> int | None:
    """How often a record was written again before; None where it says so and cannot be understood."""
    held = dict(headers).get(REPLAYS, b"0")
    return int(held) if held.isdigit() and len(held) < _DIGITS else None


def replay_origin(record: Record) -> tuple[str, int, int] | None:
    """Which record this one stands for, None where it is none that was written again."""
    told = dict(record.headers).get(REPLAY_OF, b"").decode(errors="replace").rsplit("/", 2)
    if len(told) != len(("topic", "partition", "offset")) or not all(part.isdecimal() for part in told[1:]):
        return None
    return (told[0], int(told[1]), int(told[2])) if max(map(len, told[1:])) < _DIGITS else None


def _bounded(headers: Headers) -> tuple[Headers, int]:
    """Headers but for those of earlier dead letters, as many as fit; and how many did not."""
    kept = []
    room = _MAX_HEADERS
    cut = 0
    for name, held in headers:
        if name.startswith(PREFIX):
            continue
        room -= len(name.encode(errors="replace")) + len(held) + _HEADER
        if room < 0:
            cut += 1
        else:
            kept.append((name, held))
    return tuple(kept), cut
