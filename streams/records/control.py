"""Control and metrics records: domain dataclasses as JSON. Unknown fields are ignored, wrong ones named.

Decoders raise InvalidInputError; a newer version may add fields, so that old readers go on reading.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.events import (
    DemandCounted,
    DeviceSeen,
    EndsCounted,
    LatencyMeasured,
    PlanAcknowledged,
    TurnsTold,
)
from sluicegate.domain.lease import Lease
from sluicegate.domain.plan import MAX_TERM, NO_EPOCH, Epoch, Plan
from sluicegate.domain.table import TableObserved
from sluicegate.streams.records.bounds import MAX_ROWS, Reader

COST_SUBJECT = "cost"
"""Subject of what instances have cost so far, by kind, on the status topic."""
LEASE_KEY = b"lease:planner"
"""Key and subject of the leader's lease on the status topic."""

VARIANT_WANTED = "variant_wanted"
"""State of an announcement by which a router asks for a variant to be loaded: subject "variant:<name>"."""


@dataclass(frozen=True, slots=True)
class SliceState:
    """One slice of a device: rows that wait for a batch, and seconds until the one that runs ends (0: idle).

    ``age``: seconds since that began; ``overdue``: by which it should have ended. ``margins``: by variant, how long
    batches take at most, where anything was promised: a factor on what is known of them.
    """

    slice: str
    queued: int
    busy_for: float = 0.0
    age: float = 0.0
    overdue: float = 0.0
    margins: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What a worker tells twice a second. ``at``: wall seconds; ``utilisation``: busy share since the last, 0..1.

    ``queued``: queries waiting; ``variants``: loaded ones; ``measured``: batches timed since the last heartbeat;
    ``observed``: what became of queries under selection tables since then; ``ended``: of all, by app; ``poison``: app
    and digest of what queries held that ended executors. ``late``: seconds by which its event loop woke late.
    ``stands_by``: another worker runs the device, and what it has is for that one to say.
    """

    seen: DeviceSeen
    at: float
    epoch: Epoch = NO_EPOCH
    queued: int = 0
    utilisation: float = 0.0
    variants: tuple[str, ...] = ()
    measured: tuple[LatencyMeasured, ...] = ()
    slices: tuple[SliceState, ...] = ()
    observed: tuple[TableObserved, ...] = ()
    poison: tuple[tuple[str, str], ...] = ()
    late: float = 0.0
    ended: tuple[EndsCounted, ...] = ()
    stands_by: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNote:
    """What a stage has to say of a device, beside its heartbeats. ``by``: the stage; its newest note counts.

    ``withdrawn``: plans leave the device out, though its worker lives and finishes what it has. ``price``: money an
    hour that it costs now (None: what its heartbeats say).
    """

    device: str
    by: str
    withdrawn: bool
    reason: str = ""
    price: float | None = None


_plan: Reader[Plan] = Reader(Plan)
_heartbeat: Reader[Heartbeat] = Reader(Heartbeat)
_demand: Reader[DemandCounted] = Reader(DemandCounted)
_acknowledged: Reader[PlanAcknowledged] = Reader(PlanAcknowledged)
_announce: Reader[Announce] = Reader(Announce)
_note: Reader[DeviceNote] = Reader(DeviceNote)
_turns: Reader[TurnsTold] = Reader(TurnsTold)


def encode_plan(plan: Plan) -> bytes:
    """For the plan topic."""
    return _plan.adapter.dump_json(plan)


def decode_plan(value: bytes) -> Plan:
    """From the plan topic."""
    return _plan.json("plan", value)


def encode_heartbeat(beat: Heartbeat) -> bytes:
    """For the device metrics topic, keyed by device."""
    return _heartbeat.adapter.dump_json(beat)


def decode_heartbeat(value: bytes) -> Heartbeat:
    """From the device metrics topic."""
    return _heartbeat.json("heartbeat", value)


def encode_demand(counted: DemandCounted, *, source: str, at: float) -> bytes:
    """For the demand topic, keyed by app. ``source``: who counted; ``at``: wall seconds, the end of the window."""
    return orjson.dumps(
        {
            "app": counted.app,
            "count": counted.count,
            "window": counted.window,
            "classes": counted.classes,
            "source": source,
            "at": at,
        }
    )


def decode_demand(value: bytes) -> DemandCounted:
    """From the demand topic."""
    counted = _demand.json("demand", value)
    if counted.count > MAX_ROWS or counted.window <= 0.0 or counted.age != 0.0:
        told = f"{counted.count} in {counted.window} s; give at most {MAX_ROWS} rows, in a positive time"
        raise InvalidInputError("demand", told)
    return counted


def encode_turns(told: TurnsTold) -> bytes:
    """For the topic of turns, keyed by app."""
    return orjson.dumps(told)


def decode_turns(value: bytes) -> TurnsTold:
    """From the topic of turns."""
    return _turns.json("turns", value)


def encode_router(app: str) -> bytes:
    """For the topic of routers, keyed by app: one of ``app`` lives."""
    return orjson.dumps({"app": app})


def decode_router(value: bytes) -> str:
    """The app that is routed, from the topic of routers."""
    app = decode_state(value).get("app")
    if not isinstance(app, str) or not app:
        raise InvalidInputError("router.app", f"{app!r:.60}; give the app that is routed")
    return app


def encode_acknowledged(acknowledged: PlanAcknowledged) -> bytes:
    """For the acknowledgement topic, keyed by device."""
    return _acknowledged.adapter.dump_json(acknowledged)


def decode_acknowledged(value: bytes) -> PlanAcknowledged:
    """From the acknowledgement topic."""
    return _acknowledged.json("acknowledgement", value)


def note_key(device: str, by: str) -> bytes:
    """Key of a note on the devices topic: a stage's newest word on a device replaces its last."""
    return f"{device}@{by}".encode()


def encode_note(note: DeviceNote) -> bytes:
    """For the devices topic, keyed by ``note_key``."""
    return _note.adapter.dump_json(note)


def decode_note(value: bytes) -> DeviceNote:
    """From the devices topic."""
    return _note.json("device", value)


def encode_announce(announce: Announce, at: float | None = None) -> bytes:
    """For the status topic, keyed by subject. ``at``: when it was decided, by the clock of who decided."""
    said = {"subject": announce.subject, "state": announce.state, "detail": announce.detail}
    when = {} if at is None else {"at": at}
    return orjson.dumps({**said, "data": None if announce.data is None else dict(announce.data), **when})


def announced_at(value: bytes) -> float | None:
    """When an announcement says that it was decided; None where it does not say."""
    try:
        said = orjson.loads(value)
    except orjson.JSONDecodeError:  # it says more than is read of it, and that is wrong
        return None
    at = said.get("at") if isinstance(said, dict) else None
    return at if isinstance(at, float) else None


def decode_announce(value: bytes) -> Announce:
    """From the status topic."""
    return _announce.json("status", value)


def encode_lease(lease: Lease) -> bytes:
    """For the status topic, keyed by ``LEASE_KEY``: an announcement as any other to those who know no leases."""
    data: dict[str, float | str] = {"term": lease.term, "holder": lease.holder, "renewals": lease.renewals}
    if lease.claims is not None:
        data |= {"claims_term": lease.claims[0], "claims_renewals": lease.claims[1]}
    state = "released" if lease.released else "held" if lease.claims is None else "claimed"
    said = Announce(LEASE_KEY.decode(), state, f"term {lease.term}, {lease.holder}", data)
    return encode_announce(said)


def decode_lease(value: bytes) -> Lease:
    """From the status topic."""
    said = decode_announce(value)
    data = dict(said.data or {})
    holder = data.get("holder")
    if not isinstance(holder, str) or not 0 < len(holder) <= 200 or said.state not in {"held", "claimed", "released"}:
        raise InvalidInputError("lease", f"{said.state!r:.60} of {holder!r:.60}; give a state and a holder's name")
    claims = (_count(data, "claims_term"), _count(data, "claims_renewals")) if said.state == "claimed" else None
    term, renewals = _count(data, "term"), _count(data, "renewals")
    return Lease(term=term, holder=holder, renewals=renewals, claims=claims, released=said.state == "released")


def _count(data: Mapping[str, float | str], name: str) -> int:
    number = data.get(name)
    most = MAX_TERM if name.endswith("term") else 2**53 - 1
    if isinstance(number, str) or number is None or not 0 <= number <= most or number != int(number):
        raise InvalidInputError(f"lease.{name}", f"{number!r:.60} is no count; give a whole number, 0 to {most}")
    return int(number)


def decode_state(value: bytes) -> dict[str, Any]:
    """A JSON object of a compacted topic."""
    try:
        state = orjson.loads(value)
    except ValueError as error:
        raise InvalidInputError("state", f"{value[:60]!r} is not JSON ({error})") from error
    if not isinstance(state, dict):
        raise InvalidInputError("state", f"is a JSON {type(state).__name__}; give an object")
    return state
