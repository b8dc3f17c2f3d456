"""Tables survive the way to workers, whatever is in them, and damage is noticed."""

import struct
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.table import CLOCK, DROP, Expectations, SelectionTable, Spread
from sluicegate.planner.mdp.generate_table import generate
from sluicegate.planner.mdp.mdp_model import Candidate, SelectionModel
from sluicegate.planner.policy_tables.fingerprint import fingerprint
from sluicegate.planner.policy_tables.table_codec import MAGIC, decode, encode

ratio = st.floats(0.0, 1.0)
spread = st.builds(Spread, ratio, ratio, ratio)


@st.composite
def tables(draw: st.DrawFn) -> SelectionTable:
    variants = draw(st.lists(st.text(max_size=8), min_size=1, max_size=5, unique=True))
    steps = draw(st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=8))
    slacks = [0.0]
    for step in steps:
        slacks.append(slacks[-1] + step)
    n = draw(st.integers(1, 6))
    cells = n * len(slacks)
    code = st.sampled_from([*range(len(variants)), DROP])
    batches = b""
    if draw(st.booleans()):
        batches = bytes(draw(st.integers(1, at // len(slacks) + 1)) for at in range(cells))
    return SelectionTable(
        app=draw(st.text(max_size=8)),
        worker_class="cpu",
        variants=tuple(variants),
        slo=slacks[-1],
        qps=draw(st.floats(0.0, 1e6)),
        workers=draw(st.integers(1, 1000)),
        slacks=tuple(slacks),
        actions=bytes(draw(st.lists(code, min_size=cells, max_size=cells))),
        batches=batches,
        expected=Expectations(
            accuracy=draw(ratio),
            violation=draw(ratio),
            mean_batch=draw(st.floats(1.0, 32.0)),
            utilisation=draw(ratio),
            accuracy_spread=draw(spread),
            batch_spread=draw(spread),
            response_spread=draw(spread),
        ),
        assumptions={"criterion": "query", "violation_price": 1.0},
        fingerprint="0123456789abcdef",
    )


@settings(max_examples=60, deadline=None)
@given(tables())
def test_what_is_encoded_is_decoded(table: SelectionTable) -> None:
    assert decode(encode(table)) == table
    assert encode(table) == encode(table)


@settings(max_examples=60, deadline=None)
@given(tables(), st.data())
def test_a_damaged_table_is_refused(table: SelectionTable, data: st.DataObject) -> None:
    good = encode(table)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
    with pytest.raises(InvalidInputError, match="table"):
        decode(bad)
    with pytest.raises(InvalidInputError, match="table"):
        decode(good[:at])


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_bytes_with_a_good_checksum_but_no_table_are_refused(content: bytes) -> None:
    for body in (content, struct.pack(">I", len(content)) + content):
        with pytest.raises(InvalidInputError, match="table"):
            decode(MAGIC + sha256(body).digest() + body)


@settings(max_examples=60, deadline=None)
@given(tables(), st.integers(1, 100), st.floats(-1.0, 20.0))
def test_lookup_never_assumes_more_slack_or_more_queries_than_there_are(
    table: SelectionTable, queued: int, slack: float
) -> None:
    code, batch = table.lookup(queued, slack)
    n = min(queued, table.longest)
    below = [j for j, edge in enumerate(table.slacks) if edge <= slack + CLOCK]
    at = (n - 1) * len(table.slacks) + max(below, default=0)
    assert code == table.actions[at]
    assert 1 <= batch <= n


def test_tables_of_one_library_share_a_fingerprint_and_others_do_not() -> None:
    variants = (Candidate("a", 0.5, (0.01, 0.02)), Candidate("b", 0.7, (0.03, 0.06)))
    model = SelectionModel(variants=variants, slo=0.1, workers=3, qps=10.0, grid=10)
    one, two = generate(model).table, generate(model.at(20.0)).table
    assert one.fingerprint == two.fingerprint == fingerprint(model)
    slower = (variants[0], Candidate("b", 0.7, (0.03, 0.07)))
    changed = SelectionModel(variants=slower, slo=0.1, workers=3, qps=10.0, grid=10)
    assert fingerprint(changed) != one.fingerprint
