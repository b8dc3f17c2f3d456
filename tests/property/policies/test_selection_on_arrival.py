"""The index of goals finds what a search through everything finds."""

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.policies.model_less.goal_index import FirstFit, Nearest
from sluicegate.policies.model_less.goal_variants import AppGoals, GoalVariant

LEVELS = st.sampled_from([0.0, 0.25, 0.5, 0.5001, 0.75, 1.0])
TIMES = st.sampled_from([0.001, 0.002, 0.01, 0.05, 0.0501, 1.0])


@settings(max_examples=150, deadline=None)
@given(
    places=st.lists(st.tuples(LEVELS, TIMES), min_size=1, max_size=20),
    asked=st.lists(st.tuples(LEVELS, TIMES), min_size=1, max_size=10),
)
def test_the_first_place_that_fits_is_found(
    places: list[tuple[float, float]], asked: list[tuple[float, float]]
) -> None:
    index = FirstFit([a for a, _ in places], [t for _, t in places])
    for accuracy, time in asked:
        fitting = [i for i, (a, t) in enumerate(places) if a >= accuracy and t <= time]
        assert index.first(accuracy, time) == (fitting[0] if fitting else -1)


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


@settings(max_examples=150, deadline=None)
@given(
    drawn=st.lists(st.tuples(LEVELS, TIMES, st.sampled_from([1.0, 2.0])), min_size=1, max_size=10),
    accuracy=LEVELS,
    latency=TIMES,
    cost=st.sampled_from([0.5, 1.0, 2.0, inf]),
)
def test_what_is_feasible_is_the_cheapest_that_meets_the_goals_then_the_fastest(
    drawn: list[tuple[float, float, float]], accuracy: float, latency: float, cost: float
) -> None:
    known = [GoalVariant(name=f"v{i}", app="app", accuracy=a, latency=t, cost=c) for i, (a, t, c) in enumerate(drawn)]
    fits = [v for v in known if v.accuracy >= accuracy and v.latency <= latency and v.cost <= cost]
    best = min(fits, key=lambda v: (v.cost, v.latency, v.name), default=None)
    assert AppGoals(known).feasible(accuracy, latency, cost) == best
