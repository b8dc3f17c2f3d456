"""The adaptive rule, case by case: waiting, rescuing, shedding, switching to a faster variant."""

import pytest

from sluicegate.domain.actions import Drop, Run, StationAction, WakeAt
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import Arrived, Finished, Hosted, HostingChanged, Offered
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.outcome import Reason
from sluicegate.domain.query import Query
from sluicegate.policies.batching.adaptive import AdaptiveBatching
from sluicegate.policies.batching.lookahead import Lookahead, efficient_batch, taken_whole

FLAT = LatencyCurve((0.010,) * 16)
LINEAR = LatencyCurve(tuple(0.010 * b for b in range(1, 9)))
AFFINE = LatencyCurve(tuple(0.009 + 0.001 * b for b in range(1, 33)))


def hosting(slo: float, *curves: LatencyCurve) -> HostingChanged:
    return HostingChanged("a", tuple(Hosted(f"v{i}", 0.9 - i / 10, c) for i, c in enumerate(curves)), slo)


def loaded(policy: AdaptiveBatching, deadlines: list[float], at: float, rows: int = 1) -> AdaptiveBatching:
    for i, deadline in enumerate(deadlines):
        policy.handle(Arrived(Query(str(i), "a", at, deadline, rows)), at)
    return policy


def offered(policy: AdaptiveBatching, now: float) -> tuple[list[str], list[str], str]:
    """(ids run, ids dropped, variant)."""
    actions: list[StationAction] = policy.handle(Offered(), now)
    runs = [a for a in actions if isinstance(a, Run)]
    dropped = [a.query.id for a in actions if isinstance(a, Drop)]
    return [q.id for r in runs for q in r.queries], dropped, runs[0].variant if runs else ""


def busy_stream(policy: AdaptiveBatching, curve: LatencyCurve, slo: float, rate: float) -> float:
    """A second of steady arrivals, served: the usual rate is known afterwards. Returns the time."""
    policy.handle(hosting(slo, curve), 0.0)
    now = 0.0
    while now < 1.0:
        now += 1.0 / rate
        policy.handle(Arrived(Query("", "a", now, now + slo)), now)
        for action in policy.handle(Offered(), now):
            if isinstance(action, Run):
                policy.handle(Finished("a", action.variant, action.rows, 0.0), now)
    policy.drain()
    return now + slo


def test_a_lone_query_runs_at_once_where_no_company_is_expected() -> None:
    policy = AdaptiveBatching()
    policy.handle(hosting(0.1, FLAT), 0.0)
    assert offered(loaded(policy, [0.1], 0.0), 0.0)[0] == ["0"]


def test_it_waits_one_batch_for_company_where_batches_cost_the_same_and_arrivals_are_frequent() -> None:
    policy = AdaptiveBatching()
    now = busy_stream(policy, FLAT, 0.1, 1000.0)
    loaded(policy, [now + 0.1], now)
    actions = policy.handle(Offered(), now)
    assert [a.at for a in actions if isinstance(a, WakeAt)] == [pytest.approx(now + 0.010)]
    assert not [a for a in actions if isinstance(a, Run)]
    assert offered(policy, now + 0.011)[0] == ["0"]


def test_it_never_waits_past_the_moment_at_which_one_more_could_still_join() -> None:
    policy = AdaptiveBatching()
    now = busy_stream(policy, FLAT, 0.1, 1000.0)
    actions = loaded(policy, [now + 0.014], now).handle(Offered(), now)
    assert [a.at for a in actions if isinstance(a, WakeAt)] == [pytest.approx(now + 0.004)]


def test_of_wakes_only_an_earlier_one_is_asked_for() -> None:
    policy, actions = AdaptiveBatching(), list[StationAction]()
    for at in (5.0, 6.0, 5.0, 4.0, 4.5):
        policy.wake_by(at, actions)
    assert actions == [WakeAt(5.0), WakeAt(4.0)]


def in_bursts(policy: AdaptiveBatching, curve: LatencyCurve, slo: float) -> float:
    """Bursts of eight within 0.7 ms, one every 100 ms; nothing of it runs. Returns the time of the last arrival."""
    policy.handle(hosting(slo, curve), 0.0)
    now = 0.0
    for burst in range(40):
        for i in range(8):
            now = 0.1 * burst + 0.0001 * i
            policy.handle(Arrived(Query("", "a", now, now + slo)), now)
        policy.drain()
    return now


def test_within_a_burst_it_waits_for_the_rest() -> None:
    policy = AdaptiveBatching()
    last = in_bursts(policy, AFFINE, 0.1)
    begins = last + 0.1
    actions = loaded(policy, [begins + 0.1], begins).handle(Offered(), begins)
    (until,) = (a.at for a in actions if isinstance(a, WakeAt))
    assert not [a for a in actions if isinstance(a, Run)]
    assert begins < until <= begins + 0.009
    assert offered(policy, until)[0] == ["0"]


def test_what_is_known_of_bursts_outlives_a_change_of_what_is_hosted() -> None:
    policy = AdaptiveBatching()
    begins = in_bursts(policy, AFFINE, 0.1) + 0.1
    policy.handle(hosting(0.1, AFFINE), begins)
    assert offered(loaded(policy, [begins + 0.1], begins), begins)[0] == [], "the rest of the burst comes"


def test_after_the_pause_that_ends_a_burst_it_does_not_wait() -> None:
    policy = AdaptiveBatching()
    last = in_bursts(policy, AFFINE, 0.1)
    loaded(policy, [last + 0.1] * 5, last)
    assert len(offered(policy, last + 0.004)[0]) == 5


def test_what_saves_less_than_timers_go_off_late_is_not_waited_for() -> None:
    policy = AdaptiveBatching(guard_s=0.010)
    now = busy_stream(policy, FLAT, 0.1, 1000.0)
    assert offered(loaded(policy, [now + 0.1], now), now)[0] == ["0"]


def test_it_never_waits_where_a_batch_saves_nothing() -> None:
    policy = AdaptiveBatching()
    now = busy_stream(policy, LINEAR, 0.3, 1000.0)
    assert offered(loaded(policy, [now + 0.3], now), now)[0] == ["0"]


def test_patience_zero_never_waits() -> None:
    policy = AdaptiveBatching(patience=0.0)
    now = busy_stream(policy, FLAT, 0.1, 1000.0)
    assert offered(loaded(policy, [now + 0.1], now), now)[0] == ["0"]


def test_a_burst_is_served_by_a_batch_beyond_half_the_slo_where_two_would_save_fewer() -> None:
    policy = AdaptiveBatching()
    policy.handle(hosting(0.034, AFFINE), 0.0)
    assert len(offered(loaded(policy, [0.034] * 25, 0.0), 0.0)[0]) == 25


def overrun(policy: AdaptiveBatching, by: float, batches: int, slo: float) -> float:
    """Batches of one row that take ``by`` seconds longer than they should. Returns the time."""
    now = 0.0
    for _ in range(batches):
        loaded(policy, [now + slo], now)
        (run,) = [a for a in policy.handle(Offered(), now) if isinstance(a, Run)]
        now += 0.010 + by
        policy.handle(Finished("a", run.variant, run.rows, 0.010), now)
    return now


def test_batches_leave_room_for_what_batches_overran_lately() -> None:
    policy = AdaptiveBatching(patience=0.0)
    policy.handle(hosting(0.1, AFFINE), 0.0)
    now = overrun(policy, 0.008, 3, 0.1)
    urgent = [now + 0.025] * 16  # 16 rows would end at the deadline exactly, if nothing overran
    assert len(offered(loaded(policy, urgent, now), now)[0]) == 8


def test_two_outliers_are_not_allowed_for_and_forgotten_overruns_are_not_either() -> None:
    policy = AdaptiveBatching(patience=0.0)
    policy.handle(hosting(0.1, AFFINE), 0.0)
    overrun(policy, 0.0, 5, 0.1)
    overrun(policy, 0.008, 2, 0.1)
    assert policy.margin == 0.0
    overrun(policy, 0.008, 1, 0.1)
    assert policy.margin == pytest.approx(0.008)
    overrun(policy, 0.0, 40, 0.1)
    assert policy.margin == 0.0


def test_of_batches_that_run_at_a_time_the_one_of_as_many_rows_ended() -> None:
    """One of 32 rows takes 41 ms; one of one row begins 2 ms later beside it, and ends first."""
    policy = AdaptiveBatching(patience=0.0)
    policy.handle(HostingChanged("a", (Hosted("v0", 0.9, AFFINE, executors=2),), 0.2), 0.0)
    for i in range(3):
        now = 0.1 * i
        assert len(offered(loaded(policy, [now + 0.2] * 32, now), now)[0]) == 32
        assert len(offered(loaded(policy, [now + 0.2], now + 0.002), now + 0.002)[0]) == 1
        for rows, end in ((1, 0.012), (32, 0.041)):
            policy.handle(Finished("a", "v0", rows, AFFINE(rows)), now + end)
    assert policy.margin == 0.0


def test_a_head_is_not_given_up_because_batches_overran() -> None:
    policy = AdaptiveBatching(patience=0.0)
    policy.handle(hosting(0.1, AFFINE), 0.0)
    now = overrun(policy, 0.008, 3, 0.1)
    assert offered(loaded(policy, [now + 0.012], now), now)[:2] == (["0"], [])


def test_an_urgent_head_is_rescued_by_a_small_batch_where_that_makes_nobody_late() -> None:
    policy = AdaptiveBatching()
    policy.handle(hosting(0.2, AFFINE), 0.0)
    deadlines = [0.012] + [0.2] * 20
    assert offered(loaded(policy, deadlines, 0.0), 0.0)[:2] == (["0", "1", "2"], [])


def test_heads_are_given_up_where_rescuing_them_costs_more_behind_them() -> None:
    policy = AdaptiveBatching()
    policy.handle(hosting(0.08, AFFINE), 0.0)
    deadlines = [0.011] * 2 + [0.0415] * 32
    ran, dropped, _ = offered(loaded(policy, deadlines, 0.0), 0.0)
    assert dropped == ["0", "1"]
    assert len(ran) == 32


def test_a_faster_variant_runs_before_anybody_is_dropped() -> None:
    policy = AdaptiveBatching()
    fast = LatencyCurve(tuple(s / 4 for s in AFFINE.seconds))
    policy.handle(hosting(0.08, AFFINE, fast), 0.0)
    deadlines = [0.011] * 2 + [0.0415] * 30
    ran, dropped, variant = offered(loaded(policy, deadlines, 0.0), 0.0)
    assert (len(ran), dropped, variant) == (32, [], "v1")


def test_a_head_that_only_the_faster_variant_can_save_is_not_hopeless() -> None:
    policy = AdaptiveBatching()
    policy.handle(hosting(0.08, LatencyCurve((0.05,)), LatencyCurve((0.01,))), 0.0)
    assert offered(loaded(policy, [0.02], 0.0), 0.0) == (["0"], [], "v1")
    policy.handle(Finished("a", "v1", 1, 0.01), 0.01)
    assert offered(loaded(policy, [0.015], 0.01), 0.01)[1] == ["0"]


def test_an_inefficient_size_is_not_run_whole() -> None:
    policy = AdaptiveBatching()
    policy.handle(hosting(0.2, LatencyCurve((0.010, 0.035))), 0.0)
    assert offered(loaded(policy, [0.2, 0.2], 0.0), 0.0)[0] == ["0"]


def test_queries_of_many_rows_are_taken_whole_or_not_at_all() -> None:
    policy = AdaptiveBatching()
    policy.handle(hosting(0.2, AFFINE), 0.0)
    actions = loaded(policy, [0.2] * 20, 0.0, rows=3).handle(Offered(), 0.0)
    (run,) = [a for a in actions if isinstance(a, Run)]
    assert run.rows == 3 * len(run.queries) <= 32


def test_choices_cut_no_query_of_several_rows() -> None:
    look = Lookahead(LINEAR.seconds, 0.2)
    slacks = [0.02] * 3 + [0.2] * 6
    found = look.between_queries([(0, 2), (0, 8), (2, 6), (1, 1), (7, 1)], slacks, [0, 3, 6, 9])
    assert found == [(3, 6), (3, 3)]  # the first three rows are late in any batch that holds them all


def test_each_size_is_tried_behind_the_rows_that_it_would_make_late() -> None:
    """One row takes 4, two 6, three 8, four 10."""
    look = Lookahead((4.0, 6.0, 8.0, 10.0), 64.0)
    assert look.batch == 4
    assert look.candidates([5.0, 7.0, 8.0, 20.0, 20.0, 20.0]) == [(0, 1), (3, 3), (2, 3), (1, 2)]
    assert look.candidates([10.0] * 5) == [(0, 4), (0, 1), (0, 3), (0, 2)]
    assert look.candidates([6.0, 6.0]) == [(0, 2), (0, 1)]
    assert look.candidates([3.0, 4.0]) == [(1, 1)]


def test_an_efficient_size_is_tried_without_skipping_anybody() -> None:
    """Beyond two rows a batch takes as much longer as it holds more."""
    look = Lookahead((6.0, 8.0, 12.0, 16.0, 20.0, 24.0), 64.0)
    assert look.batch == 2
    assert look.candidates([24.0] * 7)[:3] == [(0, 6), (0, 2), (0, 1)]


def test_two_large_queries_run_together_where_that_is_cheaper_and_nobody_is_late() -> None:
    policy = AdaptiveBatching()
    policy.handle(hosting(0.1, LatencyCurve(tuple(0.004 + 0.0001 * b for b in range(1, 65)))), 0.0)
    assert offered(loaded(policy, [0.1] * 3, 0.0, rows=32), 0.0)[0] == ["0", "1"]


def test_shedding_says_so() -> None:
    policy = AdaptiveBatching()
    policy.handle(hosting(0.08, AFFINE), 0.0)
    actions = loaded(policy, [0.011] * 2 + [0.0415] * 32, 0.0).handle(Offered(), 0.0)
    assert {a.reason for a in actions if isinstance(a, Drop)} == {Reason.SHED}


def test_no_look_ahead_finds_more_than_its_bound() -> None:
    look = Lookahead(AFFINE.seconds, 0.1)
    slacks = [0.001 * i for i in range(20, 100)]
    for rows in range(1, 30):
        start = look.seconds[rows - 1]
        assert look.on_time(slacks, 2000.0, start, rows) <= look.at_most(start) + 1e-9


def test_the_look_ahead_counts_what_is_queued_and_what_will_come() -> None:
    look = Lookahead((0.010,) * 4, 0.1)
    slacks = [0.1] * 8
    assert look.on_time(slacks, 0.0, 0.01, 4) == 4
    assert look.on_time([0.2] * 8, 0.0, 0.095, 4) == pytest.approx(2.0)
    assert look.on_time([0.015] * 8, 0.0, 0.01, 4) == 0
    assert look.on_time([0.1], 100.0, 0.01, 1) == pytest.approx(9.0, abs=1.5)


def test_a_look_ahead_ends_after_one_slo_and_counts_its_last_batch_in_proportion() -> None:
    look = Lookahead((4.0,) * 4, 64.0)
    slacks = [100.0] * 8
    assert [look.on_time(slacks, 0.0, start, 0) for start in (55.0, 56.0, 57.0, 60.0, 62.0, 64.0)] == [8, 8, 7, 4, 2, 0]
    assert [look.at_most(start) for start in (57.0, 64.0, 65.0)] == [7.0, 0.0, 0.0]


def test_a_look_ahead_skips_who_would_be_late_and_nobody_else() -> None:
    look = Lookahead((4.0,) * 4, 64.0)
    assert look.on_time([59.0] * 4 + [100.0] * 4, 0.0, 56.0, 0) == 4
    assert look.on_time([60.0] * 4 + [100.0] * 4, 0.0, 56.0, 0) == 8
    assert look.on_time([60.0] * 4 + [63.0] * 4, 0.0, 56.0, 0) == 4
    assert look.on_time([60.0] * 4 + [100.0] * 4, 0.0, 56.0, 6) == 2


def test_a_look_ahead_waits_for_arrivals_where_nothing_is_left() -> None:
    """One comes every 8 s, and takes 4: the first 8 s from now, the last that ends within 64 s at 56."""
    look = Lookahead((4.0,) * 4, 64.0)
    assert look.on_time([100.0], 0.125, 4.0, 1) == 7
    assert look.on_time([100.0], 0.125, 20.0, 1) == 7, "those that came meanwhile run together"
    assert look.on_time([100.0], 0.0, 4.0, 1) == 0


def test_efficient_sizes_of_curves() -> None:
    assert efficient_batch([0.01] * 8, 0.1) == 8
    assert efficient_batch([0.09] * 8, 0.1) == 1
    assert efficient_batch([0.01 * b for b in range(1, 9)], 0.1) == 1
    assert efficient_batch([0.01 * b for b in range(1, 9)], 0.8) == 4
    assert efficient_batch([0.009 + 0.001 * b for b in range(1, 65)], 0.034) == 8
    assert taken_whole([0.010, 0.035, 0.030]) == [True, True, False, True]


def test_bad_patience_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="patience"):
        AdaptiveBatching(patience=-1.0)


def test_a_clock_that_is_set_back_by_minutes_counts_as_one_that_stands_still() -> None:
    set_back, stood = AdaptiveBatching(guard_s=0.0), AdaptiveBatching(guard_s=0.0)
    for policy, now in ((set_back, 700.0), (stood, 1000.0)):
        policy.handle(hosting(0.02, FLAT), 1000.0)
        loaded(policy, [1000.02], 1000.0)
        loaded(policy, [now + 0.02], now)
        assert offered(policy, now)[0] == ["0", "0"]
    assert set_back._usual == stood._usual


def test_arrivals_from_before_a_clock_was_set_back_are_forgotten() -> None:
    policy = AdaptiveBatching()
    policy.handle(hosting(0.4, LINEAR), 0.0)
    for now in (900.0, 900.05, 900.1, 70.0, 70.05, 70.3, 70.35):
        loaded(policy, [now + 0.4], now)
    assert [at for at, _ in policy._recent.came] == [70.3, 70.35]
