"""What an app with a promise may use of a slice: turns, bounds and paces, worked out by hand in ticks."""

from math import inf

import pytest

from sluicegate.domain.models.app import HOP_PART, Promise, WeaklyHard
from sluicegate.policies.promises.keeper import NO_HOPS, Hops, Party, Share, terms, within

TICK = 1 / 1024
ONE_OF_FOUR = Promise(weakly_hard=(WeaklyHard(1, 4),))


def ticks(*seconds: float) -> tuple[float, ...]:
    return tuple(s * TICK for s in seconds)


ACCURATE = ticks(40, 50)
FAST = ticks(8, 10, 11)
BESIDE = ticks(6, 9)


def shares(paces: tuple[float, ...] = (), slo: float = 64, hops: Hops = NO_HOPS) -> dict[str, Share]:
    asks = Party((ACCURATE, FAST), slo * TICK, ONE_OF_FOUR, paces)
    found = terms({"a": asks, "b": Party((BESIDE,), 1.0)}, hops)
    assert found.blocking_s == (slo - 20) * TICK - hops.of(slo * TICK)
    return dict(found.shares)


def test_a_variant_that_fits_in_no_turn_takes_no_time_of_it() -> None:
    """Of 64 ticks a third is a turn: no row of 40 fits, three of 11 do, and two of 9 beside."""
    share = shares()["a"]
    assert (share.batches, share.took) == ((0, 3), (0.0, 11 * TICK))
    assert (share.processing_s, share.paced_s) == (11 * TICK, 11 * TICK)
    assert (share.others_s, share.window_s, share.refused) == (9 * TICK, 20 * TICK, "")
    assert share.batch == 3


def test_the_other_app_of_the_slice_waits_for_that_turn() -> None:
    share = shares()["b"]
    assert (share.batches, share.processing_s, share.others_s) == ((2,), 9 * TICK, 11 * TICK)
    assert (share.window_s, share.refused) == (20 * TICK, "")


def test_a_window_is_as_long_as_the_turns_of_all_at_their_pace() -> None:
    share = shares(paces=(1.0, 0.5))["a"]
    assert (share.processing_s, share.paced_s, share.window_s) == (11 * TICK, 5.5 * TICK, 14.5 * TICK)
    assert share.degraded == (3, 14.5 * TICK)  # as much less as all turns are, of 11 and 9


def test_degraded_is_the_variant_that_serves_most_of_those_that_hold_a_batch() -> None:
    """Batches of two at 16 ticks, three at 18 and one at 2: the last would hold no burst."""
    share = Share((2, 3, 1), 18 * TICK, 6 * TICK, 0.0, took=ticks(16, 18, 2), paced_s=18 * TICK, window_s=24 * TICK)
    assert share.batch == 2
    assert share.degraded == (3, 24 * TICK)
    assert Share((0,), 5 * TICK, TICK, 0.0, took=(0.0,), window_s=3 * TICK).degraded == (0, 3 * TICK)


def test_bounds_count_queries_of_so_many_rows_and_those_refused_sustain_nothing() -> None:
    share = Share((6, 9), TICK, 0.0, 0.0)
    assert [share.bound(ONE_OF_FOUR, rows) for rows in (1, 2, 4, 7)] == [8, 4, 1, 0]
    assert [share.bound(ONE_OF_FOUR, rows, fastest=True) for rows in (1, 2, 4, 7)] == [12, 5, 2, 1]
    assert Share((6, 9), TICK, 0.0, 0.0, refused="no").bound(ONE_OF_FOUR) == 0
    assert Share((), TICK, 0.0, 0.0).bound(ONE_OF_FOUR, fastest=True) == 0


def test_the_way_to_the_slice_is_taken_from_what_turns_and_best_effort_have() -> None:
    share = shares(hops=Hops(8 * TICK))["a"]
    assert (share.hop_s, share.batches) == (8 * TICK, (0, 3))
    assert Hops().of(2.0) == 2.0 * HOP_PART and Hops(0.25).of(2.0) == 0.25


@pytest.mark.parametrize(("slo", "refused"), [(32, False), (31, True)])
def test_a_promise_is_refused_where_two_of_its_turns_and_all_others_take_longer_than_its_slo(
    slo: float, refused: bool
) -> None:
    """Rows of 12 ticks beside one of 8: a cycle of 20 and a batch of 12."""
    parties = {"a": Party((ticks(12),), slo * TICK, ONE_OF_FOUR), "b": Party((ticks(8),), 1.0)}
    found = terms(parties, NO_HOPS)
    assert bool(found.shares["a"].refused) is refused
    assert found.shares["b"].refused == "", "it was promised nothing"
    assert found.blocking_s == (inf if refused else (slo - 20) * TICK)


def test_the_most_urgent_promise_says_how_long_turns_are() -> None:
    urgent, calm = (
        Party((ticks(4, 8, 12, 16),), 24 * TICK, ONE_OF_FOUR),
        Party((ticks(4, 8, 12, 16),), 1.0, ONE_OF_FOUR),
    )
    found = terms({"a": calm, "b": urgent}, NO_HOPS).shares
    assert {name: share.processing_s <= 8 * TICK for name, share in found.items()} == {"a": True, "b": True}


def test_so_many_rows_are_within_a_time_that_no_smaller_batch_exceeds_it() -> None:
    seconds = ticks(8, 13, 10, 12)
    assert [within(seconds, t * TICK) for t in (7, 8, 12, 13)] == [0, 1, 1, 4]
