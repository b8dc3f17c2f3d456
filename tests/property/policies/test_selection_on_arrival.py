"""The index of selection on arrival finds what a search through everything finds, whatever came and went."""

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.domain.fleet.instance import InstanceState
from sluicegate.domain.query import Goal
from sluicegate.policies.model_less.goal_index import FirstFit, Nearest
from sluicegate.policies.model_less.infaas_selection import (
    Chosen,
    GoalSelection,
    GoalVariant,
    Infeasible,
    InstanceReported,
    VariantsRegistered,
    WorkerReported,
    instance_state,
)

LEVELS = st.sampled_from([0.0, 0.25, 0.5, 0.5001, 0.75, 1.0])
TIMES = st.sampled_from([0.001, 0.002, 0.01, 0.05, 0.0501, 1.0])


@settings(max_examples=150, deadline=None)
@given(
    places=st.lists(st.tuples(LEVELS, TIMES), min_size=1, max_size=20),
    changes=st.lists(st.tuples(st.integers(0, 19), st.booleans()), max_size=30),
    asked=st.lists(st.tuples(LEVELS, TIMES, st.integers(0, 20)), min_size=1, max_size=10),
    present=st.booleans(),
)
def test_the_first_place_that_fits_is_found_after_any_changes(
    places: list[tuple[float, float]],
    changes: list[tuple[int, bool]],
    asked: list[tuple[float, float, int]],
    present: bool,
) -> None:
    index = FirstFit([a for a, _ in places], [t for _, t in places], present=present)
    there = [present] * len(places)
    for place, now in changes:
        if place < len(places):
            index.put(place, present=now)
            there[place] = now
    for accuracy, time, start in asked:
        fitting = [i for i, (a, t) in enumerate(places) if i >= start and there[i] and a >= accuracy and t <= time]
        assert index.first(accuracy, time, start) == (fitting[0] if fitting else -1)


@settings(max_examples=150, deadline=None)
@given(
    places=st.lists(st.tuples(LEVELS, TIMES, st.sampled_from([1.0, 2.0, 5.0])), min_size=1, max_size=20),
    accuracy=LEVELS,
    time=TIMES,
    cost=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_the_suggestion_misses_the_goals_by_least(
    places: list[tuple[float, float, float]], accuracy: float, time: float, cost: float
) -> None:
    def miss(place: int) -> float:
        a, t, _ = places[place]
        return (max(0.0, accuracy - a) / accuracy if accuracy else 0.0) + max(0.0, t / time - 1.0)

    nearest = Nearest(*zip(*places, strict=True))
    best = min(range(len(places)), key=miss)
    assert abs(miss(nearest.find(accuracy, time)) - miss(best)) < 1e-9
    within = [miss(i) + max(0.0, c / cost - 1.0) for i, (_, _, c) in enumerate(places)]
    assert abs(within[nearest.find_within(accuracy, time, cost)] - min(within)) < 1e-9


VARIANTS = st.lists(
    st.tuples(
        LEVELS, TIMES, st.sampled_from([1.0, 2.0]), st.sampled_from([0.1, 5.0]), st.sampled_from(["cpu", "gpu", "tpu"])
    ),
    min_size=1,
    max_size=10,
)
"""Accuracy, latency, cost, load and hardware; there is no worker of the third kind."""


@settings(max_examples=150, deadline=None)
@given(
    drawn=VARIANTS,
    reports=st.lists(
        st.tuples(
            st.integers(0, 9),
            st.integers(0, 2),
            st.booleans(),
            st.sampled_from([0.0, 5.0, 9.6, 10.0]),
            st.sampled_from([0.5, 1.3, 1.6]),
        ),
        max_size=25,
    ),
    accuracy=st.one_of(st.none(), LEVELS),
    latency=TIMES,
    cost=st.one_of(st.none(), st.sampled_from([0.5, 1.0, 2.0])),
)
def test_the_choice_is_that_of_the_rule_read_aloud(
    drawn: list[tuple[float, float, float, float, str]],
    reports: list[tuple[int, int, bool, float, float]],
    accuracy: float | None,
    latency: float,
    cost: float | None,
) -> None:
    known = [
        GoalVariant(name=f"v{i}", app="app", accuracy=a, latency=t, cost=c, load=load, peak=10.0, hardware=hardware)
        for i, (a, t, c, load, hardware) in enumerate(drawn)
    ]
    selection = GoalSelection()
    selection.handle(VariantsRegistered("app", tuple(known)), 0.0)
    for i in range(3):
        selection.handle(WorkerReported(f"w{i}", "cpu", 0.1 * i), 0.0)
    selection.handle(WorkerReported("g0", "gpu", 0.5), 0.0)
    states: dict[tuple[str, str], InstanceState] = {}
    rates: dict[tuple[str, str], float] = {}
    for i, w, loaded, qps, slow in reports:
        v = known[i % len(known)]
        key = (v.name, f"w{w}")
        selection.handle(InstanceReported("app", *key, loaded, qps, slow * v.latency), 0.0)
        before = states.get(key, InstanceState.INACTIVE)
        states[key] = instance_state(
            loaded=loaded, qps=qps, peak=v.peak, latency=slow * v.latency, profiled=v.latency, before=before
        )
        rates[key] = qps
        assert selection.state("app", *key) is states[key]
    fits = [v for v in known if v.accuracy >= (accuracy or 0.0) and v.latency <= latency]
    fits = [v for v in fits if v.cost <= (inf if cost is None else cost)]
    ready = {name for (name, _), state in states.items() if state is InstanceState.ACTIVE}
    found = selection.get_variant("app", latency, Goal(accuracy=accuracy, cost=cost))
    active = [v for v in fits if v.name in ready]
    if active:
        best = min(active, key=lambda v: (v.cost, v.latency, v.name))
        assert isinstance(found, Chosen)
        assert (found.variant, found.load) == (best.name, False)
        mine = {w: rates[n, w] for (n, w), s in states.items() if n == best.name and s is InstanceState.ACTIVE}
        assert mine[found.worker] == min(mine.values())
    elif able := [v for v in fits if v.hardware != "tpu"]:
        soonest = min(able, key=lambda v: (v.load + v.latency, v.name))
        assert found == Chosen(soonest.name, "w0" if soonest.hardware == "cpu" else "g0", load=True)
    else:
        assert isinstance(found, Infeasible)
        assert found.suggestion in known
