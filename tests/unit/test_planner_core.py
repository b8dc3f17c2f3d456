"""The planner's core: who leads, whom it misses, what it asks, publishes and reclaims."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest

from sluicegate.domain.actions import Announce, Publish, Reclaim, WakeAt
from sluicegate.domain.errors import IllegalEventError
from sluicegate.domain.events import DemandCounted, DeviceSeen, PlanAcknowledged
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.lease import Lease
from sluicegate.domain.models.app import App, Promise
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.outcome import OutcomeKind, Reason
from sluicegate.domain.plan import FAR, MAX_TERM, STANDS_IN, Epoch, Plan, follows
from sluicegate.domain.query import Query
from sluicegate.planner.control.controller_settings import ControllerSettings
from sluicegate.planner.control.core import CoreSettings, PlannerCore
from sluicegate.planner.control.events import (
    Bury,
    CatchUp,
    ClockRead,
    DeviceHeard,
    DeviceNoted,
    End,
    Heard,
    Leave,
    Left,
    LetIn,
    LogReached,
    Move,
    Parted,
    PlanHidden,
    PlannerAction,
    PlannerEvent,
    PlanRead,
    PlansRead,
    Readmit,
    SafeMode,
    SafeModeRead,
    StandIn,
    Stopping,
    Sweep,
    SweepBegan,
    SweepFailed,
    Swept,
    WorkLeft,
)
from sluicegate.planner.control.leader_lease import Lead, LeaseRead, StepDown, Write
from sluicegate.planner.control.replan_trigger import Solve, Solved
from sluicegate.planner.greedy_fill import GreedyFill
from sluicegate.profiles.catalogue.catalogue import Catalogue

START = 5_000.0
WALL = 1.7e9
TIMEOUT = 2.0
LEASE = 3.0
CATALOGUE = Catalogue.of(
    [App(name="a", slo=0.3), App(name="b", slo=0.2, promise=Promise(max_consecutive=2))],
    [Variant(name=f"{app}{k}", app=app, accuracy=0.6 + 0.1 * k) for app in "ab" for k in range(2)],
    [
        Profile(variant=f"{app}{k}", device_type=kind, points=(BatchLatency(1, t, t), BatchLatency(8, 4 * t, 4 * t)))
        for app in "ab"
        for k, base in enumerate((0.004, 0.012))
        for kind, t in (("cpu", base), ("gpu", base / 3.0))
    ],
)
DEVICES = {"d0": "cpu", "d1": "gpu"}


class World:
    """One planner and the log it writes: what it writes is read back at once, plans are solved where ``solves``."""

    def __init__(
        self,
        *,
        solves: bool = True,
        newest: Plan | None = None,
        settings: CoreSettings | None = None,
        work_topics: tuple[str, ...] = (),
        committed: Mapping[str, int] = MappingProxyType({"d1": 17}),
        stands: Sequence[PlannerEvent] = (),
    ) -> None:
        self.work_topics, self.committed = work_topics, committed
        rules = ControllerSettings(device_timeout=TIMEOUT)
        self.core = PlannerCore(CATALOGUE, holder="me", settings=settings or CoreSettings(rules=rules, lease=LEASE))
        self.now = START
        self.solves = solves
        self.writes = True
        self.said: list[PlannerAction] = []
        self.out: list[Solve] = []
        if newest is not None:
            self.tell(PlanRead(newest))
        for event in stands:
            self.tell(event)
        self.tell(ClockRead(WALL + self.now))
        self.tell(LogReached())

    def tell(self, event: PlannerEvent) -> list[PlannerAction]:
        said: list[PlannerAction] = []
        for action in self.core.handle(event, self.now):
            said.append(action)
            match action:
                case Write(lease) if self.writes:
                    said += self.tell(LeaseRead(lease))
                case CatchUp(term):
                    said += self.tell(PlansRead(term, devices=self.work_topics, committed=self.committed))
                case Publish(plan) if self.writes:
                    said += self.tell(PlanRead(plan))
                case Solve():
                    self.out.append(action)
                    if self.solves:
                        said += self.answer()
                case _:
                    pass
        self.said += said
        return said

    def answer(self) -> list[PlannerAction]:
        asked = self.out.pop()
        return self.tell(Solved(GreedyFill().allocate(asked.problem), asked.reason, 0.25, asked.number))

    def run(self, seconds: float, *devices: str, incarnation: str = "i") -> list[PlannerAction]:
        """Tenths of a second; heartbeats of ``devices`` every half."""
        said: list[PlannerAction] = []
        for step in range(round(10 * seconds)):
            self.now += 0.1
            if step % 5 == 4:
                said += self.tell(DemandCounted("a", 20, 0.5))
                for device in devices:
                    said += self.beat(device, incarnation)
            said += self.tell(ClockRead(WALL + self.now))
        return said

    def beat(self, device: str, incarnation: str = "i", **other: bool) -> list[PlannerAction]:
        return self.tell(DeviceHeard(DeviceSeen(device, DEVICES[device], incarnation, **other)))  # type: ignore[arg-type]


def plans(said: Sequence[PlannerAction]) -> list[Plan]:
    return [action.plan for action in said if isinstance(action, Publish)]


def of(kind: type, said: Sequence[PlannerAction]) -> list[PlannerAction]:
    return [action for action in said if isinstance(action, kind)]


def old_plan(**devices: str) -> Plan:
    return Plan(epoch=Epoch(4, 9), created=1.0, incarnations=devices, fences={"d1": 17})


def test_it_claims_the_lease_and_leads_once_every_plan_was_read() -> None:
    core = PlannerCore(CATALOGUE, holder="me", settings=CoreSettings(lease=LEASE))
    (claim,) = core.handle(LogReached(), START)
    assert isinstance(claim, Write)
    (read,) = core.handle(LeaseRead(claim.lease), START + 0.1)
    assert read == CatchUp(claim.lease.term)
    assert not core.leads(START + 0.1)
    assert core.handle(PlansRead(claim.lease.term, ok=False), START + 0.2) == []
    assert CatchUp(claim.lease.term) in core.handle(ClockRead(WALL), START + 0.3)
    assert Lead(claim.lease.term) in core.handle(PlansRead(claim.lease.term), START + 0.4)
    assert core.leads(START + 0.4)
    assert not core.leads(START + LEASE)


def test_it_goes_on_from_the_newest_plan_in_a_higher_term_and_with_its_fences() -> None:
    world = World(newest=old_plan())
    world.beat("d0")
    world.run(1.0, "d0")
    first = plans(world.said)[0]
    assert first.epoch == Epoch(5, 1)
    assert first.fences == {"d1": 17}
    assert Announce("planner", "took_over", "term 5 follows the one before") in world.said
    assert first.created == pytest.approx(WALL + world.now, abs=2.0)


def test_a_fence_beyond_what_is_done_there_is_refused_and_said_and_its_own_stay() -> None:
    forged = replace(old_plan(), fences={"d1": 18, "d0": 5, "ghost": 1})
    world = World(newest=forged, committed={"d0": 6, "d1": 17})
    world.run(1.0, "d0")
    refused = {a.subject for a in world.said if isinstance(a, Announce) and a.state == "fence_refused"}
    assert refused == {"device:d1", "device:ghost"}
    assert plans(world.said)[0].fences == {"d0": 5}
    dead(world)
    world.tell(SweepBegan("d1", 40, 41))
    world.tell(WorkLeft("d1", (Left(40, query("late", "b", 1.0)),)))
    world.tell(Swept("d1"))
    world.committed = {"d0": 6, "d1": 30}  # by a worker that was declared dead, and knew nothing of it
    own = world.core.controller.plan
    assert own is not None
    stranger = replace(own, epoch=Epoch(own.epoch.term, own.epoch.number + 1), fences={"d0": 7, "d1": 50})
    world.said.clear()
    world.tell(PlanRead(stranger))
    world.run(1.0, "d0")
    assert plans(world.said)[0].epoch.term > own.epoch.term
    assert plans(world.said)[0].fences == {"d0": 5, "d1": 41}


@pytest.mark.parametrize("number", [1, 10**6])
@pytest.mark.parametrize("term", [0, 1, FAR])
def test_a_strangers_plan_is_put_behind_by_the_one_that_was_in_force_though_nobody_solves(
    term: int, number: int
) -> None:
    world = World()
    world.beat("d0")
    world.beat("d1")
    world.run(3.0, "d0", "d1")
    own = world.core.controller.plan
    assert own is not None and own.placements
    assert own.incarnations.keys() == {"d0", "d1"}
    world.solves = False
    made_up = Epoch(own.epoch.term + term, own.epoch.number + number)
    world.said.clear()
    world.tell(PlanRead(replace(own, epoch=made_up, placements=(), incarnations={"d0": "another"})))
    world.run(0.5, "d0", "d1")
    first = plans(world.said)[0]
    assert follows(first.epoch, made_up)
    assert (first.placements, first.incarnations) == (own.placements, own.incarnations)
    assert "overrules" in {a.state for a in world.said if isinstance(a, Announce)}


def test_a_claim_of_a_term_that_nobody_can_have_is_told_but_not_each_time() -> None:
    world = World()
    world.run(1.0, "d0", "d1")
    held = world.core._lease.newest
    assert held is not None and world.core.leads(world.now)

    def refusals(*terms: int) -> list[str]:
        world.said.clear()
        for term in terms:
            world.tell(LeaseRead(Lease(term=term, holder="stranger", claims=held.place)))
        return [a.detail for a in world.said if isinstance(a, Announce) and a.state == "refuses_lease"]

    assert refusals(held.term) == []
    (told, *more) = refusals(held.term + FAR + 1, MAX_TERM, held.term + FAR + 1)
    assert not more and "stranger" in told and str(held.term + FAR + 1) in told
    assert world.core.leads(world.now)
    world.run(11.0, "d0", "d1")
    assert len(refusals(MAX_TERM)) == 1
    assert world.core.leads(world.now)


def test_behind_the_highest_term_there_is_comes_the_first() -> None:
    made_up = replace(old_plan(), epoch=Epoch(MAX_TERM, 7))
    world = World(newest=made_up)
    world.beat("d0")
    world.run(1.0, "d0")
    first = plans(world.said)[0]
    assert first.epoch == Epoch(1, 1)
    assert follows(first.epoch, made_up.epoch)
    world.tell(PlanRead(replace(made_up, epoch=Epoch(FAR, 1))))
    world.run(1.0, "d0")
    assert follows(plans(world.said)[-1].epoch, Epoch(FAR, 1))


def test_who_stands_by_says_nothing_and_knows_all_when_it_takes_over() -> None:
    world = World()
    leader = Lease(term=7, holder="other", claims=(1, 0))
    world.tell(LeaseRead(replace(leader, claims=world.core._lease.newest.place)))  # type: ignore[union-attr]
    assert of(StepDown, world.said)
    assert not world.core.leads(world.now)
    world.writes = False
    said = world.run(2.5, "d0", "d1")
    assert {type(action) for action in said} == {WakeAt}
    world.writes = True
    said = world.run(1.5, "d0", "d1")
    assert of(Lead, said)
    (first, *_) = plans(said)
    assert first.epoch.term > 7
    assert set(first.incarnations) == {"d0", "d1"}


def test_it_acts_no_more_once_its_lease_could_not_be_renewed() -> None:
    world = World()
    world.run(1.0, "d0", "d1")
    world.writes = False
    said = world.run(LEASE + 0.5, "d0")
    assert of(StepDown, said)
    after = said[said.index(of(StepDown, said)[0]) + 1 :]
    assert not [a for a in after if not isinstance(a, WakeAt | Write)]
    assert not world.core.leads(world.now)


def test_it_gives_the_lease_back_behind_everything_that_it_said() -> None:
    world = World()
    world.run(1.0, "d0")
    assert not of(Write, world.tell(Stopping()))
    assert not world.core.leads(world.now)
    (given,) = of(Write, world.tell(Parted()))
    assert isinstance(given, Write)
    assert given.lease.released
    assert not of(Write, world.run(3 * LEASE, "d0")), "nobody leads, and who ends does not take it up again"


def test_who_is_told_to_end_while_it_reads_the_plans_does_not_begin_to_lead() -> None:
    core = PlannerCore(CATALOGUE, holder="me", settings=CoreSettings(lease=LEASE))
    (claim,) = core.handle(LogReached(), START)
    assert isinstance(claim, Write)
    assert core.handle(LeaseRead(claim.lease), START + 0.1) == [CatchUp(claim.lease.term)]
    core.handle(Stopping(), START + 0.2)
    assert core.handle(PlansRead(claim.lease.term), START + 0.3) == []
    assert not core.leads(START + 0.3)


def test_a_strangers_plan_in_its_term_is_put_behind_by_a_higher_term() -> None:
    world = World()
    world.run(1.0, "d0")
    own = world.core.controller.plan
    assert own is not None
    world.tell(PlanRead(replace(own, epoch=Epoch(own.epoch.term, own.epoch.number + 5))))
    world.run(1.0, "d0")
    assert plans(world.said)[-1].epoch.term > own.epoch.term


def test_a_plan_that_a_stranger_wrote_over_is_published_again_but_once_a_second() -> None:
    world = World()
    world.run(3.0, "d0", "d1")
    own = world.core.controller.plan
    assert own is not None
    far = replace(own, epoch=Epoch(own.epoch.term + 10**7, 1))
    for hiding in (PlanHidden(), PlanRead(far)):
        before = plans(world.said)[-1]
        world.tell(hiding)
        (again,) = plans(world.run(1.5, "d0", "d1"))
        assert (again.epoch.term, again.placements) == (before.epoch.term, before.placements)
        assert again.epoch > before.epoch
    assert not plans(world.run(3.0, "d0", "d1")), "nobody wrote over it any more"
    flooded = []
    for _ in range(20):
        world.tell(PlanHidden())
        flooded += plans(world.run(0.1, "d0", "d1"))
    assert 1 <= len(flooded) <= 3


def test_a_device_on_which_nothing_advances_is_left_out_while_another_advances() -> None:
    world = World()
    world.run(3.0, "d0", "d1")

    def beat(device: str, overdue: float) -> list[PlannerAction]:
        seen = DeviceSeen(device, DEVICES[device], "i")
        return world.tell(DeviceHeard(seen, overdue=overdue))

    beat("d1", 0.2)
    assert not plans(world.run(0.1))
    said = beat("d1", 0.7)
    assert "overdue" in {a.state for a in of(Announce, said) if isinstance(a, Announce)}
    left = plans(said)[-1]
    assert {p.device for p in left.placements} <= {"d0"}
    assert "d1" in left.incarnations, "its worker lives, and finishes what it has"
    assert "overdue" not in {a.state for a in of(Announce, beat("d1", 1.2)) if isinstance(a, Announce)}
    world.run(1.0, "d0")
    assert {p.device for p in plans(world.said)[-1].placements} == {"d0"}
    beat("d1", 0.0)
    world.run(1.0, "d0", "d1")
    assert "d1" in {p.device for p in plans(world.said)[-1].placements}


def test_where_nothing_advances_anywhere_all_are_planned_on() -> None:
    world = World()
    world.run(3.0, "d0", "d1")
    for _ in range(4):
        for device in ("d1", "d0"):
            world.tell(DeviceHeard(DeviceSeen(device, DEVICES[device], "i"), overdue=0.7))
        world.run(0.5)
    assert {p.device for p in plans(world.said)[-1].placements} == {"d0", "d1"}


def test_a_silent_device_is_left_out_within_the_timeout_and_one_look() -> None:
    world = World()
    world.run(3.0, "d0", "d1")
    last = world.now
    lost: list[float] = []
    while not lost:
        if of(Reclaim, world.run(0.5, "d0")):
            lost.append(world.now)
        assert world.now - last < 60.0
    assert TIMEOUT < lost[0] - last <= TIMEOUT + 0.1 + 0.5  # looked at in steps of half a second
    assert "d1" not in plans(world.said)[-1].incarnations
    assert of(Sweep, world.said) == [Sweep("d1")]


def test_who_was_never_heard_is_not_missed_at_the_take_over_but_a_timeout_later() -> None:
    world = World(newest=old_plan(d0="old", d1="gone"))
    said = world.run(TIMEOUT - 0.2, "d0")
    assert not of(Reclaim, said)
    said = world.run(0.5, "d0")
    assert of(Reclaim, said) == [Reclaim("d1", "gone")]


def test_where_nobody_was_heard_at_the_take_over_an_epoch_names_none_of_those_given_up() -> None:
    world = World(newest=old_plan(d0="old", d1="gone"))
    said = world.run(TIMEOUT + 0.5)
    (last,) = plans(said)
    assert last.incarnations == {}
    assert said.index(of(Publish, said)[0]) < said.index(of(Reclaim, said)[0])
    assert of(Reclaim, said) == [Reclaim("d0", "old"), Reclaim("d1", "gone")]
    assert not of(Solve, world.run(1.0, "d0", incarnation="old")), "that one is dead"
    world.run(0.6, "d0", incarnation="new")
    world.tell(SweepBegan("d0", 5, 6))
    world.tell(WorkLeft("d0", (Left(5, None),)))
    world.tell(Swept("d0"))
    assert set(plans(world.run(1.0, "d0", incarnation="new"))[-1].incarnations) == {"d0"}


def test_who_takes_over_where_all_are_leaving_names_the_one_that_was_restarted_meanwhile() -> None:
    there = DeviceHeard(DeviceSeen("d0", "cpu", "j", leaving=True))
    world = World(newest=old_plan(d0="i"), stands=(there,))
    carried = plans(world.said)[-1]
    assert (carried.incarnations, carried.placements) == ({"d0": "j"}, ())


def test_a_device_that_is_leaving_is_named_though_nobody_else_hosts() -> None:
    world = World()
    dead(world)
    world.beat("d0", leaving=True)
    world.beat("d1", "j", leaving=True)
    world.tell(SweepBegan("d1", 40, 40))
    before = len(plans(world.said))
    world.beat("d1", "j", leaving=True)
    (named,) = plans(world.said)[before:]
    assert (named.incarnations, named.placements, named.fences) == ({"d0": "i", "d1": "j"}, (), {"d1": 40})
    world.beat("d1", "j", leaving=True)
    world.beat("d0", "k", leaving=True)
    assert [plan.incarnations for plan in plans(world.said)[before + 1 :]] == [{"d0": "k", "d1": "j"}]


def test_who_is_expected_is_not_missed_for_a_silence_of_the_log_after_the_take_over() -> None:
    world = World(newest=old_plan(d1="i"))
    world.now += TIMEOUT + 0.3
    world.writes = False
    world.tell(ClockRead(WALL + world.now))
    world.writes = True
    world.tell(Heard())
    said = world.tell(ClockRead(WALL + world.now)) + world.run(1.0, "d1")
    assert world.core.leads(world.now)
    assert not of(Reclaim, said)
    assert plans(said)[-1].incarnations == {"d1": "i"}


def test_who_was_missed_before_any_plan_named_it_is_let_in_as_what_it_was() -> None:
    world = World(solves=False)
    world.run(1.0, "d0")
    world.beat("d1")
    assert of(Reclaim, world.run(TIMEOUT + 0.6, "d0")) == [Reclaim("d1", "i")]
    world.solves = True
    world.answer()
    world.run(1.0, "d0", "d1")
    world.tell(SweepBegan("d1", 0, 0))
    assert {*plans(world.run(2.0, "d0", "d1"))[-1].incarnations} == {"d0", "d1"}


def test_while_the_log_is_silent_nobody_is_missed() -> None:
    world = World()
    world.run(3.0, "d0", "d1")
    world.now += 30.0  # the process stood still
    world.writes = False
    assert not of(Reclaim, world.tell(ClockRead(WALL)))
    world.writes = True
    world.tell(Heard())
    said = world.run(TIMEOUT, "d0", "d1")
    assert not of(Reclaim, said)


def test_a_clock_that_is_set_makes_no_device_silent() -> None:
    world = World()
    world.run(3.0, "d0", "d1")
    world.tell(ClockRead(WALL + world.now + 3600.0))
    assert not of(Reclaim, world.tell(ClockRead(WALL + world.now - 3600.0)))
    assert not of(Reclaim, world.run(1.0, "d0", "d1"))


def test_a_note_withdraws_a_device_until_it_is_taken_back() -> None:
    world = World()
    world.run(3.0, "d0", "d1")
    world.tell(DeviceNoted("d1", "scaler", withdrawn=True))
    world.run(1.0, "d0", "d1")
    assert {p.device for p in plans(world.said)[-1].placements} == {"d0"}
    assert "d1" in plans(world.said)[-1].incarnations  # it finishes what it has
    world.tell(DeviceNoted("d1", "scaler"))
    world.run(1.0, "d0", "d1")
    assert "d1" in {p.device for p in plans(world.said)[-1].placements}


def test_of_two_workers_of_a_withdrawn_device_the_first_stays() -> None:
    world = World()
    world.run(3.0, "d0", "d1")
    world.tell(DeviceNoted("d1", "scaler", withdrawn=True))
    world.run(1.0, "d0", "d1")
    before = len(plans(world.said))
    for _ in range(4):
        world.beat("d1", "j")
        world.run(0.5, "d0", "d1")
    assert {plan.incarnations["d1"] for plan in plans(world.said)[before:]} <= {"i"}


def test_a_withdrawn_device_that_was_silent_for_too_long_learns_from_an_epoch_that_it_must_rejoin() -> None:
    world = World()
    world.run(3.0, "d0", "d1")
    world.tell(DeviceNoted("d1", "scaler", withdrawn=True))
    world.run(1.0, "d0", "d1")
    said = world.run(TIMEOUT + 0.6, "d0")
    assert of(Reclaim, said) == [Reclaim("d1", "i")]
    assert "d1" in plans(world.said)[-1].incarnations, "most that are withdrawn end, and then an epoch is for nothing"
    (told,) = plans(world.run(1.0, "d0", "d1"))
    assert told.incarnations.keys() == {"d0"}
    assert not plans(world.run(1.0, "d1", "d0"))


def test_a_stage_that_does_not_run_here_withdraws_nothing() -> None:
    world = World(settings=CoreSettings(lease=LEASE, noting=frozenset({"procurement"})))
    world.run(3.0, "d0", "d1")
    before = len(plans(world.said))
    world.tell(DeviceNoted("d1", "scaler", withdrawn=True))
    world.run(1.0, "d0", "d1")
    assert all("d1" in {p.device for p in plan.placements} for plan in plans(world.said)[before:])
    world.tell(DeviceNoted("d1", "procurement", withdrawn=True))
    world.run(1.0, "d0", "d1")
    assert {p.device for p in plans(world.said)[-1].placements} == {"d0"}


def test_a_late_answer_is_stood_in_for_once_and_still_awaited() -> None:
    world = World(solves=False)
    world.beat("d0")
    (asked,) = world.out
    assert not of(StandIn, world.run(0.8, "d0"))
    (stand_in,) = of(StandIn, world.run(1.0, "d0"))
    assert isinstance(stand_in, StandIn)
    assert stand_in.reason.endswith(STANDS_IN)
    assert not of(StandIn, world.run(5.0, "d0"))
    quick = GreedyFill().allocate(stand_in.problem)
    assert plans(world.tell(Solved(quick, stand_in.reason, 0.01, asked.number, provisional=True)))
    assert world.answer() is not None


def test_an_answer_that_nobody_asked_for_raises_with_its_story_and_changes_nothing() -> None:
    world = World(solves=False)
    world.beat("d0")
    (asked,) = world.out
    allocation = GreedyFill().allocate(asked.problem)
    for wrong in (
        Solved(allocation, "", 0.1, asked.number + 1),
        Solved(allocation, "", 0.1, asked.number, provisional=True),
    ):
        with pytest.raises(IllegalEventError, match="nobody asked for") as raised:
            world.tell(wrong)
        assert raised.value.story
    assert not plans(world.said)
    world.answer()
    assert plans(world.said)
    with pytest.raises(IllegalEventError, match="nobody asked for"):
        world.tell(Solved(allocation, "", 0.1, asked.number))


def test_an_epoch_that_was_never_published_cannot_be_acknowledged() -> None:
    world = World()
    world.run(1.0, "d0")
    own = world.core.controller.plan
    assert own is not None
    world.tell(PlanAcknowledged("d0", own.epoch, ("a0",)))
    with pytest.raises(IllegalEventError, match="which nobody published"):
        world.tell(PlanAcknowledged("d0", Epoch(own.epoch.term, own.epoch.number + 1), ("a0",)))


def test_who_takes_over_may_hear_its_forerunners_newest_plan_acknowledged_before_reading_it() -> None:
    world = World(newest=Plan(epoch=Epoch(4, 2), created=1.0, incarnations={"d0": "i"}))
    assert Announce("planner", "took_over", "term 5 follows the one before") in world.said
    world.tell(PlanAcknowledged("d0", Epoch(4, 3), ("a0",)))
    world.run(1.0, "d0")
    own = world.core.controller.plan
    assert own is not None and own.epoch.term == 5


def test_time_that_goes_back_raises() -> None:
    world = World()
    world.now -= 0.5
    with pytest.raises(IllegalEventError, match="after an event at"):
        world.tell(ClockRead(WALL))


def dead(world: World) -> None:
    """``d1`` dies, and its sweep is asked for."""
    world.run(3.0, "d0", "d1")
    while not of(Sweep, world.run(0.1)):
        world.beat("d0")


def query(name: str, app: str, deadline: float) -> Query:
    return Query(name, app, deadline - 1.0, deadline)


def test_each_record_that_a_dead_device_left_is_decided_by_what_it_is() -> None:
    world = World()
    dead(world)
    world.tell(SweepBegan("d1", 40, 46))
    wall = WALL + world.now
    said = world.tell(
        WorkLeft(
            "d1",
            (
                Left(40, query("late", "a", wall - 0.5)),
                Left(41, query("back", "a", wall + 5.0)),
                Left(43, None),
                Left(44, query("done", "b", wall - 0.5), answered=True),
                Left(45, query("promised", "b", wall - 0.5)),
            ),
        )
    )
    safe, move = said
    assert safe == SafeMode("b", "d1", True, "d1 was lost with queries of this app")
    assert isinstance(move, Move)
    late, back, noise, done, promised = move.verdicts
    assert isinstance(late, End)
    assert (late.outcome.kind, late.outcome.reason) == (OutcomeKind.EXPIRED, Reason.DEVICE_LOST)
    assert (late.outcome.device, late.outcome.at) == ("d1", pytest.approx(wall, abs=0.2))
    assert (back, noise, done) == (Readmit(), Bury(), Leave())
    assert isinstance(promised, End)
    world.tell(Swept("d1"))
    world.run(11.0, "d0")
    assert plans(world.said)[-1].fences.get("d1", 46) == 46


def test_safe_mode_of_the_leader_before_ends_once_its_device_is_back_and_ones_own_words_are_no_news() -> None:
    there = DeviceHeard(DeviceSeen("d0", "cpu", "i"))
    stands = (SafeModeRead("b", "d0", True), SafeModeRead("b", "d1", True), there)
    world = World(newest=old_plan(d0="i"), work_topics=("d0", "d1"), stands=stands)
    assert {*of(SafeMode, world.said)} == {SafeMode("b", "d0", False, "d0 is back")}
    assert Sweep("d1") in world.run(0.5, "d0")
    world.tell(SafeModeRead("a", "d1", True))
    world.beat("d1", "j")
    assert world.tell(SweepBegan("d1", 17, 17)) == [LetIn("d1"), SafeMode("b", "d1", False, "d1 is back")]


def stood_by(newest: Plan) -> World:
    """Stands by behind a leader while d0 and d1 beat, then d0 alone, until ``newest`` comes."""
    world = World()
    leader = Lease(term=7, holder="other", claims=world.core._lease.newest.place)  # type: ignore[union-attr]
    for renewal in range(12):
        world.tell(LeaseRead(replace(leader, renewals=renewal, claims=None if renewal else leader.claims)))
        world.run(0.5, *(("d0", "d1") if renewal < 2 else ("d0",)))
    world.tell(PlanRead(newest))
    world.tell(SafeModeRead("b", "d1", True))
    return world


def test_who_takes_over_from_who_missed_a_device_does_not_take_it_for_one_that_is_back() -> None:
    world = stood_by(Plan(epoch=Epoch(7, 3), created=1.0, incarnations={"d0": "i"}))
    world.work_topics = ("d0", "d1")
    said = world.run(LEASE + 1.0, "d0")
    assert of(Lead, said) and not of(SafeMode, said)
    assert of(Sweep, said) == [Sweep("d1")]


def test_a_device_that_died_while_this_one_stood_by_is_reclaimed_as_it_takes_over() -> None:
    world = stood_by(Plan(epoch=Epoch(7, 3), created=1.0, incarnations={"d0": "i", "d1": "i"}))
    world.work_topics = ("d0", "d1")
    said = world.run(LEASE + 1.0, "d0")
    (at,) = [k for k, action in enumerate(said) if isinstance(action, Lead)]
    until = next(k for k, action in enumerate(said) if k > at and isinstance(action, WakeAt))
    assert of(Reclaim, said[at:until]) == [Reclaim("d1", "i")] and not of(SafeMode, said)
    assert plans(said)[0].incarnations == {"d0": "i"}


def test_a_device_that_is_back_is_let_in_at_the_end_of_the_sweep_and_not_before() -> None:
    world = World()
    dead(world)
    said = world.run(0.6, "d0", "d1", incarnation="j")
    assert not [a for a in said if isinstance(a, Announce) and a.state == "returned"]
    world.tell(SweepBegan("d1", 40, 41))
    world.tell(WorkLeft("d1", (Left(40, query("late", "b", 1.0)),)))
    assert world.tell(Swept("d1")) == [LetIn("d1"), SafeMode("b", "d1", False, "d1 is back")]
    said = world.run(1.0, "d0", "d1", incarnation="j")
    assert [a for a in said if isinstance(a, Announce) and a.state == "returned"]
    assert plans(said)[-1].fences == {"d1": 41}
    assert plans(said)[-1].incarnations["d1"] == "j"


def test_a_device_that_dies_again_before_any_plan_named_it_is_swept_on() -> None:
    """A router with the plan from before its first death may still write to it."""
    world = World()
    dead(world)
    world.run(0.6, "d0", "d1", incarnation="j")
    world.tell(SweepBegan("d1", 40, 40))
    assert of(LetIn, world.said) == [LetIn("d1")]
    assert not of(Sweep, world.run(TIMEOUT - 0.1, "d0"))
    assert of(Sweep, world.run(0.2, "d0")) == [Sweep("d1")]
    world.tell(SweepBegan("d1", 40, 41))
    world.tell(WorkLeft("d1", (Left(40, query("late", "a", 9.0)),)))
    world.tell(Swept("d1"))
    assert of(Sweep, world.run(0.6, "d0")) == [Sweep("d1")]


def test_who_takes_over_sweeps_what_is_neither_in_the_newest_plan_nor_heard_of() -> None:
    world = World(newest=old_plan(d0="i"), work_topics=("d0", "d1"))
    assert of(Sweep, world.run(1.0, "d0")) == [Sweep("d1")]
    world.tell(SweepBegan("d1", 17, 17))
    assert of(Sweep, world.run(1.0, "d0")) == [Sweep("d1")]  # again, while it is absent


def test_who_stood_by_for_a_moment_goes_on_with_the_sweep_that_was_cut_short() -> None:
    world = World(work_topics=("d0", "d1"))
    dead(world)
    world.tell(SweepBegan("d1", 1, 4))
    world.writes = False
    assert of(StepDown, world.run(LEASE + 0.5, "d0"))
    world.writes = True
    assert of(Sweep, world.run(1.0, "d0")) == [Sweep("d1")]


def test_at_the_first_plan_and_for_who_is_heard_of_there_is_nothing_to_sweep() -> None:
    assert not of(Sweep, World(work_topics=("d0", "d1")).run(1.0, "d0"))
    world = World(work_topics=("d0", "d1"))
    world.run(1.0, "d0", "d1")
    world.writes = False
    world.run(LEASE + 0.5, "d0", "d1")
    world.tell(PlanRead(Plan(epoch=Epoch(2, 1), created=1.0, incarnations={"d0": "i"})))
    world.writes = True
    said = world.run(2 * LEASE, "d0", "d1")
    assert set(plans(said)[-1].incarnations) == {"d0", "d1"}
    assert not of(Sweep, said)


def test_the_dead_incarnation_is_not_heard_any_more() -> None:
    world = World()
    dead(world)
    world.tell(SweepBegan("d1", 5, 5))
    said = world.run(3.0, "d0", "d1")
    assert not [a for a in said if isinstance(a, Announce) and a.state == "returned"]
    assert of(Sweep, said)  # what routers with an old plan still send there
    assert world.tell(SweepBegan("d1", 5, 5)) == []


def test_of_two_workers_of_a_device_the_first_is_counted_on_and_the_second_once_that_is_silent() -> None:
    world = World()
    world.run(2.0, "d0", "d1")
    before = plans(world.said)[-1]
    said: list[PlannerAction] = []
    for _ in range(6):
        said += world.run(0.5, "d0", "d1")
        said += world.tell(DeviceHeard(DeviceSeen("d1", "cpu", "k"), late=40.0))  # on another machine, as it seems
    told = [a for a in of(Announce, said) if isinstance(a, Announce)]
    assert [(a.subject, a.state) for a in told] == [("device:d1", "contested")]
    assert "incarnation i; another worker beats for it too" in told[0].detail and "--device" in told[0].detail
    assert all(plan.incarnations == before.incarnations for plan in plans(said))
    said = []
    for _ in range(4):
        said += world.run(0.5, "d0")
        said += world.beat("d1", "k")
    assert [plan.incarnations["d1"] for plan in plans(said)][-1] == "k"
    assert not of(Reclaim, said), "it reads what the first has not committed"
    assert [a.state for a in of(Announce, said) if isinstance(a, Announce)] == ["restarted"]


def test_who_stands_by_hears_a_device_that_it_was_sweeping() -> None:
    world = World()
    dead(world)
    world.tell(LeaseRead(Lease(term=7, holder="other", claims=world.core._lease.newest.place)))  # type: ignore[union-attr]
    world.beat("d1", "j")
    assert world.core.controller.alive == ("d0", "d1")


def test_a_sweep_that_failed_begins_again_and_one_for_no_topic_ends() -> None:
    world = World()
    dead(world)
    world.tell(SweepBegan("d1", 1, 4))
    world.tell(WorkLeft("d1", (Left(1, None),)))
    world.tell(SweepFailed("d1"))
    assert not of(Sweep, world.run(0.3, "d0"))
    assert of(Sweep, world.run(0.3, "d0")) == [Sweep("d1")]
    world.tell(SweepBegan("d1", 1, 4))
    world.tell(SweepFailed("d1", gone=True))
    assert not of(Sweep, world.run(3.0, "d0"))


@pytest.mark.parametrize(
    "wrong",
    [
        SweepBegan("d0", 0, 1),
        Swept("d1"),
        WorkLeft("d1", (Left(1, None),)),
    ],
)
def test_what_no_sweep_asked_for_raises(wrong: PlannerEvent) -> None:
    world = World()
    dead(world)
    with pytest.raises(IllegalEventError):
        world.tell(wrong)


@pytest.mark.parametrize("offsets", [(6,), (9,), (7, 7), (8, 7)])
def test_records_outside_the_fence_or_twice_raise(offsets: tuple[int, ...]) -> None:
    world = World()
    dead(world)
    world.tell(SweepBegan("d1", 7, 9))
    with pytest.raises(IllegalEventError, match="is to be decided"):
        world.tell(WorkLeft("d1", tuple(Left(offset, None) for offset in offsets)))
    world.tell(WorkLeft("d1", (Left(7, None),)))  # nothing was changed
    with pytest.raises(IllegalEventError, match="is to be decided"):
        world.tell(WorkLeft("d1", (Left(7, None), Left(8, None))))
    world.tell(WorkLeft("d1", (Left(8, None),)))


def test_another_leads_so_that_nothing_of_a_dead_device_is_decided_here() -> None:
    world = World()
    dead(world)
    world.tell(SweepBegan("d1", 7, 9))
    world.now += LEASE  # the process stood still
    assert world.tell(WorkLeft("d1", (Left(7, None),))) == []


def test_known_devices_lend_what_heartbeats_do_not_say() -> None:
    known = Device(name="d0", type="cpu", price=2.5)
    core = PlannerCore(CATALOGUE, holder="me", devices=(known,))
    core.handle(DeviceHeard(DeviceSeen("d0", "cpu", "i")), START)
    assert core.controller.problem(START).devices[0].price == 2.5
