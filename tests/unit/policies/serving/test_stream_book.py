"""How streams with a promise are numbered and told, on one of two slices that unlike apps share."""

from dataclasses import replace

import pytest

from sluicegate.domain.events import Hosted, HostingChanged, StreamResumed
from sluicegate.domain.models.app import Promise, QueryClass, WeaklyHard
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.outcome import Outcome, OutcomeKind, PromiseState
from sluicegate.domain.query import Query
from sluicegate.policies.promises.stream_book import Recall, StreamBook

HERE = ("gpu1", "3g.0")
TWO_OF_TEN = Promise(weakly_hard=(WeaklyHard(2, 10),))
ONE_IN_A_ROW = Promise(max_consecutive=1)


def hosting(app: str, promise: Promise, *, hosted: bool = True) -> HostingChanged:
    variants = (Hosted(f"{app}-large", 0.9, LatencyCurve((0.01, 0.015))),) if hosted else ()
    return HostingChanged(app, variants, 0.2, promise, peers=(HERE, ("gpu0", "4g.0")))


def query(number: int, app: str, stream: str, query_class: QueryClass = QueryClass.STRICT) -> Query:
    return Query(f"{app}-{stream}-{number}", app, 1.7e9 + number, 1.7e9 + number + 0.2, 1, query_class, stream, number)


def book() -> StreamBook:
    made = StreamBook(HERE, lambda app: app in {"sight", "sound"})
    made.hosting(hosting("sight", TWO_OF_TEN))
    made.hosting(hosting("sound", ONE_IN_A_ROW))
    return made


def test_each_stream_is_counted_by_itself() -> None:
    made = book()
    for number, (app, stream, missed) in enumerate(
        [("sight", "a", False), ("sound", "a", True), ("sight", "b", True), ("sight", "a", True), ("sight", "b", False)]
    ):
        one = query(number, app, stream)
        assert made.arrived(one) is None
        state = made.ended(one, missed)
        assert state is not None
    one = query(9, "sight", "a")
    made.arrived(one)
    told = made.ended(one, True)
    assert told is not None
    assert (told.queries, told.misses, told.mcd, told.weakly_hard, told.turns) == (3, 2, 2, ((2, 10),), 1)
    assert told.left == ((10, 0),)


def test_who_was_promised_nothing_is_not_counted() -> None:
    made = book()
    best_effort, elsewhere = query(1, "sight", "a", QueryClass.BEST_EFFORT), query(2, "bulk", "a")
    for one in (best_effort, elsewhere):
        made.arrived(one)
        assert made.ended(one, True) is None
    strict = query(3, "sight", "a")
    made.arrived(strict)
    told = made.ended(strict, False)
    assert told is not None
    assert (told.queries, told.misses) == (1, 0)


def test_another_promise_begins_its_streams_anew_and_leaves_others() -> None:
    made = book()
    for number, app in enumerate(("sight", "sound")):
        made.arrived(one := query(number, app, "a"))
        made.ended(one, True)
    made.hosting(hosting("sight", ONE_IN_A_ROW))
    counts = {}
    for app in ("sight", "sound"):
        made.arrived(one := query(10, app, "a"))
        told = made.ended(one, False)
        assert told is not None
        counts[app] = (told.queries, told.misses)
    assert counts == {"sight": (1, 0), "sound": (2, 1)}


def test_of_too_many_streams_the_one_begun_first_is_forgotten() -> None:
    made = book()
    for stream in range(16_385):
        made.arrived(one := query(stream, "sight", str(stream)))
        made.ended(one, True)
    counts = []
    for stream in (1, 16_384, 0):
        made.arrived(one := query(20_000 + stream, "sight", str(stream)))
        told = made.ended(one, False)
        assert told is not None
        counts.append(told.queries)
    assert counts == [2, 2, 1]


def test_hosting_otherwise_under_the_same_promise_goes_on_counting() -> None:
    made = book()
    counts = []
    none = hosting("sight", ONE_IN_A_ROW, hosted=False)
    for number, (comes, ends) in enumerate([(hosting("sight", TWO_OF_TEN),) * 2, (hosting("sight", TWO_OF_TEN), none)]):
        made.hosting(comes)
        made.arrived(one := query(number, "sight", ""))
        made.hosting(ends)
        told = made.ended(one, True)
        assert told is not None
        counts.append((told.queries, told.turns, told.weakly_hard))
    assert counts == [(1, 2, ((2, 10),)), (2, 1, ())]


def test_only_who_is_hosted_nowhere_here_and_was_not_warned_of_is_unheard() -> None:
    made = StreamBook(HERE, lambda app: app == "sight")
    strict = query(1, "sight", "a")
    assert made.unheard(strict)
    assert not made.unheard(query(2, "bulk", "a"))
    assert not made.unheard(query(3, "sight", "a", QueryClass.BEST_EFFORT))
    made.announced("sight", "safe_mode")
    assert not made.unheard(strict)
    made.announced("sight", "promise_kept")
    assert made.unheard(strict)
    made.hosting(hosting("sight", TWO_OF_TEN))
    assert not made.unheard(strict)
    made.hosting(hosting("sight", TWO_OF_TEN, hosted=False))
    assert made.empty
    assert made.unheard(strict)


def test_what_was_abandoned_is_told_by_others() -> None:
    made = book()
    one = query(1, "sight", "a")
    made.arrived(one)
    made.abandon()
    assert made.ended(one, True) is None


def end(
    number: int,
    missed: bool,
    *,
    stream: str = "a",
    place: tuple[str, str] = HERE,
    rejected: bool = False,
    query_class: QueryClass = QueryClass.STRICT,
    promise: PromiseState | None = None,
) -> Outcome:
    asked = query(number, "sight", stream, query_class)
    kind = OutcomeKind.REJECTED if rejected else OutcomeKind.EXPIRED if missed else OutcomeKind.ANSWERED
    return Outcome.of(asked, kind, asked.arrival + 0.1, device=place[0], slice=place[1], promise=promise)


def recall(*ends: Outcome, remember: int = 100) -> Recall:
    made = Recall(remember)
    for one in ends:
        made.add(one)
    return made


def before(made: Recall, number: int, look: int, turns: int = 1) -> tuple[bool, ...] | None:
    found = made.before(query(number, "sight", "a"), HERE, turns, look)
    assert found is None or found[0].next == len(found[0].recent)
    return None if found is None else found[0].recent


def test_outcomes_without_a_sequence_or_of_best_effort_are_no_past() -> None:
    known = recall(end(-1, True), end(3, True, query_class=QueryClass.BEST_EFFORT), end(0, True, stream="b"))
    assert [(past.stream, [one[0] for one in past.ends]) for past in known.streams] == [("b", [0])]


def test_a_past_without_a_gap_up_to_the_query_is_known_as_far_as_is_asked() -> None:
    """Of sequence 3 to 7, missed are 4 and 7."""
    known = recall(*(end(n, n in (4, 7)) for n in (3, 5, 4, 7, 6)))
    assert before(known, 8, 3) == (False, False, True)
    assert before(known, 8, 4) == (True, False, False, True)
    assert before(known, 8, 5) == (False, True, False, False, True)
    assert before(known, 8, 6) is None, "what was before the third is unknown"
    assert before(known, 9, 3) is None, "the eighth is missing"
    assert before(known, 6, 2) == (True, False), "of later ones nothing is told"
    assert known.before(query(8, "sight", "b"), HERE, 1, 3) is None
    assert known.before(query(8, "sound", "a"), HERE, 1, 3) is None


def test_a_past_that_reaches_to_the_first_query_is_known_whole() -> None:
    assert before(recall(end(0, True), end(1, False)), 2, 10) == (True, False)
    assert before(recall(end(1, True), end(2, False)), 3, 10) is None
    assert before(recall(end(0, True), end(1, False), end(3, True)), 4, 1) == (True,)
    assert before(recall(end(0, True), end(1, False), end(3, True)), 4, 2) is None


def test_rejected_queries_fill_a_place_and_count_for_nothing_and_what_is_told_last_counts() -> None:
    known = recall(end(4, True), end(5, True, rejected=True), end(6, False), end(7, True), end(7, False))
    assert before(known, 8, 3) == (True, False, False)
    without = [end(6, False), end(7, True, query_class=QueryClass.BEST_EFFORT), end(-1, True)]
    assert before(recall(*without), 7, 1) == (False,)
    assert before(recall(*without), 8, 1) is None


def test_of_a_stream_in_turns_only_those_of_this_place_count() -> None:
    there = ("gpu0", "3g.0")
    known = recall(*(end(n, n in (3, 4), place=HERE if n % 2 else there) for n in range(2, 8)))
    assert before(known, 8, 3, turns=2) == (True, False, False)
    assert before(known, 8, 4, turns=2) is None
    assert before(known, 8, 4) == (True, False, False, False)


def test_the_newest_state_that_was_told_goes_on() -> None:
    told = [PromiseState(queries=n) for n in (50, 60)]
    known = recall(end(5, True, promise=told[0]), end(6, True, promise=told[1]), end(7, False))
    found = known.before(query(8, "sight", "a"), HERE, 1, 3)
    assert found is not None and found[1] == told[1]


def test_no_more_is_remembered_than_is_asked_for() -> None:
    ends = [end(n, n == 4) for n in range(3, 8)]
    assert before(recall(*ends, remember=4), 8, 4) == (True, False, False, False)
    assert before(recall(*ends, remember=3), 8, 4) is None
    assert before(recall(*ends, remember=0), 8, 1) == (False,)
    again = Recall.of(recall(*ends).streams)
    assert before(again, 8, 5) == (False, True, False, False, False)
    assert before(recall(*ends, remember=0), 8, 2) is None
    many = recall(*(end(7, True, stream=str(stream)) for stream in range(16_385)))
    assert [many.streams[0].stream, many.streams[-1].stream, len(many.streams)] == ["1", "16384", 16_384]


def test_a_stream_goes_on_with_what_was_counted_before_it_came_here() -> None:
    made = book()
    state = PromiseState(queries=70, misses=9, mcd=5, worst=((10, 2),))
    made.recalled(recall(*(end(n, n == 4, promise=state) for n in range(8))))
    first = query(8, "sight", "a")
    assert made.arrived(first) == StreamResumed("sight", "a", (False,) * 4 + (True,) + (False,) * 3)
    told = made.ended(first, True)
    assert told is not None
    assert (told.queries, told.misses, told.mcd, dict(told.worst)) == (71, 10, 5, {10: 2})
    assert told.left == ((10, 0),)
    unknown = query(20, "sight", "b")
    assert made.arrived(unknown) is None
    told = made.ended(unknown, True)
    assert told is not None and (told.queries, told.left) == (1, ((10, 0),)), "its past counts as missed"
    new = query(0, "sight", "c")
    assert made.arrived(new) is None
    told = made.ended(new, True)
    assert told is not None and (told.queries, told.left) == (1, ((10, 1),)), "it has none"


def test_the_apps_own_stream_is_counted_in_this_places_turns_and_what_is_left_of_it_others_know_too() -> None:
    made = book()
    for stream, turns in (("", 2), ("sight", 2), ("a", 1)):
        one = query(1, "sight", stream)
        made.arrived(one)
        made.announced("sight", "safe_mode" if stream == "sight" else "promise_kept")
        told = made.ended(one, False)
        assert told is not None
        assert (told.turns, told.safe_mode) == (turns, stream == "sight")
        assert told.left == (((10, 2),) if turns == 1 else ())


def test_a_record_that_was_written_twice_is_one_query() -> None:
    made = book()
    first, other, again = query(4, "sight", "a"), query(5, "sight", "a"), query(4, "sight", "a")
    assert [made.repeated(one) for one in (first, other, again)] == [False, False, True]
    assert not made.repeated(replace(again, id="asked anew")) and not made.repeated(replace(first, source="/other"))
    unplaced = replace(query(6, "sight", "a"), sequence=-1)
    assert not made.repeated(unplaced) and not made.repeated(replace(unplaced))
    for strange in (query(1, "bulk", "a"), query(1, "sight", "a", QueryClass.BEST_EFFORT)):
        assert not made.repeated(strange) and not made.repeated(strange)
    made.abandon()  # whoever reads it again answers it
    assert not made.repeated(again)


def test_the_last_that_came_are_known_and_no_more() -> None:
    made = book()
    known = [query(number, "sound", "") for number in range(16_385)]
    assert not any(made.repeated(one) for one in known)
    assert made.repeated(known[-1]) and made.repeated(known[1]) and not made.repeated(known[0])


def test_an_app_that_is_hosted_again_goes_on_where_a_query_ended_while_it_was_not() -> None:
    made = book()
    first, second = query(1, "sight", "a"), query(2, "sight", "a")
    made.arrived(first)
    for app, promise in (("sight", TWO_OF_TEN), ("sound", ONE_IN_A_ROW)):
        made.hosting(hosting(app, promise, hosted=False))
    assert not made.empty and made.counts(first) and not made.counts(second)
    made.ended(first, True)
    assert made.empty
    made.hosting(hosting("sight", TWO_OF_TEN))
    made.arrived(second)
    told = made.ended(second, False)
    assert told is not None and (told.queries, told.misses) == (2, 1)


def placed(peers: tuple[tuple[str, str], ...], *, here: float, hosted: bool = True) -> HostingChanged:
    """``sight`` on these, the share of this place being ``here``, that of others half."""
    shares = tuple((*place, here if place == HERE else 0.5) for place in peers)
    return replace(hosting("sight", TWO_OF_TEN, hosted=hosted), peers=peers, shares=shares)


THERE, FAR = ("gpu0", "4g.0"), ("gpu2", "2g.0")
FIRST = placed((HERE, THERE), here=0.5)


def left(made: StreamBook, number: int, stream: str, *, missed: bool = False) -> int | None:
    """What is left after query ``number``."""
    made.arrived(one := query(number, "sight", stream))
    told = made.ended(one, missed)
    assert told is not None
    return dict(told.left).get(10)


@pytest.mark.parametrize(
    ("changes", "spent"),
    [
        ((placed((HERE, THERE, FAR), here=0.5),), {"at home", "a guest"}),
        ((placed((HERE, THERE), here=0.51),), set()),
        ((placed((HERE, THERE), here=0.01),), {"at home"}),
        ((placed((HERE, THERE), here=0.01), FIRST), {"at home"}),
        ((placed((HERE, THERE), here=0.5, hosted=False), FIRST), {"at home", "a guest"}),
    ],
)
def test_nothing_is_left_of_streams_that_may_have_been_elsewhere(
    changes: tuple[HostingChanged, ...], spent: set[str]
) -> None:
    """By the shares ``at home`` is at home here unless that is small, and ``a guest`` never is."""
    made = StreamBook(HERE)
    made.hosting(FIRST)
    streams = ("at home", "a guest")
    assert [left(made, number, stream) for number in range(3) for stream in streams] == [2] * 6
    for change in changes:
        made.hosting(change)
    for stream in streams:
        found = [left(made, number, stream) for number in range(3, 12)]
        assert found == ([0] * 7 + [1, 2] if stream in spent else [2] * 9), stream


def test_nothing_is_left_of_the_apps_own_stream_where_it_comes_to_be_in_one_place() -> None:
    made = StreamBook(HERE)
    made.hosting(FIRST)
    assert [left(made, number, "") for number in range(1, 9, 2)] == [None] * 4
    made.hosting(placed((HERE,), here=0.5))
    assert [left(made, number, "", missed=number == 10) for number in range(9, 20)] == [0] * 8 + [1, 1, 2]


def test_what_waits_while_a_stream_is_spent_leaves_nothing_either() -> None:
    made = StreamBook(HERE)
    made.hosting(FIRST)
    waits = [query(number, "sight", "at home") for number in range(9)]
    for one in waits:
        made.arrived(one)
    made.hosting(placed((HERE, THERE, FAR), here=0.5))
    told = [made.ended(one, False) for one in reversed(waits)]
    assert [state.left for state in told if state is not None] == [((10, 0),)] * 9
    assert [left(made, number, "at home") for number in range(9, 18)] == [0] * 7 + [1, 2]


def test_what_waits_while_something_else_is_promised_is_no_part_of_the_stream_that_begins() -> None:
    made = book()
    waits = query(3, "sight", "a")
    made.arrived(query(2, "sight", "a"))
    made.arrived(waits)
    made.hosting(hosting("sight", Promise(weakly_hard=(WeaklyHard(1, 4),))))
    made.arrived(first := query(4, "sight", "a"))
    made.arrived(second := query(5, "sight", "a"))
    assert made.ended(waits, True) is None
    told = [made.ended(one, False) for one in (first, second)]
    assert [(state.queries, state.misses, state.left) for state in told if state is not None] == [
        (1, 0, ((4, 0),)),
        (2, 0, ((4, 0),)),
    ]


def test_a_stream_whose_second_query_another_promise_meets_was_not_begun_with_it() -> None:
    made = book()
    assert left(made, 0, "a", missed=True) == 1
    made.hosting(hosting("sight", Promise(weakly_hard=(WeaklyHard(2, 10), WeaklyHard(3, 20)))))
    assert left(made, 1, "a") == 0
