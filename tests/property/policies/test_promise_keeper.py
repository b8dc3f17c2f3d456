"""Promises on a shared slice: whatever comes beside them within the terms, every window holds, by brute force."""

from collections.abc import Mapping
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.domain.actions import Announce, Drop, Expire, Run, StationAction, WakeAt
from sluicegate.domain.events import Arrived, Finished, Hosted, HostingChanged, Woke
from sluicegate.domain.models.app import Promise, QueryClass, WeaklyHard
from sluicegate.domain.models.profile import FIRST_GUARD, PACE_GUARD, LatencyCurve
from sluicegate.domain.models.sustainable_rate import NEARLY, max_rate
from sluicegate.domain.query import Query
from sluicegate.policies.batching.registry import batching
from sluicegate.policies.promises.keeper import FREE, Hops, Party, terms
from sluicegate.policies.promises.stream_turns import dealt, part_of, turns_of
from sluicegate.policies.promises.window_limiter import PlaceLimit, WindowLimiter
from sluicegate.policies.serving.slice_scheduler import Station
from tests.property.examples import drawn

PROMISES = (
    Promise(weakly_hard=(WeaklyHard(2, 10),)),
    Promise(weakly_hard=(WeaklyHard(4, 10),)),
    Promise(weakly_hard=(WeaklyHard(1, 5),)),
    Promise(max_consecutive=2),
)
HOPS = Hops(0.015)
BEGAN = 1000.0


class World:
    """One slice under a clock of its own: batches take anything up to what hardly any exceeds.

    ``took``: parts of that, and how often.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        curves: dict[str, tuple[tuple[float, ...], ...]],
        took: Mapping[float, float] = MappingProxyType({0.3: 1 / 3, 0.7: 1 / 3, 1.0: 1 / 3}),
    ) -> None:
        self.took = took
        self.station = Station(batching("adaptive"), HOPS)
        self.rng = rng
        self.sure = {f"{app}{i}": seconds for app, each in curves.items() for i, seconds in enumerate(each)}
        self.missed: dict[Query, bool] = {}
        self.announced: list[str] = []
        self.longest_loose = 0.0
        self._heap: list[tuple[float, int, Any]] = []
        self._count = 0

    def host(self, app: str, slo: float, promise: Promise, pace: float = 1.0, usual: float = 0.7) -> None:
        hosted = tuple(
            Hosted(name, 0.9 - 0.1 * i, LatencyCurve(tuple(usual * s for s in seconds)), seconds, pace=pace)
            for i, (name, seconds) in enumerate((n, s) for n, s in self.sure.items() if n.startswith(app))
        )
        self.do(self.station.handle(HostingChanged(app, hosted, slo, promise), BEGAN), BEGAN)

    def at(self, when: float, event: Any) -> None:
        self._count += 1
        heappush(self._heap, (when, self._count, event))

    def do(self, actions: list[StationAction], now: float) -> None:
        for action in actions:
            match action:
                case Run(variant, queries, rows):
                    seconds = max(self.sure[variant][:rows]) * float(
                        self.rng.choice(list(self.took), p=list(self.took.values()))
                    )
                    if queries[0].query_class is QueryClass.BEST_EFFORT:
                        self.longest_loose = max(self.longest_loose, max(self.sure[variant][:rows]))
                    self.at(now + seconds, (action, seconds))
                case Drop(query) | Expire(query):
                    self.missed[query] = True
                case WakeAt(at):
                    self.at(at, Woke())
                case Announce():
                    self.announced.append(action.state)

    def run(self) -> None:
        while self._heap:
            now, _, event = heappop(self._heap)
            if isinstance(event, tuple):
                run, seconds = event
                for query in run.queries:
                    self.missed[query] = now > query.deadline
                event = Finished(run.queries[0].app, run.variant, run.rows, seconds)
            self.do(self.station.handle(event, now), now)


def broken(fates: list[bool], promise: Promise) -> int:
    """Windows with too many misses, one after the other."""
    return sum(sum(fates[i : i + k]) > m for m, k in promise.constraints for i in range(len(fates)))


def line(setup: float, row: float, most: int) -> tuple[float, ...]:
    return tuple(setup + row * b for b in range(1, most + 1))


@drawn(40)
@given(
    seed=st.integers(0, 2**32 - 1),
    promise=st.sampled_from(PROMISES),
    most_rows=st.sampled_from((1, 2, 8)),
    apps=st.sampled_from(("a", "ab", "abc")),
    variants=st.integers(1, 2),
)
def test_within_the_bound_no_window_breaks_whatever_shares_the_slice(
    seed: int, promise: Promise, most_rows: int, apps: str, variants: int
) -> None:
    rng = np.random.default_rng(seed)
    curves = {"a": (line(0.008, 0.001, 64), line(0.004, 0.0005, 64))[:variants], "b": (line(0.005, 0.002, 16),)}
    if "c" in apps:
        curves["c"] = (line(0.003, 0.004, 16),)
    curves["z"] = (line(0.01, 0.001, 64),)
    world = World(rng, curves)
    world.host("a", 0.2, promise)
    for app in apps[1:]:
        world.host(app, 0.35, PROMISES[1] if app == "b" else Promise())
    world.host("z", 0.5, Promise())
    share = world.station.terms.shares["a"]
    if "b" in apps or "c" in apps:
        assert share.others_s > 0.0
    assert not share.refused
    limiter = WindowLimiter([PlaceLimit(share.batch, promise.constraints)], share.window_s)
    beside = world.station.terms.shares.get("b", share)
    other = WindowLimiter([PlaceLimit(beside.batch, PROMISES[1].constraints)], beside.window_s)
    strict: dict[str, list[Query]] = {"a": [], "b": []}
    now = BEGAN
    latest = now
    for serial in range(1500):
        now += float(rng.choice((0.0, 0.0, 0.0005, 0.004, 0.03), p=(0.4, 0.3, 0.2, 0.08, 0.02)))
        app = "b" if "b" in apps and rng.random() < 0.3 else "a"
        rows = int(rng.integers(1, most_rows + 1))
        if (limiter if app == "a" else other).admit(now, rows):
            query = Query(
                f"{app}{serial}", app, now, now + (0.2 if app == "a" else 0.35), rows, sequence=len(strict[app])
            )
            strict[app].append(query)
            latest = max(latest, now + float(rng.uniform(0.002, 0.015)))
            world.at(latest, Arrived(query))
    for start in np.arange(BEGAN, now, 0.05):  # best effort at more than capacity, and the third app
        for i in range(20):
            world.at(float(start), Arrived(Query(f"z{start}{i}", "z", start, start + 0.5, 4, QueryClass.BEST_EFFORT)))
        if "c" in apps:
            world.at(float(start), Arrived(Query(f"c{start}", "c", start, start + 0.35, 1)))
    world.run()
    assert world.longest_loose <= world.station.terms.blocking_s
    assert len(strict["a"]) > 40
    assert broken([world.missed[q] for q in strict["a"]], promise) == 0
    assert broken([world.missed[q] for q in strict["b"]], PROMISES[1]) == 0
    assert not world.announced


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("most_rows", [1, 2])
def test_one_batch_in_twenty_may_take_what_is_sure_where_the_bound_counts_on_less(
    promise: Promise, most_rows: int
) -> None:
    """8 + b ms, and 5 % of them 30 % over: the bound is of batches that take 10 % longer each."""
    world = World(
        np.random.default_rng(7), {"a": (line(1.32 * 0.008, 1.32 * 0.001, 64),)}, {1.0 / 1.32: 0.95, 1.3 / 1.32: 0.05}
    )
    world.host("a", 0.1, promise, PACE_GUARD / FIRST_GUARD, 1.0 / FIRST_GUARD)
    sure = world.station.terms.shares["a"]
    assert sure.window_s == pytest.approx(sure.processing_s * PACE_GUARD / FIRST_GUARD)
    limiter = WindowLimiter([PlaceLimit(sure.batch, promise.constraints)], sure.window_s)
    queries: list[Query] = []
    now = BEGAN
    while len(queries) < 6000:
        rows = int(world.rng.integers(1, most_rows + 1))
        while limiter.admit(now, rows):  # as many at once as are let in
            query = Query(f"a{len(queries)}", "a", now, now + 0.1, rows, sequence=len(queries))
            queries.append(query)
            world.at(now + 0.01, Arrived(query))
            rows = int(world.rng.integers(1, most_rows + 1))
        now += 0.001 if world.rng.random() < 0.5 else sure.window_s
    world.run()
    assert broken([world.missed[q] for q in queries], promise) == 0
    assert not world.announced


def test_best_effort_may_block_as_long_as_a_batch_without_lowering_the_bound() -> None:
    """Measured once: 8 + b ms, 100 ms, (2, 10); batches of 64 of best effort broke every window."""
    parties = {"a": Party((line(0.008, 0.001, 64),), 0.1, PROMISES[0])}
    found = terms(parties, Hops(0.0), loose=True)
    share, best = found.shares["a"], max_rate(LatencyCurve(line(0.008, 0.001, 64)), 0.1, PROMISES[0])
    assert best is not None and best.bound == 50
    assert best.rate > share.bound(PROMISES[0]) / share.window_s >= NEARLY * best.rate
    assert found.blocking_s > share.processing_s  # what shorter turns leave
    assert share.window_s + found.blocking_s == pytest.approx(0.1)
    alone = terms(parties, Hops(0.0)).shares["a"]
    assert alone.bound(PROMISES[0]) / alone.window_s == best.rate  # nobody is there to leave anything to
    assert terms({"a": Party((line(0.008, 0.001, 64),), 0.1)}, Hops(0.0)) is FREE


def test_a_promise_that_no_turn_fits_is_refused_with_what_it_takes() -> None:
    parties = {"a": Party(((0.03,),), 0.1, PROMISES[0]), "slow": Party(((0.05,),), 1.0)}
    refused = terms(parties, HOPS).shares["a"].refused
    assert "80 ms" in refused and "30 ms" in refused and "15 ms" in refused and "100 ms" in refused
    assert not terms({"a": parties["a"]}, HOPS).shares["a"].refused


def test_turns_are_shorter_beside_an_app_whose_single_rows_take_longer_than_a_fair_turn() -> None:
    """100 ms in three parts are 33 ms each; beside rows of 50 ms two parts of 25 are left: 21 rows of 4 + b ms."""
    fast = Party((line(0.004, 0.001, 64),), 0.1, PROMISES[0])
    share = terms({"a": fast, "slow": Party(((0.05,),), 1.0)}, Hops(0.0)).shares["a"]
    assert (share.batches, share.refused) == ((21,), "")
    assert terms({"a": fast, "b": Party(((0.03,),), 1.0)}, Hops(0.0)).shares["a"].batches == (29,)


@given(weights=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=5), k=st.integers(1, 60), m=st.integers(0, 20))
def test_the_parts_of_a_promise_keep_the_whole_of_it_however_turns_are_dealt(
    weights: list[float], k: int, m: int
) -> None:
    cycle = dealt(weights)
    assert set(cycle) == set(range(len(weights)))
    promise = Promise(weakly_hard=(WeaklyHard(min(m, k - 1), k),))
    allowed = 0
    for place in range(len(weights)):
        turns = turns_of(cycle, place)
        seen = [sum(t == place for t in (cycle * 62)[i : i + k]) for i in range(len(cycle))]
        assert turns.most(k) == max(seen)
        longest = turns.within(k)
        assert turns.most(longest) <= k < turns.most(longest + 1)
        part = part_of(promise, cycle, place)
        most_here = min([turns.most(k), *(_most_misses(turns.most(k), w.m, w.k) for w in part.weakly_hard)])
        allowed += most_here
    assert allowed <= promise.weakly_hard[0].m


def _most_misses(count: int, m: int, k: int) -> int:
    """Of ``count`` in a row, of which at most m in any k may be missed."""
    whole, rest = divmod(count, k)
    return whole * m + min(rest, m)


def test_a_faster_variant_runs_before_a_miss_is_spent() -> None:
    """More than a batch of the accurate variant holds is due: the faster one holds all of it."""
    world = World(np.random.default_rng(0), {"a": (line(0.008, 0.001, 64), line(0.004, 0.0005, 64))})
    world.host("a", 0.1, PROMISES[0])
    share = world.station.terms.shares["a"]
    assert share.batches[1] > share.batch > 0
    actions: list[StationAction] = []
    for i in range(share.batch + 5):
        query = Query(f"q{i}", "a", BEGAN, BEGAN + 0.1, sequence=i)
        actions += world.station.handle(Arrived(query), BEGAN + 0.01)
    actions += world.station.handle(Finished("a", "a0", 1, 0.03), BEGAN + 0.04)
    assert [action.variant for action in actions if isinstance(action, Run)] == ["a0", "a1"]
    assert not any(isinstance(action, Drop) for action in actions)


def station_at(now: float) -> Station:
    """a: promised, 8 + b ms within 100 ms; z: best effort, on two variants of 10 + b and 5 + b ms; 60 of it wait."""
    station = Station(batching("adaptive"), Hops(0.01))
    fast, slow = line(0.005, 0.001, 64), line(0.010, 0.001, 64)
    each = {"a": [Hosted("a0", 0.9, LatencyCurve(line(0.008, 0.001, 64)))]}
    each["z"] = [Hosted("z0", 0.8, LatencyCurve(slow)), Hosted("z1", 0.7, LatencyCurve(fast))]
    for app, slo, promise in (("a", 0.1, PROMISES[0]), ("z", 0.6, Promise())):
        station.handle(HostingChanged(app, tuple(each[app]), slo, promise, loose=app == "z"), now)
    first = Query("first", "a", now, now + 0.1)
    assert runs(station.handle(Arrived(first), now)) == ["first"]
    for i in range(60):
        loose = Query(f"z{i}", "z", now, now + 0.6, query_class=QueryClass.BEST_EFFORT)
        assert not station.handle(Arrived(loose), now + 0.001)
    return station


def runs(actions: list[StationAction]) -> list[str]:
    return [query.id for action in actions if isinstance(action, Run) for query in action.queries]


@pytest.mark.parametrize("began", [0.0, 1.7e9])
def test_best_effort_runs_before_a_promised_query_that_it_delays_no_more_than_a_batch_under_way(began: float) -> None:
    station = station_at(began)
    blocking = station.terms.blocking_s
    assert not station.handle(Arrived(Query("strict", "a", began + 0.002, began + 0.102)), began + 0.002)
    (run,) = (a for a in station.handle(Finished("a", "a0", 1, 0.009), began + 0.009) if isinstance(a, Run))
    assert run.queries[0].app == "z" and run.variant == "z0"  # the most accurate
    took = line(0.010, 0.001, 64)[run.rows - 1]
    assert began + 0.009 + took <= began + 0.002 + blocking < began + 0.009 + took + 0.0011, (
        "as many as there is time for"
    )
    ended = station.handle(Finished("z", "z0", run.rows, took), began + 0.009 + took)
    assert runs(ended) == ["strict"], "what is left of best effort would take longer than the promise bears"


def test_what_waits_for_an_app_that_is_hosted_no_more_keeps_best_effort_waiting_for_nothing() -> None:
    """b takes turns and has queries here, but no share of the slice any more; it once ended the worker."""
    station = station_at(5.0)
    both = (Hosted("b0", 0.9, LatencyCurve(line(0.003, 0.001, 64))),)
    station.handle(HostingChanged("b", both, 0.35), 5.0)
    station.handle(Arrived(Query("left", "b", 5.001, 5.351)), 5.001)
    station.handle(HostingChanged("b", (), 0.35), 5.002)
    assert "b" not in station.terms.shares and station.queued_of("b") == 1
    station.handle(Arrived(Query("strict", "a", 5.002, 5.102)), 5.002)
    (run,) = (a for a in station.handle(Finished("a", "a0", 1, 0.009), 5.009) if isinstance(a, Run))
    assert run.queries[0].app == "z"


def test_a_full_turn_of_promised_queries_runs_before_best_effort() -> None:
    station = station_at(5.0)
    full = station.terms.shares["a"].batch
    for i in range(full):
        station.handle(Arrived(Query(f"a{i}", "a", 5.002, 5.102)), 5.002)
    assert runs(station.handle(Finished("a", "a0", 1, 0.009), 5.009)) == [f"a{i}" for i in range(full)]


@pytest.mark.parametrize(("beyond", "later", "runs_first"), [(0, 0, "z"), (1, 0, "a"), (1, 20, "z")])
def test_misses_that_a_promise_bears_are_not_spent_on_best_effort(beyond: int, later: int, runs_first: str) -> None:
    """Rows ``beyond`` what a batch takes came in a turn, ``later`` turns ago: best effort waits until it is calm."""
    station = station_at(5.0)
    share = station.terms.shares["a"]
    for i in range(share.batch - 1 + beyond):
        assert not station.handle(Arrived(Query(f"a{i}", "a", 5.002, 5.102, sequence=i + 1)), 5.002)
    now = 5.009
    ended = station.handle(Finished("a", "a0", 1, 0.009), now)
    while (run := next((a for a in ended if isinstance(a, Run)), None)) is not None:
        took = line(0.008 if run.variant == "a0" else 0.010, 0.001, 64)[run.rows - 1]
        now += took
        ended = station.handle(Finished(run.queries[0].app, run.variant, run.rows, took), now)
    assert not station.queued and now < 5.0 + 10 * share.window_s
    now = max(now, 5.003 + later * share.window_s)
    assert runs(station.handle(Arrived(Query("b", "a", now, now + 0.1, sequence=98)), now)) == ["b"]
    for i in range(20):
        loose = Query(f"z{i}", "z", now, now + 0.6, query_class=QueryClass.BEST_EFFORT)
        station.handle(Arrived(loose), now + 0.001)
    station.handle(Arrived(Query("c", "a", now + 0.002, now + 0.102, sequence=99)), now + 0.002)
    (run,) = (a for a in station.handle(Finished("a", "a0", 1, 0.009), now + 0.009) if isinstance(a, Run))
    assert run.queries[0].app == runs_first


def test_a_query_that_waited_through_a_batch_of_its_own_app_is_not_kept_waiting_again() -> None:
    """Two rows more than fit: the rest waits since they all came, which leaves best effort no time."""
    station = station_at(5.0)
    full = station.terms.shares["a"].batch
    for i in range(full + 2):
        station.handle(Arrived(Query(f"a{i}", "a", 5.002, 5.102)), 5.002)
    first = runs(station.handle(Finished("a", "a0", 1, 0.009), 5.009))
    took = line(0.008, 0.001, 64)[len(first) - 1]
    rest = runs(station.handle(Finished("a", "a0", len(first), took), 5.009 + took))
    assert rest == [f"a{full}", f"a{full + 1}"]


def test_without_a_promise_best_effort_waits_until_no_strict_query_does() -> None:
    station = Station(batching("eager"))
    for app in "az":
        curve = LatencyCurve(line(0.008, 0.001, 64))
        station.handle(HostingChanged(app, (Hosted(f"{app}0", 0.9, curve),), 0.1, loose=app == "z"), 5.0)
    station.handle(Arrived(Query("first", "a", 5.0, 5.1)), 5.0)
    station.handle(Arrived(Query("loose", "z", 5.0, 5.6, query_class=QueryClass.BEST_EFFORT)), 5.001)
    station.handle(Arrived(Query("strict", "a", 5.002, 5.102)), 5.002)
    assert runs(station.handle(Finished("a", "a0", 1, 0.009), 5.009)) == ["strict"]
