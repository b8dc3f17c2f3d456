"""Planners over one log, in any order of delays, silences and deaths: one leads, epochs grow, nothing moves twice."""

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluicegate.domain.actions import Publish, Reclaim
from sluicegate.domain.events import DemandCounted, DeviceSeen
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Epoch, Plan
from sluicegate.domain.query import Query
from sluicegate.planner.control.controller_settings import ControllerSettings
from sluicegate.planner.control.core import CoreSettings, PlannerCore
from sluicegate.planner.control.events import (
    CatchUp,
    ClockRead,
    DeviceHeard,
    Left,
    LogReached,
    Move,
    PlannerEvent,
    PlanRead,
    PlansRead,
    Sweep,
    SweepBegan,
    SweepFailed,
    Swept,
    WorkLeft,
)
from sluicegate.planner.control.leader_lease import LeaseRead, StepDown, Write
from sluicegate.planner.control.reclaiming import AGAIN, Reclaiming
from sluicegate.planner.control.replan_trigger import Solve, Solved
from sluicegate.planner.greedy_fill import GreedyFill
from sluicegate.profiles.catalogue.catalogue import Catalogue

TIMEOUT, LEASE, START = 2.0, 3.0, 7_000.0
DEVICES = {"d0": "cpu", "d1": "gpu"}
CATALOGUE = Catalogue.of(
    [App(name="a", slo=0.3)],
    [Variant(name=f"a{k}", app="a", accuracy=0.7 + 0.1 * k) for k in range(2)],
    [
        Profile(variant=f"a{k}", device_type=kind, points=(BatchLatency(1, t, t), BatchLatency(8, 4 * t, 4 * t)))
        for k, base in enumerate((0.004, 0.012))
        for kind, t in (("cpu", base), ("gpu", base / 3.0))
    ],
)


@dataclass(slots=True)
class Candidate:
    """``read``: how much of the log it has read. ``catching_up``: the term it does so for, and up to where."""

    core: PlannerCore
    read: int = 0
    catching_up: tuple[int, int] | None = None
    out: deque[Solve] = field(default_factory=deque)


class Planners(RuleBasedStateMachine):
    """Three planners; each reads the log when it likes, and stands still when it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.log: list[LeaseRead | PlanRead] = []
        rules = CoreSettings(rules=ControllerSettings(device_timeout=TIMEOUT, solve_timeout=1e9), lease=LEASE)
        self.all = [Candidate(PlannerCore(CATALOGUE, holder=f"p{i}", settings=rules)) for i in range(3)]
        self.newest = Epoch(0, 0)
        self.beaten: dict[str, float] = {}
        self.published: list[Epoch] = []
        for one in self.all:
            self.tell(one, LogReached())

    def tell(self, one: Candidate, event: PlannerEvent) -> None:
        for action in one.core.handle(event, self.now):
            match action:
                case Write(lease):
                    self.log.append(LeaseRead(lease))
                case Publish(plan):
                    assert one.core.leads(self.now)
                    own = [e for e in self.published if e.term == plan.epoch.term]
                    assert not own or plan.epoch > max(own)
                    self.published.append(plan.epoch)
                    self.log.append(PlanRead(plan))
                case CatchUp(term):
                    one.catching_up = (term, len(self.log))
                case Solve():
                    assert not one.out
                    one.out.append(action)
                case StepDown():
                    one.out.clear()
                case Reclaim(device):
                    assert self.now - self.beaten.get(device, START) > TIMEOUT
                case _:
                    pass

    @rule(seconds=st.sampled_from((0.1, 0.3, 1.0, 2.5)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(who=st.integers(0, 2))
    def wakes(self, who: int) -> None:
        self.tell(self.all[who], ClockRead(self.now))

    @rule(who=st.integers(0, 2), records=st.integers(1, 9))
    def reads(self, who: int, records: int) -> None:
        one = self.all[who]
        for record in self.log[one.read : one.read + records]:
            one.read += 1
            self.tell(one, record)
        if one.catching_up is not None and one.read >= one.catching_up[1]:
            (term, _), one.catching_up = one.catching_up, None
            self.tell(one, PlansRead(term))

    @rule(device=st.sampled_from(sorted(DEVICES)), heard_by=st.sets(st.integers(0, 2)))
    def beats(self, device: str, heard_by: set[int]) -> None:
        for who in sorted(heard_by):
            self.tell(self.all[who], DeviceHeard(DeviceSeen(device, DEVICES[device], "i")))
            self.tell(self.all[who], DemandCounted("a", 10, 0.5))

    @precondition(lambda self: any(one.out for one in self.all))
    @rule(late=st.booleans())
    def answers(self, late: bool) -> None:
        one = next(one for one in (reversed(self.all) if late else self.all) if one.out)
        asked = one.out.popleft()
        self.tell(one, Solved(GreedyFill().allocate(asked.problem), asked.reason, 0.1, asked.number))

    @invariant()
    def one_leads(self) -> None:
        assert sum(one.core.leads(self.now) for one in self.all) <= 1

    @invariant()
    def a_term_is_one_planners(self) -> None:
        terms = [e.term for e in self.published]
        assert terms == sorted(terms)


Planners.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestPlanners = Planners.TestCase


@given(
    beats=st.lists(st.sampled_from((0.2, 0.5, 0.9, 1.6)), max_size=6),
    clock=st.sampled_from((3.0, 1e4, 1.7e9)),
    never=st.booleans(),
)
def test_whoever_stops_beating_is_left_out_within_the_timeout_and_one_look(
    beats: list[float], clock: float, never: bool
) -> None:
    settings_ = CoreSettings(rules=ControllerSettings(device_timeout=TIMEOUT), lease=LEASE)
    core = PlannerCore(CATALOGUE, holder="me", settings=settings_)
    now, lost = clock, list[tuple[str, float]]()

    def tell(event: PlannerEvent) -> None:
        for action in core.handle(event, now):
            match action:
                case Write(lease):
                    tell(LeaseRead(lease))
                case CatchUp(term):
                    tell(PlansRead(term))
                case Reclaim(device):
                    lost.append((device, now))
                case _:
                    pass

    tell(LogReached())
    tell(DeviceHeard(DeviceSeen("d0", "cpu", "i")))
    last = now
    due = deque(clock + sum(beats[: i + 1]) for i in range(len(beats)))
    while now < clock + sum(beats) + TIMEOUT + 1.0:
        now += 0.1
        while due and due[0] <= now and not never:
            due.popleft()
            last = now
            tell(DeviceHeard(DeviceSeen("d0", "cpu", "i")))
        tell(ClockRead(now))
    (gone,) = lost
    assert gone[0] == "d0"
    assert TIMEOUT < gone[1] - last <= TIMEOUT + 0.1 + 1e-5


class Lives:
    """One planner over d0, which lives on, and d1, which comes and goes; sweeps of d1 take ``sweep`` seconds."""

    def __init__(self, sweep: float) -> None:
        rules = ControllerSettings(device_timeout=TIMEOUT)
        self.core = PlannerCore(CATALOGUE, holder="me", settings=CoreSettings(rules=rules, lease=LEASE))
        self.now, self.sweep = START, sweep
        self.newest = Plan(epoch=Epoch(1, 0), created=0.0)
        self.sweeps: list[float] = []
        self.ends: list[float] = []
        self.tell(LogReached())

    def tell(self, event: PlannerEvent) -> None:
        for action in self.core.handle(event, self.now):
            match action:
                case Write(lease):
                    self.tell(LeaseRead(lease))
                case CatchUp(term):
                    self.tell(PlansRead(term))
                case Solve(problem, reason):
                    self.tell(Solved(GreedyFill().allocate(problem), reason, 0.1, action.number))
                case Publish(plan):
                    self.newest = plan
                    self.tell(PlanRead(plan))
                case Sweep(device):
                    assert device == "d1"
                    self.sweeps.append(self.now)
                    self.ends.append(self.now + self.sweep - 1e-6)
                case _:
                    pass

    def pass_by(self, seconds: float, incarnation: str = "") -> None:
        """Tenths of a second; d0 beats every half, and so does d1 where it has an incarnation."""
        for step in range(round(seconds * 10)):
            if round(self.now * 10) % 5 == 0:
                self.tell(DeviceHeard(DeviceSeen("d0", "cpu", "i")))
                self.tell(DemandCounted("a", 10, 0.5))
            if incarnation and step % 5 == 0:
                self.tell(DeviceHeard(DeviceSeen("d1", "gpu", incarnation)))
            if self.ends and self.now >= self.ends[0]:
                self.ends.pop()
                self.tell(SweepBegan("d1", 7, 7))
            self.tell(ClockRead(self.now))
            self.now += 0.1


_UP, _DOWN = st.sampled_from((0.1, 0.6, 1.1, 3.0)), st.sampled_from((0.3, 0.8, 2.4, 3.1))


@given(lives=st.lists(st.tuples(_UP, _DOWN), min_size=1, max_size=5), sweep=st.sampled_from((0.1, 0.4, 1.2)))
def test_whoever_is_silent_for_good_is_in_no_plan_and_swept_again_and_again(
    lives: list[tuple[float, float]], sweep: float
) -> None:
    world = Lives(sweep)
    for number, (up, down) in enumerate(lives):
        world.pass_by(up, f"i{number}")
        world.pass_by(down)
    world.pass_by(2 * (TIMEOUT + AGAIN + sweep))
    since = world.now
    world.pass_by(2 * (AGAIN + sweep) + 0.5)
    assert "d1" not in world.newest.incarnations
    assert sum(at >= since for at in world.sweeps) >= 2


@given(data=st.data(), committed=st.integers(0, 50), waiting=st.integers(0, 12))
def test_each_record_from_the_committed_offset_to_the_fence_is_decided_once_a_sweep(
    data: st.DataObject, committed: int, waiting: int
) -> None:
    machine, now = Reclaiming((), TIMEOUT), START
    machine.dead("d1", now)
    moved: list[int] = []
    while "d1" not in machine.fences:
        assert machine.due(now)
        machine.handle(SweepBegan("d1", committed, committed + waiting), now, now)
        at, end = committed, committed + waiting
        tried: list[int] = []
        while at < end:
            size = data.draw(st.integers(1, end - at))
            query = Query("q", "a", now - 5.0, now - 1.0 if size % 2 else now + 1.0)
            records = tuple(Left(offset, query) for offset in range(at, at + size))
            (move,) = machine.handle(WorkLeft("d1", records), now, now)
            assert isinstance(move, Move)
            assert len(move.verdicts) == size
            tried += range(at, at + size)
            at += size
        if waiting and data.draw(st.booleans()):
            machine.handle(SweepFailed("d1"), now, now)
            now += AGAIN
            assert not machine.due(now - 0.1)
            continue
        moved += tried
        if waiting:
            machine.handle(Swept("d1"), now, now)
    assert moved == list(range(committed, committed + waiting))
    assert machine.fences == {"d1": committed + waiting}
