"""Where streams with a key go: in proportion to shares, and no further than they must."""

import pytest

from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.policies.promises.stream_places import StreamPlaces

STREAMS = [f"camera-{number}" for number in range(3000)]
SHARES = {"large": 0.6, "middle": 0.3, "small": 0.1}


def places(*devices: str) -> StreamPlaces:
    """Of these, and of one that has no share."""
    shares = {**{name: SHARES[name] for name in devices}, "spare": 0.0}
    hosts = tuple(Placement(name, "app", ("v",), share, 4, "whole") for name, share in shares.items())
    return StreamPlaces.of(Plan(epoch=Epoch(3, 7), created=1.7e9, placements=hosts), "app")


def test_streams_go_to_places_in_proportion_to_their_shares() -> None:
    found = [places(*SHARES).of_stream(stream) for stream in STREAMS]
    for name, share in SHARES.items():
        assert found.count((name, "whole")) / len(STREAMS) == pytest.approx(share, abs=0.04)
    assert ("spare", "whole") not in found


def test_when_a_place_goes_only_its_streams_move() -> None:
    before, after = places(*SHARES), places("large", "small")
    moved = {s for s in STREAMS if before.of_stream(s) != after.of_stream(s)}
    assert moved == {s for s in STREAMS if before.of_stream(s) == ("middle", "whole")}
    assert places().of_stream("camera-1") == ("spare", "whole")
