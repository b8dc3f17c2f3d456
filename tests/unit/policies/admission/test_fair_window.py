"""Shares of a window: what a flood leaves to others, by who asks, by stream, by place; and that nothing is wasted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.policies.admission.fair_window import FairWindow
from sluicegate.policies.promises.window_limiter import Place, PlaceLimit, WindowLimiter

WINDOW_S = 0.048
LIMIT = PlaceLimit(40, ((2, 10),))
"""50 queries of one row a window, 1,042 a second."""
RATE = 50 / WINDOW_S
BEGIN = 1700.3
SECONDS, SETTLED = 9.0, 3.0
Names = Callable[[int], str]


def always(name: str) -> Names:
    return lambda _number: name


SOMEBODY, APP = always("/s"), always("app")


@dataclass(frozen=True, slots=True)
class Asks:
    """``rate`` queries a second, in groups of ``at_once``, from ``since`` on; ``source`` and ``stream`` by number."""

    rate: float
    source: Names = SOMEBODY
    stream: Names = APP
    rows: int = 1
    at_once: int = 1
    since: float = 0.0
    place: Place | None = None


def let_in(fair: FairWindow, clients: Mapping[str, Asks]) -> dict[str, float]:
    """Part of what each asks that is let in, once all are known."""
    random = np.random.default_rng(11)
    arrivals: list[tuple[float, int, str]] = []
    for name, asks in clients.items():
        gaps = random.exponential(asks.at_once / asks.rate, int(1.5 * SECONDS * asks.rate / asks.at_once) + 9)
        times = BEGIN + asks.since + np.cumsum(gaps)
        arrivals += [(t, i, name) for t in times[times < BEGIN + SECONDS].tolist() for i in range(asks.at_once)]
    asked, had = dict.fromkeys(clients, 0), dict.fromkeys(clients, 0)
    for number, (now, _, name) in enumerate(sorted(arrivals)):
        asks = clients[name]
        fits = fair.admit(asks.source(number), asks.stream(number), now, asks.rows, asks.place)
        if now >= BEGIN + SETTLED:
            asked[name] += 1
            had[name] += fits
    return {name: had[name] / asked[name] for name in clients}


def window(limits: tuple[PlaceLimit, ...] = (LIMIT,), weights: Mapping[str, float] | None = None) -> FairWindow:
    return FairWindow(WindowLimiter(limits, WINDOW_S), weights)


def each_new(number: int) -> str:
    return f"/new/{number}"


FLOODS = {
    "another source": Asks(0, always("/flood")),
    "another stream": Asks(0, stream=always("flood")),
    "another source and stream": Asks(0, always("/flood"), always("flood")),
    "a new source each time": Asks(0, each_new),
    "a new stream each time": Asks(0, stream=each_new),
    "both new each time": Asks(0, each_new, each_new),
    "two rows": Asks(0, always("/flood"), rows=2),
    "all at once": Asks(0, always("/flood"), at_once=60),
}


@pytest.mark.parametrize("rate", [700.0, 5 * RATE])
@pytest.mark.parametrize("flood", list(FLOODS))
def test_a_flood_takes_hardly_anything_of_who_asks_little(flood: str, rate: float) -> None:
    asks = FLOODS[flood]
    flooding = Asks(rate, asks.source, asks.stream, asks.rows, asks.at_once, since=1.5)
    one = Asks(3.0, always("/one"), always("one") if asks.stream(0) != "app" else always("app"))
    if asks.source(0) == "/s":
        one = Asks(3.0, always("/s"), one.stream)
    found = let_in(window(), {"one": one, "flood": flooding})
    assert found["one"] >= 0.9, found
    assert found["flood"] * rate >= 0.4 * min(rate, RATE), "what is left over is let in"


def test_a_flood_takes_little_of_a_hundred_who_ask_little_together() -> None:
    many = {f"{i}": Asks(3.0, always(f"/{i}"), always(f"{i}")) for i in range(100)}
    found = let_in(window(), {**many, "flood": Asks(3000.0, always("/flood"), always("flood"), since=1.5)})
    assert np.mean([found[name] for name in many]) >= 0.95
    assert found["flood"] * 3000.0 >= 0.4 * RATE


def test_two_who_ask_for_more_than_there_is_share_by_their_weights() -> None:
    greedy = {"a": Asks(2 * RATE, always("/a")), "b": Asks(3 * RATE, always("/b"))}
    found = let_in(window(), greedy)
    assert found["a"] * 2 == pytest.approx(found["b"] * 3, rel=0.1)
    assert found["a"] * 2 + found["b"] * 3 >= 0.9
    found = let_in(window(weights={"/b": 3.0}), greedy)
    assert found["a"] * 2 == pytest.approx(1 / 4, abs=0.05)
    assert found["b"] * 3 == pytest.approx(3 / 4, abs=0.05)


def test_one_alone_has_all_of_it() -> None:
    fair = window()
    assert sum(fair.admit("/s", "app", BEGIN + 1e-4 * i) for i in range(80)) == 50
    assert let_in(window(), {"a": Asks(4 * RATE)})["a"] * 4 >= 0.95


def test_a_flood_of_one_place_leaves_another_alone_and_what_is_there_too() -> None:
    """A place of 40 rows, one of 10. Streams that are told apart go to one of them, the app's own to both."""
    here, there = ("gpu", "0"), ("cpu", "0")
    limits = (PlaceLimit(40, (), here), PlaceLimit(10, (), there))
    names = {"here": here, "there": there}
    few = {name: Asks(5.0, stream=always(name), place=place) for name, place in names.items()}
    flood = Asks(5000.0, stream=always("flood"), place=there, since=1.5)
    found = let_in(window(limits), {**few, "flood": flood, "busy": Asks(400.0, stream=always("busy"), place=here)})
    assert found["here"] >= 0.95 and found["there"] >= 0.9 and found["busy"] >= 0.97, found
    assert 0.3 * 10 / WINDOW_S <= found["flood"] * 5000.0 <= 10 / WINDOW_S


def test_what_a_flood_of_the_own_stream_is_expected_to_ask_for_is_not_kept_free_from_itself() -> None:
    """A stream of one place asks for one query a window, hardly ever for six: the rest is for the flood."""
    here, there = ("gpu", "0"), ("cpu", "0")
    limits = (PlaceLimit(40, (), here), PlaceLimit(40, (), there))
    few = Asks(20.0, stream=always("few"), place=here)
    found = let_in(window(limits), {"few": few, "flood": Asks(5000.0, since=1.5)})
    assert found["few"] >= 0.95, found
    assert 30 <= found["flood"] * 5000.0 * WINDOW_S <= 40, found


def test_what_fits_nowhere_is_refused_and_costs_nobody() -> None:
    wide = Asks(500.0, always("/wide"), rows=51)
    assert let_in(window(), {"wide": wide, "one": Asks(0.9 * RATE, always("/one"))}) == pytest.approx(
        let_in(window(), {"one": Asks(0.9 * RATE, always("/one"))}) | {"wide": 0.0}, abs=0.02
    )


def test_other_limits_count_what_was_let_in() -> None:
    fair = window()
    assert sum(fair.admit("/s", "app", BEGIN) for _ in range(30)) == 30
    fair.resize((PlaceLimit(32),), WINDOW_S)
    assert sum(fair.admit("/s", "app", BEGIN + 0.01) for _ in range(30)) == 2
    assert sum(fair.admit("/s", "app", BEGIN + WINDOW_S + 0.005) for _ in range(40)) == 30


@settings(max_examples=60, deadline=None)
@given(
    arrivals=st.lists(
        st.tuples(
            st.sampled_from((0.0, 0.002, 0.02, 0.06, 0.9, 6.0)), st.sampled_from("abcd"), st.sampled_from("xyz"),
            st.integers(1, 3), st.sampled_from((None, ("d", "0"), ("e", "1"))),
        ),
        max_size=120,
    ),
    limits=st.lists(st.integers(0, 8), min_size=2, max_size=2),
)  # fmt: skip
def test_no_window_holds_more_than_its_places_bear(
    arrivals: list[tuple[float, str, str, int, Place | None]], limits: list[int]
) -> None:
    """What the limiter alone would refuse is refused, and whoever is alone has what the limiter alone lets in."""
    places = tuple(PlaceLimit(n, (), place) for n, place in zip(limits, (("d", "0"), ("e", "1")), strict=True))
    fair, alone, limiter = window(places), window(places), WindowLimiter(places, WINDOW_S)
    taken: list[tuple[float, int, Place | None]] = []
    now = BEGIN
    for gap, source, stream, rows, place in arrivals:
        now += gap
        if fair.admit(source, stream, now, rows, place):
            taken.append((now, rows, place))
        assert alone.admit("", "", now, rows, None) == limiter.admit(now, rows, None)
    for start, _, _ in taken:
        for place, most in zip((("d", "0"), ("e", "1")), limits, strict=True):
            rows_in = sum(r for at, r, p in taken if start <= at < start + WINDOW_S - 1e-9 and p in (None, place))
            assert rows_in <= most
