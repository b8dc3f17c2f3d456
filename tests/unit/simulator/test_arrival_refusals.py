"""Arrival lists and generated waves: what cannot be is refused by the name of the field, and what can is as it says."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sluicegate.domain.errors import InvalidInputError
from sluicegate.simulator.arrivals import ListedArrivals, Rates, diurnal, read_arrivals

LISTED = ListedArrivals({"a": np.array([0.25, 1.5]), "b": np.array([2.0])})


def wave(**changes: float) -> object:
    return diurnal(np.random.default_rng(0), **{"duration": 10.0, "low": 1.0, "high": 2.0, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (lambda: ListedArrivals({}), "trace"),
        (lambda: LISTED.faster(0.0), "speed"),
        (lambda: LISTED.faster(float("inf")), "speed"),
        (lambda: LISTED.lasting(0.0), "duration"),
        (lambda: LISTED.lasting(float("inf")), "duration"),
        (lambda: LISTED.lasting(1e9, repeat=True), "duration"),
        (lambda: LISTED.scaled(0.0, np.random.default_rng(0)), "scale"),
        (lambda: LISTED.scaled(1e9, np.random.default_rng(0)), "scale"),
        (lambda: wave(duration=0.5), "duration"),
        (lambda: wave(low=3.0), "qps"),
        (lambda: wave(noise=3.0), "generator"),
        (lambda: wave(spike_factor=0.5), "generator"),
        (lambda: wave(period=0.0), "period"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(asked: Callable[[], object], field: str) -> None:
    with pytest.raises(InvalidInputError, match=field):
        asked()


@pytest.mark.parametrize("high", [0.5, 1e10])
def test_a_range_that_is_none_is_refused_with_how_far_one_may_go(high: float) -> None:
    for asked in (lambda: wave(high=high), lambda: Rates.stepped([1.0, 2.0]).within(1.0, high)):
        with pytest.raises(InvalidInputError, match=re.escape(f"[1, {high:g}] is no range") + r".* <= 1e\+09$"):
            asked()


def test_a_list_that_is_faster_or_goes_on_keeps_its_gaps() -> None:
    quick = LISTED.faster(2.0)
    assert (quick.times["a"].tolist(), quick.times["b"].tolist(), quick.duration) == ([0.125, 0.75], [1.0], 1.0)
    cut, again = LISTED.lasting(1.6), LISTED.lasting(3.0, repeat=True)
    assert (cut.times["a"].tolist(), cut.times["b"].tolist(), cut.duration) == ([0.25, 1.5], [], 1.6)
    assert (again.times["a"].tolist(), again.times["b"].tolist()) == ([0.25, 1.5, 2.25], [2.0])
    assert LISTED.lasting(9.0).duration == 2.0


def test_a_file_has_a_header_or_none_blank_lines_and_one_app_by_any_name(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("arrival_ms,qos\n2000,1\n\n500,1\n")
    assert read_arrivals(tmp_path / "notes.txt", ["other"]).times["other"].tolist() == [0.5, 2.0]
    assert read_arrivals(tmp_path / "notes.txt").apps == ("notes",)
    for text in ("500\nnever\n", "-1\n", "nan\n", "inf\n", "1e13\n"):
        (tmp_path / "notes.txt").write_text(text)
        with pytest.raises(InvalidInputError, match=r"notes\.txt line"):
            read_arrivals(tmp_path)


def test_times_since_1970_are_refused_and_the_longest_trace_is_not(tmp_path: Path) -> None:
    listed = tmp_path / "notes.txt"
    listed.write_text("99999999999\n")
    assert read_arrivals(listed).times["notes"].tolist() == [99_999_999.999]
    for since_1970 in ("100000000000", "1700000000000.5,1"):
        listed.write_text(f"0\n{since_1970}\n")
        with pytest.raises(InvalidInputError, match=r"notes\.txt line 2 is .*count milliseconds from where"):
            read_arrivals(listed)


@pytest.mark.parametrize("text", ["", "arrival_ms\n\n"])
def test_lists_without_any_arrival_are_refused_and_one_of_several_may_be_empty(text: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text(text)
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(InvalidInputError, match=r"holds no arrival; give 'arrival_ms,\.\.\.' lines$"):
            read_arrivals(path)
    (tmp_path / "other.txt").write_text("500\n")
    assert {app: times.tolist() for app, times in read_arrivals(tmp_path).times.items()} == {
        "notes": [],
        "other": [0.5],
    }


def test_an_app_is_named_by_its_file_without_the_suffix_and_has_one(tmp_path: Path) -> None:
    for year in (2024, 2025):
        (tmp_path / f"a.{year}.txt").write_text("500\n" * (year - 2023))
    assert {app: times.size for app, times in read_arrivals(tmp_path).times.items()} == {"a.2024": 1, "a.2025": 2}
    assert read_arrivals(tmp_path / "a.2024.txt").apps == ("a.2024",)
    (tmp_path / "a.2024.csv.bz2").write_bytes(b"")
    with pytest.raises(InvalidInputError, match=r"a\.2024\.csv\.bz2 and a\.2024\.txt are both of app 'a\.2024'"):
        read_arrivals(tmp_path, ["a.2025"])


def test_a_place_without_lists_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="holds no arrival list"):
        read_arrivals(tmp_path)
    with pytest.raises(InvalidInputError, match="does not exist"):
        read_arrivals(tmp_path / "none")


@pytest.mark.parametrize(("speed", "first", "duration"), [(0.5, 0.5, 4.0), (1.0, 0.25, 2.0), (4.0, 0.0625, 0.5)])
def test_arrivals_are_played_slower_and_faster(speed: float, first: float, duration: float) -> None:
    played = LISTED.faster(speed)
    assert (played.times["a"][0], played.duration, played.apps) == (first, duration, ("a", "b"))


@pytest.mark.parametrize("speed", [0.0, -1.0, float("inf"), float("nan")])
def test_a_speed_that_is_none_is_refused(speed: float) -> None:
    with pytest.raises(InvalidInputError, match="speed"):
        LISTED.faster(speed)
