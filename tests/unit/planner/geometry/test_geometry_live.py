"""GPUs cut otherwise while they serve: what plans say, and what becomes of it."""

from dataclasses import replace

from sluicegate.domain.actions import Publish
from sluicegate.domain.events import ControllerEvent, DemandCounted, DeviceSeen, Ticked
from sluicegate.domain.plan import Plan
from sluicegate.planner.allocation.pipeline import AllocationPlanner
from sluicegate.planner.control.controller import Controller
from sluicegate.planner.control.controller_settings import ControllerSettings
from sluicegate.planner.control.replan_trigger import Solve, Solved
from sluicegate.planner.geometry.gpu_pools import sliced
from sluicegate.planner.geometry.joint_planner import JointGeometry
from sluicegate.planner.problems.problem import AppDemand, Problem, RecutGroup, Recuts
from tests.models.recut_world import RecutWorld, catalogue, shape

FOUR = {f"g{i}": "4g+3g" for i in range(4)}
MOSTLY_LIGHT = {"light": 1000.0, "heavy": 20.0}


def test_a_demand_shift_drains_a_gpu_cuts_it_and_plans_on_its_new_slices() -> None:
    world = RecutWorld(FOUR)
    world.run(30, light=300, heavy=20)
    assert world.shapes() == ["4g+3g"] * 4
    before = len(world.plans)
    world.run(60, **MOSTLY_LIGHT)
    told = world.plans[before:]
    first = next(p for p in told if p.geometries["g3"] != sliced("g3", "a100", ("4g", "3g")).slices)
    assert not first.of_device("g3") and first.of_device("g0")
    last = world.plans[-1]
    assert world.states() == ["recutting", "recut"] * 3
    assert all(last.of_device(name) for name in FOUR)
    assert min(last.served.values()) > 0.999
    assert {name: shape(parts) for name, parts in last.geometries.items()} == {
        name: shape(gpu.slices) for name, gpu in world.gpus.items()
    }


def test_a_gpu_that_cannot_be_cut_serves_as_it_was_and_is_let_be() -> None:
    world = RecutWorld(FOUR)
    world.run(30, light=300, heavy=20)
    for gpu in world.gpus.values():
        gpu.fault = "in use by another process"
    world.run(60, **MOSTLY_LIGHT)
    assert world.shapes() == ["4g+3g"] * 4
    assert world.states() == ["recutting", "recut_failed"] * 4
    assert "in use by another process" in next(a.detail for a in world.said if a.state == "recut_failed")
    assert all(world.plans[-1].of_device(name) for name in FOUR)
    world.run(120, **MOSTLY_LIGHT)
    assert len(world.states()) == 8
    world.run(200, **MOSTLY_LIGHT)
    assert len(world.states()) > 8


def test_a_gpu_that_takes_too_long_counts_as_it_was() -> None:
    world = RecutWorld(FOUR, cut_s=None, timeout=20.0)
    world.run(30, light=300, heavy=20)
    world.run(30, **MOSTLY_LIGHT)
    assert world.states()[:2] == ["recutting", "recut_failed"]
    assert any(a.detail.endswith("not cut within 20 s") for a in world.said)


def test_at_most_the_limit_changes_at_a_time() -> None:
    world = RecutWorld({f"g{i}": "4g+3g" for i in range(8)}, cut_s=20.0, limit=2)
    world.run(30, light=600, heavy=40)
    world.run(120, light=2200, heavy=40)
    assert max(sum(p.of_device(n) == () for n in world.gpus) for p in world.plans[2:]) == 2
    assert world.cuts >= 3


def test_a_gpu_that_was_cut_keeps_its_turn_while_its_slices_load() -> None:
    world = RecutWorld(FOUR, loads=35.0)
    world.run(30, light=300, heavy=20)
    world.run(40, **MOSTLY_LIGHT)
    assert world.states() == ["recutting", "recut"]
    world.run(20, **MOSTLY_LIGHT)
    assert world.states() == ["recutting", "recut"] * 2


def test_a_dead_gpu_gives_its_turn_to_another() -> None:
    world = RecutWorld(FOUR, cut_s=None)
    world.run(30, light=300, heavy=20)
    world.run(20, **MOSTLY_LIGHT)
    (gone,) = world.asked
    del world.gpus[gone]
    world.asked.clear()
    world.run(20, **MOSTLY_LIGHT)
    assert gone not in world.plans[-1].geometries
    assert world.asked and gone not in world.asked


def test_slices_that_change_unasked_lose_their_placements_at_once() -> None:
    world = RecutWorld(FOUR)
    world.run(30, light=300, heavy=20)
    assert world.plans[-1].of_device("g0")
    other = sliced("g0", "a100", ("7g",)).slices
    gpu = world.gpus["g0"]
    gpu.slices, gpu.seen = other, replace(gpu.seen, slices=other)
    world.run(0.5, light=300, heavy=20)
    assert {p.slice for p in world.plans[-1].of_device("g0")} <= {"7g.0"}
    assert world.plans[-1].geometries["g0"] == other


def test_a_worker_that_states_no_slices_is_never_asked() -> None:
    known = [sliced(name, "a100", ("4g", "3g")) for name in FOUR]
    settings = ControllerSettings(geometry="joint")
    controller = Controller(catalogue(), settings=settings, devices=known)
    plans = _driven(controller, 60, {name: DeviceSeen(name, "a100", "i") for name in FOUR})
    assert plans and all(not p.geometries for p in plans)
    assert {p.device for p in plans[-1].placements} == set(FOUR)


def test_the_next_leader_goes_on_with_what_was_asked() -> None:
    world = RecutWorld(FOUR, cut_s=None)
    world.run(30, light=300, heavy=20)
    world.run(20, **MOSTLY_LIGHT)
    (asked,) = world.asked
    newest = world.plans[-1]
    heir = Controller(catalogue(), settings=ControllerSettings(geometry="joint"), term=0)
    for gpu in world.gpus.values():
        heir.listen(gpu.seen, world.now)
    taken = [a for a in heir.lead(2, newest, "term 2", world.now) if isinstance(a, Publish)]
    assert taken[0].plan.geometries == newest.geometries and not taken[0].plan.of_device(asked)
    done = newest.geometries[asked]
    actions = heir.handle(replace(world.gpus[asked].seen, slices=done), world.now + 1.0)
    solves = [a for a in actions if isinstance(a, Solve)]
    assert not solves or asked in {d.name for d in solves[0].problem.devices}
    assert any(getattr(a, "state", "") == "recut" for a in actions)


def test_without_the_setting_slices_are_told_and_kept() -> None:
    controller = Controller(catalogue(), settings=ControllerSettings())
    beats = {n: DeviceSeen(n, "a100", "i", slices=sliced(n, "a100", ("4g", "3g")).slices) for n in FOUR}
    plans = _driven(controller, 60, beats)
    assert {name: shape(parts) for name, parts in plans[-1].geometries.items()} == dict.fromkeys(FOUR, ("4g", "3g"))
    assert not any("moved" in plan.reason for plan in plans)


def test_a_change_for_accuracy_alone_costs_no_service() -> None:
    # A single GPU cannot be cut without an outage: worth it for service, never for less.
    demands = (AppDemand(app="light", qps=300.0, slo=0.2), AppDemand(app="heavy", qps=1.0, slo=0.4))
    gpu = sliced("g0", "a100", ("4g", "3g"))
    asked = Problem(demands=demands, devices=(gpu,), catalogue=catalogue(), recuts=Recuts((RecutGroup(("g0",), 1),)))
    planner = JointGeometry(AllocationPlanner())
    short = planner.allocate(asked)
    assert short.geometries and not short.placements
    enough = planner.allocate(replace(asked, demands=(replace(demands[0], qps=50.0), demands[1])))
    assert enough.geometries == {} and enough.placements


def _driven(controller: Controller, seconds: int, beats: dict[str, DeviceSeen]) -> list[Plan]:
    plans: list[Plan] = []
    planner = JointGeometry(AllocationPlanner())
    for step in range(2 * seconds):
        now = 0.5 * step
        rate = 150.0 if step < seconds else 500.0
        events: list[ControllerEvent] = [
            DemandCounted("light", round(rate), 0.5),
            DemandCounted("heavy", 10, 0.5),
            *beats.values(),
            Ticked(),
        ]
        for event in events:
            actions = controller.handle(event, now)
            while actions:
                action = actions.pop(0)
                if isinstance(action, Publish):
                    plans.append(action.plan)
                elif isinstance(action, Solve):
                    solved = Solved(planner.allocate(action.problem), action.reason, 0.0, action.number)
                    actions += controller.handle(solved, now)
    return plans
