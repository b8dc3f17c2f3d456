"""Turns of unequal places, the places of streams, and the batches of a variant, worked out by hand."""

import pytest

from sluicegate.domain.events import Hosted
from sluicegate.domain.models.app import Promise, WeaklyHard
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.domain.query import Query
from sluicegate.policies.promises.batch_places import places_of, shared_places
from sluicegate.policies.promises.keeper import Share
from sluicegate.policies.promises.stream_places import StreamPlaces, chosen, moved
from sluicegate.policies.promises.stream_turns import ALONE, dealt, part_of, turns_of

TICK = 1 / 1024
CYCLE = (0, 0, 1, 0)
"""Of weights 3 and 1."""


def test_turns_are_dealt_out_evenly_and_each_place_has_one_at_least() -> None:
    assert dealt((3.0, 1.0)) == CYCLE
    assert dealt((0.5, 0.5, 0.5)) == (0, 1, 2)
    assert dealt((1.0, 1.02)) == (0, 1), "hardly unequal"
    assert dealt((1.0,)) == (0,)
    assert set(dealt((1.0, 1000.0))) == {0, 1}


def test_the_most_turns_of_a_stretch_are_those_of_its_worst_beginning() -> None:
    assert [turns_of(CYCLE, 0).most(n) for n in range(9)] == [0, 1, 2, 3, 3, 4, 5, 6, 6]
    assert [turns_of(CYCLE, 1).most(n) for n in range(9)] == [0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert [ALONE.most(n) for n in range(4)] == [0, 1, 2, 3]


def test_so_many_successive_turns_come_to_no_more_than_a_place_bears() -> None:
    assert [turns_of(CYCLE, 0).within(n) for n in range(7)] == [0, 1, 2, 4, 5, 6, 8]
    assert [turns_of(CYCLE, 1).within(n) for n in range(3)] == [0, 4, 8]
    assert [ALONE.within(n) for n in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("m", "k", "parts"),
    [
        (2, 10, [((2, 8),), ((0, 3),)]),  # half a miss each is left over: the first has it
        (3, 10, [((2, 8),), ((1, 3),)]),
        (4, 10, [((3, 8),), ((1, 3),)]),
        (3, 4, [((2, 3),), ()]),  # its one turn in four may be missed
    ],
)
def test_misses_are_dealt_out_by_turns_and_what_is_left_over_to_who_lacks_most(
    m: int, k: int, parts: list[tuple[tuple[int, int], ...]]
) -> None:
    promise = Promise(weakly_hard=(WeaklyHard(m, k),))
    assert [part_of(promise, CYCLE, place).constraints for place in (0, 1)] == parts


def test_equal_places_keep_equal_parts() -> None:
    promise = Promise(weakly_hard=(WeaklyHard(3, 10),))
    assert [part_of(promise, (0, 1), place).constraints for place in (0, 1)] == [((1, 5),)] * 2


def placement(device: str, share: float, variants: tuple[str, ...] = ("v",), app: str = "a") -> Placement:
    return Placement(device, app, variants, share, 8)


def places(*placements: Placement) -> StreamPlaces:
    return StreamPlaces.of(Plan(epoch=Epoch(1, 1), created=0.0, placements=placements), "a")


def test_streams_go_to_placements_with_a_share_and_to_all_where_none_has_one() -> None:
    others = placement("d0", 0.5, ()), placement("d0", 0.5, app="b")
    some = places(*others, placement("d3", 0.25), placement("d1", 0.0), placement("d2", 0.75))
    assert some.places == (("d2", "whole"), ("d3", "whole"))
    assert some.cycle == CYCLE
    assert (some.turns(("d2", "whole")), some.turns(("d1", "whole"))) == (turns_of(CYCLE, 0), ALONE)
    promise = Promise(weakly_hard=(WeaklyHard(2, 10),))
    assert some.part(promise, ("d3", "whole")).constraints == ((0, 3),)
    assert some.part(promise, ("d1", "whole")) is promise
    assert places(*others, placement("d3", 0.0), placement("d1", 0.0)).places == (("d1", "whole"), ("d3", "whole"))
    assert places(*others).of_stream("s") is None


def test_a_stream_moves_only_where_its_own_place_is_another() -> None:
    before = (("d0", "whole", 0.5), ("d1", "whole", 0.5), ("d2", "whole", 0.5))
    for stream in ("s0", "s1", "s2", "s3"):
        mine = chosen(stream, before)
        rest = tuple(one for i, one in enumerate(before) if i != mine)
        assert not moved(stream, before, before)
        assert moved(stream, before, rest)
        assert not moved(stream, before, (before[mine], rest[0])), "one of the others went"
        assert moved(stream, before, ()) and moved(stream, (), before) and not moved(stream, (), ())


def test_streams_fall_to_places_in_proportion_to_their_shares() -> None:
    shares = (("d0", "whole", 0.75), ("d1", "whole", 0.25))
    found = [chosen(f"s{i}", shares) for i in range(4000)]
    assert found.count(0) == pytest.approx(3000, abs=120)


HOSTED = Hosted("v", 0.9, LatencyCurve((4 * TICK, 7 * TICK, 6 * TICK)), (8 * TICK, 13 * TICK, 10 * TICK))
"""What batches take, and what hardly any exceeds."""


def test_batches_of_so_many_rows_take_what_the_slowest_of_them_does() -> None:
    found = places_of(HOSTED, 3)
    assert (found.batch, found.processing_s, found.upto) == (3, 13 * TICK, (8 * TICK, 13 * TICK, 13 * TICK))
    assert found.rate == 3 / (13 * TICK)
    assert [found.usual_s(rows) for rows in (1, 2, 3)] == [4 * TICK, 7 * TICK, 7 * TICK]
    assert (places_of(HOSTED, 9).batch, places_of(HOSTED, 1).processing_s) == (3, 8 * TICK)


@pytest.mark.parametrize("start", [0.0, 1.7e9])
@pytest.mark.parametrize(("due", "rows", "fit"), [(13, 1, 3), (12, 1, 1), (8, 1, 1), (7, 1, 0), (12, 2, 0), (13, 4, 0)])
def test_the_largest_batch_that_saves_the_head_holds_the_head_itself(
    start: float, due: float, rows: int, fit: int
) -> None:
    head = Query("q", "a", start, start + due * TICK, rows)
    assert places_of(HOSTED, 3).in_time(head, start) == fit


def test_a_variant_has_the_batches_that_fit_its_turn_and_the_last_single_rows_where_none_does() -> None:
    fast = Hosted("fast", 0.5, LatencyCurve((2 * TICK, 3 * TICK)))

    def within(ticks: float) -> list[tuple[str, int, float]]:
        found = shared_places((HOSTED, fast), Share((), ticks * TICK, 0.0, 0.0))
        return [(one.hosted.variant, one.batch, one.processing_s / TICK) for one in found]

    assert within(13) == [("v", 3, 13), ("fast", 2, 3)]
    assert within(12) == [("v", 1, 8), ("fast", 2, 3)]
    assert within(7) == [("fast", 2, 3)]
    assert within(1) == [("fast", 1, 2)]
    assert shared_places((), Share((), 1.0, 0.0, 0.0)) == ()
