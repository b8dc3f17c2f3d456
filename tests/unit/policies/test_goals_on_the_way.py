"""Goals of single queries at the door and at the router: refused with a suggestion, or narrowed to what meets them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.domain.actions import Accept, AdmissionAction, Drop, Expire, Reject, RoutingAction, Send
from sluicegate.domain.events import Arrived, DeviceReported, Hosted, HostedOn, InstanceRead, PlanActivated
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.fleet.instance import Instance, InstanceState
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.outcome import Reason
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.domain.query import Goal, Query
from sluicegate.policies.admission.deadline_feasibility import DeadlineAdmission
from sluicegate.policies.admission.known_goals import GoalAdmission
from sluicegate.policies.model_less.deployment import goal_variants, highest_costs
from sluicegate.policies.model_less.goal_variants import GoalVariant
from sluicegate.policies.routing.backlog_estimate import Backlog
from sluicegate.policies.routing.goal_filter import GoalRouting
from tests.harness import toy_catalogue

VARIANTS = (
    GoalVariant(name="quick", app="a", accuracy=0.7, latency=0.002, cost=1.0),
    GoalVariant(name="good", app="a", accuracy=0.9, latency=0.020, cost=5.0),
)


def admitted(goal: Goal | None, slo: float = 0.1, *, promised: bool = False, late: float = 0.0) -> AdmissionAction:
    door = GoalAdmission(DeadlineAdmission(), {"a": VARIANTS}, ["a"] if promised else [])
    (action,) = door.handle(Arrived(Query("1", "a", 0.0, slo, goal=goal)), late)
    return action


@pytest.mark.parametrize(
    ("goal", "slo"),
    [
        (None, 0.1),
        (Goal(), 0.1),
        (Goal(accuracy=0.9), 0.02),
        (Goal(accuracy=0.9, cost=5.0), 0.1),
        (Goal(model="good"), 0.005),  # by name it is the asker's own affair
        (Goal(model="good", accuracy=0.8), 0.1),
    ],
)
def test_what_some_variant_can_do_goes_on(goal: Goal | None, slo: float) -> None:
    assert isinstance(admitted(goal, slo), Accept)


@pytest.mark.parametrize(
    ("goal", "slo", "told"),
    [
        (Goal(accuracy=0.95), 0.1, "with accuracy 0.95; nearest: good (accuracy 0.9, 20 ms, cost 5)"),
        (Goal(accuracy=0.85), 0.01, "nearest: quick"),
        (Goal(accuracy=0.85, cost=4.0), 0.1, "at cost 4; nearest: quick"),
        (Goal(cost=0.1), 0.1, "at cost 0.1; nearest: quick"),
        (Goal(model="best"), 0.1, "'best' is no variant here; there are good, quick"),
        (Goal(model="quick", accuracy=0.8), 0.1, "ask for one of the two"),
        (None, 0.001, "within 1 ms; nearest: quick"),
    ],
)
def test_what_none_can_do_is_refused_with_the_nearest_suggestion(goal: Goal | None, slo: float, told: str) -> None:
    action = admitted(goal, slo)
    assert isinstance(action, Reject)
    assert action.reason is Reason.INFEASIBLE
    assert told in action.detail


def test_time_alone_is_no_reason_to_refuse_what_a_promise_counts_but_accuracy_is() -> None:
    assert isinstance(admitted(None, 0.001, promised=True), Accept)
    assert isinstance(admitted(Goal(accuracy=0.9), 0.001, promised=True), Accept)
    assert isinstance(admitted(Goal(accuracy=0.95), 0.1, promised=True), Reject)


@pytest.mark.parametrize("ticks", [7, 8])
def test_without_goals_only_who_asks_for_less_time_than_the_fastest_takes_is_refused(ticks: int) -> None:
    fastest = GoalVariant(name="v", app="a", accuracy=0.7, latency=8 / 1024, cost=1.0)
    slower = GoalVariant(name="w", app="a", accuracy=0.7, latency=9 / 1024, cost=1.0)
    door = GoalAdmission(DeadlineAdmission(), {"a": (slower, fastest), "b": ()})
    for app, refused in (("a", ticks < 8), ("b", False), ("other", False)):
        (action,) = door.handle(Arrived(Query("1", app, 70.0, 70.0 + ticks / 1024, goal=None)), 70.0)
        assert isinstance(action, Reject) is refused
    door.registered({"a": (slower,)})
    (action,) = door.handle(Arrived(Query("1", "a", 70.0, 70.0 + 8 / 1024)), 70.0)
    assert isinstance(action, Reject)


def test_all_that_was_asked_for_is_said_and_nothing_that_was_not() -> None:
    told = {
        Goal(accuracy=0.95, cost=0.5): "answers within 100 ms with accuracy 0.95 at cost 0.5; nearest",
        Goal(cost=0.5): "answers within 100 ms at cost 0.5; nearest",
        Goal(accuracy=0.95): "answers within 100 ms with accuracy 0.95; nearest",
    }
    for goal, text in told.items():
        action = admitted(goal, 0.1)
        assert isinstance(action, Reject) and text in action.detail
    promised = admitted(Goal(accuracy=0.95), 0.1, promised=True)
    assert isinstance(promised, Reject) and "answers with accuracy 0.95; nearest" in promised.detail


def test_a_time_is_told_as_it_was_asked_for_however_long_ago_1970_is() -> None:
    now = 1.7e9
    (action,) = GoalAdmission(DeadlineAdmission(), {"a": VARIANTS}).handle(
        Arrived(Query("1", "a", now, now + 1e-5)), now
    )
    assert isinstance(action, Reject) and "answers within 0.01 ms; nearest" in action.detail


def test_a_model_by_name_is_refused_only_where_it_is_less_accurate_than_asked() -> None:
    assert isinstance(admitted(Goal(model="quick", accuracy=0.7)), Accept)
    assert isinstance(admitted(Goal(model="quick", accuracy=0.701)), Reject)


def test_deadlines_are_still_the_deadline_policys() -> None:
    assert isinstance(admitted(Goal(accuracy=0.9), 0.1, late=0.2), Expire)
    past = admitted(Goal(accuracy=0.9), -1.0)
    assert isinstance(past, Reject)
    assert past.reason is Reason.DEADLINE_PAST


def router() -> GoalRouting:
    """d0 and d1 host good, d2 hosts quick, d3 both."""
    curve = LatencyCurve((0.02, 0.03))
    hosts = {"d0": ("good",), "d1": ("good",), "d2": ("quick",), "d3": ("good", "quick")}
    accuracy = {v.name: v.accuracy for v in VARIANTS}
    placements = tuple(Placement(d, "a", names, 0.25, 2) for d, names in hosts.items())
    curves = tuple(HostedOn(d, "whole", tuple(Hosted(n, accuracy[n], curve) for n in ns)) for d, ns in hosts.items())
    found = GoalRouting({v.name: v.cost for v in VARIANTS})
    found.handle(PlanActivated(Plan(epoch=Epoch(1, 1), created=0.0, placements=placements), curves), 0.0)
    return found


def routed(found: GoalRouting, goal: Goal | None, now: float = 0.0) -> RoutingAction:
    (action,) = found.handle(Arrived(Query("1", "a", now, now + 0.1, goal=goal)), now)
    return action


def devices(found: GoalRouting, goal: Goal | None, count: int, now: float = 0.0) -> set[str]:
    actions = [routed(found, goal, now) for _ in range(count)]
    return {a.device for a in actions if isinstance(a, Send)}


def test_goals_narrow_where_a_query_may_go() -> None:
    assert devices(router(), Goal(accuracy=0.8), 8) == {"d0", "d1"}
    assert devices(router(), Goal(model="quick"), 8) == {"d2"}
    assert devices(router(), Goal(cost=2.0), 8) == {"d2"}


def test_of_what_meets_them_the_slice_that_is_done_first_takes_the_query() -> None:
    found = router()
    found.handle(DeviceReported("d0", "whole", queued=6, busy_for=0.03), 0.0)
    assert devices(found, Goal(accuracy=0.8), 2) == {"d1"}


@pytest.mark.parametrize("start", [0.0, 1.7e9])
def test_packed_the_fullest_that_is_in_time_takes_it_and_the_first_to_be_done_where_none_is(start: float) -> None:
    """d0 has 20 ms to do, d1 40, d2 60: of 100 ms a query has, 20 are to spare, and it takes 20 itself."""

    def packed(*busy: float) -> str:
        curve = LatencyCurve((0.02, 0.03))
        curves = tuple(HostedOn(f"d{i}", "whole", (Hosted("good", 0.9, curve),)) for i in range(len(busy)))
        found = GoalRouting({}, packing=True)
        found.handle(PlanActivated(Plan(epoch=Epoch(1, 1), created=start, placements=()), curves), start)
        for i, seconds in enumerate(busy):
            found.handle(DeviceReported(f"d{i}", "whole", queued=0, busy_for=seconds), start)
        action = routed(found, None, start)
        assert isinstance(action, Send)
        return action.device

    assert packed(0.02, 0.04, 0.07) == "d1"
    assert packed(0.30, 0.20, 0.25) == "d1"


def test_what_costs_nothing_that_is_known_is_cheap_enough_and_an_accuracy_that_is_just_met_is_met() -> None:
    curve = LatencyCurve((0.02, 0.03))
    found = GoalRouting({})
    curves = (HostedOn("d0", "whole", (Hosted("good", 0.9, curve),)),)
    found.handle(PlanActivated(Plan(epoch=Epoch(1, 1), created=0.0, placements=()), curves), 0.0)
    assert isinstance(routed(found, Goal(cost=0.5)), Send)
    found.handle(recorded("d0", InstanceState.INTERFERED), 1.0)
    assert isinstance(routed(found, Goal(accuracy=0.9, cost=0.0), 1.0), Send)
    assert isinstance(routed(found, Goal(accuracy=0.91), 1.0), Drop)


def recorded(device: str, state: InstanceState, *, variant: str = "good", until: float = 10.0) -> InstanceRead:
    instance = Instance(app="a", variant=variant, device=device, state=state, expires=until)
    return InstanceRead(instance.key, instance)


@pytest.mark.parametrize("state", [InstanceState.INTERFERED, InstanceState.OVERLOADED])
def test_what_is_recorded_as_disturbed_is_passed_over_at_once_and_until_the_record_counts_no_more(
    state: InstanceState,
) -> None:
    found = router()
    found.handle(recorded("d0", state, until=10.0), 1.0)
    assert devices(found, Goal(accuracy=0.8), 4, now=1.0) == {"d1"}
    found.handle(DeviceReported("d0", "whole", queued=0, busy_for=0.0), 9.0)
    found.handle(DeviceReported("d1", "whole", queued=4, busy_for=1.0), 9.0)
    action = routed(found, Goal(accuracy=0.8), 9.0)
    assert isinstance(action, Send) and action.device == "d1"  # a heartbeat does not bring it back
    action = routed(found, Goal(accuracy=0.8), 10.0)
    assert isinstance(action, Send) and action.device == "d0"


@pytest.mark.parametrize("how", ["active", "ended"])
def test_what_is_well_again_is_taken_again(how: str) -> None:
    found = router()
    disturbed = recorded("d0", InstanceState.INTERFERED)
    found.handle(disturbed, 1.0)
    found.handle(recorded("d0", InstanceState.ACTIVE) if how == "active" else InstanceRead(disturbed.key, None), 2.0)
    found.handle(DeviceReported("d1", "whole", queued=4, busy_for=1.0), 2.0)
    action = routed(found, Goal(accuracy=0.8), 2.0)
    assert isinstance(action, Send) and action.device == "d0"


def test_disturbed_slices_are_better_than_none_and_other_apps_instances_there_say_nothing() -> None:
    found = router()
    found.handle(recorded("d1", InstanceState.INTERFERED, variant="another-apps"), 1.0)
    found.handle(recorded("d0", InstanceState.INTERFERED), 1.0)
    action = routed(found, Goal(model="good"), 1.0)
    assert isinstance(action, Send) and action.device == "d1"
    found.handle(recorded("d1", InstanceState.OVERLOADED), 1.0)
    action = routed(found, Goal(model="good"), 1.0)
    assert isinstance(action, Send) and action.device == "d0"  # the least busy of the two
    assert isinstance(routed(found, Goal(accuracy=0.95), 1.0), Drop)


def test_a_new_plan_does_not_forget_what_is_disturbed() -> None:
    found = router()
    found.handle(recorded("d0", InstanceState.INTERFERED), 1.0)
    curve = LatencyCurve((0.02, 0.03))
    curves = tuple(HostedOn(d, "whole", (Hosted("good", 0.9, curve),)) for d in ("d0", "d1"))
    found.handle(PlanActivated(Plan(epoch=Epoch(1, 2), created=0.0, placements=()), curves), 2.0)
    assert devices(found, Goal(model="good"), 6) == {"d1"}


goals = st.builds(
    Goal,
    accuracy=st.none() | st.sampled_from([0.6, 0.7, 0.8, 0.95]),
    cost=st.none() | st.sampled_from([1.0, 3.0]),
    model=st.none() | st.sampled_from(["v0", "v1", "v2", "nobody"]),
)


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True), min_size=1, max_size=12),
    st.lists(st.tuples(goals, st.floats(0.0, 0.05), st.none() | st.integers(0, 11)), min_size=1, max_size=30),
)
def test_the_choice_is_that_of_a_look_at_every_slice(
    hosted: list[list[int]], asked: list[tuple[Goal, float, int | None]]
) -> None:
    known = [(0.6, 1.0, 0.010), (0.7, 3.0, 0.023), (0.8, 2.0, 0.041), (0.95, 9.0, 0.090)]  # accuracy, cost, seconds
    order = [sorted(names, key=lambda n: -known[n][0]) for names in hosted]
    curves = [LatencyCurve((known[names[0]][2], 1.3 * known[names[0]][2])) for names in order]
    on = tuple(
        HostedOn(f"d{i:02}", "whole", tuple(Hosted(f"v{n}", known[n][0], curves[i]) for n in names))
        for i, names in enumerate(order)
    )
    found = GoalRouting({f"v{n}": cost for n, (_, cost, _) in enumerate(known)})
    found.handle(PlanActivated(Plan(epoch=Epoch(1, 1), created=0.0, placements=()), on), 5.0)
    shadows = [Backlog(each.hosted) for each in on]
    for shadow in shadows:
        shadow.report(0, 0.0, 5.0)
    now = 5.0
    for goal, later, reporting in asked:
        now += later
        if reporting is not None and reporting < len(on):
            found.handle(DeviceReported(on[reporting].device, "whole", 1, 0.03), now)
            shadows[reporting].report(1, 0.03, now)
        able = [
            i
            for i, names in enumerate(order)
            if (goal.accuracy is None or min(known[n][0] for n in names) >= goal.accuracy)
            and (goal.cost is None or max(known[n][1] for n in names) <= goal.cost)
            and (goal.model is None or [f"v{n}" for n in names] == [goal.model])
        ]
        action = routed(found, goal, now)
        if not able:
            assert isinstance(action, Drop)
            continue
        assert isinstance(action, Send)
        taken = int(action.device[1:])
        assert taken in able
        assert shadows[taken].done_at(1, now) <= min(shadows[i].done_at(1, now) for i in able) + 1e-9
        shadows[taken].send(1, now)


variant_lists = st.lists(
    st.tuples(st.sampled_from([0.5, 0.7, 0.9]), st.floats(0.0, 9.0), st.floats(0.001, 1.0), st.floats(0.0, 5.0)),
    max_size=20,
)


@given(variant_lists, goals)
def test_the_variant_to_be_loaded_is_that_of_a_look_at_all(
    drawn: list[tuple[float, float, float, float]], goal: Goal
) -> None:
    known = tuple(
        GoalVariant(name=f"v{i}", app="a", accuracy=a, cost=c, latency=t, load=load)
        for i, (a, c, t, load) in enumerate(drawn)
    )
    able = [
        v
        for v in known
        if goal.model in {None, v.name}
        and v.accuracy >= (goal.accuracy or 0.0)
        and (goal.cost is None or v.cost <= goal.cost)
    ]
    expected = min(able, key=lambda v: (v.load + v.latency, v.name)).name if able else None
    assert GoalRouting({}, known).wanted(Query("1", "a", 0.0, 1.0, goal=goal)) == expected


def test_where_the_plan_hosts_nothing_that_meets_them_the_query_is_dropped() -> None:
    action = routed(router(), Goal(accuracy=0.95))
    assert isinstance(action, Drop)
    assert action.reason is Reason.NO_CAPACITY


def test_costs_are_money_for_a_thousand_rows_at_the_best_rate() -> None:
    catalogue = toy_catalogue()
    priced = [Device(name="d0", type="cpu", price=3.6), Device(name="d1", type="cpu", price=7.2)]
    found = {v.name: v for v in goal_variants(catalogue, priced)["toy"]}
    per_row = 0.002 * (1 + 0.25 * 15) / 16
    assert found["toy-v0"].cost == pytest.approx(per_row)
    assert found["toy-v0"].latency == 0.002
    assert highest_costs(catalogue, priced)["toy-v0"] == pytest.approx(per_row)
    assert goal_variants(catalogue, [Device(name="g0", type="gpu")]) == {}
    pairs = replace(catalogue, profiles={key: replace(p, executors=2) for key, p in catalogue.profiles.items()})
    assert highest_costs(pairs, priced)["toy-v0"] == pytest.approx(per_row / 2), "two batches at a time"
    assert {v.name: v for v in goal_variants(pairs, priced)["toy"]}["toy-v0"].cost == pytest.approx(per_row / 2)
