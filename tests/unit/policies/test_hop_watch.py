"""Queries that are longer on their way than their promise allows for: said once, and withdrawn after a while."""

import pytest

from sluicegate.domain.actions import Announce, Run
from sluicegate.domain.events import Arrived, Finished, Hosted, HostingChanged
from sluicegate.domain.models.app import Promise, QueryClass, WeaklyHard
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.query import Query
from sluicegate.policies.batching.registry import batching
from sluicegate.policies.promises.hop_watch import CALM, KEPT, LATE, LATELY, MANY, HopWatch
from sluicegate.policies.promises.keeper import Hops
from sluicegate.policies.serving.slice_scheduler import Station

ALLOWED = 0.02


def said(watch: HopWatch, hops: list[tuple[float, float]]) -> list[tuple[float, str]]:
    """(time, state) of what is said of queries that came at these times after so many seconds."""
    return [(now, one.state) for now, hop in hops for one in watch.came(hop, ALLOWED, now)]


@pytest.mark.parametrize("start", [0.0, 1.7e9])
def test_several_that_come_late_are_told_once_with_how_long_and_what_helps(start: float) -> None:
    watch = HopWatch("signals")
    late = [(start + i, 0.03 + 0.01 * (i == 2)) for i in range(MANY + 3)]
    told = [one for now, hop in late for one in watch.came(hop, ALLOWED, now)]
    detail = (
        "5 queries within 4 s were up to 40 ms on their way, where the bound of the promise allows for 20: some may "
        "be missed within the bound; raise admission.hop_ms, give broker and stages more cores, or set the clocks of "
        "those who ask"
    )
    assert told == [Announce("hop:signals", LATE, detail, {"longest_s": 0.04, "allowed_s": ALLOWED})]


def test_what_is_allowed_for_is_not_late_and_few_or_far_apart_are_no_news() -> None:
    assert not said(HopWatch("a"), [(i / 10, ALLOWED) for i in range(100)])
    assert not said(HopWatch("a"), [(i / 10, 0.03) for i in range(MANY - 1)])
    apart = 1.01 * LATELY / (MANY - 1)
    assert not said(HopWatch("a"), [(i * apart, 0.03) for i in range(20)])
    apart = 0.99 * LATELY / (MANY - 1)
    assert said(HopWatch("a"), [(i * apart, 0.03) for i in range(20)]) == [((MANY - 1) * apart, LATE)]


@pytest.mark.parametrize("start", [0.0, 1.7e9])
def test_it_is_withdrawn_once_none_was_late_for_a_while(start: float) -> None:
    watch = HopWatch("a")
    assert said(watch, [(start, 0.03)] * MANY) == [(start, LATE)]
    assert not said(watch, [(start + 0.9 * CALM, 0.01)])
    assert not said(watch, [(start + 0.9 * CALM, 0.03)])  # one more
    assert not said(watch, [(start + 1.8 * CALM, 0.01)])
    assert said(watch, [(start + 1.91 * CALM, 0.01), (start + 1.92 * CALM, 0.01)]) == [(start + 1.91 * CALM, KEPT)]
    again = start + 3 * CALM
    assert said(watch, [(again, 0.03)] * MANY) == [(again, LATE)]


@pytest.mark.parametrize("start", [0.0, 1.7e9])
def test_a_slice_watches_the_strict_queries_of_its_turns_each_by_what_its_own_slo_allows(start: float) -> None:
    station = Station(batching("greedy"), Hops())
    seconds = (0.010, 0.012)
    for app, slo in (("narrow", 0.1), ("wide", 0.4)):
        hosted = (Hosted(f"{app}-v", 0.9, LatencyCurve(seconds), seconds),)
        station.handle(HostingChanged(app, hosted, slo, Promise(weakly_hard=(WeaklyHard(2, 10),))), start)
    told = []
    for number in range(20):
        now = start + number
        for app, kind in (("narrow", QueryClass.STRICT), ("wide", QueryClass.STRICT), ("wide", QueryClass.BEST_EFFORT)):
            way = 0.03 if kind is QueryClass.STRICT else 0.09  # a tenth of the SLO is allowed for
            query = Query(f"{app}-{kind}-{number}", app, now - way, now + 1.0, query_class=kind, sequence=number)
            actions = station.handle(Arrived(query), now)
            told += [(one.subject, one.state, now) for one in actions if isinstance(one, Announce)]
            for run in [one for one in actions if isinstance(one, Run)]:
                station.handle(Finished(app, run.variant, run.rows, 0.01), now + 0.01)
    assert told == [("hop:narrow", LATE, start + MANY - 1)]
