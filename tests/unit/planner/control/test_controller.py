"""When the controller plans, what it publishes and whom it declares dead."""

import gc
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace

from sluicegate.domain.actions import Announce, Publish, Reclaim
from sluicegate.domain.events import (
    DemandCounted,
    DeviceSeen,
    EndsCounted,
    HostHeard,
    LatencyMeasured,
    PlanAcknowledged,
    Ticked,
)
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.plan import Epoch
from sluicegate.planner.control.controller import Controller
from sluicegate.planner.control.controller_settings import ControllerSettings
from sluicegate.planner.control.replan_trigger import Solve, Solved
from sluicegate.planner.registry import planner
from sluicegate.profiles.catalogue.catalogue import Catalogue

FAST, SLOW = "a-fast", "a-slow"
CATALOGUE = Catalogue.of(
    [App(name="a", slo=0.3)],
    [Variant(name=FAST, app="a", accuracy=0.7), Variant(name=SLOW, app="a", accuracy=0.9)],
    [
        Profile(variant=FAST, device_type="cpu", points=(BatchLatency(1, 0.002, 0.002), BatchLatency(8, 0.008, 0.008))),
        Profile(variant=SLOW, device_type="cpu", points=(BatchLatency(1, 0.02, 0.02), BatchLatency(8, 0.15, 0.15))),
    ],
)
OTHER = "b-fast"
BOTH = Catalogue.of(
    [*CATALOGUE.apps.values(), App(name="b", slo=0.4)],
    [
        *CATALOGUE.variants.values(),
        Variant(name=OTHER, app="b", accuracy=0.6),
        Variant(name="b-slow", app="b", accuracy=0.8),
    ],
    [
        *CATALOGUE.profiles.values(),
        *(replace(CATALOGUE.profiles[v, "cpu"], variant=w) for v, w in ((FAST, OTHER), (SLOW, "b-slow"))),
    ],
)


class World:
    """Drives a controller as a shell would, solving at once or on demand."""

    def __init__(self, *, inline: bool = True, catalogue: Catalogue = CATALOGUE, **settings: object) -> None:
        self.controller = Controller(catalogue, settings=ControllerSettings(**settings), term=3)  # type: ignore[arg-type]
        self.inline = inline
        self.log: list[object] = []
        self.out: list[Solve] = []

    def send(self, event: object, now: float) -> list[object]:
        seen: list[object] = []
        for action in self.controller.handle(event, now):  # type: ignore[arg-type]
            seen.append(action)
            if isinstance(action, Solve):
                self.out.append(action)
                if self.inline:
                    seen.extend(self.answer(now))
        self.log.extend(a for a in seen if a not in self.log[-len(seen) :])
        return seen

    def answer(self, now: float) -> list[object]:
        solve = self.out.pop()
        allocation = planner("greedy-fill").allocate(solve.problem)
        return self.send(Solved(allocation, solve.reason, 0.01, solve.number), now)

    def beat(self, now: float, devices: Iterable[str] = ("d0", "d1"), incarnation: str = "i") -> list[object]:
        seen: list[object] = []
        for name in devices:
            seen += self.send(DeviceSeen(name, "cpu", incarnation), now)
        return seen + self.send(Ticked(), now)

    def run(self, start: float, end: float, qps: float = 10.0, devices: Iterable[str] = ("d0", "d1")) -> list[object]:
        seen: list[object] = []
        t = start
        while t < end - 1e-9:
            t += 0.5
            seen += self.send(DemandCounted("a", round(qps / 2), 0.5), t)
            seen += self.beat(t, devices)
        return seen


def published(actions: Iterable[object]) -> list[Publish]:
    return [a for a in actions if isinstance(a, Publish)]


def test_the_first_plan_comes_with_the_first_device() -> None:
    world = World()
    assert not published(world.send(Ticked(), 0.0))
    plans = published(world.beat(0.1, ["d0"]))
    assert len(plans) == 1
    assert plans[0].plan.epoch == Epoch(3, 1)
    assert {p.device for p in plans[0].plan.placements} == {"d0"}


def test_a_flock_of_devices_costs_two_plans() -> None:
    world = World()
    flock = [f"d{i}" for i in range(20)]
    seen = world.beat(0.0, flock) + world.beat(0.5, flock) + world.beat(1.0, flock)
    assert len(published(seen)) == 2
    assert {p.device for p in published(seen)[-1].plan.placements} == set(flock)


def test_an_unchanged_plan_is_not_published_again() -> None:
    world = World()
    world.run(0.0, 10.0)
    seen = world.run(10.0, 60.0)
    assert not published(seen)
    assert [a for a in seen if isinstance(a, Solve)]


def test_load_beyond_the_accurate_variant_changes_the_plan_within_a_second_of_the_burst() -> None:
    world = World(plan_period=60.0)
    world.run(0.0, 10.0, qps=20)
    before = world.controller.plan
    assert before is not None and {v for p in before.placements for v in p.variants} == {SLOW}
    seen = world.run(10.0, 11.5, qps=600)
    after = published(seen)[-1].plan
    assert "burst" in after.reason
    assert FAST in {v for p in after.placements for v in p.variants}


def test_a_silent_device_leaves_the_plan_at_once_and_its_work_is_reclaimed_after() -> None:
    world = World()
    world.run(0.0, 10.0)
    seen: list[object] = []
    for t in (10.5, 11.0, 11.5, 12.0, 12.5):
        seen += world.beat(t, ["d0"])
    kinds = [type(a) for a in seen if isinstance(a, Publish | Reclaim)]
    assert kinds[:2] == [Publish, Reclaim]
    assert [a for a in seen if isinstance(a, Reclaim)] == [Reclaim("d1", "i")]
    assert all(p.device == "d0" for p in published(seen)[0].plan.placements)


def test_a_returning_device_rejoins_with_its_new_incarnation() -> None:
    world = World()
    world.run(0.0, 5.0)
    world.run(5.0, 9.0, devices=["d0"])
    assert world.controller.alive == ("d0",)
    seen = world.send(DeviceSeen("d1", "cpu", "second"), 9.0) + world.run(9.0, 9.5)
    assert any(isinstance(a, Announce) and a.state == "returned" for a in seen)
    assert {p.device for p in published(seen)[-1].plan.placements} == {"d0", "d1"}


def test_a_leaving_device_gets_no_more_work() -> None:
    world = World()
    world.run(0.0, 5.0)
    seen = world.send(DeviceSeen("d1", "cpu", "i", leaving=True), 5.2)
    assert all(p.device == "d0" for p in published(seen)[-1].plan.placements)
    assert not [a for a in seen if isinstance(a, Reclaim)]


def test_a_worker_that_was_restarted_is_named_by_the_plan_at_once_and_nothing_is_placed_otherwise() -> None:
    world = World(inline=False)
    world.send(DeviceSeen("d1", "cpu", "first"), 100.0)
    assert not published(world.send(DeviceSeen("d1", "cpu", "second"), 100.1)), "no plan is in force yet"
    world = World()
    world.run(100.0, 105.0)
    before = world.controller.plan
    assert before is not None
    announced, publish = world.send(DeviceSeen("d1", "cpu", "second"), 105.1)
    assert announced == Announce("device:d1", "restarted", "cpu, incarnation second")
    assert isinstance(publish, Publish)
    assert publish.plan.incarnations == {"d0": "i", "d1": "second"}
    assert publish.plan.placements == before.placements
    assert (publish.plan.epoch, publish.plan.created) == (Epoch(3, before.epoch.number + 1), 105.1)
    assert (publish.plan.reason, publish.plan.solve_s) == ("device d1 restarted", 0.0)


def test_a_worker_that_was_restarted_with_other_memory_or_to_stay_is_named_before_the_answer() -> None:
    """Solving takes a while, and nothing on its topic is answered until a plan names the new worker."""
    world = World()
    world.run(100.0, 105.0)
    world.inline = False
    (named,) = published(world.send(DeviceSeen("d1", "cpu", "second", memory_bytes=1 << 33), 105.1))
    assert (named.plan.incarnations, named.plan.reason) == ({"d0": "i", "d1": "second"}, "device d1 changed")
    assert {p.device for p in named.plan.placements} == {"d0", "d1"}
    assert not published(world.send(DeviceSeen("d1", "cpu", "second", memory_bytes=1 << 32), 105.2)), "named already"
    world.send(DeviceSeen("d0", "cpu", "i", leaving=True), 105.3)
    (named,) = published(world.send(DeviceSeen("d0", "cpu", "third"), 105.4))
    assert (named.plan.incarnations, named.plan.reason) == ({"d0": "third", "d1": "second"}, "device d0 stays")


def test_a_device_is_missed_after_more_than_two_seconds_of_silence() -> None:
    world = World()
    world.run(100.0, 105.0)
    world.beat(105.5, ["d0"])
    assert world.beat(107.0, ["d0"]) == []
    assert world.controller.living == world.controller.alive == ("d0", "d1")
    seen = world.beat(107.1, ["d0"])
    assert Announce("device:d1", "lost", "no heartbeat for 2.1 s") in seen
    assert world.controller.living == world.controller.alive == ("d0",)


def test_a_leaving_device_lives_until_it_is_silent_and_its_work_is_reclaimed_then() -> None:
    world = World()
    world.run(100.0, 105.0)
    world.send(DeviceSeen("d1", "cpu", "i", leaving=True), 105.0)
    assert (world.controller.alive, world.controller.living) == (("d0",), ("d0", "d1"))
    world.beat(106.5, ["d0"])
    plan = world.controller.plan
    assert plan is not None and plan.incarnations == {"d0": "i", "d1": "i"}
    seen = world.beat(107.1, ["d0"])
    assert [a for a in seen if not isinstance(a, Solve)] == [
        Announce("device:d1", "left", "no heartbeat for 2.1 s"),
        Reclaim("d1", "i"),
    ]
    (disowned,) = published(world.controller.refused("d1", "i", 107.2))
    assert disowned.plan.incarnations == {"d0": "i"}
    assert disowned.plan.placements == plan.placements
    assert world.controller.refused("d1", "i", 107.3) == [], "the plan in force does not name it any more"


def test_a_question_without_an_answer_is_told_and_the_plan_in_force_can_be_published_again() -> None:
    world = World(inline=False, solve_timeout=5.0)
    assert world.controller.again("a stranger wrote over it", 99.0) == []
    world.beat(100.0, ["d0"])
    seen: list[object] = []
    for now in (101.0, 102.0, 103.0, 104.0, 105.0):
        seen += world.beat(now, ["d0"])
    late = Announce("planner", "late", "no answer for 5 s; asking again")
    assert late not in seen
    assert late in world.beat(105.1, ["d0"])
    world.answer(105.5)
    plan = world.controller.plan
    assert plan is not None
    (again,) = published(world.controller.again("a stranger wrote over it", 106.0))
    assert (again.plan.epoch, again.plan.created) == (Epoch(3, plan.epoch.number + 1), 106.0)
    assert (again.plan.placements, again.plan.reason) == (plan.placements, "a stranger wrote over it")


def test_numbers_go_on_within_a_term_and_begin_anew_in_another() -> None:
    world = World()
    world.run(100.0, 105.0)
    plan = world.controller.plan
    assert plan is not None
    (same, *_) = published(world.controller.lead(3, plan, "again", 105.1))
    assert same.plan.epoch == Epoch(3, plan.epoch.number + 1)
    (higher, *_) = published(world.controller.lead(6, same.plan, "term 6 follows", 105.2))
    assert (higher.plan.epoch, higher.plan.placements) == (Epoch(6, 1), plan.placements)
    ahead = replace(higher.plan, epoch=Epoch(6, 9))
    (behind, *_) = published(world.controller.lead(6, ahead, "again", 105.3))
    assert behind.plan.epoch == Epoch(6, 10)


def test_another_catalogue_is_planned_for_at_once_by_who_leads_and_only_where_it_differs() -> None:
    better = Catalogue.of(
        CATALOGUE.apps.values(), [replace(v, accuracy=0.95) for v in CATALOGUE.variants.values()],
        CATALOGUE.profiles.values(),
    )  # fmt: skip
    world = World()
    world.run(100.0, 105.0)
    assert world.controller.registered(CATALOGUE, 105.1, leads=True) == []
    assert world.controller.registered(better, 105.2, leads=False) == []
    assert world.controller.problem(105.2).catalogue.variants[SLOW].accuracy == 0.95
    (solve,) = world.controller.registered(CATALOGUE, 105.3, leads=True)
    assert isinstance(solve, Solve)
    assert (solve.reason, solve.urgent) == ("registry: a", False)
    (again,) = world.controller.registered(better, 105.4, leads=True)
    assert isinstance(again, Solve)
    assert again.number == solve.number + 1, "what is out is of no use any more"
    stale = Solved(planner("greedy-fill").allocate(solve.problem), solve.reason, 0.1, solve.number)
    assert not published(world.send(stale, 105.5))


def test_a_device_that_joined_before_a_question_was_dropped_is_named_by_the_next_answer() -> None:
    more = Catalogue.of(
        [*CATALOGUE.apps.values(), App(name="b", slo=0.3)], CATALOGUE.variants.values(), CATALOGUE.profiles.values()
    )
    world = World()
    world.run(100.0, 105.0)
    world.inline = False
    assert not published(world.send(DeviceSeen("d2", "cpu", "later", price=2.0), 105.1) + world.beat(105.4))
    assert world.out.pop().reason == "device d2 joined"
    (again,) = world.controller.registered(more, 105.5, leads=True)
    assert isinstance(again, Solve)
    world.out.append(again)
    (plan,) = published(world.answer(105.6))
    assert plan.plan.incarnations == {"d0": "i", "d1": "i", "d2": "later"}


def test_one_solve_is_out_and_what_changed_meanwhile_is_solved_next() -> None:
    world = World(inline=False)
    world.beat(0.0, ["d0"])
    assert len(world.out) == 1
    seen = world.run(0.0, 3.0, devices=["d0", "d1"])
    assert len(world.out) == 1
    assert not [a for a in seen if isinstance(a, Solve)]
    seen = world.answer(3.0)
    assert len([a for a in seen if isinstance(a, Solve)]) == 1
    assert {d.name for d in world.out[0].problem.devices} == {"d0", "d1"}


def test_an_answer_for_a_device_that_died_meanwhile_leaves_it_out() -> None:
    world = World(inline=False)
    world.beat(0.0)
    world.send(Ticked(), 0.5)
    world.answer(0.5)
    world.run(0.5, 1.0)
    world.run(1.0, 4.0, devices=["d0"])
    plans = published(world.answer(4.0))
    assert all(p.device == "d0" for plan in plans for p in plan.plan.placements)


def test_a_lost_answer_is_asked_for_again() -> None:
    world = World(inline=False, solve_timeout=5.0)
    world.beat(0.0, ["d0"])
    lost = world.out.pop()
    world.run(0.0, 6.0, devices=["d0"])
    assert len(world.out) == 1
    late = Solved(planner("greedy-fill").allocate(lost.problem), lost.reason, 6.0, lost.number)
    assert not published(world.send(late, 6.0))
    assert published(world.answer(6.5))


def test_what_plans_may_cost_is_part_of_every_problem() -> None:
    world = World(inline=False, budget=2.5, strict_on_demand=0.5)
    world.beat(0.0, ["d0"])
    problem = world.out.pop().problem
    assert (problem.budget, problem.strict_on_demand) == (2.5, 0.5)


def test_a_stand_in_is_published_and_the_answer_still_waited_for() -> None:
    world = World(inline=False)
    world.beat(0.0, ["d0"])
    asked = world.out.pop()
    stand_in = planner("greedy-fill").allocate(asked.problem)
    assert published(world.send(Solved(stand_in, asked.reason, 1.0, asked.number, provisional=True), 1.0))
    better = planner("allocation").allocate(asked.problem)
    assert published(world.send(Solved(better, asked.reason, 1.5, asked.number), 1.5))
    assert not published(world.send(Solved(better, asked.reason, 1.6, asked.number), 1.6))


def test_a_profile_wrong_by_half_is_noticed_and_planned_for() -> None:
    world = World()
    world.run(0.0, 10.0)
    seen = world.send(LatencyMeasured(SLOW, "cpu", 1, 0.03, batches=20), 10.2)
    solve = next(a for a in seen if isinstance(a, Solve))
    assert abs(solve.problem.latency_factor[SLOW, "cpu"] - 1.5) < 1e-9
    assert any(isinstance(a, Announce) and a.state == "wrong" for a in seen)


def test_a_variant_that_fails_to_load_is_avoided_for_a_while() -> None:
    world = World()
    world.run(0.0, 5.0)
    seen = world.send(PlanAcknowledged("d0", Epoch(3, 1), (), (SLOW,)), 5.2)
    solve = next(a for a in seen if isinstance(a, Solve))
    assert (SLOW, "cpu") not in solve.problem.catalogue.profiles
    seen = world.run(5.2, 80.0)
    assert (SLOW, "cpu") in [a for a in seen if isinstance(a, Solve)][-1].problem.catalogue.profiles


def aside(log: Iterable[object]) -> list[str]:
    return [a.subject for a in log if isinstance(a, Announce) and a.state == "set_aside"]


def test_a_device_that_loads_nothing_is_left_out_itself_and_not_its_type() -> None:
    world = World(catalogue=BOTH, load_failure_hold=20.0)
    world.run(1000.0, 1005.0)
    world.send(PlanAcknowledged("d1", Epoch(3, 1), (SLOW,), ()), 1005.1)
    world.send(PlanAcknowledged("d0", Epoch(3, 1), (), (SLOW,)), 1005.2)
    seen = world.send(PlanAcknowledged("d0", Epoch(3, 2), (), (OTHER,)), 1005.4)
    told = f"it loads neither {SLOW} nor {OTHER}; plans do without it for 20 s"
    assert Announce("device:d0", "set_aside", told) in seen
    solve = [a for a in seen if isinstance(a, Solve)][-1]
    assert [d.name for d in solve.problem.devices] == ["d1"]
    assert set(solve.problem.catalogue.profiles) == set(BOTH.profiles)
    plan = world.controller.plan
    assert plan is not None and {p.device for p in plan.placements} == {"d1"}
    assert not world.send(PlanAcknowledged("d0", plan.epoch, (), ()), 1005.5), "it holds nothing, as planned"
    assert all([d.name for d in a.problem.devices] == ["d1"] for a in world.run(1005.5, 1025.0) if isinstance(a, Solve))
    back = [a for a in world.run(1025.0, 1030.0) if isinstance(a, Solve)]
    assert back and [d.name for d in back[-1].problem.devices] == ["d0", "d1"], "it is tried again"


def test_a_device_is_at_fault_as_soon_as_another_holds_what_it_refused() -> None:
    world = World(catalogue=BOTH)
    world.run(1000.0, 1005.0)
    world.send(PlanAcknowledged("d0", Epoch(3, 1), (), (SLOW,)), 1005.2)
    assert not aside(world.send(PlanAcknowledged("d0", Epoch(3, 2), (), (FAST,)), 1005.4)), "they may be no good"
    assert not aside(world.send(PlanAcknowledged("d1", Epoch(3, 2), (OTHER,), ()), 1005.5)), "says nothing of those"
    seen = world.send(PlanAcknowledged("d1", Epoch(3, 2), (FAST, OTHER), ()), 1005.6)
    assert aside(seen) == ["device:d0"], "two of one app, and it is the device all the same"
    assert [d.name for d in [a for a in seen if isinstance(a, Solve)][-1].problem.devices] == ["d1"]


def test_variants_that_load_on_no_device_are_the_reason_themselves() -> None:
    world = World(catalogue=BOTH)
    world.run(1000.0, 1005.0)
    for device in ("d0", "d1"):
        for variant in (SLOW, OTHER):
            world.send(PlanAcknowledged(device, Epoch(3, 1), (), (variant,)), 1005.2)
    assert not aside(world.log)
    solve = [a for a in world.log if isinstance(a, Solve)][-1]
    assert [d.name for d in solve.problem.devices] == ["d0", "d1"]
    assert set(solve.problem.catalogue.profiles) == {(FAST, "cpu"), ("b-slow", "cpu")}


def test_a_device_that_does_not_load_all_that_an_app_has_is_no_capacity_for_it() -> None:
    single = Catalogue.of(
        [*CATALOGUE.apps.values(), App(name="b", slo=0.4)],
        [*CATALOGUE.variants.values(), Variant(name=OTHER, app="b", accuracy=0.6)],
        [*CATALOGUE.profiles.values(), replace(CATALOGUE.profiles[FAST, "cpu"], variant=OTHER)],
    )
    world = World(catalogue=single, load_failure_hold=20.0)
    world.run(1000.0, 1005.0)
    assert not aside(world.send(PlanAcknowledged("d0", Epoch(3, 1), (), (OTHER,)), 1005.1)), "it may load nowhere"
    seen = world.send(PlanAcknowledged("d1", Epoch(3, 1), (OTHER,), ()), 1005.2)
    told = f"it does not load {OTHER}; plans do without it for 20 s"
    assert Announce("device:d0", "set_aside", told) in seen
    assert [d.name for d in [a for a in seen if isinstance(a, Solve)][-1].problem.devices] == ["d1"]


def test_one_variant_alone_may_lack_room_there() -> None:
    world = World(catalogue=BOTH)
    world.run(1000.0, 1005.0)
    world.send(PlanAcknowledged("d1", Epoch(3, 1), (SLOW,), ()), 1005.1)
    for _ in range(3):
        world.send(PlanAcknowledged("d0", Epoch(3, 1), (), (SLOW,)), 1005.2)
    assert not aside(world.log)


def test_what_loads_on_a_device_or_begins_anew_is_not_set_aside() -> None:
    world = World(catalogue=BOTH)
    world.run(1000.0, 1005.0)
    world.send(PlanAcknowledged("d1", Epoch(3, 1), (SLOW,), ()), 1005.1)
    world.send(PlanAcknowledged("d0", Epoch(3, 1), (), (SLOW,)), 1005.2)
    world.send(PlanAcknowledged("d0", Epoch(3, 1), (FAST,), (SLOW,)), 1005.3)
    seen = world.send(PlanAcknowledged("d0", Epoch(3, 1), (), (OTHER,)), 1005.4)
    assert not aside(seen), "one since it loaded another"
    assert aside(world.send(PlanAcknowledged("d0", Epoch(3, 1), (), (SLOW,)), 1005.5)) == ["device:d0"]
    anew = world.send(DeviceSeen("d0", "cpu", "another"), 1006.0)
    back = [a for a in [*anew, *world.run(1006.0, 1008.0)] if isinstance(a, Solve)]
    assert "d0" in [d.name for d in back[-1].problem.devices]


def test_what_a_device_held_before_it_began_anew_is_no_evidence() -> None:
    world = World(catalogue=BOTH)
    world.run(1000.0, 1005.0)
    world.send(PlanAcknowledged("d1", Epoch(3, 1), (SLOW,), ()), 1005.1)
    world.send(DeviceSeen("d1", "cpu", "another"), 1005.15)
    world.send(PlanAcknowledged("d0", Epoch(3, 1), (), (SLOW, OTHER)), 1005.2)
    assert not aside(world.log)


def test_who_stood_by_knows_which_device_loads_nothing() -> None:
    world = World(catalogue=BOTH)
    for event in (
        DeviceSeen("d0", "cpu", "i"), DeviceSeen("d1", "cpu", "i"), DemandCounted("a", 40, 1.0),
        PlanAcknowledged("d1", Epoch(3, 1), (SLOW,), ()),
        PlanAcknowledged("d0", Epoch(3, 1), (), (SLOW,)), PlanAcknowledged("d0", Epoch(3, 2), (), (OTHER,)),
    ):  # fmt: skip
        world.controller.listen(event, 1005.0)
    begun = [*world.controller.lead(4, None, "the other is gone", 1005.2), *world.beat(1005.3), *world.beat(1009.0)]
    solve = [a for a in begun if isinstance(a, Solve)][-1]
    assert [d.name for d in solve.problem.devices] == ["d1"]
    assert set(solve.problem.catalogue.profiles) == set(BOTH.profiles)


def test_what_is_told_of_plans_of_other_terms_or_by_strangers_is_no_failed_load() -> None:
    world = World()
    world.run(100.0, 105.0)
    for event in (
        PlanAcknowledged("d0", Epoch(2, 7), (), (SLOW,)),
        PlanAcknowledged("d0", Epoch(4, 1), (), (SLOW,)),
        PlanAcknowledged("stranger", Epoch(3, 1), (), (SLOW,)),
    ):
        assert world.send(event, 105.2) == [], event
    told = world.send(PlanAcknowledged("d0", Epoch(3, 1), (), (SLOW,)), 105.2)
    assert Announce("device:d0", "load_failed", f"{SLOW} could not be loaded") in told
    assert not [
        a for a in world.send(PlanAcknowledged("d1", Epoch(3, 1), (), (SLOW,)), 105.3) if isinstance(a, Announce)
    ], "said once for all devices of a type"


def test_who_stood_by_knows_demand_devices_latencies_and_what_failed_to_load_when_it_leads() -> None:
    world = World()
    for event in (
        DeviceSeen("d0", "cpu", "i"), DeviceSeen("d1", "cpu", "i"), DemandCounted("a", 40, 1.0),
        LatencyMeasured(FAST, "cpu", 1, 0.003, batches=20), PlanAcknowledged("d0", Epoch(3, 1), (), (SLOW,)),
        PlanAcknowledged("stranger", Epoch(3, 1), (), (FAST,)),
    ):  # fmt: skip
        world.controller.listen(event, 5.0)
    begun = [*world.controller.lead(4, None, "the other is gone", 5.2), *world.beat(5.3), *world.beat(9.0)]
    solve = next(a for a in begun if isinstance(a, Solve))
    assert [d.name for d in solve.problem.devices] == ["d0", "d1"]
    assert set(solve.problem.catalogue.profiles) == {(FAST, "cpu")}
    assert abs(solve.problem.latency_factor[FAST, "cpu"] - 1.5) < 1e-9
    assert solve.problem.demands[0].qps > 10.0


def test_who_stands_by_for_long_keeps_no_more_than_who_has_for_a_while() -> None:
    controller = World().controller

    def kept_after(start: int, end: int) -> int:
        for now in range(start, end):
            for device in ("d0", "d1"):
                controller.listen(DeviceSeen(device, "cpu", "i"), float(now))
                controller.listen(HostHeard(device, 0.01, (EndsCounted("a", 3, 1),)), float(now))
            controller.listen(DemandCounted("a", 40, 1.0), float(now))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = kept_after(1000, 1200)
        assert kept_after(1200, 3000) < before + 10_000
    finally:
        tracemalloc.stop()


def test_shortage_is_announced_once_and_its_end_once() -> None:
    world = World()
    world.run(0.0, 10.0)
    seen = world.run(10.0, 40.0, qps=5000)
    seen += world.run(40.0, 120.0, qps=10)
    states = [a.state for a in seen if isinstance(a, Announce) and a.subject == "app:a"]
    assert states == ["shortage", "served"]


def test_the_only_variant_of_an_app_is_tried_again_where_it_failed_to_load() -> None:
    """The answer to the failure places what was placed, which is worth no epoch, and a worker tries with a newer one
    only: that comes once the failure is a while ago, and no oftener."""
    slow = CATALOGUE.profiles[SLOW, "cpu"]
    only = Catalogue.of([App(name="a", slo=0.3)], [Variant(name=SLOW, app="a", accuracy=0.9)], [slow])
    world = World(catalogue=only, load_failure_hold=20.0)
    world.run(1000.0, 1010.0)
    plan = world.controller.plan
    assert plan is not None and {p.device for p in plan.placements} == {"d0", "d1"}
    seen = world.send(PlanAcknowledged("d0", plan.epoch, (), (SLOW,)), 1010.0) + world.run(1010.0, 1029.5)
    assert not published(seen)
    again = published(world.run(1029.5, 1060.0))
    assert [(one.plan.created, one.plan.reason) for one in again] == [(1030.0, f"loading {SLOW} on d0 again")]
    assert again[0].plan.placements == plan.placements
    world.send(PlanAcknowledged("d0", again[0].plan.epoch, (SLOW,), ()), 1060.0)
    assert not published(world.run(1060.0, 1100.0))


def test_a_failed_load_that_another_plan_followed_is_not_tried_once_more() -> None:
    slow = CATALOGUE.profiles[SLOW, "cpu"]
    only = Catalogue.of([App(name="a", slo=0.3)], [Variant(name=SLOW, app="a", accuracy=0.9)], [slow])
    world = World(catalogue=only, load_failure_hold=20.0)
    world.run(1000.0, 1010.0)
    plan = world.controller.plan
    assert plan is not None
    world.send(PlanAcknowledged("d0", plan.epoch, (), (SLOW,)), 1010.0)
    later = published(world.run(1010.0, 1015.0, devices=("d0", "d1", "d2")))
    assert later, "a device joined"
    world.send(PlanAcknowledged("d0", plan.epoch, (), (SLOW,)), 1015.0)  # told late, of the plan before
    assert not published(world.run(1015.0, 1060.0, devices=("d0", "d1", "d2")))
