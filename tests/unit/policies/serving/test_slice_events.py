"""What slices and their device pass on, count and tell: turns, batches that ran together, ends, heartbeats, leaving."""

from dataclasses import replace

import pytest

from sluicegate.domain.actions import Host, Run, StationAction
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import (
    EndsCounted,
    Finished,
    HostingChanged,
    LatencyMeasured,
    Registered,
    StationEvent,
    TurnsTold,
    Woke,
)
from sluicegate.domain.models.profile import BatchLatency
from sluicegate.domain.outcome import OutcomeKind
from sluicegate.domain.query import Query
from sluicegate.domain.table import Expectations, SelectionTable, Spread, TablesChanged
from sluicegate.policies.serving.device_actions import (
    Abandon,
    Answer,
    Beat,
    CatchUp,
    End,
    LoadVariant,
    Read,
    RunBatch,
    Seek,
    SendBack,
    SliceReport,
)
from sluicegate.policies.serving.device_events import (
    BatchEnded,
    BatchFailed,
    BeatDue,
    Fenced,
    Joined,
    Leaving,
    QueryCame,
    ReadingBegins,
    Suspended,
    TableCame,
    Woken,
)
from sluicegate.policies.serving.slice_scheduler import Station
from tests.simulation.device_world import BIG, SMALL, WHOLE, World
from tests.unit.test_device_core import of, serving


def beat(world: World, late: float | None = None) -> Beat:
    (said,) = of(Beat, world.tell(BeatDue() if late is None else BeatDue(late)))
    assert isinstance(said, Beat)
    return said


class Listening(Station):
    """Notes the turns and tables that it is told of; decides ``said`` where it is woken."""

    __slots__ = ("heard", "said")

    def __init__(self) -> None:
        super().__init__(lambda: pytest.fail("no lane is made"))
        self.heard: list[tuple[StationEvent, float]] = []
        self.said: list[StationAction] = []

    def handle(self, event: StationEvent, now: float) -> list[StationAction]:
        if isinstance(event, Woke):
            return self.said
        self.heard.append((event, now))
        return []


def listening(world: World) -> dict[str, Listening]:
    """In the place of its slices' stations, which know what is hosted."""
    stations = {}
    for name, part in world.core.slices.items():
        part.station = stations[name] = Listening()
    return stations


def test_turns_are_told_to_the_slices_that_are_to_serve_their_app_and_to_no_others() -> None:
    world = serving()
    stations = listening(world)
    told = {app: TurnsTold(app, 0.0, 7, world.now - 0.25) for app in ("a", "b", "c")}
    for app in ("c", "b", "a"):
        world.tell(told[app])
    assert stations[BIG.name].heard == [(told["a"], world.now)]
    assert stations[SMALL.name].heard == [(told["b"], world.now)]


def test_a_table_is_told_to_slices_of_its_kind_and_so_is_that_it_goes_once() -> None:
    world = serving()
    stations = listening(world)
    none = Spread(0.0, 0.0, 0.0)
    table = SelectionTable(
        app="a", worker_class="gpu", variants=("a-large",), slo=0.5, qps=3.0, workers=2, slacks=(0.0,),
        actions=bytes([0]),
        expected=Expectations(
            accuracy=0.9, violation=0.0, mean_batch=1.0, utilisation=0.5,
            accuracy_spread=none, batch_spread=none, response_spread=none,
        ),
    )  # fmt: skip
    world.tell(TableCame("a", "gpu:3g", 0.5, 3.0, table))
    for _ in range(2):
        world.tell(TableCame("a", "gpu:3g", 0.5, 3.0, None))
    assert stations[BIG.name].heard == []
    assert [event for event, _ in stations[SMALL.name].heard] == [
        TablesChanged("a", (table,)),
        TablesChanged("a", ()),
    ]


def test_a_query_that_is_not_here_is_not_run() -> None:
    world = serving()
    gone = Query("gone", "a", world.now, world.now + 0.5)
    listening(world)[BIG.name].said = [Run("a-large", (gone,), 1)]
    with pytest.raises(IllegalEventError, match=r"4g\.0 is to run query gone at .*, which is not here"):
        world.core.handle(Woken(BIG.name), world.now)


def test_profiles_that_are_registered_count_on_every_slice_from_then() -> None:
    world = serving()
    profiles = world.catalogue.profiles
    assert isinstance(profiles, dict)

    def expected(variant: str, part: str) -> float:
        run = Run(variant, (Query("q", variant[0], world.now, world.now + 9.0),), 1)
        return world.core.slices[part].times.expected(run)

    def both() -> tuple[float, float]:
        return expected("a-large", BIG.name), expected("b-only", SMALL.name)

    before = both()
    assert before == pytest.approx((0.04 * 1.5 * 1.2, 0.1 * 2.5 * 1.2))  # by ``world_catalogue``
    for place, seconds in ((("a-large", "gpu:4g"), 0.75), (("b-only", "gpu:3g"), 1.25)):
        profiles[place] = replace(profiles[place], points=(BatchLatency(1, 0.5, seconds),))
    assert both() == before
    world.tell(Registered((), (), ()))
    assert both() == (0.75, 1.25)


def crowded(*, cuttable: bool = True) -> tuple[World, list[Query]]:
    """Before both slices two queries of b wait, which have no room for more than 24."""
    world = serving(("b", "b-only", BIG), ("b", "b-only", SMALL), shared=True, cuttable=cuttable)
    apps = world.catalogue.apps
    assert isinstance(apps, dict)
    apps["b"] = replace(apps["b"], slo=30.0)
    made = [query for query in (world.query("b", SMALL.name) for _ in range(26)) if query is not None]
    assert on_slices(world) == 24
    return world, made


def on_slices(world: World) -> int:
    return sum(part.queued for part in world.core.slices.values())


@pytest.mark.parametrize("cuttable", [True, False])
def test_who_waits_before_the_slices_goes_to_one_as_soon_as_another_has_left(cuttable: bool) -> None:
    world, _ = crowded(cuttable=cuttable)
    assert [len(world.runs[part.name].run.queries) for part in (BIG, SMALL)] == [1, 1]
    world.end(SMALL.name)
    assert on_slices(world) == 24, "one has left, one has come"
    assert beat(world).queued == 25


def test_who_waits_before_the_slices_goes_back_after_a_drains_patience_too() -> None:
    world, made = crowded()
    world.plan((), geometries={"gpu0": (WHOLE,)})
    world.now += 3.0
    back = of(SendBack, world.tell(Woken("/patience")))
    running = {query for run in world.runs.values() for query in run.run.queries}
    assert {said.query for said in back if isinstance(said, SendBack)} == {*made} - running
    assert set(world.core.queries) == running


def two_executors() -> World:
    """App a on a slice with two, which take twice as long together as alone."""
    world = World(executors={"gpu:4g": 2})
    world.plan((("a", "a-large", BIG),))
    while world.loads():
        world.load(world.loads()[0])
    return world


def begin(world: World) -> None:
    """One batch more."""
    running = len(world.runs)
    world.query("a")
    while len(world.runs) == running:
        assert world.wake()


def test_a_batch_that_ran_alone_counts_as_if_both_had_run_and_one_beside_another_as_it_took() -> None:
    world = two_executors()
    begin(world)
    world.end("4g.0", 0.0625)
    assert beat(world).slices[0].measured == (LatencyMeasured("a-large", "gpu:4g", 1, 0.125, 1),)
    begin(world)
    world.now += 0.01
    begin(world)
    world.end("4g.0", 0.0625)
    world.end("4g.0#1", 0.03125)
    (measured,) = beat(world).slices[0].measured
    assert measured == LatencyMeasured("a-large", "gpu:4g", 1, (0.0625 + 0.03125) / 2, 2), "as it began beside it"


def test_a_device_is_busy_by_the_part_of_its_executors_that_run() -> None:
    world = two_executors()
    begin(world)
    world.end("4g.0", 0.5)
    assert beat(world).busy_s == 0.25
    assert beat(world).busy_s == 0.0


def test_a_slice_is_busy_until_the_first_of_its_executors_is_free_and_not_while_one_is() -> None:
    world = two_executors()
    expected = 2.0 * 0.04 * 1.5 * 1.2  # p95 of one row by ``world_catalogue``, while both run
    begin(world)
    first = world.now
    world.now += 0.0625
    alone = beat(world).slices[0]
    assert (alone.busy_for, alone.age) == (0.0, 0.0625)
    begin(world)
    both = beat(world).slices[0]
    assert both.busy_for == pytest.approx(expected - (world.now - first))
    assert both.age == world.now - first
    world.now += 9.0
    assert beat(world).slices[0].busy_for == 0.0


def test_rows_that_wait_are_told_for_each_slice_and_not_those_of_the_batch_that_runs() -> None:
    """Who adds what is told to the rest of that batch would count it twice."""
    world = serving()
    world.query("a", BIG.name, rows=2)
    assert [part.rows for part in beat(world).slices] == [0, 0]
    world.query("a", BIG.name, rows=3)
    world.query("a", BIG.name)
    world.query("b", SMALL.name)
    told = beat(world)
    assert [(part.slice, part.rows, part.busy_for > 0.0) for part in told.slices] == [
        (BIG.name, 4, True),
        (SMALL.name, 0, True),
    ]
    assert told.queued == 4, "queries here, of both slices, those that run too"


def held_up() -> World:
    """a-small is to take the place of a-large, with which a batch began before."""
    world = serving(("a", "a-large", BIG))
    world.query("a")
    world.plan((("a", "a-small", BIG),))
    assert [load.variant for load in world.commands[BIG.name] if isinstance(load, LoadVariant)] == ["a-small"]
    return world


def overdue(world: World, seconds: float) -> float:
    world.now += seconds
    return beat(world).slices[0].overdue


def test_an_executor_that_runs_nothing_while_it_loads_is_left_by_routers_and_kept_by_plans() -> None:
    world = held_up()
    assert [overdue(world, 1.0) for _ in range(3)] == [0.0, 0.001, 0.001]
    world.load(BIG.name, seconds=5.0)
    assert overdue(world, 0.25) == 0.0, "what waited for the load may begin now"
    assert overdue(world, 1.0) == 0.0, "by one heartbeat alone"
    assert overdue(world, 1.0) > 1.5, "and hangs all the same"


def test_what_a_batch_took_while_something_was_loaded_is_not_told_as_measured() -> None:
    """It may have waited for it: plans would take the variant for slow, and pass it over for good."""
    world = held_up()
    world.end(BIG.name, 4.0)
    said = beat(world)
    assert (said.slices[0].measured, said.busy_s) == ((), 4.0)
    world = held_up()
    world.load(BIG.name, seconds=3.0)
    world.end(BIG.name, 0.0625)
    assert beat(world).slices[0].measured == (), "it began before"
    world.query("a")
    world.end(BIG.name, 0.03125)
    (measured,) = beat(world).slices[0].measured
    assert measured == LatencyMeasured("a-small", "gpu:4g", 1, 0.03125, 1)


def test_a_report_says_nothing_of_delays_that_it_is_not_told_of() -> None:
    told = SliceReport("4g.0", "gpu:4g", 3, 0.25, ("a-large",), (), ())
    assert (told.age, told.overdue, told.margins) == (0.0, 0.0, ())


def test_a_heartbeat_says_how_late_the_event_loop_woke_and_nothing_where_it_was_in_time() -> None:
    world = serving()
    assert beat(world).late == 0.0
    assert beat(world, 0.375).late == 0.375


def test_answers_in_time_late_ones_and_what_expired_are_counted_by_app_until_they_are_told() -> None:
    world = serving()
    for _ in range(2):
        world.query("a")
        world.end(BIG.name, 0.5)  # at its deadline, which is in time
    for _ in range(3):
        world.query("a")
    world.end(BIG.name, 0.25)
    world.end(BIG.name, 0.3125)
    late = world.query("b", SMALL.name, late=True)
    assert late is not None
    assert [end.kind for end in of(End, world.said) if isinstance(end, End)] == [OutcomeKind.EXPIRED]
    answers = [answer for answer in of(Answer, world.said) if isinstance(answer, Answer)]
    assert [len(answer.queries) for answer in answers] == [1, 1, 1, 2]
    assert beat(world).ended == (EndsCounted("a", 3, 2), EndsCounted("b", 0, 1))
    assert beat(world).ended == ()


def test_what_a_model_failed_at_counts_neither_as_in_time_nor_as_missed() -> None:
    world = serving()
    world.query("a")
    world.end(BIG.name, fails=True)
    assert beat(world).ended == ()


def test_who_leaves_abandons_nothing_by_what_is_planned_from_then_on_and_reads_nothing_more() -> None:
    world = serving()
    running = world.query("a")
    assert running is not None
    world.tell(Leaving())
    assert not world.core.named
    assert world.plan((("a", "a-small", BIG), ("b", "b-only", SMALL))) == []  # which goes on naming it
    assert beat(world).seen.leaving
    assert not world.core.named
    assert not of(Abandon, world.plan((), incarnations={"gpu0": "other"}))
    assert not of(Abandon, world.tell(Fenced()))
    with pytest.raises(IllegalEventError, match="no plan counts on this worker"):
        world.core.handle(QueryCame(replace(running, id="later"), slice=BIG.name), world.now)
    world.end(BIG.name)
    assert world.ends[running] == 1


def test_who_is_declared_dead_abandons_all_though_the_plan_names_what_it_does_not_know_yet() -> None:
    world = serving()
    running = world.query("a")
    placed = (("a", "not-read-yet", BIG), ("b", "b-only", SMALL))
    (abandoned,) = of(Abandon, world.plan(placed, incarnations={"gpu0": "other"}))
    assert isinstance(abandoned, Abandon) and abandoned.queries == (running,)
    assert not world.core.named


def test_it_reads_from_a_fence_as_far_as_all_was_moved_and_all_was_written() -> None:
    world = World()
    assert of(Read, world.plan((("a", "a-large", BIG),), fences={"gpu0": 7, "gpu1": 9}))
    assert world.tell(ReadingBegins(7, 20, swept=9)) == []
    assert world.tell(ReadingBegins(6, 7, swept=9)) == [Seek(7)]
    assert world.tell(ReadingBegins(6, 20, swept=7)) == [Seek(7)]


def test_a_standstill_as_long_as_a_worker_may_stand_still_changes_nothing() -> None:
    world = serving()
    assert world.tell(Suspended(1.5)) == []
    assert world.tell(Suspended(1.501)) == [CatchUp()]


def test_who_is_counted_on_joins_no_second_time() -> None:
    world = serving()
    with pytest.raises(IllegalEventError, match=r"gpu0\.7 joins at .* while plans count on gpu0\.1"):
        world.core.handle(Joined("gpu0.7"), world.now)
    assert world.core.incarnation == "gpu0.1"


@pytest.mark.parametrize("seat", [-1, 2, 3])
def test_what_happens_to_an_executor_that_a_slice_has_not_is_illegal(seat: int) -> None:
    world = two_executors()
    begin(world)
    begin(world)
    for event in (BatchEnded("4g.0", 0.1, 0.1, seat), BatchFailed("4g.0", "it broke", seat=seat)):
        with pytest.raises(IllegalEventError, match=rf"4g\.0 has no executor {seat} at"):
            world.core.handle(event, world.now)


@pytest.mark.parametrize(("seconds", "order"), [(0.125, [Answer, RunBatch]), (0.126, [RunBatch, Answer])])
def test_a_policy_hears_of_misses_before_they_are_told_and_of_what_was_in_time_after(
    seconds: float, order: list[type]
) -> None:
    world = serving()
    first = world.query("a")
    assert first is not None
    world.now += 0.4
    second = world.query("a")
    world.now = first.deadline - 0.125
    said = [action for action in world.end(BIG.name, seconds) if isinstance(action, Answer | RunBatch)]
    assert [type(action) for action in said] == order
    assert world.runs[BIG.name].run.queries == (second,)


@pytest.mark.parametrize("fails", [True, False])
def test_a_station_is_told_how_long_the_model_took_and_nothing_of_a_batch_that_failed(fails: bool) -> None:
    world = serving()
    world.query("a")
    stations = listening(world)
    world.end(BIG.name, 0.25, fails=fails)
    finished = Finished("a", "a-large", 1, 0.0 if fails else 0.25, failed=fails)
    assert stations[BIG.name].heard == [(finished, world.now)]
    assert stations[SMALL.name].heard == []


def test_what_waits_for_an_app_that_is_dropped_before_it_is_loaded_goes_to_others() -> None:
    world = World()
    world.plan((("a", "a-large", BIG), ("b", "b-only", SMALL)))
    waiting = [world.query("a"), world.query("a"), world.query("b", SMALL.name)]
    world.load(SMALL.name)
    assert world.runs[SMALL.name].run.queries == (waiting[2],)
    dropped = world.plan((("b", "b-only", SMALL),))
    assert of(SendBack, dropped) == [SendBack(query) for query in waiting[:2] if query]
    world.load(BIG.name)
    assert world.loaded[BIG.name] == set() and world.loads() == []


def test_what_a_promise_counts_on_stays_where_it_is_counted_when_its_app_is_forgotten() -> None:
    world = serving()
    made = [world.query("b", SMALL.name) for _ in range(3)]
    running = world.runs[SMALL.name].run.queries
    part = world.core.slices[SMALL.name]
    part.staging.handle = lambda _event, _now: [Host(HostingChanged("b", (), 2.0))]  # type: ignore[method-assign]
    part.staging.wants = lambda _app: False  # type: ignore[method-assign]
    part.staging_woke(world.now, world.said)
    assert of(SendBack, world.said) == []
    world.end(SMALL.name)
    (answer,) = of(Answer, world.said)
    assert isinstance(answer, Answer) and answer.queries == running
    (promise,) = answer.promises
    assert promise is not None and promise.queries == 1
    assert [query for query in made if query in world.core.queries] == made[len(running) :]
