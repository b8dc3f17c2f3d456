"""Inputs of varying length: latency never falls with it, and rules that count it start no batch that comes late."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reproduce.spread_drop.trial import DROPPED, EXPIRED, LATE, TrialRun, try_alone
from sluicegate.domain.actions import Run, StationAction
from sluicegate.domain.events import Hosted, StationEvent
from sluicegate.domain.models.profile import BatchLatency, LatencyCurve, LengthPoints, Profile
from sluicegate.domain.query import Query
from sluicegate.policies.batching.registry import BATCHING, batching
from sluicegate.policies.serving.slice_scheduler import Station

COUNTING = sorted(name for name, rule in BATCHING.items() if getattr(rule, "counts_length", False))
MILLI = st.integers(1, 400).map(lambda n: n / 10_000)
BATCHES = (1, 2, 4, 8)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Measured with all the noise there is: any latency at any length and batch."""

    def points(sizes: tuple[int, ...]) -> tuple[BatchLatency, ...]:
        return tuple(BatchLatency(b, s := draw(MILLI), s * draw(st.sampled_from((1.0, 1.5)))) for b in sizes)

    lengths = sorted(draw(st.sets(st.integers(1, 599), max_size=3)))
    shorter = tuple(LengthPoints(n, points(BATCHES[: draw(st.integers(1, 4))])) for n in lengths)
    return Profile(variant="v", device_type="cpu", points=points(BATCHES), length=600, shorter=shorter)


@settings(max_examples=100, deadline=None)
@given(profile=profiles(), lengths=st.lists(st.integers(1, 700), min_size=2, max_size=6))
def test_latency_never_falls_with_length_and_is_never_below_that_of_the_shortest(
    profile: Profile, lengths: list[int]
) -> None:
    curve = profile.curve("p95")
    by_length = curve.lengths
    assert by_length is not None
    for rows in range(1, curve.max_batch + 1):
        predicted = [curve.at(rows, n) for n in sorted(lengths)]
        assert predicted == sorted(predicted)
        assert by_length.seconds[0][rows - 1] <= predicted[0]
        assert predicted[-1] <= curve(rows) == curve.at(rows, 0) == curve.at(rows, 600)
    for each in (*profile.shorter, LengthPoints(profile.length, profile.points)):
        for point in each.points:
            assert curve.at(point.batch, each.length) >= point.p95


@st.composite
def texts(draw: st.DrawFn) -> tuple[list[Query], tuple[Hosted, ...]]:
    """Queries of any lengths, some of them not known; one or two variants whose latency grows with length."""
    now = 0.0
    queries = []
    for i, gap in enumerate(draw(st.lists(st.sampled_from((0.0, 0.0, 0.002, 0.01)), min_size=1, max_size=30))):
        now += gap
        length = draw(st.sampled_from((20, 20, 150, 300, 599, 600, 0)))
        queries.append(Query(str(i), "app", now, now + 0.1, draw(st.integers(1, 2)), sequence=i, length=length))
    hosted = tuple(
        Hosted(f"v{i}", 0.9 - i / 10, draw(profiles()).curve("p95").scaled(0.5**i))
        for i in range(draw(st.integers(1, 2)))
    )
    return queries, hosted


@pytest.mark.parametrize("name", COUNTING)
@settings(max_examples=40, deadline=None)
@given(drawn=texts())
def test_where_batches_take_what_is_predicted_nobody_is_answered_late(
    name: str, drawn: tuple[list[Query], tuple[Hosted, ...]]
) -> None:
    queries, hosted = drawn
    station = Station(batching(name))
    trial = try_alone(station, queries, hosted, 0.1)
    assert LATE not in trial.fates
    assert station.queued == 0


def short_and_long(count: int, every: int) -> list[Query]:
    """Every so many one of the longest, all others an eighth as long; 1,250 a second."""
    return [
        Query(str(i), "app", i / 1250, i / 1250 + 0.1, sequence=i, length=80 if i % every == 0 else 10)
        for i in range(count)
    ]


def text_curve() -> LatencyCurve:
    """0.5 ms and 25 us for each row and length unit."""

    def points(length: int) -> tuple[BatchLatency, ...]:
        return tuple(BatchLatency(b, s := 5e-4 + 25e-6 * b * length, s) for b in (1, 64))

    shorter = tuple(LengthPoints(n, points(n)) for n in (10, 20, 40))
    return Profile(variant="v", device_type="cpu", points=points(80), length=80, shorter=shorter).curve("p95")


@pytest.mark.parametrize("name", ["adaptive", "deadline", "eager"])
def test_counting_length_answers_more_in_time_than_taking_all_for_the_longest(name: str) -> None:
    queries, curve = short_and_long(1500, every=25), text_curve()

    def missed(known: LatencyCurve) -> int:
        took = try_alone(Station(batching(name)), queries, (Hosted("v", 0.9, known),), 0.1)
        return sum(took.fates.count(fate) for fate in (DROPPED, EXPIRED, LATE))

    assert missed(curve) < 0.5 * missed(LatencyCurve(curve.seconds))


def test_the_default_rule_runs_the_short_ones_before_it_pads_them_to_a_long_one() -> None:
    runs: list[Run] = []

    def told(_event: StationEvent, _now: float, actions: list[StationAction]) -> None:
        runs.extend(a for a in actions if isinstance(a, Run))

    batches = [sorted(q.length for q in run.queries) for run in taken_at_once(told, runs)]
    assert batches == [[10] * 8, [80]]


def taken_at_once(record: Callable[[StationEvent, float, list[StationAction]], None], runs: list[Run]) -> list[Run]:
    """Eight short ones and a long one come while a batch runs."""
    first = Query("first", "app", 0.0, 0.1, length=80)
    rest = [Query(str(i), "app", 0.001, 0.101 + i * 1e-6, length=10 if i < 8 else 80) for i in range(9)]
    run = TrialRun(Station(batching("adaptive", patience=0.0)), [first, *rest], record=record)
    run.host("app", (Hosted("v", 0.9, text_curve()),), 0.1)
    run.to_end()
    return runs[1:]
