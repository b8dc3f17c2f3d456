"""Where streams with a key go: in proportion to shares, and no further than they must."""

import pytest

from sluicegate.domain.events import Hosted, HostingChanged
from sluicegate.domain.models.app import Promise, WeaklyHard
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.domain.query import Query
from sluicegate.policies.batching.spread import GreedySpread
from sluicegate.policies.promises.stream_places import StreamPlaces, moved
from sluicegate.policies.promises.stream_turns import dealt

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
    gone = {s for s in STREAMS if before.of_stream(s) != after.of_stream(s)}
    assert gone == {s for s in STREAMS if before.of_stream(s) == ("middle", "whole")}
    assert places().of_stream("camera-1") == ("spare", "whole")


def test_turns_are_dealt_in_cycles_of_up_to_sixteen_a_place() -> None:
    assert dealt((31.0, 1.0)).count(0) == 31 and len(dealt((31.0, 1.0))) == 32
    assert dealt((3.0, 1.0)) == (0, 0, 1, 0)
    assert dealt((2.0, 2.01, 2.0)) == (0, 1, 2)


@pytest.mark.parametrize("large", [0.58, 0.4, 0.1])
def test_a_stream_has_moved_where_its_place_is_another_by_what_places_serve_now(large: float) -> None:
    before = places(*SHARES)
    now = tuple((device, part, large if device == "large" else share) for device, part, share in before.shares)
    hosts = tuple(Placement(device, "app", ("v",), share, 4, part) for device, part, share in now)
    after = StreamPlaces.of(Plan(epoch=Epoch(3, 8), created=1.7e9, placements=hosts), "app")
    assert after.shares == now
    gone = {stream for stream in STREAMS if moved(stream, before.shares, now)}
    assert gone == {stream for stream in STREAMS if before.of_stream(stream) != after.of_stream(stream)}
    assert 0 < len(gone) < len(STREAMS) / 2 + 100
    assert {before.of_stream(stream) for stream in gone} == {("large", "whole")}, "no other serves less of the whole"
    assert not moved("camera-1", now, now) and moved("camera-1", (), now)


def test_a_stream_that_comes_back_may_miss_nothing_while_what_it_missed_elsewhere_counts() -> None:
    """d0 and d1 serve the app all the time; by other shares a stream goes from one to the other and back."""
    curve = LatencyCurve((0.010, 0.012))
    promise = Promise(weakly_hard=(WeaklyHard(1, 4),))

    def hosting(share: float) -> HostingChanged:
        shares = (("d0", "whole", share), ("d1", "whole", 1.0 - share))
        peers = tuple(place[:2] for place in shares)
        return HostingChanged("app", (Hosted("v", 0.9, curve),), 1.0, promise, peers, promise, shares=shares)

    mine, others = hosting(0.9), hosting(0.1)
    stays = next(s for s in STREAMS if not moved(s, mine.shares, others.shares))
    goes = next(s for s in STREAMS if moved(s, mine.shares, others.shares))
    policy = GreedySpread()
    policy.handle(mine, 1.7e9)
    histories = {s: policy.history(Query(f"{s}-0", "app", 0.0, 1.0, stream=s, sequence=0)) for s in (stays, goes)}
    for history in histories.values():
        history.record(False)
    assert all(history.may_miss() for history in histories.values())
    policy.handle(others, 1.7e9 + 1)
    policy.handle(mine, 1.7e9 + 2)
    found = {s: policy.history(Query(f"{s}-9", "app", 0.0, 1.0, stream=s, sequence=9)) for s in (stays, goes)}
    assert found[stays].may_miss() and not found[goes].may_miss()
