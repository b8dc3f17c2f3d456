"""The codec: what is encoded decodes to the same, and nothing from outside does anything but decode or be refused."""

import math
from contextlib import suppress
from dataclasses import replace

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.events import DemandCounted, DeviceSeen, LatencyMeasured, PlanAcknowledged
from sluicegate.domain.fleet.device import Slice
from sluicegate.domain.models.app import App, QueryClass
from sluicegate.domain.models.tensor import Tensor, TensorSpec
from sluicegate.domain.outcome import Outcome, OutcomeKind, Reason
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.domain.query import Goal
from sluicegate.streams.ports import Headers, Record
from sluicegate.streams.records import codec, control
from sluicegate.streams.records.oip import DTYPES
from tests.property.examples import drawn

NOW = 1_800_000_000.0
names = st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True)
ids = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=60)
seconds = st.floats(0.0, 4e9)
spans = st.floats(-1e9, 1e9)
finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def tensors(draw: st.DrawFn, rows: int | None = None, name: str | None = None) -> Tensor:
    """A tensor of any datatype and a small shape."""
    datatype = draw(st.sampled_from(sorted(DTYPES)))
    shape = (rows or draw(st.integers(1, 4)), *draw(st.lists(st.integers(1, 3), max_size=2)))
    dtype = DTYPES[datatype]
    count = math.prod(shape)
    if dtype.kind == "b":
        values = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    elif dtype.kind in "iu":
        info = np.iinfo(dtype)
        values = draw(st.lists(st.integers(int(info.min), int(info.max)), min_size=count, max_size=count))
    else:
        width = 8 * dtype.itemsize
        numbers = st.floats(width=width, allow_nan=False, allow_infinity=False)  # type: ignore[call-overload]
        values = draw(st.lists(numbers, min_size=count, max_size=count))
    return Tensor(name or draw(names), datatype, shape, np.array(values, dtype).tobytes())


@st.composite
def inputs(draw: st.DrawFn) -> tuple[Tensor, ...]:
    """Inputs of one query: distinct names, equal rows."""
    rows = draw(st.integers(1, 4))
    chosen = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    return tuple(draw(tensors(rows=rows, name=name)) for name in chosen)


def app_of(given_inputs: tuple[Tensor, ...]) -> App:
    """An app that takes these inputs."""
    specs = tuple(TensorSpec(t.name, t.datatype, t.shape[1:]) for t in given_inputs)
    return App(name="app", slo=0.5, inputs=specs)


def record_of(message: codec.Message, timestamp: float = NOW) -> Record:
    """The message as it is read."""
    return Record("sluice.app.app.queries", 0, 42, message.key, message.value, message.headers, timestamp)


def plain(given_tensors: tuple[Tensor, ...]) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    """Tensors as values that compare by content."""
    return [(t.name, t.datatype, t.shape, bytes(t.data)) for t in given_tensors]


@drawn(150)
@given(ids, inputs(), st.booleans(), st.floats(0.001, 600_000.0), st.integers(0, 2**31 - 1))
def test_a_query_decodes_to_what_was_encoded(
    query_id: str, given_inputs: tuple[Tensor, ...], binary: bool, latency_ms: float, priority: int
) -> None:
    parameters = {"latency_ms": latency_ms, "accuracy": 0.5, "class": "best_effort", "priority": priority}
    message = codec.encode_query(query_id, given_inputs, app="app", now=NOW, parameters=parameters, binary=binary)
    decoded = codec.decode_query(record_of(message), app_of(given_inputs), codec.DEFAULT_LIMITS, NOW)
    query = decoded.query
    assert plain(decoded.tensors) == plain(given_inputs)
    assert (query.id, query.app, query.stream, query.sequence) == (query_id, "app", "app", 42)
    assert query.rows == given_inputs[0].rows and query.priority == priority
    assert query.query_class is QueryClass.BEST_EFFORT and query.goal == Goal(accuracy=0.5)
    assert query.arrival == NOW and math.isclose(query.deadline, NOW + latency_ms / 1e3)
    assert codec.query_id_of(record_of(message)) == query_id


@drawn(100)
@given(ids, inputs(), st.sampled_from(QueryClass), seconds, seconds, st.integers(-1, 2**53), names, st.booleans())
def test_hops_carry_a_query_whole(
    query_id: str,
    given_inputs: tuple[Tensor, ...],
    query_class: QueryClass,
    arrival: float,
    deadline: float,
    sequence: int,
    part: str,
    traced: bool,
) -> None:
    message = codec.encode_query(query_id, given_inputs, app="app", now=NOW)
    decoded = codec.decode_query(record_of(message), app_of(given_inputs), codec.DEFAULT_LIMITS, NOW)
    query = decoded.query
    query.arrival, query.deadline, query.query_class, query.sequence = arrival, deadline, query_class, sequence
    query.goal = Goal(accuracy=0.25, model="m") if traced else None
    trace = f"00-{'a' * 32}-{'b' * 16}-01" if traced else None
    decoded.carried = codec.with_traceparent((("ce_tenant", b"\xff\x00"), ("baggage", b"a=1")), trace)
    admitted = codec.decode_admitted(record_of(codec.encode_admitted(decoded)))
    worked = codec.decode_work(record_of(codec.encode_work(admitted, epoch=Epoch(3, 7), slice=part)))
    assert (worked.epoch, worked.slice, worked.carried) == (Epoch(3, 7), part, decoded.carried)
    assert codec.traceparent_in(worked.carried) == trace
    for carried in (admitted, worked):
        assert plain(carried.tensors) == plain(given_inputs)
        assert all(getattr(carried.query, field) == getattr(query, field) for field in query.__slots__)
    again = codec.decode_admitted(record_of(codec.encode_admitted(codec.QueryMessage(worked.query, worked.tensors))))
    assert plain(again.tensors) == plain(given_inputs)


outcomes = st.builds(
    Outcome,
    query_id=ids,
    app=names,
    kind=st.sampled_from(OutcomeKind),
    arrival=seconds,
    deadline=seconds,
    at=seconds,
    query_class=st.sampled_from(QueryClass),
    reason=st.none() | st.sampled_from(Reason).map(str),
    detail=st.none() | st.text(st.characters(codec="utf-8"), max_size=50),
    variant=st.none() | names,
    accuracy=st.floats(0, 1),
    best_accuracy=st.floats(0, 1),
    device=st.none() | names,
    slice=st.none() | names,
    epoch=st.none() | st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)),
    policy=st.none() | names,
    batch_size=st.integers(0, 1000),
    queue_s=spans,
    batch_s=spans,
    execution_s=st.floats(0.0, 1e9),
    stream=names,
    sequence=st.integers(-1, 2**53),
)


@drawn(150)
@given(outcomes, st.lists(tensors(), max_size=2))
def test_an_outcome_decodes_to_what_was_encoded(outcome: Outcome, outputs: list[Tensor]) -> None:
    record = record_of(codec.encode_outcome(outcome, outputs))
    decoded = codec.decode_outcome(record)
    assert decoded.outcome == outcome
    assert decoded.marked_late == outcome.late
    assert plain(decoded.outputs()) == plain(tuple(outputs))
    assert codec.query_id_of(record) == outcome.query_id
    assert codec.outcome_device(record) == outcome.device
    line = codec.outcome_json(record)
    assert b"\n" not in line and orjson.loads(line)["id"] == outcome.query_id
    response = orjson.loads(decoded.body)
    assert response["model_name"] == outcome.app and "parameters" in response


VALID = codec.encode_query(
    "query-1",
    (Tensor("x", "FP32", (2, 3), np.arange(6, dtype="<f4").tobytes()),),
    app="app",
    now=NOW,
    parameters={"latency_ms": 100, "accuracy": 0.9},
)
VALID_JSON = codec.encode_query(
    "query-1", (Tensor("x", "FP32", (2, 3), np.arange(6, dtype="<f4").tobytes()),), app="app", now=NOW, binary=False
)
APP = App(name="app", slo=0.5, inputs=(TensorSpec("x", "FP32", (3,)),))
LIMITS = codec.Limits(max_body_bytes=5_000)
HOP = codec.encode_admitted(codec.decode_query(record_of(VALID), APP, LIMITS, NOW))
RESULT = codec.encode_outcome(
    Outcome(query_id="q", app="app", kind=OutcomeKind.ANSWERED, arrival=1.0, deadline=2.0, at=1.5, epoch=(1, 2)),
    (Tensor("y", "FP32", (1, 2), np.zeros(2, "<f4").tobytes()),),
)


@st.composite
def mutated(draw: st.DrawFn, raw: bytes) -> bytes:
    """``raw`` with some bytes changed, cut out or put in."""
    value = bytearray(raw)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(value) - 1)))
        kind = draw(st.integers(0, 2))
        if kind == 0 and value:
            value[at] = draw(st.integers(0, 255))
        elif kind == 1:
            del value[at : at + draw(st.integers(1, 20))]
        else:
            value[at:at] = draw(st.binary(min_size=1, max_size=8))
    return bytes(value)


@st.composite
def damaged(draw: st.DrawFn, message: codec.Message) -> Record:
    """The record of ``message`` with its value, or one header, damaged."""
    headers: Headers = message.headers
    value = message.value or b""
    which = draw(st.integers(-1, len(headers) - 1))
    if which < 0:
        value = draw(mutated(value))
    else:
        name, held = headers[which]
        changed = () if draw(st.booleans()) else ((name, draw(mutated(held))),)
        headers = (*headers[:which], *changed, *headers[which + 1 :])
    return Record("t", 0, 1, message.key, draw(st.sampled_from([value, value, b"", None])), headers, NOW)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | finite | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["id", "inputs", "name", "shape", "datatype", "data", "parameters"]), inner)
    ),
    max_leaves=12,
)


def check_refusal(record: Record) -> None:
    """Decoding decodes, or refuses as it must; in both cases the id is the one that the audit sees."""
    try:
        message = codec.decode_query(record, APP, LIMITS, NOW)
    except codec.UnattributableError as error:
        letter = codec.dead_letter(record, error, stage="admission", now=NOW)
        read_back = Record("dead", 0, 0, letter.key, letter.value, letter.headers, NOW)
        assert codec.dead_letter_origin(read_back) == (record.topic, record.partition, record.offset)
        assert codec.dead_letter_reason(read_back) == "invalid"
    except codec.RejectedQueryError as error:
        assert codec.query_id_of(record) == error.query.id
        outcome = Outcome.of(error.query, OutcomeKind.REJECTED, NOW, reason=error.reason, detail=str(error))
        codec.decode_outcome(record_of(codec.encode_outcome(outcome, ())))
    else:
        assert codec.query_id_of(record) == message.query.id
        codec.decode_admitted(record_of(codec.encode_admitted(message)))


@drawn(300)
@given(st.one_of(damaged(VALID), damaged(VALID_JSON)))
def test_a_damaged_query_is_decoded_or_refused_and_nothing_else(record: Record) -> None:
    check_refusal(record)


@drawn(200)
@given(json_values, st.booleans(), st.booleans())
def test_any_json_as_a_query_is_decoded_or_refused(value: object, in_inputs: bool, with_id: bool) -> None:
    body = {"id": "a", "inputs": [value]} if in_inputs else value
    headers = (("ce_id", b"query-1"),) if with_id else ()
    check_refusal(Record("t", 0, 1, None, orjson.dumps(body), headers, NOW))


@drawn(200)
@given(damaged(HOP), damaged(RESULT), st.binary(max_size=40))
def test_damaged_hops_results_and_control_records_are_refused(hop: Record, result: Record, junk: bytes) -> None:
    for decode, record in (
        (codec.decode_admitted, hop),
        (codec.decode_work, hop),
        (codec.decode_outcome, result),
    ):
        try:
            decode(record)
        except InvalidInputError as error:
            codec.dead_letter(record, error, stage="router", now=NOW)
    codec.outcome_json(result), codec.outcome_device(result), codec.query_id_of(result)
    for decode_control in (
        control.decode_plan,
        control.decode_heartbeat,
        control.decode_demand,
        control.decode_acknowledged,
        control.decode_announce,
    ):
        with pytest.raises(InvalidInputError):
            decode_control(junk + b"}")
    with suppress(InvalidInputError):
        assert isinstance(control.decode_state(junk + b"}"), dict)


placements = st.builds(
    Placement, names, names, st.lists(names, max_size=2).map(tuple), st.floats(0, 1), st.integers(0, 64), names
)
slices = st.lists(st.builds(Slice, names, names, st.integers(0, 2**50)), max_size=3, unique_by=lambda s: s.name)
plans = st.builds(
    Plan,
    epoch=st.builds(Epoch, st.integers(0, 10**9), st.integers(0, 2**53 - 1)),
    created=seconds,
    placements=st.lists(placements, max_size=3).map(tuple),
    demand=st.dictionaries(names, seconds, max_size=3),
    served=st.dictionaries(names, st.floats(0, 1), max_size=3),
    objective=st.floats(0, 1),
    bound=st.floats(0, 1),
    fences=st.dictionaries(names, st.integers(0, 2**53), max_size=3),
    geometries=st.dictionaries(names, slices.map(tuple), max_size=3),
    reason=names,
    solve_s=st.floats(0.0, 1e9),
    nondeterministic=st.booleans(),
)


@drawn(60)
@given(plans, names, seconds, st.integers(0, 10**9), slices)
def test_control_records_decode_to_what_was_encoded(
    plan: Plan, name: str, at: float, count: int, parts: list[Slice]
) -> None:
    assert control.decode_plan(control.encode_plan(plan)) == plan
    cut = DeviceSeen(name, "cpu", "i", count, at, True, True, tuple(parts), fault="in use", fault_epoch=plan.epoch)
    beat = control.Heartbeat(
        seen=cut,
        at=at,
        epoch=plan.epoch,
        queued=count,
        utilisation=0.5,
        variants=(name,),
        measured=(LatencyMeasured(name, "cpu", 3, 0.25, 2),),
        slices=(control.SliceState("whole", 3, 0.1),),
    )
    assert control.decode_heartbeat(control.encode_heartbeat(beat)) == beat
    acknowledged = PlanAcknowledged(name, plan.epoch, (name,), ("b",))
    assert control.decode_acknowledged(control.encode_acknowledged(acknowledged)) == acknowledged
    counted = DemandCounted(name, count, 0.5)
    assert control.decode_demand(control.encode_demand(counted, source="s", at=at)) == counted
    announce = Announce(f"app:{name}", "safe", "why", {"a": 1.5, "b": "c"})
    assert control.decode_announce(control.encode_announce(announce)) == announce


@drawn(30)
@given(plans)
def test_fields_of_a_newer_version_are_ignored(plan: Plan) -> None:
    newer = {**orjson.loads(control.encode_plan(plan)), "from_the_future": [1, 2]}
    assert control.decode_plan(orjson.dumps(newer)) == plan
    assert control.decode_plan(control.encode_plan(replace(plan, reason="x"))).reason == "x"
