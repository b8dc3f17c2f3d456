"""Shares of an app's clients: what is within one's share is let in, what is above is what the others leave."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.domain.events import Hosted, HostedOn
from sluicegate.domain.models.profile import LatencyCurve
from sluicegate.domain.plan import Epoch, Placement, Plan
from sluicegate.policies.admission.fair_shares import _CLIENTS, _LEVELS, FILL, FairShares, Verdict, rows_served

SERVED = 100.0
T = 5_000.0
SLOW = LatencyCurve((0.1, 0.25))


def let_in(shares: FairShares, client: str, rows: int, at: float, priority: int = 0) -> bool:
    return shares.admit(client, rows, at, priority) is Verdict.LET_IN


def run(shares: FairShares, seconds: float, **qps: float) -> dict[str, float]:
    """Rows a second that each got, in the last half of the time."""
    events = sorted((T + k / rate, name) for name, rate in qps.items() for k in range(round(seconds * rate)))
    got = dict.fromkeys(qps, 0)
    for at, name in events:
        got[name] += let_in(shares, name, 1, at) and at >= T + seconds / 2
    return {name: count / (seconds / 2) for name, count in got.items()}


def planned(weights: dict[str, float] | None = None, *, short: bool = False) -> FairShares:
    shares = FairShares(weights)
    shares.plan(SERVED, short=short)
    return shares


def test_a_slice_that_several_apps_share_counts_in_parts() -> None:
    """40 rows a second at the best of its batches, for two apps; and 10 for one alone."""
    shared = HostedOn("d0", "3g.4", (Hosted("a-large", 0.9, LatencyCurve((0.05, 0.05))), Hosted("a-x", 0.8, SLOW)))
    alone = HostedOn("d1", "whole", (Hosted("a-x", 0.8, SLOW),))
    placements = (
        Placement("d0", "a", ("a-large", "a-x"), 0.7, 2, "3g.4"), Placement("d0", "b", ("b0",), 1.0, 1, "3g.4"),
        Placement("d1", "a", ("a-x",), 0.3, 1),
    )  # fmt: skip
    plan = Plan(epoch=Epoch(1, 1), created=T, placements=placements)
    assert rows_served((shared, alone, HostedOn("d2", "whole", ())), plan) == pytest.approx(40.0 / 2 + 10.0)


def test_a_slice_of_several_executors_serves_as_many_times_the_rows() -> None:
    plan = Plan(epoch=Epoch(1, 1), created=T, placements=(Placement("d0", "a", ("a-x",), 1.0, 2),))
    for executors in (1, 2, 3):
        hosted = Hosted("a-x", 0.8, SLOW, executors=executors)
        assert rows_served((HostedOn("d0", "whole", (hosted,)),), plan) == executors * 10.0


def test_who_asks_alone_is_never_limited() -> None:
    assert run(planned(), 4.0, greedy=20 * SERVED) == {"greedy": 20 * SERVED}


def test_without_a_plan_nobody_is_limited() -> None:
    unplanned = FairShares()
    assert run(unplanned, 2.0, greedy=2000.0, nice=5.0) == {"greedy": 2000.0, "nice": 5.0}
    unplanned.plan(0.0)
    assert run(unplanned, 2.0, greedy=2000.0, nice=5.0) == {"greedy": 2000.0, "nice": 5.0}


@pytest.mark.parametrize("nice", [5.0, 20.0, 40.0])
def test_a_flood_costs_another_nothing_below_its_share_and_takes_what_that_leaves(nice: float) -> None:
    got = run(planned(), 6.0, greedy=20 * SERVED, nice=nice)
    assert got["nice"] == nice
    assert got["greedy"] == pytest.approx(FILL * SERVED - 1.5 * nice, abs=0.15 * SERVED) or nice == 40.0
    assert got["greedy"] + got["nice"] <= 1.02 * FILL * SERVED


def test_clients_of_a_front_are_told_apart_and_weigh_what_it_does() -> None:
    shares = planned({"/http": 3.0, "/http/b": 1.0})
    got = run(shares, 6.0, **{"/http/a": 10 * SERVED, "/http/b": 10 * SERVED, "other": 10 * SERVED})
    assert got["/http/a"] == pytest.approx(3 * got["/http/b"], rel=0.2)
    assert got["/http/b"] == pytest.approx(got["other"], rel=0.2)


def test_two_that_flood_share_equally_or_by_weight() -> None:
    got = run(planned(), 6.0, one=10 * SERVED, other=5 * SERVED)
    assert got["one"] == pytest.approx(got["other"], rel=0.1)
    assert sum(got.values()) == pytest.approx(FILL * SERVED, rel=0.05)
    got = run(planned({"one": 3.0}), 6.0, one=10 * SERVED, other=5 * SERVED)
    assert got["one"] == pytest.approx(3 * got["other"], rel=0.1)


def test_nothing_is_refused_while_all_together_ask_for_less_than_is_served() -> None:
    got = run(planned(), 6.0, one=0.5 * SERVED, other=0.2 * SERVED)
    assert got == {"one": 0.5 * SERVED, "other": 0.2 * SERVED}


def test_a_client_of_many_rows_is_counted_by_rows() -> None:
    shares = planned()
    got = {"wide": 0, "narrow": 0}
    for step in range(600):
        at = T + step / 100
        got["wide"] += 16 * let_in(shares, "wide", 16, at)
        got["narrow"] += step % 5 == 0 and let_in(shares, "narrow", 1, at)
    assert got["narrow"] == 120
    assert got["wide"] <= 1.05 * 6 * FILL * SERVED


def test_names_from_outside_cost_no_memory() -> None:
    shares = planned()
    for number in range(5 * _CLIENTS):
        shares.admit(f"made up {number}", 1, T + number / 1e4)
    assert len(shares._clients) <= _CLIENTS + 1
    shares.admit("later", 1, T + 60.0)
    shares.admit("later", 1, T + 60.1)
    assert set(shares._clients) == {"later"}


@pytest.mark.parametrize(("clients", "rows"), [(120, 1), (200, 1), (20, 8), (7, 40)])
def test_many_clients_whose_shares_are_less_than_a_query_get_together_what_is_served(clients: int, rows: int) -> None:
    shares = planned()
    step = 1.0 / (3 * SERVED / rows)  # three times what is served
    got = [0] * clients
    for k in range(round(6.0 / step)):
        at = T + k * step
        got[k % clients] += let_in(shares, f"client {k % clients}", rows, at) and at >= T + 2.0
    assert rows * sum(got) / 4.0 <= 1.1 * FILL * SERVED
    assert rows * sum(got) / 4.0 >= 0.9 * FILL * SERVED - rows


def test_nothing_is_refused_to_many_who_ask_together_for_less_than_is_served() -> None:
    shares = planned()
    for k in range(600):
        assert let_in(shares, f"client {k % 80}", 1, T + k / (0.8 * SERVED * FILL))


def test_who_has_a_new_name_for_each_query_leaves_their_shares_to_those_who_keep_theirs() -> None:
    shares = planned()
    got = {"nice": 0, "flood": 0}
    for k in range(12_000):
        at = T + k / 2000
        flood = let_in(shares, f"made up {k}", 1, at) if at >= T + 1.5 else False
        nice = let_in(shares, "nice", 1, at) if k % 200 == 0 else False
        if at >= T + 2.0:
            got["nice"] += nice
            got["flood"] += flood
    assert got["nice"] == 40  # all that it asked for
    assert got["flood"] / 4.0 <= FILL * SERVED


def test_names_beyond_those_that_are_told_apart_cost_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = planned()
    for number in range(_CLIENTS + 1):
        shares.admit(f"client {number}", 1, T)
    looks = []
    reckon = FairShares._reckon
    monkeypatch.setattr(FairShares, "_reckon", lambda self, now: looks.append(now) or reckon(self, now))
    for number in range(1000):
        shares.admit(f"made up {number}", 1, T + number / 1e5)
    assert not looks


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 8), st.floats(0.0, 0.05)), max_size=200),
    st.floats(1.0, 500.0),
)
def test_who_stays_within_an_equal_share_of_all_that_may_ask_is_let_in(
    asked: list[tuple[str, int, float]], served: float
) -> None:
    shares = FairShares()
    shares.plan(served)
    now, used = T, dict.fromkeys("abc", 0)
    for client, rows, wait in asked:
        now += wait
        used[client] += rows
        if used[client] <= FILL * served / 3:  # in all, so in any window
            assert let_in(shares, client, rows, now)
        else:
            shares.admit(client, rows, now)


def by_priority(shares: FairShares, seconds: float, **asked: dict[int, float]) -> dict[tuple[str, int], float]:
    """Rows a second that each client got with each priority, in the last half of the time."""
    rates = {(name, priority): qps for name, by in asked.items() for priority, qps in by.items()}
    events = sorted((T + k / qps, one) for one, qps in rates.items() for k in range(round(seconds * qps)))
    got = dict.fromkeys(rates, 0)
    for at, (name, priority) in events:
        got[name, priority] += let_in(shares, name, 1, at, priority) and at >= T + seconds / 2
    return {one: count / (seconds / 2) for one, count in got.items()}


def test_of_what_one_client_asks_the_higher_priority_goes_first() -> None:
    got = by_priority(planned(short=True), 6.0, only={0: 5 * SERVED, 3: 0.4 * SERVED, 7: 0.2 * SERVED})
    assert got["only", 7] == 0.2 * SERVED
    assert got["only", 3] == 0.4 * SERVED
    assert got["only", 0] == pytest.approx(0.4 * SERVED, rel=0.1)
    got = by_priority(planned(short=True), 6.0, only={0: 5 * SERVED, 1: 0.9 * SERVED, 2: 0.5 * SERVED})
    assert got["only", 2] == 0.5 * SERVED
    assert got["only", 1] == pytest.approx(0.5 * SERVED, rel=0.1)
    assert got["only", 0] <= 0.05 * SERVED


def test_a_priority_costs_nothing_where_there_is_room_for_all() -> None:
    for short, low in ((True, 0.3), (False, 20.0)):
        got = by_priority(planned(short=short), 6.0, only={0: low * SERVED, 9: 0.2 * SERVED})
        assert got == {("only", 0): low * SERVED, ("only", 9): 0.2 * SERVED}


def test_what_is_refused_is_demand_but_of_a_flood() -> None:
    def verdicts(**qps: float) -> dict[str, set[Verdict]]:
        shares, found = planned(), {name: set[Verdict]() for name in qps}
        for at, name in sorted((T + k / rate, name) for name, rate in qps.items() for k in range(round(4 * rate))):
            found[name].add(shares.admit(name, 1, at)) if at > T + 2.0 else shares.admit(name, 1, at)
        return found

    alike = verdicts(one=3 * SERVED, other=3.1 * SERVED, third=3 * SERVED)
    assert all(Verdict.FLOOD not in found and Verdict.REFUSED in found for found in alike.values())
    two = verdicts(one=3 * SERVED, other=3 * SERVED)
    assert all(Verdict.FLOOD not in found and Verdict.REFUSED in found for found in two.values())
    flood = verdicts(greedy=20 * SERVED, nice=0.2 * SERVED)
    assert flood["greedy"] == {Verdict.FLOOD, Verdict.LET_IN} and flood["nice"] == {Verdict.LET_IN}


@pytest.mark.parametrize("priority", [0, 2**31 - 1])
def test_a_priority_takes_nothing_from_another_client(priority: int) -> None:
    got = by_priority(planned(), 6.0, greedy={priority: 10 * SERVED, 1: 10 * SERVED}, nice={0: 0.2 * SERVED})
    assert got["nice", 0] == 0.2 * SERVED
    flooded = by_priority(planned(), 6.0, greedy={priority: 10 * SERVED}, other={0: 10 * SERVED})
    assert flooded["greedy", priority] == pytest.approx(flooded["other", 0], rel=0.1)


def test_priorities_from_outside_cost_no_memory_and_are_forgotten() -> None:
    shares = planned()
    for number in range(1000):
        shares.admit("one", 1, T + number / 1e4, number)
    (client,) = shares._clients.values()
    assert len(client.levels) == _LEVELS
    shares.admit("one", 1, T + 0.95, 5)
    shares.admit("one", 1, T + 1.5, 5)
    assert {priority: asked for priority, (asked, _) in client.levels.items()} == {5: 2}


def test_a_priority_that_has_had_the_share_of_its_client_keeps_nothing_from_lower_ones() -> None:
    """170 rows a window, 85 each, of which the other needs two and a half: above its share 82.5 are left."""
    shares = FairShares()
    shares.plan(170.0 / FILL)
    assert let_in(shares, "/other", 1, T)
    assert all(let_in(shares, "/mine", 1, T, priority=5) for _ in range(85))
    assert let_in(shares, "/mine", 81, T + 0.03, priority=5)
    assert let_in(shares, "/mine", 1, T + 0.03), "one and a half are left"
    assert not let_in(shares, "/mine", 1, T + 0.03)


def test_a_lower_priority_leaves_room_in_the_share_for_half_as_much_again_as_higher_ones_asked_for() -> None:
    """Of a share of 20 seven are expected after four, and all of it after 14; the other takes what is not expected."""
    for asked, beyond, low in ((4, 13, 13), (14, 0, 0)):
        shares = FairShares()
        shares.plan(40.0 / FILL)
        assert all(let_in(shares, "/other", 1, T) for _ in range(20))
        assert all(let_in(shares, "/mine", 1, T, priority=5) for _ in range(asked))
        assert sum(let_in(shares, "/other", 1, T + 0.03) for _ in range(20)) == beyond
        assert sum(let_in(shares, "/mine", 1, T + 0.03) for _ in range(20)) == low


def test_one_client_alone_whose_app_falls_short_has_a_third_of_a_second_for_lower_priorities() -> None:
    """64 rows a second: 19.2 at once, and a tenth of a second of what higher ones ask for is left to these."""
    for asked, low in ((1, 19), (11, 18)):
        shares = FairShares()
        shares.plan(64.0, short=True)
        assert all(let_in(shares, "/mine", 1, T, priority=5) for _ in range(asked))
        assert sum(let_in(shares, "/mine", 1, T) for _ in range(30)) == low
        assert all(let_in(shares, "/mine", 1, T, priority=5) for _ in range(40)), "the highest always goes"
        assert not let_in(shares, "/mine", 1, T + 0.25)
        assert let_in(shares, "/mine", 1, T + 0.5)


def test_a_plan_that_serves_in_full_or_serves_nothing_limits_no_priority_of_one_alone() -> None:
    for qps, short in ((64.0, False), (0.0, True)):
        shares = FairShares()
        shares.plan(qps, short=short)
        assert all(let_in(shares, "/mine", 1, T, priority=number % 3) for number in range(200))


@pytest.mark.parametrize(("others", "verdict"), [(11, Verdict.FLOOD), (12, Verdict.REFUSED)])
def test_the_first_query_of_a_client_is_a_flood_by_what_others_ask(others: int, verdict: Verdict) -> None:
    """Twice of that: what it asks itself is not taken from theirs."""
    shares = planned()
    for k in range(others):
        shares.admit("nice", 1, T + k / 1000)
    shares.plan(0.5)  # hardly anything is served: what is asked above it is refused
    shares.admit("nice", 0, T + 0.5)  # all that was asked so far has been looked at
    assert shares.admit("wide", 24, T + 0.501) is verdict
