"""What carries planners and elastic capacity in a run: what reaches whom, when, and what those who are down miss."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from typing_extensions import override

from sluicegate.domain.actions import Announce, Publish, WakeAt
from sluicegate.domain.events import DemandCounted, DeviceSeen, EndsCounted, InstanceRead, Registered, Ticked
from sluicegate.domain.fleet.instance import Instance
from sluicegate.domain.lease import Lease
from sluicegate.domain.outcome import Outcome, OutcomeKind
from sluicegate.domain.plan import NO_EPOCH, Epoch, Plan
from sluicegate.domain.query import Query
from sluicegate.domain.table import Expectations, SelectionTable, Spread
from sluicegate.planner.capacity.events import (
    Bill,
    EndInstance,
    Leading,
    LookUp,
    Ordered,
    Release,
    Released,
    Restore,
    Start,
    Stop,
    VariantWanted,
    Withdraw,
    WorkerReported,
    WorkerStarted,
    WorkerStopped,
)
from sluicegate.planner.capacity.procurement import (
    AskSpot,
    CostMeter,
    InstanceUp,
    Kind,
    Noticed,
    OrderOnDemand,
    Prices,
    SpotAnswered,
)
from sluicegate.planner.control.events import (
    CatchUp,
    ClockRead,
    DeviceHeard,
    DeviceNoted,
    End,
    LogReached,
    Move,
    PlanRead,
    PlansRead,
    Readmit,
    SafeMode,
    SafeModeRead,
    StandIn,
    Sweep,
    SweepBegan,
    Swept,
    TableRead,
    TablesReached,
    WorkLeft,
)
from sluicegate.planner.control.leader_lease import LeaseRead, StepDown, Write
from sluicegate.planner.control.replan_trigger import Solve, Solved
from sluicegate.planner.policy_tables.keys import Shelf, TableName
from sluicegate.planner.policy_tables.table_schedule import Made, Make, PutTable, WithdrawTable
from sluicegate.planner.problems.problem import Allocation, Problem
from sluicegate.policies.serving.device_actions import Beat, SliceReport
from sluicegate.policies.serving.device_events import TableCame
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.simulator.engine import modelled_tables
from sluicegate.simulator.engine.control_plane import ControlEvent
from sluicegate.simulator.engine.elastic_control import CapacityModel, ElasticControl, SpotNotice
from sluicegate.simulator.engine.faults import Failure
from sluicegate.simulator.engine.modelled_tables import TableModel
from sluicegate.simulator.engine.planned_control import Controlled, PlannerModel
from sluicegate.simulator.engine.timeline import Timeline

START = 1000.0
HOP = 0.25
PLAN = Plan(epoch=Epoch(3, 7), created=START)
PROBLEM = Problem(demands=(), devices=(), catalogue=Catalogue.of([], [], []))


class FakePlant:
    """Notes what a control plane does to it, by seconds since the start."""

    def __init__(self, start: float = START) -> None:
        self.timeline = Timeline(start)
        self.work_topics: Sequence[str] = ("old", "new", "spot")
        self.instances: dict[str, Instance] = {}
        self.done: list[tuple[Any, ...]] = []
        self.waiting: dict[str, list[tuple[int, list[Query]]]] = {}

    def _note(self, now: float, *what: Any) -> None:
        self.done.append((now - START, *what))

    def publish(self, plan: Plan, now: float) -> None:
        self._note(now, "publish", plan)

    def table(self, came: Any, now: float) -> None:
        self._note(now, "table", came)

    def left(self, device: str) -> tuple[int, Sequence[Query]]:
        return self.waiting[device].pop(0)

    def announced(self, announcer: str, said: Announce, now: float) -> None:
        self._note(now, "announced", announcer, said.subject, said.state)

    def readmit(self, query: Query, now: float) -> None:
        self._note(now, "readmit", query.id)

    def ended(self, query: Query, outcome: Outcome) -> None:
        self.done.append((outcome.at - START, "ended", query.id, outcome.kind))

    def begin_worker(self, device: str, now: float) -> None:
        self._note(now, "begin", device)

    def stop_worker(self, device: str, now: float) -> None:
        self._note(now, "stop", device)

    def end_worker(self, device: str, now: float) -> None:
        self._note(now, "end", device)

    def record(self, key: str, instance: Instance | None, now: float) -> None:
        self._note(now, "record", key, instance)


Says = Callable[[str, Any], Sequence[Any]]


class Heard:
    """What cores are told, (seconds since the start, who, event), and what they say to it."""

    def __init__(self, says: Says = lambda _who, _event: ()) -> None:
        self.says = says
        self.told: list[tuple[float, str, Any]] = []

    def core(self, who: str) -> Any:
        return _Core(self, who)

    def of(self, *kinds: type) -> list[tuple[float, str, Any]]:
        return [one for one in self.told if isinstance(one[2], kinds)]


@dataclass(eq=False)
class _Core:
    heard: Heard
    who: str
    led: bool = False

    def handle(self, event: Any, now: float) -> Sequence[Any]:
        self.heard.told.append((now - START, self.who, event))
        return self.heard.says(self.who, event)

    def leads(self, _now: float) -> bool:
        return self.led


class Answers:
    """A planner whose answers are told apart by their objective."""

    def __init__(self, objective: float = 0.0) -> None:
        self.name = "answers"
        self.objective = objective

    def allocate(self, _problem: Problem) -> Allocation:
        return Allocation(placements=(), served={}, objective=self.objective, bound=1.0, nondeterministic=True)


def planned(
    says: Says = lambda _who, _event: (),
    *,
    failures: tuple[Failure, ...] = (),
    solve_s: Any = 2.0,
    timer: Callable[[], float] = lambda: 0.0,
) -> tuple[Controlled, FakePlant, Heard]:
    """Two planners, started at START."""
    heard, plant = Heard(says), FakePlant()
    model = PlannerModel(solve_s=solve_s, hop_s=HOP, planners=2, failures=failures)
    control = Controlled(heard.core, Answers, model, timer)
    control.start(plant, START)
    return control, plant, heard


def once(event: Any, *actions: Any, who: str = "planner0.1") -> Says:
    return lambda name, told: actions if (name, told) == (who, event) else ()


def at(plant: FakePlant, seconds: float, control: Any, event: Any) -> None:
    plant.timeline.at(START + seconds, lambda _, now: control.heard(event, now))


ASKED = VariantWanted("any")
NOTED = DeviceNoted("old", "test", withdrawn=True)


def test_a_plan_goes_out_at_once_and_every_planner_reads_it_one_hop_later() -> None:
    control, plant, heard = planned(once(NOTED, Publish(PLAN)))
    plant.timeline.at(START + 3.0, lambda _, now: control.heard(NOTED, now))
    plant.timeline.run_until(START + 9.0)
    assert plant.done == [(3.0, "publish", PLAN)] and control.epochs == 1
    assert heard.of(PlanRead) == [(3.25, "planner0.1", PlanRead(PLAN)), (3.25, "planner1.1", PlanRead(PLAN))]


def test_a_lease_that_is_written_is_read_by_every_planner_one_hop_later() -> None:
    lease = LeaseRead(Lease(term=2, holder="planner0.1"))
    control, plant, heard = planned(once(NOTED, Write(lease.lease)))
    plant.timeline.at(START + 3.0, lambda _, now: control.heard(NOTED, now))
    plant.timeline.run_until(START + 9.0)
    assert heard.of(LeaseRead) == [(3.25, "planner0.1", lease), (3.25, "planner1.1", lease)]


def test_a_planner_that_fails_hears_nothing_and_reads_the_newest_of_all_when_it_starts_as_another() -> None:
    lease = Lease(term=2, holder="planner0.1")
    said = once(NOTED, Publish(PLAN), Write(lease))
    control, plant, heard = planned(said, failures=(Failure("planner1", 2.0 + START, 5.0 + START),))
    registered = Registered((), (), ())
    plant.timeline.at(START + 3.0, lambda _, now: control.heard(NOTED, now))
    plant.timeline.at(START + 3.5, lambda _, now: control.heard(registered, now))
    plant.timeline.run_until(START + 9.0)
    first = [(at, event) for at, who, event in heard.told if who == "planner1.1"]
    assert first == [(0.0, ClockRead(START)), (0.0, LogReached()), (0.0, TablesReached())]
    again = [(at, event) for at, who, event in heard.told if who == "planner1.2"]
    read = [ClockRead(START + 5.0), NOTED, registered, PlanRead(PLAN), LeaseRead(lease), LogReached(), TablesReached()]
    assert again == [(5.0, event) for event in read]
    assert [one.starts for one in control.running] == [1, 2]


def test_a_planner_whose_failures_overlap_starts_once_when_the_last_is_over() -> None:
    both = (Failure("planner1", START + 2.0, START + 6.0), Failure("planner1", START + 3.0, START + 4.0))
    control, plant, heard = planned(once(NOTED), failures=both)
    plant.timeline.at(START + 5.0, lambda _, now: control.heard(NOTED, now))
    plant.timeline.run_until(START + 9.0)
    assert [(at, who) for at, who, event in heard.told if event == NOTED] == [(5.0, "planner0.1"), (6.0, "planner1.2")]
    assert [one.starts for one in control.running] == [1, 2]


def test_what_a_planner_asked_for_does_not_reach_its_next_start_nor_one_that_stepped_down() -> None:
    asked = DemandCounted("a", 3, 0.5)

    def says(who: str, event: Any) -> Sequence[Any]:
        if event != asked:
            return ()
        both = (CatchUp(4), Solve(PROBLEM, "because", number=6))
        return (*both, StepDown("why")) if who == "planner0.1" else both

    control, plant, heard = planned(says, failures=(Failure("planner1", START + 4.0, START + 4.5),))
    plant.timeline.at(START + 3.0, lambda _, now: control.heard(asked, now))
    plant.timeline.run_until(START + 9.0)
    assert heard.of(PlansRead) == [(3.25, "planner1.1", PlansRead(4, devices=("old", "new", "spot"), committed={}))]
    assert heard.of(Solved) == []
    assert control.nondeterministic == 2 and control.solve_s == [0.0, 0.0]


def test_an_answer_is_there_after_the_seconds_that_solving_takes_and_says_them() -> None:
    wall = iter([10.0, 10.5])
    ask = Solve(PROBLEM, "because", number=6)
    control, plant, heard = planned(once(NOTED, ask), timer=lambda: next(wall))
    plant.timeline.at(START + 3.0, lambda _, now: control.heard(NOTED, now))
    plant.timeline.run_until(START + 9.0)
    ((at, who, solved),) = heard.of(Solved)
    assert (at, who) == (5.0, "planner0.1")
    assert (solved.reason, solved.solve_s, solved.number, solved.provisional) == ("because", 2.0, 6, False)
    assert control.solve_s == [0.5]


def test_an_answer_that_is_measured_is_there_after_as_long_as_it_took() -> None:
    wall = iter([10.0, 10.5])
    ask = Solve(PROBLEM, "because", number=6)
    control, plant, heard = planned(once(NOTED, ask), solve_s="measured", timer=lambda: next(wall))
    plant.timeline.at(START + 3.0, lambda _, now: control.heard(NOTED, now))
    plant.timeline.run_until(START + 9.0)
    ((at, _, solved),) = heard.of(Solved)
    assert (at, solved.solve_s) == (3.5, 0.5)


def test_a_stand_in_answers_at_once_and_for_the_time_being() -> None:
    control, plant, heard = planned(once(NOTED, StandIn(PROBLEM, "late", 6)))
    plant.timeline.at(START + 3.0, lambda _, now: control.heard(NOTED, now))
    plant.timeline.run_until(START + 9.0)
    ((at, _, solved),) = heard.of(Solved)
    assert (at, solved.reason, solved.solve_s, solved.number, solved.provisional) == (3.0, "late", 0.0, 6, True)
    assert control.solve_s == [] and control.nondeterministic == 0


def test_a_planner_wakes_when_it_asked_to_unless_it_is_another_by_then() -> None:
    def says(_who: str, event: Any) -> Sequence[Any]:
        return (WakeAt(START + 2.0), WakeAt(START + 6.0)) if event == ClockRead(START) else ()

    _, plant, heard = planned(says, failures=(Failure("planner0", START + 4.0, START + 5.0),))
    plant.timeline.run_until(START + 9.0)
    woken = [(at, who) for at, who, event in heard.of(ClockRead) if event.wall > START and at != 5.0]
    assert woken == [(2.0, "planner0.1"), (2.0, "planner1.1"), (6.0, "planner1.1")]


def query(name: str) -> Query:
    return Query(name, "a", START, START + 1.0)


def test_each_sweep_of_a_device_begins_where_the_one_before_ended() -> None:
    gone = End(Outcome.of(query("2"), OutcomeKind.EXPIRED, START + 3.0))

    def says(who: str, event: Any) -> Sequence[Any]:
        if who != "planner0.1":
            return ()
        if event == NOTED:
            return (Sweep("old"),)
        if isinstance(event, WorkLeft):
            return (Move("old", (Readmit(), gone)),)
        return (CatchUp(4),) if isinstance(event, Swept) else ()

    control, plant, heard = planned(says)
    plant.waiting["old"] = [(5, [query("1"), query("2")]), (9, [])]
    for at in (3.0, 4.0):
        plant.timeline.at(START + at, lambda _, now: control.heard(NOTED, now))
    plant.timeline.run_until(START + 9.0)
    told = [event for at, who, event in heard.told if who == "planner0.1" and at >= 3.0 and event != NOTED]
    assert [e for e in told if isinstance(e, SweepBegan)] == [SweepBegan("old", 5, 7), SweepBegan("old", 9, 9)]
    (work,) = [e for e in told if isinstance(e, WorkLeft)]
    assert [(left.offset, left.query.id) for left in work.records if left.query] == [(5, "1"), (6, "2")]
    assert plant.done == [(3.0, "readmit", "1"), (3.0, "ended", "2", OutcomeKind.EXPIRED)]
    (read,) = heard.of(PlansRead)
    assert (read[0], read[2].committed) == (3.25, {"old": 7}), "nothing was moved by the second: it says no more"


def test_planners_hear_of_a_heartbeat_what_was_measured_and_the_least_that_any_slice_is_overdue() -> None:
    control, _, heard = planned()
    control.heard(beat(overdue=(0.75, 0.5)), START + 1.0)
    ends = (EndsCounted("a", 4, 1),)
    assert heard.of(DeviceHeard)[-2:] == [
        (1.0, who, DeviceHeard(SEEN, (), (), 0.5, 0.125, ends)) for who in ("planner0.1", "planner1.1")
    ]
    control.heard(beat(), START + 2.0)
    assert heard.told[-1][2].overdue == 0.0
    before = len(heard.told)
    control.heard(InstanceRead("k", None), START + 2.0)
    control.heard(ASKED, START + 2.0)
    assert len(heard.told) == before, "instances and wishes are no matter of planners"


def test_safe_mode_is_announced_by_the_planner_for_the_device() -> None:
    said = SafeMode("a", "old", on=True, detail="x")
    control, plant, _ = planned(once(NOTED, said))
    control.heard(NOTED, START + 1.0)
    assert plant.done == [(1.0, "announced", "planner-old", said.said.subject, said.said.state)]


def test_what_planners_say_of_promises_is_read_by_all_and_by_who_starts_later() -> None:
    said = SafeMode("a", "old", on=True, detail="x")
    control, plant, heard = planned(once(NOTED, said), failures=(Failure("planner1", START + 2.0, START + 4.0),))
    at(plant, 1.0, control, NOTED)
    plant.timeline.run_until(START + 6.0)
    assert heard.of(SafeModeRead) == [
        (1.25, "planner0.1", SafeModeRead("a", "old", True)),
        (1.25, "planner1.1", SafeModeRead("a", "old", True)),
        (4.0, "planner1.2", SafeModeRead("a", "old", True)),
    ]


NAME = TableName(Shelf("a", "gpu", 0.25), 30.0)
TABLE = SelectionTable(
    app="a",
    worker_class="gpu",
    variants=("v",),
    slo=0.25,
    qps=30.0,
    workers=2,
    slacks=(0.0, 0.25),
    actions=b"\0\0",
    expected=Expectations(
        accuracy=0.5,
        violation=0.25,
        mean_batch=1.0,
        utilisation=0.5,
        accuracy_spread=Spread(0.5, 0.5, 0.5),
        batch_spread=Spread(1.0, 1.0, 1.0),
        response_spread=Spread(0.125, 0.125, 0.125),
    ),
)


def test_a_table_and_its_withdrawal_reach_devices_and_planners_one_hop_later_and_who_starts_reads_what_stands() -> None:
    other = TableName(NAME.shelf, 20.0)
    put, withdraw = DemandCounted("a", 3, 0.5), DemandCounted("a", 5, 0.5)

    def says(who: str, event: Any) -> Sequence[Any]:
        if who != "planner0.1":
            return ()
        if event == put:
            return (PutTable(NAME, TABLE), PutTable(other, TABLE))
        return (WithdrawTable(NAME),) if event == withdraw else ()

    control, plant, heard = planned(says, failures=(Failure("planner1", START + 2.0, START + 6.0),))
    at(plant, 3.0, control, put)
    at(plant, 4.0, control, withdraw)
    plant.timeline.run_until(START + 9.0)
    assert plant.done == [
        (3.25, "table", TableCame("a", "gpu", 0.25, 30.0, TABLE)),
        (3.25, "table", TableCame("a", "gpu", 0.25, 20.0, TABLE)),
        (4.25, "table", TableCame("a", "gpu", 0.25, 30.0, None)),
    ]
    assert heard.of(TableRead) == [
        (3.25, "planner0.1", TableRead(NAME, TABLE)),
        (3.25, "planner0.1", TableRead(other, TABLE)),
        (4.25, "planner0.1", TableRead(NAME, None)),
        (6.0, "planner1.2", TableRead(other, TABLE)),
    ]


@pytest.mark.parametrize(("tables", "seconds"), [(0, 0.75), (1, 0.75), (3, 2.25)])
def test_making_tables_takes_so_long_for_each_and_as_long_as_one_where_none_comes_out(
    monkeypatch: pytest.MonkeyPatch, tables: int, seconds: float
) -> None:
    make: Any = Make("question", (5.0,))  # type: ignore[arg-type]
    monkeypatch.setattr(modelled_tables, "make_tables", lambda _make, _rules: (TABLE,) * tables)
    wall = iter([10.0, 10.5])
    made = modelled_tables.TablesTopic(TableModel(make_s=0.75), lambda: 0.0).made(make)
    assert made == (Made(make, (TABLE,) * tables), seconds)
    measured = modelled_tables.TablesTopic(TableModel(make_s="measured"), lambda: next(wall)).made(make)
    assert measured[1] == 0.5
    control, plant, heard = planned(once(NOTED, make))
    at(plant, 3.0, control, NOTED)
    plant.timeline.run_until(START + 9.0)
    assert heard.of(Made) == [(3.0, "planner0.1", Made(make, (TABLE,) * tables))], "at once where nothing is said"


SEEN = DeviceSeen("new", "gpu", "new.1", leaving=True)


def beat(busy_s: float = 0.0, queued: int = 0, overdue: tuple[float, ...] = ()) -> Beat:
    parts = tuple(
        SliceReport(f"s{i}", "gpu", 8 + i, 0.0, (f"v{i}",), (), (), 0.0, seconds) for i, seconds in enumerate(overdue)
    )
    return Beat(SEEN, NO_EPOCH, queued, busy_s, parts, (), 0.125, (EndsCounted("a", 4, 1),))


class Inner:
    """A control plane that notes what it hears."""

    def __init__(self) -> None:
        self.told: list[tuple[float, Any]] = []
        self.cost: dict[Kind, float] = {Kind.SPOT: 9.0}
        self.solve_s = [0.5]
        self.epochs = 3
        self.nondeterministic = 2

    def start(self, _plant: Any, now: float) -> None:
        self.told.append((now - START, "start"))

    def heard(self, event: Any, now: float) -> None:
        self.told.append((now - START, event))


def elastic(says: Says = lambda _who, _event: (), **more: Any) -> tuple[ElasticControl, FakePlant, Heard, Inner]:
    heard, plant, inner = Heard(says), FakePlant(), Inner()
    known = {name: more.pop(name) for name in ("meter", "beside") if name in more}
    model = CapacityModel(**{"driven": ("new", "spot"), "start_s": 2.5, "period": 50.0, **more})
    starts = iter("123456")
    control = ElasticControl(inner, lambda: heard.core(next(starts)), model, **known)
    control.start(plant, START)
    return control, plant, heard, inner


def when(*pairs: tuple[Any, Any]) -> Says:
    """Says the second of each pair to the first."""
    return lambda _who, event: [action for told, action in pairs if event == told]


def test_no_driven_device_has_a_worker_at_first_and_capacity_looks_at_once_and_each_period() -> None:
    _, plant, heard, inner = elastic(period=4.0)
    assert plant.done == [(0.0, "end", "new"), (0.0, "end", "spot")] and inner.told == [(0.0, "start")]
    plant.timeline.run_until(START + 9.0)
    assert heard.told == [(0.0, "1", Ticked()), (4.0, "1", Ticked()), (8.0, "1", Ticked())]


def test_spot_is_granted_unless_said_otherwise_and_up_once_it_has_booted() -> None:
    for granted, found in (({}, True), ({"granted": lambda: False}, False)):
        pairs = ((VariantWanted("ask"), AskSpot("new")), (VariantWanted("look"), LookUp("new", Kind.SPOT)))
        control, plant, heard, _ = elastic(when(*pairs), boot_s=3.0, **granted)
        at(plant, 1.0, control, VariantWanted("ask"))
        for seconds in (3.5, 4.0, 4.5):
            at(plant, seconds, control, VariantWanted("look"))
        plant.timeline.run_until(START + 9.0)
        assert heard.of(SpotAnswered) == [(1.0, "1", SpotAnswered("new", found))]
        up = [(4.0, "1", InstanceUp("new", Kind.SPOT))] if found else []
        assert heard.of(InstanceUp) == up, "once, and not before"


def test_an_instance_on_demand_is_ordered_and_up_by_its_own_kind_and_released() -> None:
    order, look, other, release = (VariantWanted(name) for name in ("order", "look", "other", "release"))
    says = when(
        (order, OrderOnDemand("new")),
        (look, LookUp("new", Kind.ON_DEMAND)),
        (other, LookUp("new", Kind.SPOT)),
        (release, Release("new", Kind.ON_DEMAND)),
    )
    control, plant, heard, _ = elastic(says)
    for seconds, event in ((1.0, order), (20.5, look), (21.0, other), (21.25, look), (22.0, release)):
        at(plant, seconds, control, event)
    plant.timeline.run_until(START + 30.0)
    assert heard.of(Ordered, InstanceUp, Released) == [
        (1.0, "1", Ordered("new")),
        (21.25, "1", InstanceUp("new", Kind.ON_DEMAND)),  # 20 s where nobody says how long it boots
        (22.0, "1", Released("new", Kind.ON_DEMAND)),
    ]


def test_a_worker_serves_so_long_after_it_was_asked_for_and_ends_at_once() -> None:
    go, halt = VariantWanted("go"), VariantWanted("halt")
    control, plant, heard, _ = elastic(when((go, Start("new")), (halt, Stop("new"))))
    at(plant, 1.0, control, go)
    at(plant, 6.0, control, halt)
    plant.timeline.run_until(START + 9.0)
    assert plant.done[2:] == [(3.5, "begin", "new"), (6.0, "stop", "new")]
    assert heard.of(WorkerStarted, WorkerStopped) == [
        (3.5, "1", WorkerStarted("new")),
        (6.0, "1", WorkerStopped("new")),
    ]


def test_a_device_is_taken_at_its_deadline_where_its_worker_still_runs_and_not_where_it_ended_before() -> None:
    halt = VariantWanted("halt")
    notices = (SpotNotice("spot", START + 1.0, START + 5.0), SpotNotice("new", START + 2.0, START + 6.0))
    control, plant, heard, _ = elastic(when((halt, Stop("spot"))), notices=notices)
    at(plant, 3.0, control, halt)
    plant.timeline.run_until(START + 9.0)
    assert heard.of(Noticed) == [
        (1.0, "1", Noticed("spot", START + 5.0)),
        (2.0, "1", Noticed("new", START + 6.0)),
    ]
    assert plant.done[2:] == [(3.0, "stop", "spot"), (6.0, "end", "new")]


def test_a_heartbeat_tells_capacity_the_part_of_the_time_that_was_busy_at_most_all_of_it() -> None:
    control, _, heard, inner = elastic(heartbeat=0.5)
    first, second = beat(0.125, 4, (0.0, 0.0)), beat(0.75, 2)
    control.heard(first, START + 1.0)
    control.heard(second, START + 2.0)
    assert heard.of(WorkerReported) == [
        (1.0, "1", WorkerReported("new", "gpu", 0.25, 4, ("v0", "v1"), True, 8 + 9)),
        (2.0, "1", WorkerReported("new", "gpu", 1.0, 2, (), True)),
    ]
    assert inner.told[1:] == [(1.0, first), (2.0, second)]


def test_capacity_hears_demand_instances_and_wishes_and_the_control_plane_everything() -> None:
    control, _, heard, inner = elastic()
    events: list[ControlEvent] = [DemandCounted("a", 3, 0.5), InstanceRead("k", None), ASKED, NOTED]
    for event in events:
        control.heard(event, START + 1.0)
    assert [event for _, _, event in heard.told[1:]] == events[:3]
    assert [event for _, event in inner.told[1:]] == events


def test_devices_are_withdrawn_and_restored_and_records_ended_as_capacity_says() -> None:
    names = [VariantWanted(name) for name in ("out", "in", "record")]
    says = when((names[0], Withdraw("old")), (names[1], Restore("old", 3.5)), (names[2], EndInstance("k")))
    control, plant, _, inner = elastic(says)
    for seconds, name in enumerate(names, 1):
        control.heard(name, START + seconds)
    assert [told for told in inner.told if isinstance(told[1], DeviceNoted)] == [
        (1.0, DeviceNoted("old", "capacity", withdrawn=True)),
        (2.0, DeviceNoted("old", "capacity", price=3.5)),
    ]
    assert plant.done[2:] == [(3.0, "record", "k", None)]


def test_money_is_what_is_billed_and_what_the_control_plane_counts() -> None:
    billed = {Kind.ON_DEMAND: 4.0, Kind.SPOT: 0.5}
    control, _, _, inner = elastic(when((ASKED, Bill(billed))))
    assert control.cost == inner.cost
    control.heard(ASKED, START + 1.0)
    assert control.cost == {Kind.ON_DEMAND: 4.0, Kind.SPOT: 0.5 + 9.0}
    assert (control.solve_s, control.epochs, control.nondeterministic) == ([0.5], 3, 2)


def test_a_device_that_is_not_driven_is_paid_from_the_start_and_a_driven_one_while_its_worker_runs() -> None:
    go, halt = VariantWanted("go"), VariantWanted("halt")
    prices = {"old": Prices(3600.0, 0.0), "new": Prices(7200.0, 0.0), "spot": Prices(36000.0, 0.0)}
    meter = CostMeter(Prices(0.0, 0.0), prices)
    control, plant, _, _ = elastic(when((go, Start("new")), (halt, Stop("new"))), meter=meter)
    at(plant, 1.0, control, go)
    at(plant, 6.0, control, halt)
    plant.timeline.run_until(START + 9.0)
    # 9 s of "old" at 1 a second, and of "new" at 2 from 3.5 to 6; "spot" never ran.
    assert control.cost == pytest.approx({Kind.ON_DEMAND: 9.0 + 2.0 * 2.5, Kind.SPOT: 0.0})


def test_what_runs_from_the_start_is_paid_for_in_the_same_order_in_any_process() -> None:
    """Money is added up in it, and a sum of floats goes by its order."""
    paid: list[str] = []

    class Noting(CostMeter):
        @override
        def start(self, node: str, kind: Kind, now: float) -> None:
            paid.append(node)

    plant = FakePlant()
    plant.work_topics = [f"gpu{n}" for n in range(9, -1, -1)]
    model = CapacityModel(driven=("gpu4", "gpu7"), start_s=2.5)
    ElasticControl(Inner(), lambda: Heard().core("1"), model, meter=Noting(Prices(1.0, 1.0))).start(plant, START)
    assert paid == [f"gpu{n}" for n in (0, 1, 2, 3, 5, 6, 8, 9)]


@dataclass
class Beside:
    core: Any
    starts: int = 1
    planner: Any = None


def test_capacity_beside_a_planner_is_told_when_that_leads_or_no_longer_does() -> None:
    beside = Beside(_Core(Heard(), "planner"))
    control, _, heard, _ = elastic(beside=beside)
    control.heard(ASKED, START + 1.0)
    beside.core.led = True
    control.heard(ASKED, START + 2.0)
    control.heard(ASKED, START + 3.0)
    beside.core.led = False
    control.heard(ASKED, START + 4.0)
    assert [(seconds, event) for seconds, _, event in heard.told] == [
        (0.0, Ticked()),
        (1.0, ASKED),
        (2.0, Leading(True)),
        (2.0, ASKED),
        (3.0, ASKED),
        (4.0, Leading(False)),
        (4.0, ASKED),
    ]


def test_capacity_is_down_with_its_planner_and_starts_anew_with_what_stands_and_without_old_answers() -> None:
    beside = Beside(_Core(Heard(), "planner", led=True))
    go = VariantWanted("go")
    control, plant, heard, _ = elastic(when((go, Start("new"))), beside=beside)
    standing = Instance(app="a", variant="v", device="old")
    plant.instances[standing.key] = standing
    at(plant, 1.0, control, go)
    core = beside.core
    plant.timeline.run_until(START + 1.5)
    beside.core = None
    at(plant, 2.0, control, ASKED)
    plant.timeline.run_until(START + 2.5)
    beside.core, beside.starts = core, 2
    at(plant, 3.0, control, ASKED)
    plant.timeline.run_until(START + 9.0)
    assert plant.done[2:] == [(3.5, "begin", "new")], "the worker starts all the same"
    assert heard.told[2:] == [
        (1.0, "1", go),
        (3.0, "2", Leading(True)),
        (3.0, "2", InstanceRead(standing.key, standing)),
        (3.0, "2", ASKED),
    ]
