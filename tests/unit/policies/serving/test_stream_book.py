"""How streams with a promise are numbered and told, on one of two slices that unlike apps share."""

from sluicegate.domain.events import Hosted, HostingChanged
from sluicegate.domain.models.app import Promise, QueryClass, WeaklyHard
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.query import Query
from sluicegate.policies.promises import stream_book
from sluicegate.policies.promises.stream_book import StreamBook

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
    before, stream_book._STREAMS = stream_book._STREAMS, 2
    try:
        for number, stream in enumerate(("first", "second", "third")):
            made.arrived(one := query(number, "sight", stream))
            made.ended(one, True)
        counts = {}
        for stream in ("second", "third"):
            made.arrived(one := query(20, "sight", stream))
            told = made.ended(one, False)
            assert told is not None
            counts[stream] = told.queries
    finally:
        stream_book._STREAMS = before
    assert counts == {"second": 2, "third": 2}


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
