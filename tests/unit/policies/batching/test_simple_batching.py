"""The plain rules: batches of one size or after a timeout, and a limit that grows and shrinks; at two clocks."""

import pytest
from typing_extensions import override

from sluicegate.domain.actions import Drop, Expire, Run, StationAction, WakeAt
from sluicegate.domain.errors import ConfigurationError, IllegalEventError
from sluicegate.domain.events import Arrived, Finished, Hosted, HostingChanged, Offered, Woke
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.outcome import Reason
from sluicegate.domain.query import Query
from sluicegate.policies.batching.aimd import AdditiveIncrease
from sluicegate.policies.batching.base import QueueingPolicy, last_start
from sluicegate.policies.batching.queue import DeadlineQueue
from sluicegate.policies.batching.registry import batching, check_whole, keeps_promises, selects, takes
from sluicegate.policies.batching.static import StaticBatching

TICK = 1 / 1024
CURVE = LatencyCurve((8 * TICK, 13 * TICK, 10 * TICK, 12 * TICK))
"""Two rows take longer than four."""
SLO = 64 * TICK
CLOCKS = pytest.mark.parametrize("start", [0.0, 1.7e9])


def hosting(policy: QueueingPolicy, start: float, hosted: tuple[Hosted, ...] = (Hosted("v", 0.9, CURVE),)) -> None:
    policy.handle(HostingChanged("a", hosted, SLO), start)


def come(policy: QueueingPolicy, at: float, *names: str, rows: int = 1) -> None:
    for name in names:
        policy.handle(Arrived(Query(name, "a", at, at + SLO, rows)), at)


def ran(actions: list[StationAction]) -> list[str]:
    return [query.id for action in actions if isinstance(action, Run) for query in action.queries]


def woken(actions: list[StationAction]) -> list[float]:
    return [action.at for action in actions if isinstance(action, WakeAt)]


@CLOCKS
def test_a_batch_of_the_size_asked_for_runs_as_soon_as_it_is_there(start: float) -> None:
    policy = StaticBatching(size=3)
    hosting(policy, start)
    come(policy, start, "q0", "q1")
    assert ran(policy.handle(Offered(), start)) == []
    come(policy, start + TICK, "q2", "q3")
    assert ran(policy.handle(Offered(), start + TICK)) == ["q0", "q1", "q2"]
    assert policy.queued == 1


@CLOCKS
def test_fewer_wait_until_the_last_moment_for_the_slowest_batch_that_may_run(start: float) -> None:
    """Of up to three rows two take longest, 13 ticks of 64."""
    policy = StaticBatching(size=3)
    hosting(policy, start)
    come(policy, start, "q0")
    actions = policy.handle(Offered(), start)
    assert (ran(actions), woken(actions)) == ([], [start + 51 * TICK])
    assert ran(policy.handle(Offered(), start + 50 * TICK)) == []
    assert ran(policy.handle(Offered(), start + 51 * TICK)) == ["q0"]


@CLOCKS
def test_fewer_run_once_the_oldest_has_waited_for_the_timeout(start: float) -> None:
    policy = StaticBatching(size=4, timeout_s=5 * TICK)
    hosting(policy, start)
    come(policy, start, "q0")
    come(policy, start + 2 * TICK, "q1")
    actions = policy.handle(Offered(), start + 2 * TICK)
    assert (ran(actions), woken(actions)) == ([], [start + 5 * TICK])
    assert ran(policy.handle(Offered(), start + 5 * TICK)) == ["q0", "q1"]


@CLOCKS
def test_a_timeout_does_not_keep_anybody_beyond_the_last_moment(start: float) -> None:
    policy = StaticBatching(size=4, timeout_s=60 * TICK)
    hosting(policy, start)
    come(policy, start, "q0")
    assert woken(policy.handle(Offered(), start)) == [start + 51 * TICK]


def test_a_size_beyond_the_profile_is_that_of_the_profile() -> None:
    policy = StaticBatching(size=9)
    hosting(policy, 50.0)
    come(policy, 50.0, "q0", "q1", "q2", "q3", "q4")
    assert ran(policy.handle(Offered(), 50.0)) == ["q0", "q1", "q2", "q3"]


def test_a_fixed_size_of_one_and_a_timeout_of_none_are_allowed_and_less_is_not() -> None:
    StaticBatching(size=1, timeout_s=0.0)
    for options in ({"size": 0}, {"timeout_s": -TICK}, {"timeout_s": float("inf")}):
        with pytest.raises(ConfigurationError, match="static batching"):
            batching("static", **options)()


def finish(policy: QueueingPolicy, rows: int, took: float, now: float, *, failed: bool = False) -> None:
    policy.handle(Finished("a", "v", rows, took, failed=failed), now)


@CLOCKS
def test_the_limit_grows_by_its_step_with_each_batch_that_fills_it_within_the_objective(start: float) -> None:
    """A quarter of the SLO are 16 ticks: a batch that takes just so long is within it."""
    policy = AdditiveIncrease(step=1.5, backoff=0.5, objective=0.25)
    hosting(policy, start)
    come(policy, start, "q0", "q1", "q2", "q3")
    assert ran(policy.handle(Offered(), start)) == ["q0"]
    finish(policy, 1, 16 * TICK, start)
    assert policy.limit == 2.5
    assert ran(policy.handle(Offered(), start)) == ["q1", "q2"]
    finish(policy, 2, 13 * TICK, start)
    assert policy.limit == 4.0  # two rows fill a limit of two and a half
    assert ran(policy.handle(Offered(), start)) == ["q3"]
    finish(policy, 1, 8 * TICK, start)
    assert policy.limit == 4.0, "one row says nothing of four"


def test_unless_told_otherwise_the_limit_goes_up_by_one_and_down_by_a_tenth_at_half_the_slo() -> None:
    policy = AdditiveIncrease()
    hosting(policy, 50.0)
    limits = []
    for took in (32, 33):
        come(policy, 50.0, "q0", "q1")
        policy.handle(Offered(), 50.0)
        finish(policy, 1, took * TICK, 50.0)
        limits.append(policy.limit)
    assert limits == [2.0, 1.8]


@pytest.mark.parametrize("rule", ["static", "aimd", "eager", "deadline", "early-drop", "greedy", "adaptive"])
def test_where_nothing_waits_an_executor_is_offered_in_vain(rule: str) -> None:
    assert queued(rule, 50.0).handle(Offered(), 50.0) == []


@CLOCKS
def test_the_limit_shrinks_with_each_batch_beyond_the_objective_down_to_one(start: float) -> None:
    policy = AdditiveIncrease(step=3.0, backoff=0.5, objective=0.25)
    hosting(policy, start)
    limits = []
    for took in (8, 17, 17, 17):
        come(policy, start, "q")
        policy.handle(Offered(), start)
        finish(policy, 1, took * TICK, start)
        limits.append(policy.limit)
    assert limits == [4.0, 2.0, 1.0, 1.0]


def test_the_limit_grows_to_the_largest_batch_and_a_failed_one_does_not_move_it() -> None:
    policy = AdditiveIncrease(step=3.0)
    hosting(policy, 50.0)
    for failed, limit in ((True, 1.0), (False, 4.0)):
        come(policy, 50.0, "q")
        policy.handle(Offered(), 50.0)
        finish(policy, 1, 8 * TICK, 50.0, failed=failed)
        assert policy.limit == limit
    come(policy, 50.0, "q0", "q1", "q2", "q3", "q4")
    assert ran(policy.handle(Offered(), 50.0)) == ["q0", "q1", "q2", "q3"]
    finish(policy, 4, 12 * TICK, 50.0)
    assert policy.limit == 4.0


def test_the_limit_is_one_again_when_something_else_is_hosted_or_nothing() -> None:
    policy = AdditiveIncrease(step=2.0)
    hosting(policy, 50.0)
    come(policy, 50.0, "q0")
    policy.handle(Offered(), 50.0)
    finish(policy, 1, 8 * TICK, 50.0)
    assert policy.limit == 3.0
    come(policy, 50.0, "q1")
    policy.handle(Offered(), 50.0)
    hosting(policy, 50.0, ())
    assert policy.limit == 1.0
    finish(policy, 1, 8 * TICK, 50.0)
    assert policy.limit == 1.0, "there is no batch that it could grow to"


@CLOCKS
def test_under_a_moving_limit_only_what_never_fits_and_what_has_expired_is_given_up(start: float) -> None:
    """A head of four rows runs although the limit is one; the next is late in any batch, and runs all the same."""
    policy = AdditiveIncrease()
    hosting(policy, start)
    policy.handle(Arrived(Query("wide", "a", start, start + SLO, 5)), start)
    policy.handle(Arrived(Query("large", "a", start, start + SLO, 4)), start)
    actions = policy.handle(Offered(), start)
    assert [(a.query.id, a.reason) for a in actions if isinstance(a, Drop)] == [("wide", Reason.TOO_LARGE)]
    assert ran(actions) == ["large"]
    finish(policy, 4, 12 * TICK, start)
    policy.handle(Arrived(Query("late", "a", start, start + TICK)), start)
    assert ran(policy.handle(Offered(), start)) == ["late"]
    finish(policy, 1, 8 * TICK, start)
    policy.handle(Arrived(Query("gone", "a", start, start + TICK)), start)
    assert [a.query.id for a in policy.handle(Offered(), start + TICK) if isinstance(a, Expire)] == ["gone"]


@pytest.mark.parametrize("options", [{"step": 0.0}, {"backoff": 0.0}, {"backoff": 1.0}, {"objective": 0.0}])
def test_a_limit_that_cannot_move_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="aimd"):
        AdditiveIncrease(**options)


@CLOCKS
def test_what_is_lent_comes_from_those_that_are_due_late_enough(start: float) -> None:
    policy = StaticBatching(size=4)
    for name, due, rows in (("q0", 10, 1), ("q1", 20, 2), ("q2", 30, 1), ("q3", 40, 3)):
        policy.handle(Arrived(Query(name, "a", start, start + due * TICK, rows)), start)
    assert [q.id for q in policy.lend(2, start + 11 * TICK)] == ["q1"]
    assert [q.id for q in policy.lend(3, start + 30 * TICK)] == ["q2"]  # due just then; the next has three rows more
    assert [q.id for q in policy.lend(9, start + 41 * TICK)] == []
    assert [q.id for q in policy.lend(9, start + 10 * TICK)] == ["q0", "q3"]
    assert policy.lend(1, start) == ()


def test_nothing_is_lent_of_a_head_that_has_more_rows_than_asked_for() -> None:
    policy = StaticBatching(size=4)
    come(policy, 50.0, "q0", rows=3)
    assert policy.lend(2, 50.0) == ()
    assert [q.id for q in policy.lend(3, 50.0 + SLO)] == ["q0"]


@CLOCKS
def test_a_wake_before_its_time_is_asked_for_again_once(start: float) -> None:
    policy = StaticBatching(size=4)
    assert woken(policy.handle(Arrived(Query("q0", "a", start, start + 9 * TICK)), start)) == [start + 9 * TICK]
    assert policy.handle(Woke(), start + 8 * TICK) == [WakeAt(start + 9 * TICK)]
    assert policy.handle(Woke(), start + 8 * TICK) == []
    expired = policy.handle(Woke(), start + 9 * TICK)
    assert [a.query.id for a in expired if isinstance(a, Expire)] == ["q0"] and woken(expired) == []
    assert woken(policy.handle(Arrived(Query("q1", "a", start, start + 20 * TICK)), start)) == [start + 20 * TICK]


def test_a_length_holds_for_rows_until_a_longer_one_comes_and_one_that_is_not_known_is_beyond_any() -> None:
    queue = DeadlineQueue()
    for name, rows, length in (("q0", 2, 7), ("q1", 1, 7), ("q2", 3, 9), ("q3", 1, 0)):
        queue.push(Query(name, "a", 50.0, 51.0, rows, length=length))
    assert queue.spans(6) == [(3, 7), (6, 9)]
    assert queue.spans(3) == [(3, 7)]
    assert queue.spans(8)[:2] == [(3, 7), (6, 9)] and queue.spans(8)[2][0] == 8 and queue.spans(8)[2][1] > 1 << 40


def dropped(actions: list[StationAction]) -> dict[str, Reason]:
    return {action.query.id: action.reason for action in actions if isinstance(action, Drop)}


def queued(rule: str, start: float, *due: float, slo: float = 64, **options: float) -> QueueingPolicy:
    """Queries that are due after so many ticks."""
    policy = batching(rule, **options)()
    assert isinstance(policy, QueueingPolicy)
    policy.handle(HostingChanged("a", (Hosted("v", 0.9, CURVE),), slo * TICK), start)
    for number, ticks in enumerate(due):
        policy.handle(Arrived(Query(f"q{number}", "a", start, start + ticks * TICK)), start)
    return policy


@CLOCKS
@pytest.mark.parametrize("rule", ["eager", "lazy-drop"])
@pytest.mark.parametrize(
    ("due", "names"), [(12, "q0 q1 q2 q3"), (11, "q0 q1 q2"), (10, "q0 q1 q2"), (9, "q0"), (8, "q0")]
)
def test_the_largest_batch_in_time_for_the_head_runs(start: float, rule: str, due: float, names: str) -> None:
    """Two rows take 13 ticks, three 10 and four 12."""
    assert ran(queued(rule, start, due, 64, 64, 64).handle(Offered(), start)) == names.split()


@CLOCKS
def test_a_head_that_no_batch_saves_is_given_up_and_the_next_runs(start: float) -> None:
    actions = queued("eager", start, 7, 8).handle(Offered(), start)
    assert (dropped(actions), ran(actions)) == ({"q0": Reason.HOPELESS}, ["q1"])


@CLOCKS
def test_the_deadline_rule_waits_for_one_more_as_long_as_the_head_bears_it(start: float) -> None:
    """One more makes two rows, 13 ticks; a full batch of four waits for nobody."""
    for guard, until in ((0, 51), (2, 49)):
        policy = queued("deadline", start, 64, 64, guard_s=guard * TICK)
        assert woken(policy.handle(Offered(), start)) == [start + until * TICK]
        assert ran(policy.handle(Offered(), start + (until - 1) * TICK)) == []
        assert ran(policy.handle(Offered(), start + until * TICK)) == ["q0", "q1"]
    assert len(ran(queued("deadline", start, 64, 64, 64, 64).handle(Offered(), start))) == 4


@CLOCKS
def test_early_drop_sheds_who_would_be_late_in_the_batch_and_then_forms_a_smaller_one(start: float) -> None:
    shed = queued("early-drop", start, 11, 11, 64, 64).handle(Offered(), start)
    assert (dropped(shed), ran(shed)) == ({"q0": Reason.SHED}, ["q1", "q2", "q3"])  # three rows take 10
    kept = queued("early-drop", start, 12, 12, 64, 64).handle(Offered(), start)
    assert (dropped(kept), len(ran(kept))) == ({}, 4)


@CLOCKS
def test_published_rules_keep_to_their_share_of_the_slo_as_they_reckon_it(start: float) -> None:
    """Half of 24 ticks are four rows', of 22 three rows'; with a margin of a half more three rows take 15."""
    for slo, margin, rows in ((24, 1.0, 4), (22, 1.0, 3), (30, 1.5, 3), (29, 1.5, 1)):
        policy = queued("early-drop", start, *[64] * 6, slo=slo, margin=margin)
        assert len(ran(policy.handle(Offered(), start))) == rows
        assert policy.queued == 6 - rows


@CLOCKS
def test_who_promises_may_start_as_late_as_it_is_told(start: float) -> None:
    """A batch of one takes 8 ticks, due after 40: half of the 32 that may pass are 16."""
    for lateness, begins in ((0.5, 16), (1.0, 32)):
        policy = queued("greedy", start, 40, batch=1, lateness=lateness)
        assert woken(policy.handle(Offered(), start)) == [start + begins * TICK]
        assert ran(policy.handle(Offered(), start + (begins - 1) * TICK)) == []
        assert ran(policy.handle(Offered(), start + begins * TICK)) == ["q0"]
    assert ran(queued("greedy", start, 40, batch=1).handle(Offered(), start)) == ["q0"]


@pytest.mark.parametrize(
    "options", [{"batch": 0}, {"lateness": -0.5}, {"lateness": 1.5}, {"others_s": -1.0}, {"calm": 0}]
)
def test_a_rule_that_promises_refuses_what_it_cannot_do(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="give batch >= 1"):
        batching("greedy", **options)


def test_what_a_rule_takes_and_does_is_known_by_its_name() -> None:
    asked = ("static", "greedy", "table", "eager", "nobody")
    assert [takes(name, "batch") for name in asked] == [False, True, False, False, False]
    assert [selects(name) for name in asked] == [False, False, True, False, False]
    assert [keeps_promises(name) for name in asked] == [False, True, False, False, False]


class Alternating(StaticBatching):
    """Runs each batch on another variant, and notes which ended and when it had begun."""

    def __init__(self) -> None:
        super().__init__(size=1)
        self.ended: list[tuple[str, float]] = []
        self._turn = 0

    @override
    def decide(self, now: float, actions: list[StationAction]) -> None:
        self.run(1, actions, self.hosted[self._turn])
        self._turn = 1 - self._turn

    @override
    def finished(self, event: Finished, run: Run, now: float, actions: list[StationAction]) -> None:
        self.ended.append((run.queries[0].id, self.began))


@CLOCKS
def test_of_batches_that_run_at_a_time_the_one_whose_variant_ended_is_told_with_when_it_began(start: float) -> None:
    policy = Alternating()
    both = Hosted("v", 0.9, CURVE), Hosted("w", 0.8, CURVE, executors=2)
    policy.handle(HostingChanged("a", both, SLO), start)
    come(policy, start, "q0", "q1", "q2")
    policy.handle(Offered(), start)
    policy.handle(Offered(), start + TICK)
    with pytest.raises(IllegalEventError, match="offered the executor"):
        policy.handle(Offered(), start + 2 * TICK)
    for variant in ("w", "v"):
        policy.handle(Finished("a", variant, 1, 8 * TICK), start + 9 * TICK)
    assert policy.ended == [("q1", start + TICK), ("q0", start)]
    with pytest.raises(IllegalEventError, match="while no batch runs"):
        policy.handle(Finished("a", "v", 1, 8 * TICK), start + 9 * TICK)


@CLOCKS
def test_a_wake_that_never_came_is_not_counted_on_any_more_once_its_time_is_past(start: float) -> None:
    policy = StaticBatching(size=4)
    hosting(policy, start)
    for name, due in (("q0", 9), ("q1", 40)):
        policy.handle(Arrived(Query(name, "a", start, start + due * TICK)), start)
    late = policy.handle(Offered(), start + 10 * TICK)
    assert [a.query.id for a in late if isinstance(a, Expire)] == ["q0"]
    assert woken(late) == [start + 27 * TICK]
    assert woken(policy.handle(Offered(), start + 11 * TICK)) == [], "that wake is still to come"


def test_of_wakes_the_earliest_stands_and_those_of_later_deadlines_are_not_asked_for() -> None:
    policy = StaticBatching(size=4)
    said = [policy.handle(Arrived(Query("q", "a", 50.0, 50.0 + due)), 50.0) for due in (3.0, 4.0, 3.0, 2.0)]
    assert [woken(each) for each in said] == [[53.0], [], [], [52.0]]
    assert policy.head_deadline == 52.0
    assert woken(policy.handle(Woke(), 52.0)) == [53.0]
    assert len(policy.drain()) == 3 and policy.head_deadline == float("inf")


def test_the_last_start_is_in_time_however_differences_are_rounded_and_hardly_earlier() -> None:
    rounded_up = 0
    for number in range(1, 400):
        deadline, latency = 0.1237 * number, 0.0113 * (1 + number % 17)
        at = last_start(deadline, latency)
        assert deadline - 1e-6 < at + latency <= deadline
        rounded_up += at < deadline - latency
    assert rounded_up > 0


def test_a_rule_that_chooses_is_refused_where_there_is_nothing_to_choose_by_or_among() -> None:
    check_whole("table", {}, {"a": 1, "b": 2})
    check_whole("table", {}, {})
    check_whole("eager", {}, {"a": 1})
    check_whole("model-switching", {"capable": {"v": 9.0}}, {"a": 1})
    with pytest.raises(ConfigurationError, match="a, b has one each"):
        check_whole("table", {}, {"b": 1, "a": 1})
    with pytest.raises(ConfigurationError, match="'model-switching' without measurements"):
        check_whole("model-switching", {"capable": {}}, {"a": 3})
