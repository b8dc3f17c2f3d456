"""Control records with one thing wrong in them, somewhere: decoded or refused, and what is decoded can be told on."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
from hypothesis import event, given, settings
from hypothesis import strategies as st

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.events import DemandCounted, DeviceSeen, LatencyMeasured, PlanAcknowledged, TurnsTold
from sluicegate.domain.fleet.device import Slice
from sluicegate.domain.lease import Lease
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.streams.records import control

EPOCH = Epoch(3, 7)
SEEN = DeviceSeen("d0", "cpu", "i", 4, 9.5, True, True, (Slice("whole", "cpu", 1 << 30),), fault="in use")
PLAN = Plan(
    epoch=EPOCH,
    created=17.5,
    placements=(Placement("d0", "v", ("a", "b"), 0.5, 8, "whole"),),
    demand={"a": 4.5},
    served={"a": 0.75},
    objective=0.5,
    bound=0.75,
    fences={"d0": 12},
    geometries={"d0": (Slice("whole", "cpu", 1 << 30),)},
    reason="demand",
    solve_s=0.25,
)
BEAT = control.Heartbeat(
    seen=SEEN,
    at=18.5,
    epoch=EPOCH,
    queued=3,
    utilisation=0.5,
    variants=("v",),
    measured=(LatencyMeasured("v", "cpu", 3, 0.25, 2),),
    slices=(control.SliceState("whole", 3, 0.125),),
    poison=(("a", "q"),),
)
DECODERS: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "plan": (control.encode_plan(PLAN), control.decode_plan),
    "heartbeat": (control.encode_heartbeat(BEAT), control.decode_heartbeat),
    "demand": (control.encode_demand(DemandCounted("a", 5, 0.5), source="s", at=3.5), control.decode_demand),
    "turns": (control.encode_turns(TurnsTold("a", 0.5, 6, 4.5)), control.decode_turns),
    "router": (control.encode_router("a"), control.decode_router),
    "acknowledged": (
        control.encode_acknowledged(PlanAcknowledged("d0", EPOCH, ("v",), ("w",))),
        control.decode_acknowledged,
    ),
    "note": (
        control.encode_note(control.DeviceNote(device="d0", by="s", withdrawn=True, reason="why", price=0.5)),
        control.decode_note,
    ),
    "announce": (control.encode_announce(Announce("app:a", "safe", "why", {"x": 1.5}), 5.5), control.decode_announce),
    "lease": (control.encode_lease(Lease(term=4, holder="h", renewals=2, claims=(3, 1))), control.decode_lease),
}
others = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([0, -1, 1e308, -0.0, 2**53, [], {}, [[]], "", "nan"]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.lists(st.integers(-1, 2) | st.text(max_size=2), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(-1, 2), max_size=2),
)


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Of everything within a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [one for key, held in inside for one in ((*path, key), *places(held, (*path, key)))]


@st.composite
def damaged(draw: st.DrawFn, raw: bytes) -> bytes:
    """One value in it is another, or is gone; or it is another altogether."""
    whole = {"": orjson.loads(raw)}
    *way, last = draw(st.sampled_from(places(whole)))
    around: Any = whole
    for key in way:
        around = around[key]
    if draw(st.integers(0, 4)):
        around[last] = draw(others)
    else:
        del around[last]
    return orjson.dumps(whole[""]) if whole else b""


def test_a_control_record_with_one_thing_wrong_is_decoded_or_refused() -> None:
    became: dict[str, Counter[str]] = {kind: Counter() for kind in DECODERS}

    @settings(max_examples=900, deadline=None)
    @given(st.sampled_from(sorted(DECODERS)).flatmap(lambda kind: st.tuples(st.just(kind), damaged(DECODERS[kind][0]))))
    def decoded(one: tuple[str, bytes]) -> None:
        kind, value = one
        try:
            DECODERS[kind][1](value)
        except InvalidInputError as error:
            assert error.field and error.problem
            outcome = "refused"
        else:
            outcome = "decoded"
        event(f"{kind} {outcome}")
        became[kind][outcome] += 1

    decoded()
    for kind, told in became.items():  # a strategy by which nothing ever gets that far proves nothing
        assert told["refused"] >= 5 and told["decoded"] >= (1 if kind != "router" else 0), (kind, told)
