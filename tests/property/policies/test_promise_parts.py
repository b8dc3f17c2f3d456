"""Parts of promises beside plain counts: misses that are known late, windows of admissions, turns, observed tables."""

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.domain.models.app import Promise, WeaklyHard
from sluicegate.policies.mdp_serving.round_robin_phase import Turns
from sluicegate.policies.promises import stream_turns
from sluicegate.policies.promises.history import MissHistory
from sluicegate.policies.promises.window_limiter import PlaceLimit, WindowLimiter

PAIRS = st.lists(
    st.integers(0, 3).flatmap(lambda m: st.tuples(st.just(m), st.integers(m + 1, m + 5))),
    min_size=1,
    max_size=3,
    unique=True,
).map(tuple)


def holds(missed: list[bool], pairs: tuple[tuple[int, int], ...]) -> bool:
    """Whether no window of K has more than m misses, by trying all."""
    return all(sum(missed[i : i + k]) <= m for m, k in pairs for i in range(len(missed)))


@given(PAIRS, st.lists(st.booleans(), max_size=30))
def test_a_miss_is_allowed_where_every_window_bears_it(pairs: tuple[tuple[int, int], ...], wished: list[bool]) -> None:
    history, missed = MissHistory(pairs), list[bool]()
    for wish in wished:
        allowed = holds([*missed, True], pairs)
        assert history.may_miss() is allowed
        trial = history.fork()
        trial.record(True)
        assert history.position == len(missed) == trial.position - 1
        history.record(wish and allowed)
        missed.append(wish and allowed)


@given(PAIRS, st.lists(st.booleans(), min_size=1, max_size=30), st.integers(1, 8))
def test_a_miss_that_is_known_late_is_judged_as_if_it_had_been_known(
    pairs: tuple[tuple[int, int], ...], wished: list[bool], back: int
) -> None:
    history, missed = MissHistory(pairs), list[bool]()
    for wish in wished:
        fate = wish and history.may_miss()
        history.record(fate)
        missed.append(fate)
    at = len(missed) - min(back, len(missed))
    if missed[at] or sum(missed[at:]) > min(m for m, _ in pairs):
        return
    missed[at] = True
    assert history.revise(at) is holds(missed, pairs)
    for _ in range(12):  # and is remembered: the next may be missed where every window bears it, if none broke
        if holds(missed, pairs):
            assert history.may_miss() is holds([*missed, True], pairs)
        history.record(False)
        missed.append(False)


@given(st.integers(1, 5), st.data())
def test_parts_keep_the_promise_however_the_queries_fall_to_the_slices_and_no_shorter_ones_would(
    slices: int, data: st.DataObject
) -> None:
    """Each slice misses whenever its own part lets it."""
    m = data.draw(st.integers(0, 8))
    k = data.draw(st.integers(m + 1, m + 12))
    promise = Promise(weakly_hard=(WeaklyHard(m, k),))
    ((each, of),) = promise.among(slices).constraints
    assert (each, of) == ((m, k) if slices == 1 else (m // slices, of))
    parts = [MissHistory(((each, of),)) for _ in range(slices)]
    missed = []
    for turn in data.draw(st.lists(st.integers(0, slices - 1), min_size=k, max_size=4 * k)):
        missed.append(parts[turn].may_miss())
        parts[turn].record(missed[-1])
    assert holds(missed, ((m, k),))
    if each and slices > 1 and of > 1 and k >= slices:
        shorter, worst = of - 1, [1] * (slices - 1) + [k - slices + 1]  # K queries in a row, as unevenly as can be
        assert each < of and (each >= shorter or sum(each * -(-n // shorter) for n in worst) > m)


@given(PAIRS)
def test_a_past_that_is_unknown_is_taken_for_missed_as_far_as_anyone_looks(pairs: tuple[tuple[int, int], ...]) -> None:
    history, longest = MissHistory(pairs), max(k for _, k in pairs)
    history.spend()
    missed = [True] * longest
    assert history.position == longest
    for _ in range(longest + 1):
        assert history.may_miss() is all(sum([*missed, True][-k:]) <= m for m, k in pairs)
        history.record(False)
        missed.append(False)


@given(PAIRS, PAIRS, st.lists(st.booleans(), max_size=12), st.lists(st.booleans(), max_size=20))
def test_other_terms_begin_with_a_past_that_is_unknown_and_those_of_before_hold_as_far_as_they_look_back(
    pairs: tuple[tuple[int, int], ...],
    others: tuple[tuple[int, int], ...],
    wished: list[bool],
    later: list[bool],
) -> None:
    before, missed = MissHistory(pairs), list[bool]()
    for wish in wished:
        missed.append(wish and before.may_miss())
        before.record(missed[-1])
    history, longest = before.succeeded(others), max(k for _, k in others)
    looked = max(k for _, k in pairs) if wished else 0  # else nothing was decided by them
    since = [True] * longest
    for place, wish in enumerate(later):
        new = all(sum([*since, True][-k:]) <= m for m, k in others)
        old = place >= looked or all(sum([*missed, True][-k:]) <= m for m, k in pairs)
        assert history.may_miss() is (new and old)
        trial = history.fork()
        trial.record(True)
        fate = wish and new and old
        history.record(fate)
        since.append(fate)
        missed.append(fate)


def test_what_is_known_late_counts_by_the_terms_of_before_as_well() -> None:
    before = MissHistory(((1, 8),))
    for _ in range(8):
        before.record(False)
    after = before.succeeded(((1, 2),))
    for _ in range(3):
        after.record(False)
    assert after.may_miss() and after.fork().revise(after.position - 1)
    assert not after.fork().revise(after.position - 3)  # its neighbour may have been missed elsewhere
    assert after.revise(after.position - 2)
    assert not after.may_miss()  # one of eight: by the new terms alone the next could be
    assert not after.revise(after.position - 1)
    for _ in range(6):
        after.record(False)
    assert after.may_miss()


def test_terms_that_change_again_and_again_cost_no_more_and_no_less() -> None:
    history = MissHistory(((1, 6),))
    for _ in range(6):
        history.record(False)
    history.record(True)
    for _ in range(5_000):  # nothing is decided by any of these
        history = history.succeeded(((1, 2),)).succeeded(((2, 3),))
    assert [_record(history) for _ in range(7)] == [False] * 5 + [True, True]  # by (1, 6) for six queries
    for _ in range(5_000):
        history = history.succeeded(((0, 1_000),))
        history.record(False)
    assert not history.may_miss()
    links = 0
    while history._before is not None:
        history, links = history._before, links + 1
    assert links == 8


def _record(history: MissHistory) -> bool:
    """The next is missed wherever it may be."""
    history.record(missed := history.may_miss())
    return missed


def test_who_goes_by_other_terms_still_knows_what_is_past() -> None:
    before = MissHistory(((1, 3),))
    assert not before.is_past(7)
    after = before.succeeded(((1, 2),))
    assert after.is_past(6) and not after.is_past(8)


def test_a_query_that_is_asked_about_after_a_later_one_is_past() -> None:
    history = MissHistory(((1, 3),))
    assert [history.is_past(n) for n in (0, 4, 2, 4, 5, -1, 0)] == [False, False, True, False, False, False, True]


BOUNDS = st.tuples(st.integers(1, 4), st.integers(1, 12))
STEPS = st.lists(st.tuples(st.integers(0, 6), st.one_of(st.none(), st.none(), BOUNDS)))


@given(BOUNDS, st.sampled_from([0.0, 1.7e9]), STEPS)
def test_no_window_lets_in_more_than_its_bound_and_without_a_change_none_fewer(
    first: tuple[int, int], start: float, steps: list[tuple[int, tuple[int, int] | None]]
) -> None:
    """Quarters of a second, which are exact at both clocks."""
    bound, window = first
    limiter, now, admitted, grew = WindowLimiter([PlaceLimit(bound)], window / 4), start, list[float](), False
    for waited, resized in steps:
        now += waited / 4
        if resized is not None:
            grew = grew or resized[1] > window
            bound, window = resized
            limiter = limiter.resized([PlaceLimit(bound)], window / 4)
        room = sum(now - at < window / 4 for at in admitted) < bound
        would = limiter.would_admit(now)
        assert would is limiter.admit(now)
        assert would is room if not grew else room or not would
        if would:
            admitted.append(now)
    assert limiter.would_admit(now + window / 4)


def test_a_limiter_of_nothing_lets_nothing_in_until_it_is_resized() -> None:
    limiter = WindowLimiter([PlaceLimit(0)], 1.0)
    assert not limiter.would_admit(1.7e9) and not limiter.admit(1.7e9)
    again = limiter.resized([PlaceLimit(2)], 1.0)
    assert [again.admit(1.7e9 + t) for t in (0.0, 0.25, 0.5, 1.0, 1.125, 1.25)] == [
        True,
        True,
        False,
        True,
        False,
        True,
    ]
    fewer = again.resized([PlaceLimit(1)], 0.5)
    assert [fewer.admit(1.7e9 + t) for t in (1.5, 1.75)] == [False, True]
    assert not again.resized([PlaceLimit(0)], 1.0).admit(1.7e9 + 9.0)


def test_turns_go_on_from_the_newest_count_by_load_and_time() -> None:
    turns = Turns()
    turns.told(7, 1.7e9)  # before any of ours there is nothing to count from
    assert turns.elsewhere(10.0, 1.7e9) == int(10.0 * 1.7e9)
    turns.arrived(4, 1.7e9)
    assert turns.elsewhere(10.0, 1.7e9 + 0.75) == 7
    turns.told(9, 1.7e9 + 0.5)
    assert turns.elsewhere(10.0, 1.7e9 + 0.75) == 5 + 2
    turns.told(8, 1.7e9 + 0.7)  # older
    turns.told(9, 1.7e9 + 0.7)  # nothing new
    assert turns.elsewhere(10.0, 1.7e9 + 0.75) == 5 + 2
    turns.told(11, 1.7e9 + 0.25)  # a clock that runs behind turns nothing back
    assert turns.elsewhere(10.0, 1.7e9 + 0.75) == 7 + 2
    assert turns.elsewhere(10.0, 1.7e9) == 7
    turns.arrived(1, 1.7e9 + 1.0)  # the router began anew
    assert turns.elsewhere(10.0, 1.7e9 + 1.5) == 5
    turns.arrived(-1, 1.7e9 + 2.0)
    turns.told(3, 1.7e9 + 2.0)
    assert turns.elsewhere(0.0, 1.7e9 + 2.0) == 0


@given(st.lists(st.booleans(), min_size=1, max_size=60).filter(any))
def test_the_most_of_any_successive_turns_is_what_counting_them_all_finds(mine: list[bool]) -> None:
    turns, cycle = stream_turns.Turns(tuple(mine)), len(mine)
    endless = mine * 4
    most = [max(sum(endless[i : i + n]) for i in range(cycle)) for n in range(2 * cycle + 1)]
    assert [turns.most(n) for n in range(2 * cycle + 1)] == most
    for here in range(sum(mine)):
        assert turns.within(here) == max(n for n in range(cycle) if most[n] <= here)
