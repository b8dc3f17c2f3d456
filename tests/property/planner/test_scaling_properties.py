"""What holds of scaling whatever runs and is asked: the constraints, no dearer than replicating, no oscillation."""

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.planner.model_less.greedy_scaling import GreedyScaling
from sluicegate.planner.model_less.integer_program import scale_exactly
from sluicegate.planner.model_less.scaling_problem import SLACK, Asked, Fleet, ScalingVariant
from tests.property.examples import drawn

APPS = ("a", "b")
LOADS = st.one_of(st.just(0.0), st.floats(1.0, 2000.0))


@st.composite
def fleets(draw: st.DrawFn, *, limited: bool = True) -> Fleet:
    """Two apps, two to four variants each of two architectures; what runs breaks no limit."""
    variants = [
        ScalingVariant(
            name=f"{app}{i}",
            app=app,
            architecture=f"{app}-{i % 2}",
            latency=draw(st.sampled_from([0.01, 0.05, 0.2])),
            capacity=draw(st.floats(5.0, 500.0)),
            cost=draw(st.floats(0.5, 20.0)),
            load=draw(st.sampled_from([0.0, 0.5, 3.0, 7.2])),
            resources=draw(st.floats(0.5, 4.0)),
            hardware=draw(st.sampled_from(["cpu", "gpu"])),
        )
        for app in APPS
        for i in range(draw(st.integers(2, 4)))
    ]
    running = {v.name: draw(st.integers(0, 3)) for v in variants}
    asked = {app: Asked(load=draw(LOADS), slo=draw(st.sampled_from([0.02, 0.1, 0.3]))) for app in APPS}
    free = Fleet(variants=tuple(variants), asked=asked, running=running)
    resources = {}
    if limited:
        resources = {h: draw(st.floats(0.0, 60.0)) for h in ("cpu", "gpu")}
        used = {h: sum(v.resources * running[v.name] for v in variants if v.hardware == h) for h in resources}
        resources = {h: used[h] + more for h, more in resources.items()}
    return Fleet(variants=free.variants, asked=asked, running=running, resources=resources)


@drawn(80)
@given(fleets())
def test_the_program_keeps_every_constraint_and_no_greedy_is_cheaper(fleet: Fleet) -> None:
    found = scale_exactly(fleet)
    greedy = fleet.after(GreedyScaling().step(fleet))
    if found is None:
        assert greedy.faults(), "the greedy found what the program says is not there"
        return
    after = fleet.after(found.changes)
    assert after.faults(SLACK * (1 - 1e-6)) == []
    if not greedy.faults():
        assert found.cost <= greedy.cost() + 1e-6


@drawn(80)
@given(fleets())
def test_the_greedy_never_exceeds_resources_and_removes_nothing_that_is_needed(fleet: Fleet) -> None:
    changes = GreedyScaling().step(fleet)
    after = fleet.after(changes)
    assert all(after.count(v.name) >= 0 for v in fleet.variants)
    assert all(after.free(h) >= -1e-6 for h in fleet.resources)
    for app, asked in fleet.asked.items():
        if fleet.capacity(app) >= SLACK * asked.load:
            assert after.capacity(app) >= SLACK * asked.load * (1 - 1e-6)
        else:
            assert after.capacity(app) >= fleet.capacity(app)


@drawn(80)
@given(fleets(limited=False))
def test_scaling_up_is_enough_and_never_dearer_than_replicating_what_runs(fleet: Fleet) -> None:
    changes = GreedyScaling().step(fleet)
    after = fleet.after(changes)
    for app, asked in fleet.asked.items():
        need = SLACK * asked.load - fleet.capacity(app)
        if need <= 0.0 or not fleet.of_app(app):
            continue
        assert after.capacity(app) >= SLACK * asked.load * (1 - 1e-9)
        paid = sum(v.cost * changes.get(v.name, 0) for v in fleet.of_app(app))
        for v in fleet.of_app(app):
            if fleet.count(v.name):
                assert paid <= v.cost * ceil(need / v.capacity - 1e-9) + 1e-6


@drawn(60)
@given(fleets(limited=False))
def test_under_a_constant_load_it_comes_to_rest_and_never_adds_after_the_first_tick(fleet: Fleet) -> None:
    greedy = GreedyScaling()
    dearer = 0
    last = 0
    for tick in range(600):
        changes = greedy.step(fleet)
        after = fleet.after(changes)
        dearer += tick > 0 and after.cost() > fleet.cost() + 1e-9
        last = tick if changes else last
        fleet = after
    assert dearer == 0
    assert last < 600 - 60, "ten minutes of constant load end in a minute without any change"
