"""Counts of demand on their topic: what comes back, and what is refused by the field that is wrong."""

from typing import Any

import orjson
import pytest

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import InvalidInputError
from sluicegate.domain.events import DemandCounted
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
