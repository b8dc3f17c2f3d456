"""One device of a run: what its worker is told, what lies on its work topic, what it cuts, and what dies with it."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sluicegate.domain.actions import Acknowledge, Announce, Run, Send
from sluicegate.domain.events import DeviceSeen, PlanPublished, TurnsTold
from sluicegate.domain.fleet.device import Device, Slice
from sluicegate.domain.fleet.instance import Instance
from sluicegate.domain.outcome import OutcomeKind, Reason
from sluicegate.domain.plan import NO_EPOCH, Epoch, Plan
from sluicegate.domain.query import Query
from sluicegate.policies.model_less.instance_states import Recorded
from sluicegate.policies.placement.repartition import Cut, CutEnded
from sluicegate.policies.serving.device_actions import (
    Abandon,
    Answer,
    Beat,
    CatchUp,
    End,
    LoadVariant,
    Read,
    RestartExecutor,
    RunBatch,
    Say,
    Seek,
    SendBack,
    WakeMe,
)
from sluicegate.policies.serving.device_events import (
    BatchEnded,
    BeatDue,
    CaughtUp,
    ExecutorEnded,
    ExecutorStarted,
    InstancesFound,
    Joined,
    Leaving,
    Loaded,
    Opened,
    QueryCame,
    ReadingBegins,
    TableCame,
    Woken,
)
from sluicegate.simulator.engine.device_model import DeviceModel, SimulatedDevice
from sluicegate.simulator.engine.slice_model import SliceModel
from sluicegate.simulator.engine.timeline import Timeline

START = 1000.0
LEFT, RIGHT, OTHER = Slice("left", "3g"), Slice("right", "4g"), Slice("other", "1g")
SEEN = DeviceSeen("d", "gpu", "d.1")
BEAT = Beat(SEEN, NO_EPOCH, 0, 0.0, (), (), 0.0, ())
STANDING = Instance(app="a", variant="v", device="d")
TABLE = TableCame("a", "gpu", 0.2, 30.0, None)
PLAN = Plan(epoch=Epoch(3, 7), created=START)
Says = Callable[[Any], Sequence[Any]]


class Core:
    """Of one start of the worker: notes what it is told, and says what it is made to."""

    def __init__(self, says: Says, told: list[tuple[float, Any]]) -> None:
        self.says = says
        self.told = told
        self.queries: list[Query] = []
        self.named = True

    def handle(self, event: Any, now: float) -> Sequence[Any]:
        self.told.append((now - START, event))
        if isinstance(event, BeatDue):
            return (BEAT,)
        return self.says(event)


class World:
    """Device "d" with two slices, and all that its workers, its network and the books are told."""

    def __init__(self, says: Says = lambda _event: (), *, executors: int = 1, **changes: Any) -> None:
        self.timeline = Timeline(START)
        self.told: list[tuple[float, Any]] = []
        self.done: list[tuple[Any, ...]] = []
        self.cores: list[Core] = []
        self.says = says
        self.slice = SliceModel(
            service=lambda _variant, rows: 0.5 * rows,
            load=lambda _variant: 2.0,
            by_length={},
            slowdown=None,
            processor=None,
            exclusive_loads=False,
            start_s=0.25,
            executors=executors,
        )
        model: dict[str, Any] = {
            "make_core": self._core,
            "make_slice": lambda _owner, _part: self.slice,
            "policy": "eager",
            "step_s": 0.75,
            "slices_of": lambda _kind, profiles, _there: tuple(
                part for part in (LEFT, RIGHT, OTHER) if part.profile in profiles
            ),
            "instances": {("d", "left"): "both", ("e", "right"): "both"},
            "delay_of": lambda _device: None,
        }
        given = Device(name="d", type="gpu", slices=(LEFT, RIGHT))
        books: Any = self
        self.device = SimulatedDevice(given, DeviceModel(**{**model, **changes}), self.timeline, books, self)

    def _core(self, _device: Device) -> Any:
        self.cores.append(Core(self.says, self.told))
        return self.cores[-1]

    def readmit(self, query: Query, now: float) -> None:
        self.done.append((now - START, "readmit", query.id))

    def staged(self, device: str, epoch: Acknowledge, now: float) -> None:
        self.done.append((now - START, "staged", device, epoch))

    def beats(self, device: str, now: float) -> None:
        self.done.append((now - START, "beats", device))

    def record(self, key: str, instance: Instance | None, now: float) -> None:
        self.done.append((now - START, "record", key, instance))

    def instances_of(self, device: str) -> tuple[Instance, ...]:
        return (STANDING,) if device == "d" else ()

    def announced(self, device: str, said: Announce, now: float) -> None:
        self.done.append((now - START, "announced", device, said))

    def answered(self, run: Run, queries: Sequence[Query], started: float, now: float, by: Any) -> None:
        self.done.append((now - START, "answered", run.variant, [q.id for q in queries], started - START, by))

    def ended(self, query: Query, kind: OutcomeKind, now: float, reason: Any = None) -> None:
        self.done.append((now - START, "ended", query.id, kind, reason))

    def at(self, seconds: float, action: Callable[[float], Any]) -> None:
        self.timeline.at(START + seconds, lambda _, now: action(now))

    def plan_at(self, seconds: float) -> None:
        """The worker is told of PLAN: the word to which cores here answer."""
        self.at(seconds, lambda now: self.device.publish(PLAN, now))

    def come(self, seconds: float, name: str) -> None:
        self.at(seconds, lambda now: self.device.deliver(Send(query(name), "d", "left", 4), now))

    def all(self, until: float = 20.0) -> list[tuple[float, Any]]:
        """What workers were told after their first start."""
        self.timeline.run_until(START + until)
        return self.told[3:]

    def came(self) -> list[tuple[float, str, int]]:
        return [(at, e.query.id, e.offset) for at, e in self.told if isinstance(e, QueryCame)]


def query(name: str) -> Query:
    return Query(name, "a", START, START + 9.0)


def batch(part: str, *names: str, seat: int = 0) -> RunBatch:
    return RunBatch(part, Run("v", tuple(query(name) for name in names), len(names)), 9.0, seat=seat)


def to_plan(*actions: Any) -> Says:
    return lambda event: actions if event == PlanPublished(PLAN) else ()


def test_a_worker_starts_with_its_slices_its_name_and_its_records_and_again_as_another_with_tables_and_the_plan() -> (
    None
):
    world = World()
    assert world.told == [(0.0, Opened((LEFT, RIGHT))), (0.0, Joined("d.1")), (0.0, InstancesFound((STANDING,)))]
    world.at(1.0, lambda now: world.device.table(TABLE, now))
    world.plan_at(2.0)
    world.at(3.0, world.device.recover)
    world.at(4.0, world.device.fail)
    world.at(5.0, world.device.fail)
    world.at(5.5, lambda now: world.device.turned(TurnsTold("a", 0.2, 3, now), now))
    world.at(6.0, world.device.recover)
    assert world.all() == [
        (1.0, TABLE),
        (2.0, PlanPublished(PLAN)),
        (6.0, Opened((LEFT, RIGHT))),
        (6.0, Joined("d.2")),
        (6.0, InstancesFound((STANDING,))),
        (6.0, TABLE),
        (6.0, PlanPublished(PLAN)),
    ]


def test_queries_lie_on_the_work_topic_until_the_worker_reads_and_come_at_once_from_then_on() -> None:
    world = World(to_plan(Read()))
    for seconds, name in ((1.0, "1"), (1.5, "2"), (3.0, "3")):
        world.come(seconds, name)
    world.plan_at(2.0)
    told = [one for one in world.all() if isinstance(one[1], ReadingBegins)]
    assert told == [(2.0, ReadingBegins(0, 2, swept=2))]
    assert world.came() == [(2.0, "1", 0), (2.0, "2", 1), (3.0, "3", 2)]
    (first, *_) = [event for _, event in world.told if isinstance(event, QueryCame)]
    assert (first.turn, first.slice) == (4, "left")


def test_a_worker_that_plans_do_not_count_on_or_that_has_died_does_not_read() -> None:
    for dies in (False, True):
        world = World(to_plan(Read()))
        world.come(1.0, "1")
        if dies:
            world.at(2.0, lambda now, world=world: (world.device.publish(PLAN, now), world.device.fail(now)))  # type: ignore[misc]
        else:
            world.cores[0].named = False
            world.plan_at(2.0)
        world.all()
        assert world.came() == []


def test_what_lies_before_the_place_that_a_worker_seeks_is_not_read() -> None:
    def says(event: Any) -> Sequence[Any]:
        if isinstance(event, ReadingBegins):
            return (Seek(2),)
        return (Read(),) if event == PlanPublished(PLAN) else ()

    world = World(says)
    for seconds, name in ((1.0, "1"), (1.25, "2"), (1.5, "3"), (1.75, "4")):
        world.come(seconds, name)
    world.plan_at(2.0)
    world.all()
    assert world.came() == [(2.0, "3", 2), (2.0, "4", 3)]
    assert world.device.position() == (4, 4)


def test_what_a_dead_worker_had_read_and_not_ended_is_left_before_what_came_since() -> None:
    world = World(to_plan(Read()))
    world.plan_at(0.5)
    for seconds, name in ((1.0, "1"), (1.25, "2"), (1.5, "3"), (3.0, "4")):
        world.come(seconds, name)
    world.at(1.75, lambda _: world.cores[0].queries.extend([query("2"), query("3")]))
    world.at(2.0, world.device.fail)
    world.all()
    offset, queries = world.device.left()
    assert (offset, [each.id for each in queries]) == (1, ["2", "3", "4"])
    assert world.device.left() == (4, [])


def test_a_worker_that_abandons_what_it_read_reads_no_more_and_joins_under_another_name() -> None:
    def says(event: Any) -> Sequence[Any]:
        if isinstance(event, QueryCame) and event.query.id == "2":
            return (Abandon("why", (query("1"), query("2"))),)
        return (Read(),) if event == PlanPublished(PLAN) else ()

    world = World(says)
    world.plan_at(0.5)
    for seconds, name in ((1.0, "1"), (1.25, "2"), (1.5, "3")):
        world.come(seconds, name)
    assert world.all()[-1] == (1.25, Joined("d.2"))
    assert world.came() == [(1.0, "1", 0), (1.25, "2", 1)]
    offset, queries = world.device.left()
    assert (offset, [each.id for each in queries]) == (0, ["1", "2", "3"])


def test_a_batch_and_a_load_end_at_their_executor_each_in_its_time() -> None:
    actions = (
        batch("left", "1", "2", "3"),
        LoadVariant("right", "v", 3, None, 0),
        CatchUp(),
        WakeMe(START + 9.0, "key"),
    )
    world = World(to_plan(*actions))
    world.plan_at(1.0)
    assert world.all()[1:] == [
        (1.0, CaughtUp()),
        (2.5, BatchEnded("left", 1.5, 1.5)),
        (3.0, Loaded("right", "v", True, 2.0)),
        (9.0, Woken("key")),
    ]


def test_letters_go_to_the_network_and_ends_to_the_books() -> None:
    acknowledged = Acknowledge(PLAN.epoch, ("v",), ("w",))
    said = Announce("app:a", "safe_mode", "x")
    run = Run("v", (query("1"), query("2")), 2)
    actions = (
        SendBack(query("0")),
        acknowledged,
        said,
        Say("fault", "x"),
        Recorded("k", STANDING),
        Answer("left", run, run.queries, START + 0.25, START + 0.75, 0.5, ()),
        End("left", query("3"), OutcomeKind.DROPPED, START + 0.875, Reason.SHED, None, None),
    )
    world = World(to_plan(*actions))
    world.plan_at(1.0)
    world.all()
    assert world.done == [
        (1.0, "staged", "d", acknowledged),
        (1.0, "announced", "d", said),
        (1.0, "beats", "d"),
        (1.0, "record", "k", STANDING),
        (0.75, "answered", "v", ["1", "2"], 0.25, ("d", "left", "eager")),
        (0.875, "ended", "3", OutcomeKind.DROPPED, Reason.SHED),
        (pytest.approx(1.005), "readmit", "0"),
    ]


def test_cutting_takes_so_long_for_each_slice_that_goes_or_comes_and_ends_what_the_slices_before_ran() -> None:
    """Left stays, right goes, other comes: two steps."""
    world = World(to_plan(batch("right", *"123456"), Cut(("3g", "1g"))))
    world.plan_at(1.0)
    assert world.all()[1:] == [(2.5, CutEnded((LEFT, OTHER)))]
    assert world.device.device.slices == (LEFT, OTHER)
    dead = World(to_plan(Cut(("3g", "1g"))))
    dead.plan_at(1.0)
    dead.at(2.0, dead.device.fail)
    assert dead.all() == [(1.0, PlanPublished(PLAN))]
    assert dead.device.device.slices == (LEFT, RIGHT)


def test_where_the_host_is_starved_ends_are_heard_later_in_order_and_batches_seem_to_have_taken_longer() -> None:
    """A delay of 3 s until the second 2, of none from then on: what ends later is not heard before."""
    delay_of = lambda _device: lambda now: 3.0 if now < START + 2.0 else 0.0  # noqa: E731
    actions = (batch("left", "1"), batch("right", "2", "3", "4"))
    world = World(to_plan(*actions), delay_of=delay_of)
    world.plan_at(1.0)
    world.at(1.25, lambda now: world.device.beat(now))
    world.at(8.0, lambda now: world.device.beat(now))
    assert world.all()[1:] == [
        (1.25, BeatDue(3.0)),
        (4.5, BatchEnded("left", 0.5, 3.5)),
        (4.5, BatchEnded("right", 1.5, 3.5)),
        (8.0, BeatDue(0.0)),
    ]


def test_a_process_behind_an_executor_ends_on_the_slice_that_is_named_or_on_all_and_can_be_restarted() -> None:
    def says(event: Any) -> Sequence[Any]:
        return (RestartExecutor("left", 0.5, event.seat),) if event == ExecutorEnded("left", 1) else ()

    world = World(says, executors=2)
    world.at(1.0, lambda now: world.device.executor_dies("left", now))
    world.at(3.0, lambda now: world.device.executor_dies("", now))
    world.at(4.0, world.device.fail)
    world.at(5.0, world.device.recover)
    found = world.all()
    assert found[:2] == [(1.0, ExecutorEnded("left", 0)), (1.0, ExecutorEnded("left", 1))]
    assert found[2:6] == [
        (1.75, ExecutorStarted("left", 1)),
        (3.0, ExecutorEnded("left", 1)),
        (3.0, ExecutorEnded("right", 0)),
        (3.0, ExecutorEnded("right", 1)),
    ]
    assert [event for _, event in found[6:]] == [
        ExecutorStarted("left", 1),
        Opened((LEFT, RIGHT)),
        Joined("d.2"),
        InstancesFound((STANDING,)),
    ]


def test_slices_of_one_instance_share_a_processor_and_so_do_several_executors_of_a_slice() -> None:
    device = World().device
    assert device.processor_of("right") is None and device.processor_of("right", 1) is None
    left, right = device.processor_of("left"), device.processor_of("right", 2)
    assert left is not None and right is not None and left is not right
    assert device.processor_of("left", 2) is left and device.processor_of("right", 3) is right


def test_a_worker_that_leaves_says_its_last_heartbeat_and_one_that_is_gone_none() -> None:
    world = World(lambda event: (BEAT,) if isinstance(event, Leaving) else ())
    assert world.device.beat(START + 1.0) is BEAT
    assert world.device.leave(START + 2.0) is BEAT
    assert not world.device.alive and world.device.leave(START + 3.0) is None
    assert world.told[3:] == [(1.0, BeatDue(0.0)), (2.0, Leaving())]
