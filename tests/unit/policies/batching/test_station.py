"""One slice with several apps: who gets the executor, what happens to queues when hosting changes, illegal events."""

from math import inf

import pytest

from sluicegate.domain.actions import Drop, Expire, Run, StationAction, WakeAt
from sluicegate.domain.errors import ConfigurationError, IllegalEventError
from sluicegate.domain.events import Arrived, BatchingEvent, Finished, Hosted, HostingChanged, Woke
from sluicegate.domain.models.app import Promise, QueryClass
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.outcome import Reason
from sluicegate.domain.query import Query
from sluicegate.policies.batching.lane import Lane
from sluicegate.policies.batching.queue import DeadlineQueue
from sluicegate.policies.batching.registry import batching
from sluicegate.policies.promises.margins import UNKNOWN
from sluicegate.policies.serving.duty_cycle import DutyCycleStation
from sluicegate.policies.serving.slice_scheduler import Station, in_turn

CURVE = LatencyCurve((0.010, 0.012, 0.014, 0.016))


def hosted(name: str, curve: LatencyCurve = CURVE) -> tuple[Hosted, ...]:
    return (Hosted(name, 0.9, curve),)


def query(name: str, app: str, arrival: float, deadline: float, **more: int | QueryClass) -> Query:
    return Query(name, app, arrival, deadline, **more)  # type: ignore[arg-type]


def ran(actions: list[StationAction]) -> list[str]:
    return [q.id for a in actions if isinstance(a, Run) for q in a.queries]


def eager_station(*apps: str) -> Station:
    station = Station(batching("eager"))
    for app in apps:
        station.handle(HostingChanged(app, hosted(f"{app}-v"), 0.1), 0.0)
    return station


def test_one_batch_runs_at_a_time_and_what_came_meanwhile_forms_the_next() -> None:
    station = eager_station("a")
    assert ran(station.handle(Arrived(query("1", "a", 0.0, 0.1)), 0.0)) == ["1"]
    assert station.busy
    for i in (2, 3, 4):
        assert ran(station.handle(Arrived(query(str(i), "a", 0.001, 0.1 + i / 1000)), 0.001)) == []
    assert station.queued == station.queued_of("a") == 3
    assert ran(station.handle(Finished("a", "a-v", 1, 0.01), 0.01)) == ["2", "3", "4"]


def test_the_executor_is_offered_to_the_app_with_the_most_urgent_query() -> None:
    station = eager_station("a", "b")
    station.handle(Arrived(query("running", "a", 0.0, 0.1)), 0.0)
    station.handle(Arrived(query("later", "a", 0.0, 0.09)), 0.0)
    station.handle(Arrived(query("sooner", "b", 0.0, 0.08)), 0.0)
    assert ran(station.handle(Finished("a", "a-v", 1, 0.01), 0.01)) == ["sooner"]
    assert ran(station.handle(Finished("b", "b-v", 1, 0.01), 0.02)) == ["later"]


def test_in_turns_every_app_has_one_before_any_has_another_however_urgent() -> None:
    station = DutyCycleStation(batching("eager"))
    for app in "abc":
        station.handle(HostingChanged(app, hosted(f"{app}-v", LatencyCurve((0.010,))), 1.0), 0.0)
    station.handle(Arrived(query("a0", "a", 0.0, 0.9)), 0.0)
    for number in (1, 2):
        for place, app in enumerate("abc"):
            station.handle(Arrived(query(f"{app}{number}", app, 0.0, 0.5 + 0.1 * place)), 0.0)
    order, now = ["a0"], 0.0
    while station.busy:
        now += 0.010
        app = order[-1][0]
        order += ran(station.handle(Finished(app, f"{app}-v", 1, 0.010), now))
    assert order == ["a0", "b1", "c1", "a1", "b2", "c2", "a2"]


def test_strict_queries_come_before_best_effort_ones_of_another_app() -> None:
    station = eager_station("a", "b")
    station.handle(Arrived(query("running", "a", 0.0, 0.1)), 0.0)
    station.handle(Arrived(query("loose", "b", 0.0, 0.05, query_class=QueryClass.BEST_EFFORT)), 0.0)
    station.handle(Arrived(query("strict", "a", 0.0, 0.09)), 0.0)
    assert ran(station.handle(Finished("a", "a-v", 1, 0.01), 0.01)) == ["strict"]


def test_best_effort_of_the_same_app_waits_for_strict_and_rides_along_where_there_is_room() -> None:
    station = eager_station("a")
    loose = {"query_class": QueryClass.BEST_EFFORT}
    station.handle(Arrived(query("running", "a", 0.0, 0.1)), 0.0)
    for name, more in (("b1", loose), ("b2", loose), ("s1", {}), ("b3", loose), ("b4", loose), ("s2", {})):
        station.handle(Arrived(query(name, "a", 0.001, 0.1, **more)), 0.001)
    assert station.queued == station.queued_of("a") == 6
    actions = station.handle(Finished("a", "a-v", 1, 0.01), 0.01)
    assert ran(actions) == ["s1", "s2", "b1", "b2"]
    assert [a.rows for a in actions if isinstance(a, Run)] == [4]
    assert ran(station.handle(Finished("a", "a-v", 4, 0.016), 0.026)) == ["b3", "b4"]


def test_nobody_rides_along_who_would_make_a_strict_query_late() -> None:
    station = eager_station("a")
    station.handle(Arrived(query("running", "a", 0.0, 0.1)), 0.0)
    station.handle(Arrived(query("loose", "a", 0.0, 0.1, query_class=QueryClass.BEST_EFFORT)), 0.0)
    station.handle(Arrived(query("tight", "a", 0.0, 0.021)), 0.0)
    assert ran(station.handle(Finished("a", "a-v", 1, 0.01), 0.01)) == ["tight"]


def test_who_rides_along_makes_no_strict_query_late_where_fewer_rows_take_longer() -> None:
    """Four rows would be in time, and there are three: those take longer, so that one rides along."""
    station = Station(batching("eager"))
    station.handle(HostingChanged("a", hosted("a-v", LatencyCurve((0.01, 0.02, 0.09, 0.03))), 0.1), 0.0)
    loose = {"query_class": QueryClass.BEST_EFFORT}
    station.handle(Arrived(query("running", "a", 0.0, 0.1)), 0.0)
    for name, deadline, more in (("b1", 0.2, loose), ("b2", 0.25, loose), ("s1", 0.05, {})):
        station.handle(Arrived(query(name, "a", 0.0, deadline, **more)), 0.0)
    assert ran(station.handle(Finished("a", "a-v", 1, 0.01), 0.01)) == ["s1", "b1"]


def test_who_is_too_late_to_ride_along_keeps_no_place_from_those_behind() -> None:
    station = eager_station("a")
    loose = {"query_class": QueryClass.BEST_EFFORT}
    station.handle(Arrived(query("running", "a", 0.0, 0.1)), 0.0)
    for name, deadline in (("lost", 0.02), ("b1", 0.09), ("b2", 0.1)):
        station.handle(Arrived(query(name, "a", 0.001, deadline, **loose)), 0.001)
    station.handle(Arrived(query("s1", "a", 0.001, 0.1)), 0.001)
    assert ran(station.handle(Finished("a", "a-v", 1, 0.01), 0.01)) == ["s1", "b1", "b2"]
    assert station.queued == 1


@pytest.mark.parametrize("rule", ["adaptive", "eager", "early-drop", "greedy"])
@pytest.mark.parametrize("start", [0.0, 1.7e9])
def test_best_effort_runs_as_soon_as_the_last_strict_query_is_given_up(rule: str, start: float) -> None:
    station = Station(batching(rule))
    for app in ("a", "b"):
        station.handle(HostingChanged(app, hosted(f"{app}-v"), 0.1), start)
    assert ran(station.handle(Arrived(query("full", "a", start, start + 0.2, rows=4)), start + 0.084)) == ["full"]
    station.handle(Arrived(query("hopeless", "a", start, start + 0.105)), start + 0.09)
    loose = query("loose", "b", start, start + 0.2, query_class=QueryClass.BEST_EFFORT)
    station.handle(Arrived(loose), start + 0.09)
    assert ran(station.handle(Finished("a", "a-v", 4, 0.016), start + 0.1)) == ["loose"]
    assert station.queued == 0


def test_best_effort_that_comes_before_any_strict_query_finds_what_is_hosted() -> None:
    station = eager_station("a")
    assert ran(station.handle(Arrived(query("1", "a", 0.0, 0.1, query_class=QueryClass.BEST_EFFORT)), 0.0)) == ["1"]


def test_an_app_that_waits_leaves_the_executor_to_the_next() -> None:
    station = Station(batching("deadline"))
    station.handle(HostingChanged("a", hosted("a-v"), 1.0), 0.0)
    station.handle(HostingChanged("b", hosted("b-v", LatencyCurve((0.01,))), 1.0), 0.0)
    assert ran(station.handle(Arrived(query("waits", "a", 0.0, 0.5)), 0.0)) == []
    assert ran(station.handle(Arrived(query("full", "b", 0.0, 0.9)), 0.0)) == ["full"]


def test_a_queue_outlives_its_hosting_expires_and_can_be_drained() -> None:
    station = eager_station("a")
    station.handle(Arrived(query("1", "a", 0.0, 0.1)), 0.0)
    for i, deadline in ((2, 0.1), (3, 0.2), (4, 0.3)):
        station.handle(Arrived(query(str(i), "a", 0.0, deadline)), 0.0)
    station.handle(HostingChanged("a", (), 0.1), 0.005)
    assert station.handle(Finished("a", "a-v", 1, 0.01), 0.01) == []
    woke = station.handle(Woke(), 0.1)
    assert [a.query.id for a in woke if isinstance(a, Expire)] == ["2"]
    assert WakeAt(0.2) in woke
    assert [q.id for q in station.drain("a")] == ["3", "4"]
    assert station.queued == 0
    assert station.drain("never heard of") == ()


def test_new_variants_take_over_the_queue() -> None:
    station = eager_station("a")
    station.handle(HostingChanged("a", (), 0.1), 0.0)
    assert ran(station.handle(Arrived(query("1", "a", 0.0, 0.1)), 0.0)) == []
    actions = station.handle(HostingChanged("a", hosted("new"), 0.1), 0.01)
    assert [(a.variant, ran([a])) for a in actions if isinstance(a, Run)] == [("new", ["1"])]


@pytest.mark.parametrize("event", [Finished("a", "a-v", 1, 0.01), Finished("b", "b-v", 1, 0.01)])
def test_finished_without_its_batch_is_illegal_changes_nothing_and_tells_the_story(event: Finished) -> None:
    station = eager_station("a", "b")
    if event.app == "b":
        station.handle(Arrived(query("1", "a", 0.0, 0.1)), 0.0)
    busy = station.busy
    with pytest.raises(IllegalEventError, match="HostingChanged a: a-v") as raised:
        station.handle(event, 0.01)
    assert len(raised.value.story) >= 2
    assert station.busy is busy
    if busy:
        assert station.handle(Finished("a", "a-v", 1, 0.01), 0.01) == []


def test_one_wake_serves_all_apps_of_a_slice() -> None:
    station = Station(batching("eager"))
    assert station.handle(Arrived(query("1", "a", 0.0, 0.2)), 0.0) == [WakeAt(0.2)]
    assert station.handle(Arrived(query("2", "b", 0.0, 0.3)), 0.0) == []
    assert station.handle(Arrived(query("3", "b", 0.0, 0.1)), 0.0) == [WakeAt(0.1)]
    assert [type(a) for a in station.handle(Woke(), 0.1)] == [Expire, WakeAt]
    assert [a.query.id for a in station.handle(Woke(), 0.25) if isinstance(a, Expire)] == ["1"]
    assert [a.query.id for a in station.handle(Woke(), 0.3) if isinstance(a, Expire)] == ["2"]


def test_a_wake_before_its_time_asks_for_that_time_again_once() -> None:
    station = Station(batching("eager"))
    station.handle(Arrived(query("1", "a", 7.0, 7.5)), 7.0)
    assert station.handle(Woke(), 7.25) == [WakeAt(7.5)]
    assert station.handle(Woke(), 7.375) == []
    assert station.handle(Arrived(query("2", "b", 7.375, 7.5)), 7.375) == [], "one is asked for that comes as early"
    assert station.handle(Arrived(query("3", "b", 7.375, 7.4375)), 7.375) == [WakeAt(7.4375)]
    assert station.handle(Woke(), 7.40625) == [WakeAt(7.4375)], "this is another time"
    assert [type(a) for a in station.handle(Woke(), 7.4375)] == [Expire, WakeAt]
    assert [type(a) for a in station.handle(Woke(), 7.5)] == [Expire, Expire]
    assert station.handle(Woke(), 7.5) == []


class Saying:
    """A policy that says all of this of a query that comes, and holds none."""

    name = "saying"
    queued = 0
    head_deadline = inf

    def __init__(self, *said: StationAction) -> None:
        self.said = list(said)

    def handle(self, event: BatchingEvent, now: float) -> list[StationAction]:
        return self.said if isinstance(event, Arrived) else []

    def drain(self) -> tuple[Query, ...]:
        return ()

    def lend(self, rows: int, end: float) -> tuple[Query, ...]:
        return ()


def test_all_that_a_policy_decides_is_done_whatever_comes_first_and_wakes_that_are_asked_for_already_are_not() -> None:
    one, other = query("1", "a", 7.0, 7.25), query("2", "a", 7.0, 8.0)
    run, expire, drop = Run("a-v", (other,), 1), Expire(one), Drop(one, Reason.NO_CAPACITY)
    station = Station(lambda: Saying(WakeAt(9.0), expire, WakeAt(9.5), WakeAt(8.5), drop, run))
    assert station.handle(Arrived(one), 7.0) == [WakeAt(9.0), expire, WakeAt(8.5), drop, run]
    assert (station.busy, station.last_app) == (True, "a")


def test_what_a_policy_decides_at_the_end_of_its_batch_is_done() -> None:
    one = query("1", "a", 7.0, 8.0)
    drop = Drop(query("2", "a", 7.0, 7.5), Reason.NO_CAPACITY)

    class Ending(Saying):
        def handle(self, event: BatchingEvent, now: float) -> list[StationAction]:
            return [drop, WakeAt(9.0)] if isinstance(event, Finished) else super().handle(event, now)

    station = Station(lambda: Ending(Run("a-v", (one,), 1)))
    station.handle(Arrived(one), 7.0)
    assert station.handle(Finished("a", "a-v", 1, 0.25), 7.25) == [drop, WakeAt(9.0)]
    assert not station.busy


@pytest.mark.parametrize(
    ("last", "order"), [("", "abcd"), ("a", "bcda"), ("b", "cdab"), ("bb", "cdab"), ("d", "abcd"), ("z", "abcd")]
)
def test_turns_go_round_by_name_from_after_the_app_that_ran_last(last: str, order: str) -> None:
    lanes = [Lane(app, True, Saying()) for app in "cbda"]
    assert "".join(lane.app for lane in in_turn(lanes, last)) == order


def test_what_takes_no_turns_comes_only_where_nothing_waits_that_does() -> None:
    strict, loose = Lane("b", True, Saying()), [Lane(app, False, Saying()) for app in "ca"]
    assert in_turn([*loose, strict], "a") == [strict]
    assert [lane.app for lane in in_turn(loose, "b")] == ["c", "a"]


def test_the_policies_of_a_slice_are_named_by_app_and_class() -> None:
    station = eager_station("a")
    station.handle(Arrived(query("1", "b", 7.0, 7.5, query_class=QueryClass.BEST_EFFORT)), 7.0)
    station.handle(Arrived(query("2", "b", 7.0, 7.5, query_class=QueryClass.BEST_EFFORT)), 7.0)
    station.handle(Arrived(query("3", "b", 7.0, 7.5)), 7.0)
    queued = {place: policy.queued for place, policy in station.policies.items()}
    assert queued == {("a", "strict"): 0, ("b", "best_effort"): 2, ("b", "strict"): 1}
    assert (station.queued, station.queued_of("b"), station.queued_of("a")) == (3, 3, 0)


PROMISED = Promise(max_consecutive=1)
ROOM = 0.75
"""Of 1 s, less the quarter that a batch of the promised app takes: no batch of the others takes longer."""


def promising(station: Station) -> Station:
    """App a with a promise, and b, which asks for best effort, in batches of at most two that end within the room."""
    slow = Hosted("b-v", 0.8, LatencyCurve((0.5, 0.7, 0.8)))
    station.handle(HostingChanged("a", (Hosted("a-v", 0.9, LatencyCurve((0.25,))),), 1.0, PROMISED), 7.0)
    station.handle(HostingChanged("b", (slow,), 9.0, loose=True), 7.0)
    assert station.terms.blocking_s == ROOM
    return station


def loose(name: str, at: float) -> Arrived:
    return Arrived(query(name, "b", at, at + 9.0, query_class=QueryClass.BEST_EFFORT))


def test_beside_a_promise_others_run_no_longer_than_it_bears_and_are_promised_nothing() -> None:
    told: dict[str, HostingChanged] = {}

    class Hearing(Saying):
        def handle(self, event: BatchingEvent, now: float) -> list[StationAction]:
            if isinstance(event, HostingChanged):
                told[event.app] = event
            return super().handle(event, now)

    promising(Station(Hearing))
    assert [one.curve.seconds for one in told["a"].hosted] == [(0.25,)]
    assert told["a"].promise == PROMISED
    assert [one.curve.seconds for one in told["b"].hosted] == [(0.5, 0.7)]


def test_what_a_promised_batch_took_too_long_counts_against_its_own_turn() -> None:
    """Of 0.25 s, and not against what batches of the others may take, half of which would be more."""
    station = promising(Station(batching("eager")))
    for number in range(3):
        began = 8.0 + number
        station.handle(Arrived(query(f"a{number}", "a", began, began + 2.0)), began)
        station.handle(Finished("a", "a-v", 1, 0.3125), began + 0.3125)
    assert station.margins == (("a-v", 1.25), ("b-v", UNKNOWN))


@pytest.mark.parametrize(
    ("came", "first"),
    [
        (7.2, ["b1", "b2"]),  # 0.70 s are left, which two take
        (7.001, ["b1"]),  # 0.501 s are left
        (6.999, ["a1"]),  # less than even one takes
    ],
)
def test_best_effort_runs_before_a_promised_query_where_it_ends_within_what_that_bears(
    came: float, first: list[str]
) -> None:
    """The executor is free at 7.25; who is promised something came before."""
    station = promising(Station(batching("eager")))
    assert ran(station.handle(Arrived(query("a0", "a", 6.5, 9.0)), 6.5)) == ["a0"]
    for name in ("b1", "b2"):
        station.handle(loose(name, 6.75), 6.75)
    station.handle(Arrived(query("a1", "a", came, 9.5)), came)
    assert ran(station.handle(Finished("a", "a-v", 1, 0.25), 7.25)) == first


def test_best_effort_that_ran_before_is_followed_by_who_waited() -> None:
    station = promising(Station(batching("eager")))
    station.handle(Arrived(query("a0", "a", 6.9, 9.0)), 6.9)
    station.handle(loose("b1", 7.1), 7.1)
    station.handle(Arrived(query("a1", "a", 7.2, 9.5)), 7.2)
    assert ran(station.handle(Finished("a", "a-v", 1, 0.25), 7.25)) == ["b1"]
    station.handle(loose("b2", 7.3), 7.3)
    assert ran(station.handle(Finished("b", "b-v", 1, 0.5), 7.75)) == ["a1"], "b2 would end later than a1 bears"
    assert ran(station.handle(Finished("a", "a-v", 1, 0.25), 8.0)) == ["b2"]


@pytest.mark.parametrize(("later", "first"), [(4.9375, "a3"), (5.0, "b1")])
def test_best_effort_does_not_run_before_for_twenty_turns_after_one_that_was_more_than_full(
    later: float, first: str
) -> None:
    """A turn is a quarter of a second, in which one row runs: two have come within it."""
    station = promising(Station(batching("eager")))
    for name, at in (("a0", 7.0), ("a1", 7.1875)):
        station.handle(Arrived(query(name, "a", at, 9.5)), at)
    for at in (7.25, 7.5):
        station.handle(Finished("a", "a-v", 1, 0.25), at)
    now = 7.1875 + later
    station.handle(Arrived(query("a2", "a", now - 0.5, now + 2.0)), now - 0.5)
    station.handle(loose("b1", now - 0.25), now - 0.25)
    station.handle(Arrived(query("a3", "a", now - 0.125, now + 2.0)), now - 0.125)
    assert ran(station.handle(Finished("a", "a-v", 1, 0.25), now)) == [first]


def test_the_queue_orders_by_deadline_with_ties_in_arrival_order() -> None:
    queue = DeadlineQueue()
    for name, deadline in (("a", 3.0), ("b", 1.0), ("c", 3.0), ("d", 1.0), ("e", 2.0)):
        queue.push(query(name, "x", 0.0, deadline))
    assert [q.id for q in queue.items] == ["b", "d", "e", "a", "c"]


def test_batches_are_counted_in_rows() -> None:
    queue = DeadlineQueue()
    for name, rows in (("a", 2), ("b", 3), ("c", 1)):
        queue.push(query(name, "x", 0.0, 1.0, rows=rows))
    assert [queue.fit(n) for n in range(1, 8)] == [0, 2, 2, 2, 5, 6, 6]
    assert [q.id for q in queue.take(4)] == ["a"]
    assert queue.rows == 4
    assert [q.id for q in queue.take(4)] == ["b", "c"]
    assert (queue.rows, len(queue)) == (0, 0)


def test_unknown_names_and_options_are_refused_with_what_is_known() -> None:
    with pytest.raises(ConfigurationError, match="eager"):
        batching("egaer")
    with pytest.raises(ConfigurationError, match="guard_s"):
        batching("deadline", guard=1.0)
