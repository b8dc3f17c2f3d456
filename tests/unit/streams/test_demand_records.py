"""Counts of demand and leases on their topics: what comes back, and what is refused by the field that is wrong."""

from typing import Any

import orjson
import pytest

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.events import DemandCounted, DeviceSeen, EndsCounted, LatencyMeasured
from sluicegate.domain.lease import Lease
from sluicegate.domain.plan import MAX_TERM, NO_EPOCH
from sluicegate.streams.records import control
from sluicegate.streams.records.bounds import MAX_ROWS
from sluicegate.streams.records.control import decode_demand, encode_demand

COUNTED = DemandCounted("cats", 12, 0.5, ((0.1, 5), (0.3, 7)))


def test_what_is_counted_comes_back() -> None:
    assert decode_demand(encode_demand(COUNTED, source="admission-1", at=1.7e9)) == COUNTED


@pytest.mark.parametrize(
    ("change", "fine"),
    [
        ({"count": MAX_ROWS}, True),
        ({"count": 0}, True),
        ({"count": MAX_ROWS + 1}, False),
        ({"count": -1}, False),
        ({"window": 1e-9}, True),
        ({"window": 0.0}, False),
        ({"window": -0.5}, False),
        ({"age": 0.0}, True),
        ({"age": 1.0}, False),
        ({"age": -1.0}, False),
        ({"classes": [[0.1, MAX_ROWS]]}, True),
        ({"classes": [[0.1, MAX_ROWS + 1]]}, False),
        ({"app": 3}, False),
    ],
)
def test_a_count_that_cannot_be_is_refused(change: dict[str, Any], fine: bool) -> None:
    value = orjson.dumps(orjson.loads(encode_demand(COUNTED, source="s", at=1.7e9)) | change)
    if fine:
        decode_demand(value)
        return
    with pytest.raises(InvalidInputError, match="demand"):
        decode_demand(value)


def test_a_text_longer_than_any_that_is_written_is_refused_by_its_field() -> None:
    said = control.encode_announce(Announce("app:toy", "safe", "x" * 70_000))
    with pytest.raises(InvalidInputError, match=r"status\.detail: String should have at most 65536"):
        control.decode_announce(said)
    assert control.decode_announce(said.replace(b"x" * 10_000, b"")).state == "safe"


@pytest.mark.parametrize(
    ("lease", "state"),
    [
        (Lease(term=3, holder="p1", renewals=7), "held"),
        (Lease(term=4, holder="p2", claims=(3, 7)), "claimed"),
        (Lease(term=5, holder="p3", renewals=9, released=True), "released"),
        (Lease(term=MAX_TERM, holder="h" * 200, renewals=2**53 - 1), "held"),
    ],
)
def test_a_lease_comes_back_as_it_was_said(lease: Lease, state: str) -> None:
    said = control.encode_lease(lease)
    assert control.decode_lease(said) == lease
    assert control.decode_announce(said).state == state
    assert control.decode_announce(said).subject == "lease:planner"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"state": "kept"}, "lease"),
        ({"holder": ""}, "lease"),
        ({"holder": "h" * 201}, "lease"),
        ({"holder": 3.0}, "lease"),
        ({"term": MAX_TERM + 1.0}, "lease.term"),
        ({"term": -1.0}, "lease.term"),
        ({"term": 2.5}, "lease.term"),
        ({"term": "3"}, "lease.term"),
        ({"renewals": 2.0**53}, "lease.renewals"),
        ({"renewals": None}, "lease.renewals"),
        ({"claims_term": MAX_TERM + 1.0}, "lease.claims_term"),
        ({"claims_renewals": -1.0}, "lease.claims_renewals"),
    ],
)
def test_a_lease_that_cannot_be_is_refused_by_what_is_wrong(change: dict[str, Any], field: str) -> None:
    said = orjson.loads(control.encode_lease(Lease(term=4, holder="p2", renewals=5, claims=(3, 7))))
    for name, value in change.items():
        held = said if name == "state" else said["data"]
        if value is None:
            del held[name]
        else:
            held[name] = value
    with pytest.raises(InvalidInputError) as refused:
        control.decode_lease(orjson.dumps(said))
    assert refused.value.field == field


def test_what_a_lease_claims_is_read_of_claims_alone() -> None:
    said = orjson.loads(control.encode_lease(Lease(term=4, holder="p2", renewals=5)))
    said["data"] |= {"claims_term": 3.0, "claims_renewals": -7.0}
    assert control.decode_lease(orjson.dumps(said)) == Lease(term=4, holder="p2", renewals=5)


@pytest.mark.parametrize(("at", "told"), [(1.7e9, 1.7e9), (0.0, 0.0), (None, None)])
def test_when_something_was_decided_is_told_where_it_was_said(at: float | None, told: float | None) -> None:
    assert control.announced_at(control.encode_announce(Announce("app:cats", "safe_mode", "why"), at)) == told


@pytest.mark.parametrize("value", [b"{", b"[1.5]", b'{"at": "1.5"}', b'{"at": 3}'])
def test_what_is_no_time_of_a_decision_is_none(value: bytes) -> None:
    assert control.announced_at(value) is None


def test_the_app_of_a_router_comes_back_and_what_names_none_is_refused() -> None:
    assert control.decode_router(control.encode_router("cats")) == "cats"
    for value, field in (
        (b'{"app": ""}', "router.app"),
        (b'{"app": 3}', "router.app"),
        (b"[]", "state"),
        (b"{", "state"),
    ):
        with pytest.raises(InvalidInputError) as refused:
            control.decode_router(value)
        assert refused.value.field == field


def test_notes_of_a_device_are_keyed_by_it_and_by_who_says_so() -> None:
    assert control.note_key("d1", "planner") == b"d1@planner"
    note = control.DeviceNote(device="d1", by="planner", withdrawn=True)
    assert control.decode_note(control.encode_note(note)) == note
    assert (note.reason, note.price) == ("", None)


def test_a_heartbeat_and_its_slices_say_nothing_that_they_were_not_told() -> None:
    idle = control.SliceState("whole", 3)
    assert (idle.busy_for, idle.age, idle.overdue, idle.margins) == (0.0, 0.0, 0.0, ())
    beat = control.Heartbeat(seen=DeviceSeen("d1", "cpu", "d1.2"), at=1.7e9, slices=(idle,))
    assert (beat.epoch, beat.queued, beat.utilisation, beat.late) == (NO_EPOCH, 0, 0.0, 0.0)
    assert control.decode_heartbeat(control.encode_heartbeat(beat)) == beat


@pytest.mark.parametrize(
    ("field", "most", "beyond"),
    [
        ("queued", 2**53 - 1, 2**53),
        ("at", 253_402_300_799.0, 253_402_300_800.0),
        ("at", 0.0, -0.001),
        ("utilisation", 1e3, 1001.0),
        ("utilisation", 0.0, -0.001),
        ("late", 1e9, 1.001e9),
        ("late", 0.0, -0.001),
        ("seen.memory_bytes", 2**63 - 1, 2**63),
        ("seen.memory_bytes", 0, -1),
        ("seen.price", 1e12, 1.001e12),
        ("epoch.0", MAX_TERM, MAX_TERM + 1),
        ("epoch.1", 2**53 - 1, 2**53),
        ("slices.0.busy_for", 1e9, 1.001e9),
        ("slices.0.age", 0.0, -0.001),
        ("slices.0.overdue", 1e9, 1.001e9),
        ("measured.0.rows", 10**9, 10**9 + 1),
        ("measured.0.execution_s", 1e9, 1.001e9),
        ("measured.0.batches", 10**9, 10**9 + 1),
        ("ended.0.on_time", 2**53 - 1, 2**53),
        ("ended.0.missed", 0, -1),
    ],
)
def test_numbers_that_nothing_real_has_are_refused_where_they_are_read(field: str, most: float, beyond: float) -> None:
    beat = control.Heartbeat(
        seen=DeviceSeen("d1", "cpu", "d1.2"),
        at=1.7e9,
        measured=(LatencyMeasured("v", "cpu", 2, 0.25),),
        slices=(control.SliceState("whole", 3),),
        ended=(EndsCounted("cats", 5, 1),),
    )

    def with_number(number: float) -> bytes:
        said = orjson.loads(control.encode_heartbeat(beat))
        *path, last = [int(part) if part.isdigit() else part for part in field.split(".")]
        held = said
        for part in path:
            held = held[part]
        assert isinstance(held, list) or last in held
        held[last] = number
        return orjson.dumps(said)

    control.decode_heartbeat(with_number(most))
    with pytest.raises(InvalidInputError) as refused:
        control.decode_heartbeat(with_number(beyond))
    assert refused.value.field == f"heartbeat.{field}"


def test_a_number_too_long_to_be_shown_is_refused_all_the_same() -> None:
    value = b'{"app": "cats", "count": %s, "window": 0.5}' % (b"9" * 4000)
    with pytest.raises(InvalidInputError) as refused:
        decode_demand(value)
    assert refused.value.field == "demand.count"
