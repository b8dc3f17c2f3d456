"""The spread-drop theorem and its parts: selections, histories, trackers, guarantees across thousands of batches."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reproduce.spread_drop.trial import ON_TIME, Trial, TrialRun
from sluicegate.domain.actions import Announce, Drop, Run, StationAction, WakeAt
from sluicegate.domain.events import Arrived, Finished, Hosted, HostingChanged, Offered, StreamResumed, Woke
from sluicegate.domain.models.app import Promise, WeaklyHard
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.models.sustainable_rate import window_bound
from sluicegate.domain.query import Query
from sluicegate.policies.batching.registry import batching
from sluicegate.policies.batching.spread import GreedySpread
from sluicegate.policies.promises.drop_choice import balanced, blockwise, blockwise_range, greedy, grouped
from sluicegate.policies.promises.history import MissHistory
from sluicegate.policies.promises.tracker import MissTracker, StreamTracker
from sluicegate.policies.serving.duty_cycle import DutyCycleStation
from sluicegate.policies.serving.slice_scheduler import Station
from tests.property.examples import drawn

RULES = ("spread-drop", "weakly-hard", "balanced", "greedy")
P = 1024
"""Processing time of a batch, in ticks of 1/1024 s: exact in floating point."""


@st.composite
def overfull(draw: st.DrawFn) -> tuple[int, int]:
    b = draw(st.integers(1, 12))
    return draw(st.integers(b + 1, 5 * b + 5)), b


@given(overfull(), st.integers(1, 9), st.integers(1, 9))
def test_every_selection_keeps_exactly_the_places_there_are(nb: tuple[int, int], m: int, more: int) -> None:
    n, b = nb
    longest = -(-n // b) - 1
    for keep in (grouped(n, b), balanced(n, b)):
        assert (len(keep), sum(keep)) == (n, b)
        assert keep[-1]
        assert runs(keep) == longest
    blocks = blockwise(n, b, m, m + more)
    if n <= blockwise_range(b, m, m + more):
        assert blocks is not None
        assert (len(blocks), sum(blocks)) == (n, b)
        assert worst(blocks, m + more) <= m
    else:
        assert blocks is None
    chosen = greedy(n, b, MissHistory(((m, m + more),)))
    assert chosen is None or (len(chosen), sum(chosen)) == (n, b)


def runs(keep: list[bool]) -> int:
    return max(len(r) for r in "".join("01"[k] for k in keep).split("1"))


def worst(keep: list[bool], k: int) -> int:
    return max(sum(not x for x in keep[i : i + k]) for i in range(len(keep)))


@given(st.lists(st.booleans(), max_size=120), st.integers(1, 12))
def test_the_tracker_agrees_with_a_naive_recount(misses: list[bool], k: int) -> None:
    tracker = MissTracker([k])
    for missed in misses:
        tracker.record(missed)
    keep = [not m for m in misses]
    assert tracker.worst[k] == (worst(keep, k) if keep else 0)
    assert tracker.mcd == (runs(keep) if keep else 0)


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 4), st.integers(1, 8))
def test_what_is_left_of_a_promise_is_what_the_last_windows_leave(misses: list[bool], m: int, more: int) -> None:
    k = m + more
    promise = Promise(max_consecutive=m, weakly_hard=(WeaklyHard(m, k),))
    tracker = MissTracker({k, m + 1})
    for number, missed in enumerate(misses, 1):
        tracker.record(missed)
        for window, left in tracker.left(promise):
            before = misses[max(0, number - window + 1) : number] if window > 1 else []
            assert left == max(0, m - sum(before))


@given(st.lists(st.booleans(), max_size=60), st.sets(st.tuples(st.integers(0, 4), st.integers(1, 4)), max_size=3))
def test_a_history_allows_a_miss_exactly_where_no_window_would_break(
    wishes: list[bool], pairs: set[tuple[int, int]]
) -> None:
    constraints = tuple((m, m + more) for m, more in pairs)
    history = MissHistory(constraints)
    fates: list[bool] = []
    for wish in wishes:
        allowed = all(sum((*fates, True)[-k:]) <= m for m, k in constraints)
        assert history.may_miss() is allowed
        missed = wish and allowed
        history.record(missed)
        fates.append(missed)


@drawn(150)
@given(
    nb=overfull(),
    past=st.lists(st.booleans(), max_size=12),
    pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=2),
)
def test_greedy_is_feasible_exactly_where_dynamic_programming_is(
    nb: tuple[int, int], past: list[bool], pairs: list[tuple[int, int]]
) -> None:
    n, b = nb
    constraints = tuple((m, m + more) for m, more in pairs)
    history = MissHistory(constraints)
    fates: list[bool] = []
    for wish in past:
        missed = wish and history.may_miss()
        history.record(missed)
        fates.append(missed)
    found = greedy(n, b, history)
    assert (found is not None) == feasible(n, n - b, tuple(fates), constraints)
    if found is not None:
        fates += [not k for k in found]
        for m, k in constraints:
            assert all(sum(fates[i : i + k]) <= m for i in range(len(fates)))


def feasible(n: int, owed: int, past: tuple[bool, ...], constraints: tuple[tuple[int, int], ...]) -> bool:
    """Whether some choice of ``owed`` drops among the next ``n`` keeps all constraints: over all window states."""
    span = max(k for _, k in constraints)
    states = {(past[-span:], 0)}
    for _ in range(n):
        following = set()
        for recent, dropped in states:
            following.add(((*recent, False)[-span:], dropped))
            tried = (*recent, True)[-span:]
            if dropped < owed and all(sum(tried[-k:]) <= m for m, k in constraints):
                following.add((tried, dropped + 1))
        states = following
    return any(dropped == owed for _, dropped in states)


def serve(
    name: str, arrivals: list[int], *, batch: int, slo: int, promise: Promise, lateness: float = 0.0
) -> tuple[Trial, list[StationAction]]:
    """Serve one stream; times in ticks. Execution takes exactly P."""
    station = Station(batching(name, batch=batch, **({"lateness": lateness} if lateness else {})))
    actions: list[StationAction] = []
    queries = [Query(str(i), "a", t / 1024, (t + slo) / 1024, sequence=i) for i, t in enumerate(arrivals)]
    run = TrialRun(station, queries, record=lambda _event, _now, a: actions.extend(a))
    hosted = (Hosted("v", 0.9, LatencyCurve((P / 1024,) * batch)),)
    station.handle(HostingChanged("a", hosted, slo / 1024, promise), 0.0)
    run.host("a", hosted, slo / 1024)
    station.handle(HostingChanged("a", hosted, slo / 1024, promise), 0.0)
    return run.to_end(), actions


@st.composite
def within_the_bound(draw: st.DrawFn, x: int, windows: int) -> list[int]:
    """Arrivals with at most ``x`` in any half-open window of P ticks: bursts, steady phases and pauses."""
    arrivals: list[int] = []
    now = 0
    for _ in range(windows):
        kind = draw(st.sampled_from(("burst", "steady", "random", "pause")))
        if kind == "pause":
            now += draw(st.integers(1, 2 * P))
            continue
        for _ in range(x):
            now += 0 if kind == "burst" else P // x if kind == "steady" else draw(st.integers(0, 2 * P // x))
            if len(arrivals) >= x:
                now = max(now, arrivals[-x] + P)
            arrivals.append(now)
    return arrivals


PROMISES = (
    Promise(max_consecutive=1),
    Promise(max_consecutive=3),
    Promise(weakly_hard=(WeaklyHard(1, 3),)),
    Promise(weakly_hard=(WeaklyHard(5, 10),)),
    Promise(max_consecutive=1, weakly_hard=(WeaklyHard(4, 10), WeaklyHard(2, 4))),
)


@pytest.mark.parametrize("name", ["balanced", "greedy"])
@drawn(25)
@given(data=st.data())
def test_within_the_bound_the_promise_holds_across_batches_and_safe_mode_stays_off(
    name: str, data: st.DataObject
) -> None:
    promise = data.draw(st.sampled_from(PROMISES))
    batch = data.draw(st.integers(1, 9))
    arrivals = data.draw(within_the_bound(window_bound(batch, promise), 60))
    lateness = data.draw(st.sampled_from((0.0, 0.5, 1.0)))
    slo = data.draw(st.sampled_from((2 * P, 3 * P, 7 * P)))
    trial, actions = serve(name, arrivals, batch=batch, slo=slo, promise=promise, lateness=lateness)
    tracker = MissTracker(k for _, k in promise.constraints)
    for fate in trial.fates:
        tracker.record(fate != ON_TIME)
    assert tracker.keeps(promise)
    assert not any(isinstance(a, Announce) for a in actions)


@drawn(25)
@given(data=st.data())
def test_algorithm_3_keeps_runs_short_within_the_bound(data: st.DataObject) -> None:
    m = data.draw(st.integers(1, 3))
    batch = data.draw(st.integers(1, 9))
    arrivals = data.draw(within_the_bound(batch * (1 + m), 40))
    trial, _ = serve("spread-drop", arrivals, batch=batch, slo=2 * P, promise=Promise(max_consecutive=m))
    inside = MissTracker([1])
    for fate in trial.fates:
        inside.record(fate != ON_TIME)
    assert inside.mcd <= m


@drawn(25)
@given(data=st.data())
def test_selection_changes_neither_batches_nor_miss_counts_and_nothing_kept_misses(data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, 6))
    gaps = data.draw(st.lists(st.sampled_from((0, 0, 1, 40, 200, 1500)), min_size=1, max_size=150))
    arrivals = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    promise = Promise(weakly_hard=(WeaklyHard(5, 10),))
    lateness = data.draw(st.sampled_from((0.0, 1.0)))
    trials = [serve(name, arrivals, batch=batch, slo=3 * P, promise=promise, lateness=lateness) for name in RULES]
    first = trials[0][0]
    for trial, actions in trials:
        assert trial.batches == first.batches
        assert trial.misses == first.misses
        assert trial.wasted_s == 0.0
        decided = [
            sorted(q.sequence for a in group for q in ([a.query] if isinstance(a, Drop) else a.queries))
            for group in decisions(actions)
        ]
        assert [s for group in decided for s in group] == list(range(len(arrivals)))


def decisions(actions: list[StationAction]) -> list[list[Drop | Run]]:
    """Drops and the Run that ends each decision."""
    groups: list[list[Drop | Run]] = [[]]
    for action in actions:
        if isinstance(action, Drop | Run):
            groups[-1].append(action)
        if isinstance(action, Run):
            groups.append([])
    return groups


@pytest.mark.parametrize("name", ["balanced", "greedy"])
@pytest.mark.parametrize("promise", PROMISES)
def test_thousands_of_batches_at_the_bound_at_fixed_intervals(name: str, promise: Promise) -> None:
    x = window_bound(4, promise)
    arrivals = [-(-i * P // x) for i in range(3000 * x // 4)]
    trial, actions = serve(name, arrivals, batch=4, slo=2 * P, promise=promise)
    assert trial.misses > len(arrivals) // 6
    tracker = MissTracker(k for _, k in promise.constraints)
    for fate in trial.fates:
        tracker.record(fate != ON_TIME)
    assert tracker.keeps(promise)
    assert not any(isinstance(a, Announce) for a in actions)


@pytest.mark.parametrize(("b", "m", "k"), [(b, m, k) for b, k in product((1, 2, 3), (2, 3, 4)) for m in range(1, k)])
def test_one_query_more_a_window_breaks_the_promise_whatever_is_dropped(b: int, m: int, k: int) -> None:
    """X + 1 arrivals a window of which at most b are served: every choice of drops, by search over window states."""
    x = window_bound(b, Promise(weakly_hard=(WeaklyHard(m, k),)))
    assert lasts(x, b, m, k)
    assert not lasts(x + 1, b, m, k)


def lasts(x: int, b: int, m: int, k: int) -> bool:
    """Whether x arrivals a window, at least x - b of them missed, can go on for ever within (m, K)."""
    states = {(False,) * k}
    seen: set[frozenset[tuple[bool, ...]]] = set()
    while states and frozenset(states) not in seen:
        seen.add(frozenset(states))
        after = set()
        for start in states:
            for fates in product((False, True), repeat=x):
                if sum(fates) < x - b:
                    continue
                line = start + fates
                if all(sum(line[i : i + k]) <= m for i in range(1, x + 1)):
                    after.add(line[-k:])
        states = after
    return bool(states)


def long_arrivals(kind: str, x: int, windows: int, seed: int) -> list[int]:
    """At most ``x`` arrivals in any half-open window of P ticks, for ``windows`` windows.

    ``bursts``: x at once, at P or a tick more; ``edges``: one first, then the others just before the window ends, then
    the next as soon as allowed; ``random``: whatever a generator says, as early as allowed, with pauses.
    """
    rng = np.random.default_rng(seed)
    arrivals: list[int] = []
    now = 0
    for window in range(windows):
        for i in range(x):
            if kind == "bursts":
                now += int(rng.integers(0, 2)) if i == 0 else 0
            elif kind == "edges":
                now = max(now, window * P + (P - 1 if i else 0))
            else:
                now += int(rng.choice((0, 0, 1, P // x, 2 * P // x)))
            if len(arrivals) >= x:
                now = max(now, arrivals[-x] + P)
            arrivals.append(now)
        if kind == "random" and rng.random() < 0.1:
            now += int(rng.integers(0, 2 * P))
    return arrivals


class Restless(GreedySpread):
    """Starts anywhere between at once and the last moment, anew for each head."""

    name = "restless"

    def decide(self, now: float, actions: list[StationAction]) -> None:
        self.lateness = (self.queue.items[0].sequence * 7919 % 11) / 10
        super().decide(now, actions)


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        pytest.param(rule, kind, marks=() if number % 4 == 0 else pytest.mark.thorough)
        for number, (rule, kind) in enumerate(
            product(("adaptive", "balanced", "restless"), ("bursts", "edges", "random"))
        )
    ],
)
def test_thousands_of_batches_within_the_bound_keep_the_promise(rule: str, kind: str) -> None:
    for seed, promise in enumerate(PROMISES):
        x = window_bound(3, promise)
        arrivals = long_arrivals(kind, x, 700, seed)
        queries = [Query(str(i), "a", t / 1024, t / 1024 + 2.0, sequence=i) for i, t in enumerate(arrivals)]
        station = Station(lambda: Restless(batch=3) if rule == "restless" else batching(rule, batch=3)())
        announced: list[StationAction] = []
        run = TrialRun(station, queries, record=lambda _e, _t, done, into=announced: into.extend(done))  # type: ignore[misc]
        hosted = (Hosted("v", 0.9, LatencyCurve((1.0,) * 3)),)
        run.host("a", hosted, 2.0)
        station.handle(HostingChanged("a", hosted, 2.0, promise), 0.0)
        trial = run.to_end()
        tracker = MissTracker(k for _, k in promise.constraints)
        for fate in trial.fates:
            tracker.record(fate != ON_TIME)
        assert len(trial.batches) > 500
        assert trial.misses > 0
        assert tracker.keeps(promise)
        assert not any(isinstance(a, Announce) for a in announced)


@pytest.mark.parametrize("name", ["adaptive", "balanced", "greedy"])
def test_one_query_more_a_window_breaks_the_promise_and_safe_mode_says_so(name: str) -> None:
    for promise in PROMISES:
        x = window_bound(3, promise) + 1
        trial, actions = serve(name, [-(-i * P // x) for i in range(400 * x)], batch=3, slo=2 * P, promise=promise)
        tracker = MissTracker(k for _, k in promise.constraints)
        for fate in trial.fates:
            tracker.record(fate != ON_TIME)
        assert not tracker.keeps(promise)
        assert any(isinstance(a, Announce) and a.state == "safe_mode" for a in actions)


@pytest.mark.parametrize("name", RULES)
def test_safe_mode_is_announced_before_the_promise_breaks_and_withdrawn_after_a_calm(name: str) -> None:
    promise = Promise(weakly_hard=(WeaklyHard(1, 4),))
    burst = [i * P // 16 for i in range(64)]
    calm = [20 * P + i * P for i in range(300)]
    station = Station(batching(name, batch=4))
    log: list[StationAction] = []
    queries = [Query(str(i), "a", t / 1024, (t + 2 * P) / 1024, sequence=i) for i, t in enumerate(burst + calm)]
    run = TrialRun(station, queries, record=lambda _event, _now, a: log.extend(a))
    hosted = (Hosted("v", 0.9, LatencyCurve((1.0,) * 4)),)
    run.host("a", hosted, 2.0)
    station.handle(HostingChanged("a", hosted, 2.0, promise), 0.0)
    run.to_end()
    states = [a.state for a in log if isinstance(a, Announce)]
    assert states == ["safe_mode", "promise_kept"]
    announced = next(i for i, a in enumerate(log) if isinstance(a, Announce))
    fates = {a.query.sequence for a in log[:announced] if isinstance(a, Drop)}
    decided = [q.sequence for a in log[:announced] if isinstance(a, Run) for q in a.queries]
    before = [s in fates for s in range(max([*fates, *decided], default=-1) + 1)]
    assert all(sum(before[i : i + 4]) <= 1 for i in range(len(before)))


def test_a_promise_outlives_a_change_of_variants() -> None:
    promise = Promise(weakly_hard=(WeaklyHard(1, 3),))
    policy = batching("greedy", batch=2)()
    slow = (Hosted("slow", 0.9, LatencyCurve((1.0, 1.0))),)
    policy.handle(HostingChanged("a", slow, 2.0, promise), 0.0)
    station = Station(lambda: policy)
    fates: dict[int, bool] = {}

    def take(actions: list[StationAction]) -> None:
        for action in actions:
            match action:
                case Run(_, queries, _):
                    fates.update((q.sequence, False) for q in queries)
                case Drop(query, _):
                    fates[query.sequence] = True
                case _:
                    pass

    for i in range(3):
        take(station.handle(Arrived(Query(str(i), "a", 0.0, 2.0, sequence=i)), 0.0))
    take(station.handle(Finished("a", "slow", 1, 1.0), 1.0))
    take(station.handle(HostingChanged("a", (Hosted("fast", 0.8, LatencyCurve((1.0, 1.0))),), 2.0, promise), 1.5))
    for i in range(3, 6):
        take(station.handle(Arrived(Query(str(i), "a", 1.5, 3.6, sequence=i)), 1.5))
    take(station.handle(Finished("a", "slow", 2, 1.0), 2.0))
    take(station.handle(Woke(), 3.6))
    line = [fates[i] for i in range(6)]
    assert line.count(True) >= 1
    assert all(sum(line[i : i + 3]) <= 1 for i in range(6))


@given(st.lists(st.booleans(), max_size=40))
def test_a_stream_that_moves_is_decided_as_if_it_had_stayed(past: list[bool]) -> None:
    promise = Promise(max_consecutive=2, weakly_hard=(WeaklyHard(2, 5),))
    stayed, moved = GreedySpread(batch=2), GreedySpread(batch=2)
    seen = StreamTracker.for_promise(promise)
    for policy in (stayed, moved):
        policy.handle(HostingChanged("a", (Hosted("v", 0.9, LatencyCurve((1.0, 1.0))),), 2.0, promise), 0.0)
    history = stayed.history(Query("", "a", 0.0, 2.0))
    for i, wish in enumerate(past):
        missed = wish and history.may_miss()
        history.record(missed)
        seen.record(i, missed)
    moved.handle(StreamResumed("a", "", seen.state.recent), 0.0)
    for policy in (stayed, moved):
        for i in range(3):
            policy.handle(Arrived(Query(str(i), "a", 10.0, 12.0)), 10.0)
    first, second = (
        [a.query.id for a in policy.handle(Offered(), 10.0) if isinstance(a, Drop)] for policy in (stayed, moved)
    )
    assert first == second


def test_the_literal_inequality_of_the_paper_would_miss_one_query() -> None:
    """B = 1, P = 1, SLO 2, arrivals {3, 4}: with <= the query of 4 is a candidate at 3; with < nothing is missed."""
    for lateness in (0.0, 1.0):
        trial, _ = serve(
            "balanced", [3 * P, 4 * P], batch=1, slo=2 * P, promise=Promise(max_consecutive=0), lateness=lateness
        )
        assert trial.misses == 0


@pytest.mark.parametrize("name", ["balanced", "greedy"])
@drawn(15)
@given(data=st.data())
def test_a_promise_over_three_devices_in_strict_round_robin(name: str, data: st.DataObject) -> None:
    """(6, 12) over three devices: each keeps (2, 4) on every third query, and the whole keeps (6, 12)."""
    own = Promise(weakly_hard=(WeaklyHard(2, 4),))
    lines = []
    for _ in range(3):
        arrivals = data.draw(within_the_bound(window_bound(3, own), 20))
        trial, _ = serve(name, arrivals, batch=3, slo=2 * P, promise=own)
        lines.append([fate != ON_TIME for fate in trial.fates])
    whole = [missed for turn in zip(*lines, strict=False) for missed in turn]
    assert all(sum(whole[i : i + 12]) <= 6 for i in range(len(whole)))


@drawn(20)
@given(data=st.data())
def test_two_apps_in_a_duty_cycle_keep_their_promises_within_the_bound(data: st.DataObject) -> None:
    """P and the other's P are 1 and 2 s, the cycle 3 s, both SLOs 6 s: at most X arrivals of each in any 3 s."""
    promise = Promise(weakly_hard=(WeaklyHard(1, 3),))
    station = DutyCycleStation(batching("greedy"))
    queries = []
    for app, batch in (("a", 3), ("b", 2)):
        arrivals = data.draw(within_the_bound(window_bound(batch, promise), 25))
        queries += [Query(str(i), app, 3 * t / 1024, 3 * t / 1024 + 6.0, sequence=i) for i, t in enumerate(arrivals)]
    queries.sort(key=lambda q: q.arrival)
    run = TrialRun(station, queries)
    for app, took, batch in (("a", 1.0, 3), ("b", 2.0, 2)):
        curve = LatencyCurve((took,) * batch)
        run.host(app, (Hosted(app, 0.9, curve),), 6.0)
        station.handle(HostingChanged(app, (Hosted(app, 0.9, curve),), 6.0, promise), 0.0)
    trial = run.to_end()
    for app in "ab":
        tracker = MissTracker([3])
        for query, fate in zip(queries, trial.fates, strict=True):
            if query.app == app:
                tracker.record(fate != ON_TIME)
        assert tracker.keeps(promise)


@pytest.mark.parametrize("start", [0.0, 1.7e9])
@pytest.mark.parametrize(("lateness", "waits"), [(0.25, 1.25), (0.5, 2.5), (1.0, 5.0)])
def test_a_batch_starts_by_its_lateness_between_its_heads_arrival_and_the_last_moment(
    start: float, lateness: float, waits: float
) -> None:
    """Two variants: of the better one a batch takes 2 s, and of 7 s a head may wait 5."""
    station = Station(batching("balanced", batch=3, lateness=lateness))
    hosted = (Hosted("good", 0.9, LatencyCurve((2.0,) * 3)), Hosted("quick", 0.6, LatencyCurve((0.5,) * 3)))
    station.handle(HostingChanged("a", hosted, 7.0, Promise(max_consecutive=1)), start)
    query, later = (Query(str(i), "a", start + i, start + i + 7.0, sequence=i) for i in range(2))
    asked = [a for a in station.handle(Arrived(query), start) if isinstance(a, WakeAt)]
    assert [a.at for a in asked] == [start + 7.0, start + waits]  # its deadline, and its start
    assert not any(isinstance(a, Run) for a in station.handle(Arrived(later), start + 1.0))
    assert not any(isinstance(a, Run) for a in station.handle(Woke(), start + waits - 1 / 1024))
    (run,) = (a for a in station.handle(Woke(), start + waits) if isinstance(a, Run))
    assert (run.variant, run.queries) == ("good", (query, later))
