"""Shares of an app's clients: what is within one's share is let in, what is above is what the others leave."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.policies.admission.fair_shares import _CLIENTS, FILL, FairShares

SERVED = 100.0
T = 5_000.0


def run(shares: FairShares, seconds: float, **qps: float) -> dict[str, float]:
    """Rows a second that each got, in the last half of the time."""
    events = sorted((T + k / rate, name) for name, rate in qps.items() for k in range(round(seconds * rate)))
    got = dict.fromkeys(qps, 0)
    for at, name in events:
        let_in = shares.admit(name, 1, at)
        got[name] += let_in and at >= T + seconds / 2
    return {name: count / (seconds / 2) for name, count in got.items()}


def planned(weights: dict[str, float] | None = None) -> FairShares:
    shares = FairShares(weights)
    shares.plan(SERVED)
    return shares


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
        got["wide"] += 16 * shares.admit("wide", 16, at)
        got["narrow"] += step % 5 == 0 and shares.admit("narrow", 1, at)
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
            assert shares.admit(client, rows, now)
        else:
            shares.admit(client, rows, now)
