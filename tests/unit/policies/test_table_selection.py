"""TableSelection: what the table says while it is true here, and what else is done."""

import pytest

from sluicegate.domain.actions import Announce, Drop, Run, StationAction
from sluicegate.domain.errors import ConfigurationError
from sluicegate.domain.events import Arrived, Finished, Hosted, HostingChanged, Offered, TurnsTold
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.outcome import Reason
from sluicegate.domain.query import Query
from sluicegate.domain.table import DROP, Expectations, SelectionTable, Spread, TablesChanged
from sluicegate.policies.mdp_serving.load_estimator import LoadWindow
from sluicegate.policies.mdp_serving.round_robin_phase import Turns
from sluicegate.policies.mdp_serving.table_policy import TableSelection

SLO = 0.1
SMALL = Hosted("small", 0.6, LatencyCurve(tuple(0.005 + 0.005 * b for b in range(1, 9))))
LARGE = Hosted("large", 0.9, LatencyCurve(tuple(0.03 + 0.02 * b for b in range(1, 9))))
NONE = Spread(0.0, 0.0, 0.0)
ANY = Expectations(
    accuracy=0.9, violation=0.0, mean_batch=1.0, utilisation=0.5,
    accuracy_spread=NONE, batch_spread=NONE, response_spread=NONE,
)  # fmt: skip


def table(qps: float, rows: list[list[int]], *, batches: bytes = b"", workers: int = 1) -> SelectionTable:
    """Slack bins at 0, 50 and 100 ms; ``rows[n - 1]``: codes."""
    return SelectionTable(
        app="a", worker_class="", variants=("small", "large"), slo=SLO, qps=qps, workers=workers,
        slacks=(0.0, 0.05, 0.1), actions=bytes(c for row in rows for c in row), batches=batches, expected=ANY,
    )  # fmt: skip


FRUGAL = table(100.0, [[0, 0, 0], [0, 0, 0]])
LAVISH = table(10.0, [[0, 1, 1], [0, 0, 1]])


def policy(
    *tables: SelectionTable, qps: float | None = 1.0, hosted: tuple[Hosted, ...] = (LARGE, SMALL)
) -> TableSelection:
    made = TableSelection(tables=tables, qps=qps)
    made.handle(HostingChanged("a", hosted, SLO), 0.0)
    return made


def arrive(chosen: TableSelection, name: str, at: float, rows: int = 1) -> None:
    chosen.handle(Arrived(Query(name, "a", at, at + SLO, rows)), at)


def ran(actions: list[StationAction]) -> list[tuple[str, int]]:
    return [(a.variant, a.rows) for a in actions if isinstance(a, Run)]


@pytest.mark.parametrize("start", [0.0, 1.7e9])
def test_gaps_between_queries_are_told_as_they_were_whenever_that_is(start: float) -> None:
    chosen = policy(LAVISH)
    arrive(chosen, "q1", start + 1.0)
    chosen.handle(Offered(), start + 1.0)
    arrive(chosen, "q2", start + 1.25)
    arrive(chosen, "q3", start + 2.0)
    (told,) = chosen.take_observed(start + 3.0)
    assert (told.gaps, told.gap_sum, told.gap_squares) == (2, 1.0, 0.25**2 + 0.75**2)


def test_it_runs_what_the_table_says_for_queue_and_slack() -> None:
    chosen = policy(LAVISH)
    arrive(chosen, "q1", 0.0)
    assert ran(chosen.handle(Offered(), 0.0)) == [("large", 1)]
    chosen.handle(Finished("a", "large", 1, 0.05), 0.05)
    arrive(chosen, "q2", 0.05)
    assert ran(chosen.handle(Offered(), 0.051)) == [("large", 1)]
    chosen.handle(Finished("a", "large", 1, 0.05), 0.101)
    arrive(chosen, "q3", 0.101)
    arrive(chosen, "q4", 0.102)
    assert ran(chosen.handle(Offered(), 0.11)) == [("small", 2)]


def test_a_variant_that_is_not_hosted_is_replaced_by_the_fastest_there_is() -> None:
    chosen = policy(LAVISH, hosted=(SMALL,))
    arrive(chosen, "q", 0.0)
    assert ran(chosen.handle(Offered(), 0.0)) == [("small", 1)]


def test_a_slice_that_is_slower_than_the_table_assumes_still_answers_in_time() -> None:
    slow = Hosted("large", 0.9, LARGE.curve.scaled(3.0))
    chosen = policy(LAVISH, hosted=(slow, SMALL))
    arrive(chosen, "q", 0.0)
    assert ran(chosen.handle(Offered(), 0.0)) == [("small", 1)]


def test_the_lowest_load_that_covers_the_load_is_in_force() -> None:
    for qps, expected in ((0.0, LAVISH), (10.4, LAVISH), (11.0, FRUGAL), (104.0, FRUGAL)):
        chosen = policy(FRUGAL, LAVISH, qps=qps)
        arrive(chosen, "q", 0.0)
        chosen.handle(Offered(), 0.0)
        assert chosen.table is expected
        assert chosen.missing is None


def test_above_all_tables_it_falls_back_and_asks_for_the_load() -> None:
    chosen = policy(FRUGAL, qps=500.0)
    for i in range(4):
        arrive(chosen, f"q{i}", 0.0)
    actions = chosen.handle(Offered(), 0.001)
    assert ran(actions) == [("small", 4)]
    assert [(a.subject, a.state, a.data) for a in actions if isinstance(a, Announce)] == [
        ("tables:a", "table_missing", {"qps": 500.0, "slo": SLO, "worker_class": ""})
    ]
    assert chosen.missing == 500.0
    chosen.handle(Finished("a", "small", 4, 0.02), 0.03)
    arrive(chosen, "q5", 0.03)
    assert not any(isinstance(a, Announce) for a in chosen.handle(Offered(), 0.03))
    assert chosen.table is None


def test_without_tables_it_serves_with_the_fastest_and_drops_the_hopeless() -> None:
    chosen = policy()
    arrive(chosen, "late", 0.0)
    arrive(chosen, "fresh", 0.08)
    actions = chosen.handle(Offered(), 0.095)
    assert [a.reason for a in actions if isinstance(a, Drop)] == [Reason.HOPELESS]
    assert ran(actions) == [("small", 1)]


def test_tables_are_swapped_between_batches_and_none_is_lost() -> None:
    chosen = policy(LAVISH)
    arrive(chosen, "q1", 0.0)
    assert ran(chosen.handle(Offered(), 0.0)) == [("large", 1)]
    arrive(chosen, "q2", 0.01)
    assert chosen.handle(TablesChanged("a", (FRUGAL,)), 0.02) == []
    assert chosen.queued == 1
    chosen.handle(Finished("a", "large", 1, 0.05), 0.05)
    assert ran(chosen.handle(Offered(), 0.05)) == [("small", 1)]


@pytest.mark.parametrize(("left", "given_up"), [(0.005, [Reason.HOPELESS] * 4), (0.012, [Reason.SHED] * 3)])
def test_what_is_given_up_once_tables_are_withdrawn_counts_for_none(left: float, given_up: list[Reason]) -> None:
    chosen = policy(FRUGAL)
    arrive(chosen, "q", 0.0)
    chosen.handle(Offered(), 0.0)
    chosen.handle(Finished("a", "small", 1, 0.01), 0.01)
    assert [(one.queries, one.on_time) for one in chosen.take_observed(0.01)] == [(1, 1)]
    chosen.handle(TablesChanged("a", ()), 0.01)
    for i in range(4):
        chosen.handle(Arrived(Query(f"q{i}", "a", 0.01, 0.01 + left)), 0.01)
    actions = chosen.handle(Offered(), 0.01)
    assert [a.reason for a in actions if isinstance(a, Drop)] == given_up
    assert chosen.take_observed(0.01) == chosen.take_observed(5.0) == ()


def test_a_table_may_drop_the_head_and_take_part_of_the_queue() -> None:
    drops = table(10.0, [[0, 0, 0], [DROP, 1, 1]], batches=bytes([1, 1, 1, 1, 1, 1]))
    chosen = policy(drops)
    arrive(chosen, "old", 0.0)
    arrive(chosen, "new", 0.05)
    actions = chosen.handle(Offered(), 0.06)
    assert [(a.query.id, a.reason) for a in actions if isinstance(a, Drop)] == [("old", Reason.SHED)], "it was not late"
    assert ran(actions) == [("small", 1)]
    chosen.handle(Finished("a", "small", 1, 0.01), 0.07)
    arrive(chosen, "one", 0.07)
    arrive(chosen, "two", 0.071)
    assert ran(chosen.handle(Offered(), 0.072)) == [("large", 1)]
    assert chosen.queued == 1


def test_a_queue_longer_than_the_table_is_served_as_its_longest() -> None:
    chosen = policy(LAVISH)
    for i in range(5):
        arrive(chosen, f"q{i}", 0.0)
    assert ran(chosen.handle(Offered(), 0.0)) == [("large", 2)]
    assert chosen.queued == 3


def test_tables_for_different_numbers_of_workers_do_not_mix() -> None:
    with pytest.raises(ConfigurationError, match="workers"):
        TableSelection(tables=(FRUGAL, table(10.0, [[0, 0, 0]], workers=2)))


def test_of_tables_that_came_for_other_numbers_of_workers_those_that_most_are_for_count_and_of_equals_the_least() -> (
    None
):
    rows = [[0, 0, 0]]
    two, three = (
        [table(qps, rows, workers=2) for qps in (10.0, 90.0)],
        [table(qps, rows, workers=3) for qps in (5.0, 40.0)],
    )
    policy = TableSelection(tables=two)
    policy.handle(TablesChanged("a", (*three, *two)), 70.0)
    policy.handle(HostingChanged("a", (SMALL, LARGE), SLO), 70.0)
    assert (policy.workers, [t.qps for t in policy.tables]) == (2, [10.0, 90.0])
    policy.handle(TablesChanged("a", (*two, table(70.0, rows, workers=3), *three)), 70.0)
    assert (policy.workers, [t.qps for t in policy.tables]) == (3, [5.0, 40.0, 70.0])


@pytest.mark.parametrize("options", [{"window_s": 0.0}, {"tolerance": -1.0}, {"qps": float("nan")}])
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="table selection"):
        TableSelection(**options)  # type: ignore[arg-type]


def test_the_load_window_measures_even_and_dying_streams() -> None:
    load = LoadWindow(0.5)
    for i in range(21):
        load.add(i * 0.05, 1)
    assert load.rate(1.0) == pytest.approx(20.0)
    assert load.rate(1.3) < 20.0
    assert load.rate(1.6) == 0.0
    load.add(2.0, 4)
    assert load.rate(2.0) == pytest.approx(8.0)


def phased(phases: int, workers: int) -> SelectionTable:
    """One slack bin, one query: in phase g the variant g % 2."""
    return SelectionTable(
        app="a", worker_class="", variants=("small", "large"), slo=SLO, qps=100.0, workers=workers, slacks=(0.0,),
        actions=bytes(g % 2 for g in range(phases)), phases=phases, expected=ANY,
    )  # fmt: skip


@pytest.mark.parametrize(("phases", "turns"), [(1, 1), (2, 4), (3, 4), (4, 60), (7, 60), (16, 1000)])
def test_phases_begin_where_the_generator_lets_them_begin(phases: int, turns: int) -> None:
    begins = [g * turns // phases for g in range(phases)]
    found = [phased(phases, turns).phase_of(r) for r in range(turns)]
    assert found == [max(g for g, at in enumerate(begins) if at <= r) for r in range(turns)]
    assert phased(phases, turns).phase_of(10 * turns) == phases - 1


def test_the_phase_is_what_load_and_time_say_where_turns_are_not_told() -> None:
    chosen = policy(phased(2, 4), qps=100.0)
    arrive(chosen, "q1", 0.0)
    assert ran(chosen.handle(Offered(), 0.0)) == [("small", 1)]
    chosen.handle(Finished("a", "small", 1, 0.01), 0.01)
    arrive(chosen, "q2", 0.01)
    chosen.turned(TurnsTold("a", 0.0, 7, 0.01))  # of no use where the query's own turn is not known
    assert ran(chosen.handle(Offered(), 0.025)) == [("small", 1)]
    chosen.handle(Finished("a", "small", 1, 0.01), 0.035)
    arrive(chosen, "q3", 0.035)
    assert ran(chosen.handle(Offered(), 0.06)) == [("large", 1)]  # 2.5 of 4 turns at 100 queries/s


@pytest.mark.parametrize(
    ("told", "now", "expected"),
    [
        ((), 0.01, "small"),
        ((TurnsTold("a", 0.0, 13, 0.001),), 0.002, "large"),
        ((TurnsTold("a", SLO, 13, 0.001),), 0.002, "large"),
        ((TurnsTold("a", 2 * SLO, 13, 0.001),), 0.002, "small"),  # another SLO class
        ((TurnsTold("a", 0.0, 12, 0.015),), 0.026, "large"),  # one turn, and one more by load and time
        ((TurnsTold("a", 0.0, 12, 0.015),), 0.022, "small"),
        ((TurnsTold("a", 0.0, 13, 0.001), TurnsTold("a", 0.0, 12, 0.0015)), 0.002, "large"),  # came out of order
        ((TurnsTold("a", 0.0, 9, 0.001),), 0.002, "small"),  # from before our query
        ((TurnsTold("a", 0.0, 90, 0.001),), 0.002, "large"),  # a query for us is on its way
    ],
)
def test_the_phase_is_what_the_router_has_counted_and_load_and_time_since(
    told: tuple[TurnsTold, ...], now: float, expected: str
) -> None:
    chosen = policy(phased(2, 4), qps=100.0)
    chosen.handle(Arrived(Query("q", "a", 0.0, SLO), turn=11), 0.0)
    for word in told:
        chosen.turned(word)
    assert ran(chosen.handle(Offered(), now)) == [(expected, 1)]


def test_a_router_that_starts_anew_is_believed_from_the_next_query_on() -> None:
    chosen = policy(phased(2, 4), qps=100.0)
    chosen.handle(Arrived(Query("old", "a", 0.0, SLO), turn=5000), 0.0)
    chosen.turned(TurnsTold("a", 0.0, 5003, 0.001))
    assert ran(chosen.handle(Offered(), 0.002)) == [("large", 1)]
    chosen.handle(Finished("a", "large", 1, 0.05), 0.05)
    chosen.handle(Arrived(Query("new", "a", 0.05, 0.05 + SLO), turn=3), 0.05)
    assert ran(chosen.handle(Offered(), 0.051)) == [("small", 1)]


def test_a_head_that_has_just_come_has_all_its_slack_at_any_time_of_day() -> None:
    """``at + SLO - at`` is rarely SLO: times of day as floats are good to a quarter of a microsecond."""
    careful = table(10.0, [[0, 0, 1], [0, 0, 0]])
    for i in range(50):
        at = 1.7e9 + 0.1237 * i
        chosen = policy(careful)
        arrive(chosen, "q", at)
        assert ran(chosen.handle(Offered(), at)) == [("large", 1)]


def announced(chosen: TableSelection, at: float) -> list[tuple[str, float | str]]:
    """A batch of one query, and what is said beside it."""
    arrive(chosen, "q", at)
    actions = chosen.handle(Offered(), at)
    (run,) = [a for a in actions if isinstance(a, Run)]
    chosen.handle(Finished("a", run.variant, 1, 0.01), at)
    return [(a.state, (a.data or {})["qps"]) for a in actions if isinstance(a, Announce)]


def test_a_load_that_no_table_covers_is_asked_for_again_after_five_seconds_or_when_it_has_grown_by_a_fifth() -> None:
    chosen = TableSelection(tables=(FRUGAL,), window_s=4.0)
    chosen.handle(HostingChanged("a", (LARGE, SMALL), SLO), 70.0)
    chosen._qps = 200.0
    assert announced(chosen, 70.0) == [("table_missing", 200.0)]
    chosen._qps = 240.0
    assert announced(chosen, 75.0) == []
    assert announced(chosen, 75.5) == [("table_missing", 240.0)]
    chosen._qps = 289.0
    assert announced(chosen, 75.75) == [("table_missing", 289.0)]
    assert (chosen.asked, chosen.missing) == (75.75, 289.0)


def test_a_table_that_came_is_said_once_and_not_sooner_than_five_seconds_after_it_was_asked_for() -> None:
    chosen = policy(LAVISH, qps=64.0)
    assert announced(chosen, 70.0) == [("table_missing", 64.0)]
    chosen.handle(TablesChanged("a", (FRUGAL,)), 71.0)
    assert announced(chosen, 75.0) == []
    assert chosen.missing is None
    assert announced(chosen, 75.5) == [("table_found", 64.0)]
    assert announced(chosen, 90.0) == []


def test_a_load_may_be_above_that_of_its_table_by_the_tolerance() -> None:
    for qps, expected in ((12.5, LAVISH), (12.75, FRUGAL), (125.0, FRUGAL), (126.0, None)):
        chosen = TableSelection(tables=(FRUGAL, LAVISH), qps=qps, tolerance=0.25)
        chosen.handle(HostingChanged("a", (LARGE, SMALL), SLO), 70.0)
        arrive(chosen, "q", 70.0)
        chosen.handle(Offered(), 70.0)
        assert chosen.table is expected


@pytest.mark.parametrize(("left", "ran_on"), [(0.097, "large"), (0.094, "small"), (0.068, "small")])
def test_a_table_is_kept_to_where_its_choice_is_in_time_with_margin_and_guard(left: float, ran_on: str) -> None:
    """One row of the large variant takes 50 ms, half as much again for the margin, and 20 ms are kept back."""
    chosen = TableSelection(tables=(LAVISH,), qps=1.0, margin=1.5, guard_s=0.02)
    chosen.handle(HostingChanged("a", (LARGE, SMALL), SLO), 70.0)
    arrive(chosen, "q", 70.0)
    assert ran(chosen.handle(Offered(), 70.0 + SLO - left)) == [(ran_on, 1)]


def test_the_rate_is_that_of_the_gaps_and_of_the_window_where_there_is_none() -> None:
    load = LoadWindow(0.5)
    load.add(70.0, 1)
    assert load.rate(70.0) == 2.0
    load.add(70.0, 2)
    assert load.rate(70.0) == 6.0, "three at once are three in half a second"
    load.add(70.25, 3)
    assert load.rate(70.25) == 20.0  # five came a quarter of a second after the first
    assert load.rate(70.5) == 12.0  # the next is overdue: six in half a second
    assert load.rate(70.75) == 6.0
    assert load.rate(70.875) == 0.0


def test_the_window_keeps_no_arrivals_that_it_is_past_nor_any_from_before_a_clock_was_set_back() -> None:
    load = LoadWindow(0.5)
    for i in range(200):
        load.add(900.0 + i / 4, 3)
    assert len(load._recent) == 3, "though nobody asks for the rate"
    for i in range(4):
        load.add(70.0 + i / 4, 2)
    assert [at for at, _ in load._recent.came] == [70.25, 70.5, 70.75]
    assert load.rate(70.75) == 8.0


def test_what_went_to_others_is_what_was_counted_since_our_last_query_and_what_came_since_by_the_load() -> None:
    turns = Turns()
    assert turns.elsewhere(0.0, 70.0) == 0, "nothing was told, and nothing comes"
    turns.told(9, 70.0)
    turns.arrived(11, 70.0)
    assert turns.elsewhere(8.0, 70.5) == 4
    turns.told(13, 70.25)
    assert turns.elsewhere(8.0, 70.5) == 4  # two, and two more in a quarter of a second
    turns.told(13, 70.5)
    turns.told(12, 70.5)
    assert turns.elsewhere(8.0, 70.5) == 4, "neither is news"
    turns.told(14, 70.0)
    assert turns.elsewhere(8.0, 70.5) == 5, "it was counted before what is known, and its time does not go back"
    assert turns.elsewhere(8.0, 70.0) == 3
