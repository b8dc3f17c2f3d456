"""One slice with several apps: who gets the executor, what happens to queues when hosting changes, illegal events."""

import pytest

from sluicegate.domain.actions import Expire, Run, StationAction, WakeAt
from sluicegate.domain.errors import ConfigurationError, IllegalEventError
from sluicegate.domain.events import Arrived, Finished, Hosted, HostingChanged, Woke
from sluicegate.domain.models.app import QueryClass
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.query import Query
from sluicegate.policies.batching.queue import DeadlineQueue
from sluicegate.policies.batching.registry import batching
from sluicegate.policies.serving.duty_cycle import DutyCycleStation
from sluicegate.policies.serving.slice_scheduler import Station

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


def test_who_is_too_late_to_ride_along_keeps_no_place_from_those_behind() -> None:
    station = eager_station("a")
    loose = {"query_class": QueryClass.BEST_EFFORT}
    station.handle(Arrived(query("running", "a", 0.0, 0.1)), 0.0)
    for name, deadline in (("lost", 0.02), ("b1", 0.09), ("b2", 0.1)):
        station.handle(Arrived(query(name, "a", 0.001, deadline, **loose)), 0.001)
    station.handle(Arrived(query("s1", "a", 0.001, 0.1)), 0.001)
    assert ran(station.handle(Finished("a", "a-v", 1, 0.01), 0.01)) == ["s1", "b1", "b2"]
    assert station.queued == 1


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
