"""When the controller plans, what it publishes and whom it declares dead."""

from collections.abc import Iterable

from sluicegate.domain.actions import Announce, Publish, Reclaim
from sluicegate.domain.events import DemandCounted, DeviceSeen, LatencyMeasured, PlanAcknowledged, Ticked
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


class World:
    """Drives a controller as a shell would, solving at once or on demand."""

    def __init__(self, *, inline: bool = True, **settings: object) -> None:
        self.controller = Controller(CATALOGUE, settings=ControllerSettings(**settings), term=3)  # type: ignore[arg-type]
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


def test_shortage_is_announced_once_and_its_end_once() -> None:
    world = World()
    world.run(0.0, 10.0)
    seen = world.run(10.0, 40.0, qps=5000)
    seen += world.run(40.0, 120.0, qps=10)
    states = [a.state for a in seen if isinstance(a, Announce) and a.subject == "app:a"]
    assert states == ["shortage", "served"]
