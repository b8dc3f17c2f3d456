"""Parts of a simulated run, each by itself and counted by hand, at a clock that does not begin at 0."""

import math
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from sluicegate.domain.actions import Announce, Run
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App, Promise, QueryClass, WeaklyHard
from sluicegate.domain.models.profile import BatchLatency, LengthPoints, Profile
from sluicegate.domain.models.variant import Variant
from sluicegate.domain.outcome import Outcome, OutcomeKind, Reason
from sluicegate.domain.query import Goal, Query
from sluicegate.profiles.catalogue.catalogue import Catalogue
from sluicegate.simulator.engine.faults import ExecutorFailure, Failure, Faults, StarvedHost, Straggler
from sluicegate.simulator.engine.ledger import ConservationError, Ledger
from sluicegate.simulator.engine.processor_sharing import SharedProcessor
from sluicegate.simulator.engine.service_times import ServiceTimes
from sluicegate.simulator.engine.timeline import Alarm, Timeline
from sluicegate.simulator.engine.varied_queries import OwnWish, VariedHop, varieties
from sluicegate.simulator.figure_differences import difference
from sluicegate.simulator.promise_watch import PromiseWatch
from sluicegate.simulator.report_rows import HEADER, percent, row_of

START = 1000.0
FAST, SLOW = Device(name="gpu-fast", type="gpu"), Device(name="gpu-slow", type="gpu")


def test_faults_hit_whom_their_pattern_means_from_their_first_instant_to_before_their_last() -> None:
    faults = Faults(
        failures=(Failure("gpu-fast", 3.0, 5.0), Failure("gpu-*", 7.0)),
        stragglers=(Straggler("gpu-*", 2.0, 10.0, 20.0), Straggler("gpu-slow", 3.0, 15.0)),
        starved=(StarvedHost("gpu-s*", 0.2, 4.0, 6.0), StarvedHost("gpu-slow", 0.3, 5.0, 8.0)),
        executors=(ExecutorFailure("gpu-slow", 2.0, "3g.0"),),
    )
    assert faults.downtimes_of(FAST) == [(3.0, 5.0), (7.0, math.inf)] and faults.downtimes_of(SLOW) == [(7.0, math.inf)]
    spells = [
        ("gpu-*", 20.0, 22.0),
        ("gpu-fast", 5.0, 15.0),
        ("*", 8.0, 10.0),
        ("gpu-slow", 21.0, 24.0),
        ("*", 15.0, 16.0),
    ]
    faults = replace(faults, failures=tuple(Failure(*spell) for spell in spells))
    assert faults.downtimes_of(FAST) == [(5.0, 16.0), (20.0, 22.0)]
    assert faults.downtimes_of(SLOW) == [(8.0, 10.0), (15.0, 16.0), (20.0, 24.0)]
    fast, slow, late = faults.slowdown_of(FAST), faults.slowdown_of(SLOW), faults.delay_of(SLOW)
    assert fast is not None and slow is not None and late is not None
    assert [fast(at) for at in (9.9, 10.0, 19.9, 20.0)] == [1.0, 2.0, 2.0, 1.0]
    assert [slow(at) for at in (9.9, 10.0, 15.0, 20.0, 1e9)] == [1.0, 2.0, 6.0, 3.0, 3.0]
    assert [late(at) for at in (3.9, 4.0, 5.0, 6.0, 8.0)] == pytest.approx([0.0, 0.2, 0.5, 0.3, 0.0])
    assert faults.delay_of(FAST) is None
    assert Faults().slowdown_of(FAST) is None and Faults(stragglers=faults.stragglers[1:]).slowdown_of(FAST) is None
    assert Failure("x", 1.0).until == Straggler("x", 2.0).until == StarvedHost("x", 1.0).until == math.inf
    assert Straggler("x", 2.0).at == StarvedHost("x", 1.0).at == 0.0


def test_jobs_that_take_more_than_there_is_slow_one_another_and_end_as_their_work_is_done() -> None:
    """Parts 0.5 and 0.4 fit; with 0.6 more all run at 1/1.5 of their speed."""
    timeline = Timeline(START)
    processor = SharedProcessor(timeline)
    ends: list[tuple[str, float]] = []

    def ended(name: str, now: float) -> None:
        ends.append((name, pytest.approx(now - START)))

    timeline.at(START + 0.0, lambda _, now: processor.begin(1.0, ended, "a", now, 0.5))
    timeline.at(START + 0.2, lambda _, now: processor.begin(2.0, ended, "b", now, 0.4))
    timeline.at(START + 0.4, lambda _, now: processor.begin(0.2, ended, "c", now, 0.6))
    timeline.run_until(START + 10.0)
    # c ends after 0.2 x 1.5 s; a has 0.4 left then, b 1.6.
    assert ends == [("c", 0.7), ("a", 1.1), ("b", 2.3)]


def test_jobs_of_equal_work_end_together_and_those_of_a_dead_device_never() -> None:
    timeline = Timeline(START)
    processor = SharedProcessor(timeline)
    ends: list[tuple[str, float]] = []

    def ended(name: str, now: float) -> None:
        ends.append((name, pytest.approx(now - START)))

    for name in "ab":
        processor.begin(0.5, ended, name, START)
    timeline.run_until(START + 0.9)
    assert ends == []
    timeline.run_until(START + 1.0)
    assert ends == [("a", 1.0), ("b", 1.0)]
    processor.begin(0.5, ended, "lost", START + 1.0)
    processor.clear(START + 1.2)
    processor.begin(0.5, ended, "later", START + 1.3)
    timeline.run_until(START + 9.0)
    assert ends[2:] == [("later", 1.8)]


def test_an_alarm_goes_off_once_at_the_earliest_time_asked_for() -> None:
    timeline = Timeline(START)
    rang: list[float] = []
    alarm = Alarm(timeline, rang.append)
    alarm.set(START + 5.0)
    alarm.set(START + 2.0)
    alarm.set(START + 3.0)
    timeline.run_until(START + 4.0)
    assert rang == [START + 2.0]
    alarm.set(START + 4.5)
    timeline.run_until(START + 9.0)
    assert rang == [START + 2.0, START + 4.5]


def test_things_happen_in_order_of_time_then_of_asking_and_what_is_past_at_once() -> None:
    timeline = Timeline(START)
    seen: list[tuple[str, float]] = []

    def note(name: str, now: float) -> None:
        seen.append((name, now - START))

    timeline.at(START + 2.0, note, "late")
    timeline.at(START + 1.0, note, "first")
    timeline.at(START + 1.0, note, "second")
    timeline.at(START - 7.0, note, "past")
    timeline.walk([(START + 1.0, "beside"), (START + 3.0, "last")], note)
    assert seen == [("past", 0.0), ("first", 1.0), ("second", 1.0), ("beside", 1.0), ("late", 2.0), ("last", 3.0)]
    assert timeline.now == START + 3.0 and not timeline.step()
    timeline.at(START + 4.0, note, "alone")
    assert not timeline.step(START + 3.5) and timeline.now == START + 3.0
    assert timeline.step(START + 4.0) and timeline.now == START + 4.0 and not timeline.step()


def catalogue() -> Catalogue:
    points = (BatchLatency(1, 0.010, 0.013), BatchLatency(2, 0.016, 0.032))
    steady = (BatchLatency(1, 0.1, 0.1),)
    return Catalogue.of(
        [App(name="a", slo=0.2), App(name="b", slo=0.5)],
        [
            Variant(name="a-l", app="a", accuracy=0.8),
            Variant(name="a-s", app="a", accuracy=0.6),
            Variant(name="b-o", app="b", accuracy=0.5),
        ],
        [
            Profile(variant="a-l", device_type="gpu", points=points),
            Profile(variant="a-s", device_type="gpu", points=steady),
            Profile(variant="a-l", device_type="cpu", points=steady),
            Profile(variant="b-o", device_type="gpu", points=steady),
        ],
    )


def times(mode: str, **slow: float) -> Callable[[str, int], float]:
    return ServiceTimes(catalogue(), mode, np.random.default_rng(3), **slow).of("gpu")  # type: ignore[arg-type]


def test_service_takes_what_the_profile_of_that_device_says_or_is_drawn_around_it() -> None:
    median, p95 = times("median"), times("p95")
    assert [median("a-l", 1), median("a-l", 2), median("a-s", 1)] == [0.010, 0.016, 0.1]
    assert [p95("a-l", 1), p95("a-l", 2), p95("a-s", 1)] == [0.013, 0.032, 0.1]
    sampled, exponential = times("sampled"), times("exponential")
    drawn = [sampled("a-l", 2) for _ in range(20_000)]
    assert np.median(drawn) == pytest.approx(0.016, rel=0.02)
    assert np.quantile(drawn, 0.95) == pytest.approx(0.032, rel=0.03)
    assert {sampled("a-s", 1) for _ in range(9)} == {0.1}
    drawn = [exponential("a-l", 2) for _ in range(20_000)]
    assert np.mean(drawn) == pytest.approx(0.016, rel=0.03)
    assert np.std(drawn) == pytest.approx(0.016, rel=0.05)
    with pytest.raises(ConfigurationError, match="sample'"):
        times("sample")


def test_latency_goes_with_length_as_profiled_on_that_device_by_the_quantile_that_batches_take() -> None:
    """Drawn times are drawn around the median; who does not vary in length is not among them."""
    short = (LengthPoints(8, (BatchLatency(1, 0.004, 0.009),)),)
    known = catalogue()
    text = Profile(variant="a-l", device_type="gpu", points=(BatchLatency(1, 0.010, 0.013),), length=32, shorter=short)
    varied = Catalogue.of(
        known.apps.values(), known.variants.values(), [*known.profiles.values(), text, replace(text, device_type="cpu")]
    )
    for mode, seconds in (("median", 0.004), ("p95", 0.009), ("sampled", 0.004), ("exponential", 0.004)):
        service = ServiceTimes(varied, mode, np.random.default_rng(3))  # type: ignore[arg-type]
        found = service.by_length("gpu")
        assert [*found] == ["a-l"] and found["a-l"].at(1, 8) == seconds
        assert service.by_length("other") == {}


def test_so_many_batches_are_slow_and_so_much() -> None:
    slow = times("median", slow_probability=0.25, slow_factor=3.0)
    drawn = [slow("a-l", 1) for _ in range(8000)]
    assert set(drawn) == {0.010, 3.0 * 0.010}
    assert sum(seconds > 0.02 for seconds in drawn) / 8000 == pytest.approx(0.25, abs=0.02)


def test_queries_differ_in_the_shares_that_are_asked_for_and_the_rest_asks_nothing() -> None:
    wishes = [
        OwnWish(share=0.2, slo=0.9, query_class=QueryClass.BEST_EFFORT, priority=3, client="c", rows=4),
        OwnWish(share=0.3, goal=Goal(accuracy=0.7)),
    ]
    made = varieties(["a", "c", "b"], {"a": (5, 9), "b": (2,)}, {"a": wishes}, np.random.default_rng(5))
    assert sorted(made) == ["a", "b"]
    asked = [Query(f"q{i}", "a", START, START + 0.2) for i in range(10_000)]
    for query in asked:
        made["a"].apply(query)
    wild = [q for q in asked if q.source == "c"]
    choosy = [q for q in asked if q.goal == Goal(accuracy=0.7)]
    plain = [q for q in asked if q.source != "c" and q.goal is None]
    shares = [len(part) / 10_000 for part in (wild, choosy, plain)]
    assert shares == pytest.approx([0.2, 0.3, 0.5], abs=0.02)
    told = {(q.deadline, q.query_class, q.priority, q.rows, q.goal) for q in wild}
    assert told == {(START + 0.9, QueryClass.BEST_EFFORT, 3, 4, None)}
    for part in (choosy, plain):
        assert {(q.deadline, q.query_class, q.priority, q.rows, q.source) for q in part} == {
            (START + 0.2, QueryClass.STRICT, 0, 1, "")
        }
    assert sum(q.length == 9 for q in asked) / 10_000 == pytest.approx(0.5, abs=0.02)
    other = Query("q", "b", START, START + 0.2)
    made["b"].apply(other)
    assert (other.length, other.deadline) == (2, START + 0.2)


def test_hops_differ_within_their_bounds_and_keep_the_order_of_each_device() -> None:
    hop = VariedHop(0.01, 0.03, np.random.default_rng(1))
    apart = [hop.reaches(f"d{i}", START + i) - START - i for i in range(4000)]
    assert 0.01 <= min(apart) < 0.0101 and 0.0399 < max(apart) <= 0.04
    assert np.mean(apart) == pytest.approx(0.025, abs=0.001)
    one = [hop.reaches("one", START + 0.001 * i) for i in range(500)]
    assert one == sorted(one)
    assert sum(b - a > 1e-12 for a, b in pairwise(one)) < 499, "some were held up"


class Seen:
    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        self.outcomes.append(copy(outcome))


def test_books_tell_each_end_whole_and_nothing_of_the_one_before() -> None:
    seen = Seen()
    ledger = Ledger(catalogue(), [seen])
    first = Query("1", "a", START, START + 0.2, 2, stream="s", sequence=7, source="c")
    other = Query("2", "b", START + 0.1, START + 0.6, query_class=QueryClass.BEST_EFFORT)
    late = Query("3", "a", START + 0.1, START + 0.3)
    for query in (first, other, late):
        ledger.begin(query)
    ledger.answered(Run("a-s", (first,), 2), (first,), START + 0.05, START + 0.15, ("d", "3g.0", "eager"))
    ledger.ended(other, OutcomeKind.DROPPED, START + 0.3, Reason.SHED)
    with pytest.raises(ConservationError, match="1 are open"):
        ledger.check()
    ledger.answered(Run("a-l", (late,), 1), (late,), START + 0.3, START + 0.4, ("e", "whole", "aimd"))
    ledger.check()
    told = [
        (o.query_id, o.app, o.kind, o.reason, o.variant, o.accuracy, o.best_accuracy, o.device, o.slice, o.policy)
        for o in seen.outcomes
    ]
    answered = OutcomeKind.ANSWERED
    assert told == [
        ("1", "a", answered, None, "a-s", 0.6, 0.8, "d", "3g.0", "eager"),
        ("2", "b", OutcomeKind.DROPPED, Reason.SHED, None, 0.0, 0.5, None, None, None),
        ("3", "a", answered, None, "a-l", 0.8, 0.8, "e", "whole", "aimd"),
    ]
    assert [(o.stream, o.sequence, o.source, o.query_class, o.batch_size) for o in seen.outcomes] == [
        ("s", 7, "c", QueryClass.STRICT, 2),
        ("", -1, "", QueryClass.BEST_EFFORT, 0),
        ("", -1, "", QueryClass.STRICT, 1),
    ]
    seconds = [(o.arrival, o.deadline, o.at, o.queue_s, o.execution_s, o.batch_s) for o in seen.outcomes]
    assert seconds == [
        pytest.approx((START, START + 0.2, START + 0.15, 0.05, 0.1, 0.1), abs=1e-9),
        pytest.approx((START + 0.1, START + 0.6, START + 0.3, 0.2, 0.0, 0.0), abs=1e-9),
        pytest.approx((START + 0.1, START + 0.3, START + 0.4, 0.2, 0.1, 0.1), abs=1e-9),
    ]
    with pytest.raises(ConservationError, match="query 3 of a ended a second time"):
        ledger.ended(late, OutcomeKind.EXPIRED, START + 0.5)
    ledger.begin(Query("4", "c", START, START + 1.0))
    served = Catalogue.of([App(name="c", slo=1.0)], [Variant(name="c-o", app="c", accuracy=0.4)], [])
    ledger.registered(served)
    ledger.ended(next(iter(ledger.open)), OutcomeKind.EXPIRED, START + 1.0)
    assert (seen.outcomes[-1].best_accuracy, ledger.opened, ledger.closed) == (0.4, 4, 4)
    ledger.registered(Catalogue.of([App(name="a", slo=0.2)], [Variant(name="a-s", app="a", accuracy=0.6)], []))
    for number, variant in ((5, "a-s"), (6, "a-l")):
        ledger.begin(query := Query(str(number), "a", START, START + 2.0))
        ledger.answered(Run(variant, (query,), 1), (query,), START + 1.0, START + 1.1, ("e", "whole", "aimd"))
    assert [(o.accuracy, o.best_accuracy) for o in seen.outcomes[-2:]] == [(0.6, 0.6), (0.8, 0.8)]
    assert ledger.fold.summary().per_app["a"]["relative_accuracy"] == pytest.approx((0.6 / 0.8 + 1.0 + 1.0) / 3)


PROMISED = Promise(max_consecutive=2, weakly_hard=(WeaklyHard(3, 7),))


def test_broken_windows_are_those_of_a_recount_and_announced_where_safe_mode_was_on() -> None:
    """Two streams in a random order of ends; "b" was promised nothing."""
    rng = Random(11)
    apps = [App(name="a", slo=0.2, promise=PROMISED), App(name="b", slo=0.3)]
    watch = PromiseWatch([apps])
    assert watch.watches and not PromiseWatch([apps[1:]]).watches
    fates = {stream: [rng.choice("mmsssr") for _ in range(300)] for stream in ("x", "y")}
    waiting = {stream: list(range(300)) for stream in fates}
    while any(waiting.values()):
        stream = rng.choice([name for name, left in waiting.items() if left])
        number = waiting[stream].pop(min(rng.randrange(3), len(waiting[stream]) - 1))
        fate = fates[stream][number]
        kind = {"m": OutcomeKind.EXPIRED, "s": OutcomeKind.ANSWERED, "r": OutcomeKind.REJECTED}[fate]
        watch.add(Outcome.of(query(number, stream), kind, START + 0.1))
    watch.add(Outcome.of(query(0, "z", QueryClass.BEST_EFFORT), OutcomeKind.EXPIRED, START))
    watch.add(Outcome.of(query(0, "z", app="b"), OutcomeKind.EXPIRED, START))
    broken = 0
    for told in fates.values():
        misses = [fate == "m" for fate in told if fate != "r"]
        ends = [at + 1 for at, missed in enumerate(misses) if missed]
        broken += sum(any(sum(misses[max(0, at - k) : at]) > m for m, k in PROMISED.constraints) for at in ends)
    every = [fate for told in fates.values() for fate in told]
    figures = watch.figures
    assert broken > 20
    assert (figures.queries, figures.rejected) == (sum(f != "r" for f in every), every.count("r"))
    assert (figures.misses, figures.broken_windows, figures.announced) == (every.count("m"), broken, 0)


def query(number: int, stream: str, query_class: QueryClass = QueryClass.STRICT, app: str = "a") -> Query:
    return Query(f"{stream}{number}", app, START, START + 0.2, 1, query_class, stream, number)


def test_a_broken_window_is_announced_where_any_announcer_was_in_safe_mode_at_one_of_its_misses() -> None:
    watch = PromiseWatch([[App(name="a", slo=0.2, promise=Promise(max_consecutive=1))]])
    announced = []
    says = [
        (2, "d", "app:a", "safe_mode"),
        (3, "e", "app:a", "safe_mode"),
        (4, "d", "app:a", "promise_kept"),
        (5, "e", "app:a", "promise_kept"),
        (7, "d", "app:a", "safe_mode"),
        (7, "d", "app:a", "promise_kept"),
        (8, "d", "app:b", "safe_mode"),
        (9, "d", "device:a", "safe_mode"),
    ]
    for number in range(10):
        for _, announcer, subject, state in [said for said in says if said[0] == number]:
            watch.said(announcer, Announce(subject, state, ""))
        watch.add(Outcome.of(query(number, "x"), OutcomeKind.EXPIRED, START))
        announced.append((watch.figures.broken_windows, watch.figures.announced))
    # The first alone breaks nothing; on from the third with d, the fourth d and e, the fifth e, the sixth none; the
    # eighth is announced by what was said and taken back since the seventh.
    assert announced == [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 4), (7, 5), (8, 5), (9, 5)]


def test_windows_of_thousands_of_misses_break_too() -> None:
    promise = Promise(weakly_hard=(WeaklyHard(1500, 2000),))
    watch = PromiseWatch([[App(name="a", slo=0.2, promise=promise)]])
    for number in range(1502):
        watch.add(Outcome.of(query(number, "x"), OutcomeKind.EXPIRED, START))
    assert watch.figures.broken_windows == 2


def test_a_row_has_each_figure_under_its_heading_in_its_unit_and_dashes_for_what_is_not_there() -> None:
    figures = {
        "queries": 1234,
        "violation_ratio": 0.0123,
        "right_in_time": 0.8,
        "distance_closed": 0.5,
        "effective_accuracy": 0.71,
        "relative_accuracy": 0.95,
        "max_accuracy_drop": 0.2,
        "goodput_qps": 99.96,
        "p50_ms": 12.4,
        "p99_ms": 99.0,
        "cost": 0.12345,
        "ci95": {"violation_ratio": 0.004, "right_in_time": math.nan, "p99_ms": 3.2},
        "planner": {"solves": 7, "p95_ms": 15.6},
        "bound": {"violation_ratio": 0.01, "right_in_time": 0.9},
    }
    row = dict(zip(HEADER, row_of("ours", figures), strict=True))
    assert row == {
        "system": "ours",
        "queries": "1234",
        "violations": "1.23 ±0.40 %",
        "at least": "1.00 %",
        "right in time": "80.00 %",
        "at most": "90.00 %",
        "distance closed": "50.0 %",
        "accuracy": "71.00 %",
        "of best": "95.00 %",
        "worst 10 s": "20.00 %",
        "goodput": "100.0/s",
        "p50": "12 ms",
        "p99": "99 ±3 ms",
        "solves": "7",
        "solve p95": "16 ms",
        "cost": "0.1235",
    }
    assert set(row_of("", {"p50_ms": math.nan, "cost": "free", "planner": 3, "bound": None, "ci95": 1})) == {"", "-"}
    idle = dict(zip(HEADER, row_of("idle", {"planner": {"solves": 0, "p95_ms": 0.0}}), strict=True))
    assert (idle["solves"], idle["solve p95"]) == ("0", "-")
    assert [percent(0.12345), percent(0.12345, 1), percent(math.nan)] == ["12.35 %", "12.3 %", "-"]


def test_a_simulation_is_close_where_each_of_three_differences_is_small() -> None:
    simulated = {"effective_accuracy": 0.8, "goodput_qps": 200.0, "violation_ratio": 0.02}
    live = {"effective_accuracy": 0.802, "goodput_qps": 199.0, "violation_ratio": 0.011}
    found = difference(live, simulated)
    assert (found.accuracy_points, found.throughput_percent, found.violation_points) == pytest.approx((0.2, -0.5, -0.9))
    assert found.small
    for change in (
        {"effective_accuracy": 0.8031},
        {"effective_accuracy": 0.7969},
        {"goodput_qps": 202.1},
        {"goodput_qps": 197.9},
        {"violation_ratio": 0.0301},
        {"violation_ratio": 0.0099},
    ):
        assert not difference({**live, **change}, simulated).small
    assert math.isnan(difference(live, {**simulated, "goodput_qps": 0.0}).throughput_percent)
